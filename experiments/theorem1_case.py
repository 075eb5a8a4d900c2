"""The figures of the study of Theorem 1: one setting per λ, its tables and the picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator
from torch import Tensor

import flare
from tools.document import table

from .lab import Job
from .theorem1_bound import DELTA, Constants

RATE = -0.5  # of the bound, in log-log


class Setting:
    """The figures of one setting."""

    def __init__(self, job: Job) -> None:
        found = job.found()
        self.ridge, self.sizes, self.config = job.config["ridge"], job.config["sizes"], job.config
        self.name = f"λ = {self.ridge:g}" if self.ridge else "λ → 0"
        self.signed: Tensor = found["errors"]
        self.errors = self.signed.abs()
        self.medians = self.errors.quantile(0.5, dim=1).tolist()
        self.layer, self.layer_error = found["last_layer"], abs(found["last_error"])
        self.rows, self.parameters = found["rows"], found["parameters"]
        self.rows_of_data, self.per_step = found["rows_of_data"], found["per_step"]
        self.determined = found["determined"]  # parameters, at each size and over all
        self.step_errors: Tensor = found["step_errors"].abs()
        self._constants = found.get("constants")

    @property
    def slope(self) -> float:
        """The slope of the median error against m, in log-log."""
        x, y = ([math.log(v) for v in values] for values in (self.sizes, self.medians))
        return statistics.linear_regression(x, y).slope

    @property
    def near(self) -> float:
        """The median error at the size closest to the last layer's."""
        return min(zip(self.sizes, self.medians, strict=True), key=lambda pair: abs(pair[0] - self.layer))[1]

    @property
    def quantiles(self) -> list[float]:
        """The error that 1 − δ of the subsets stay below, at each size."""
        return self.errors.quantile(1 - DELTA, dim=1).tolist()

    @property
    def constants(self) -> Constants:
        """Those of the theorem; it has none with λ."""
        return Constants(**self._constants)

    def within(self) -> tuple[float, float]:
        """The share of all subsets and steps whose error is within the bound, as printed and with 1/γ."""
        given = self.constants
        bounds = [
            torch.tensor([[bound(m, gamma) for gamma in given.alignments] for m in self.sizes])
            for bound in (given.printed, given.corrected)
        ]
        printed, corrected = (float((self.step_errors <= b[:, None]).double().mean()) for b in bounds)
        return printed, corrected

    @property
    def informative(self) -> list[int]:
        """The sizes at which one of the bounds is below 1."""
        given = self.constants
        return [m for m in self.sizes if min(given.printed(m), given.corrected(m)) < 1]

    def traces(self) -> list[float]:
        """tr Ṽ of a step, the mean at each size, and tr V."""
        return [*(self.per_step * (1 + self.signed.mean(1))).tolist(), self.per_step]

    def table(self) -> str:
        """Errors by size."""
        rows = [
            [f"random, {m:,}", *(f"{v:.3g}" for v in (found.mean(), found.quantile(0.5), found.max()))]
            for m, found in zip(self.sizes, self.errors, strict=True)
        ]
        rows.append([f"last layer, {self.layer:,}", *[f"{self.layer_error:.3g}"] * 3])
        return table(["subset, m", "mean error", "median", "largest"], rows)

    def bound_table(self) -> str:
        """The error beside the bounds, by size."""
        given = self.constants
        rows = [
            [f"{m:,}", f"{error:.3g}", f"{given.printed(m):.3g}", f"{given.corrected(m):.3g}"]
            for m, error in zip(self.sizes, self.quantiles, strict=True)
        ]
        return table(["m", f"error, {1 - DELTA:.0%} quantile", "bound, as printed", "bound with 1/γ"], rows)


def figure(found: Sequence[Setting], path: Path) -> None:
    """Error against m in log-log, with the rate of the bound and the last layer."""
    blue, grey, orange = flare.plot.KEPT, flare.plot.ALL, flare.plot.COLORS(1.0)
    fig, axes = plt.subplots(1, len(found), figsize=(7, 3.4), layout="constrained")
    for ax, setting in zip(axes, found, strict=True):
        m = torch.tensor(setting.sizes, dtype=torch.float64)
        low, high = setting.errors.min(1).values, setting.errors.max(1).values
        ax.fill_between(m, low, high, alpha=0.25, lw=0, color=blue, label="all subsets")
        ax.plot(m, setting.medians, "o-", ms=4, color=blue, label=f"median, slope {setting.slope:.2f}")
        guide = setting.medians[0] * (m / m[0]) ** RATE
        ax.plot(m, guide, "--", color=grey, label="slope −0.50, the bound's")
        ax.plot(setting.layer, setting.layer_error, "*", ms=11, color=orange, label="last layer")
        ax.set(xscale="log", yscale="log", title=setting.name, xlabel="parameters in the subset, m")
        ax.set_xticks(setting.sizes, labels=[f"{size:,}" for size in setting.sizes], rotation=45)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if low.min() > 0.1 else (1, 3)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        ax.legend(fontsize=9, frameon=False, loc="lower left")
    axes[0].set_ylabel("relative error of the trace")
    fig.savefig(path, dpi=150)
    plt.close(fig)


def constants_table(constants: Sequence[Constants]) -> str:
    """κ, μ, γ and the bound at m = p by the rows of J_pop."""
    header = ["n·d", "κ", "μ", "γ", "bound at m = p, as printed", "with 1/γ", "m for a bound of 1 with 1/γ"]
    rows = []
    for c in constants:
        values = (c.condition, c.coherence, c.alignment, c.printed(c.parameters), c.corrected(c.parameters))
        rows.append([f"{c.rows:,}", *(f"{v:.3g}" for v in values), f"{c.needed:,.0f}"])
    return table(header, rows)

"""The figures of the cross-term study: one case per data set and posterior, their tables and the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from scipy import stats
from torch import Tensor

import flare
from tools.document import table

from .lab import Found, Job

SETTINGS = {"calibrated": "s = N/σ², δ by marginal likelihood", "paper": "s = 1, δ = 1e-6"}
SUBSET = 800
FEW = 20
THRESHOLDS = (0.005, 0.01)  # % of the score
# as printed: mean, sd, max, SE in %; t and p for the two thresholds
PAPER = {
    "sines": ((0.00338, 0.00440, 0.02220, 0.00049), ((-3.29, 0.9993), (-13.45, 1.0))),
    "chirp": ((0.00495, 0.00610, 0.02840, 0.00068), ((-0.10, 0.539), (-7.43, 1.0))),
}
PAPER_DF = 79
TERMS = ("cross", "without", "own", "full_cross", "full_rest", "full_own", "rerun")
SHARE = 0.999


@dataclass(frozen=True)
class Case:
    """The figures of one data set and posterior."""

    name: str
    setting: str
    config: Any
    found: Found

    @property
    def uncertain(self) -> int:
        """How many parameters are uncertain."""
        return int(self.config.get("subset", SUBSET) or self.found["parameters"])

    @property
    def title(self) -> str:
        """The data set, and how many parameters are uncertain if more than usual."""
        return self.name if self.uncertain == SUBSET else f"{self.name}, {self.uncertain:,} parameters"

    @property
    def label(self) -> list[str]:
        """How a row of a table begins."""
        return [self.title, SETTINGS[self.setting]]

    def change(self, n: int | None = None) -> Tensor:
        """The score with the paper's cross term over that without, less 1, in %: (n,)."""
        return 100 * (self.found["with_cross"] / self.found["without"] - 1)[:n]

    def ratio(self, above: str, below: str = "tangent") -> float:
        """The median over the trajectories of one result over another."""
        return float((self.found[above] / self.found[below]).quantile(0.5))

    def term(self, name: str) -> Tensor:
        """A term at each step, (steps, n)."""
        return self.found["terms"][TERMS.index(name)]

    def at(self, name: str, step: int) -> float:
        """A term at one step, the median over the trajectories."""
        return float(self.term(name)[step].quantile(0.5))

    def steps(self, above: str, below: str) -> Tensor:
        """|one term| over another at each step, the median over the trajectories: (steps,).

        NaN where nothing has moved, or everything is clipped.
        """
        ratio = (self.term(above).abs() / self.term(below)).quantile(0.5, dim=1)
        return ratio.where(ratio > 0, torch.nan)

    def typical(self, above: str, below: str) -> float:
        """`steps` at the median step."""
        return float(self.steps(above, below).nanmedian())

    def weights(self) -> Tensor:
        """The share of each step in the paper's score, the mean over the trajectories: (steps,)."""
        carried = self.found["carried"][:, None] * self.term("own")
        return (carried / carried.sum(0)).mean(1)

    @property
    def first_share(self) -> str:
        """The share of the first step in the paper's score."""
        return f"{100 * self.weights()[0]:.3f}%"

    @property
    def holding(self) -> int:
        """How many steps hold nearly all of the paper's score."""
        return int((self.weights().cumsum(0) < SHARE).sum()) + 1

    @property
    def cancelled(self) -> float:
        """The share of all b²·Var(δε) that the cross terms take away again."""
        return 1 - self.ratio("tangent", "own")


def cases(jobs: Sequence[Job]) -> list[Case]:
    """The results, one per job that measures."""
    return [
        Case(job.config["name"], job.config["setting"], job.config, job.found())
        for job in jobs
        if "setting" in job.config
    ]


def below(values: Tensor, threshold: float) -> float:
    """The p-value for the mean to lie below the threshold: the lower tail."""
    return float(stats.ttest_1samp(values.numpy(), threshold, alternative="less").pvalue)


def shown(p: float) -> str:
    """A p-value."""
    return f"{p:.2g}" if p > 1e-16 else "< 1e-16"


def printed_p(t: float) -> float:
    """The lower tail of a t that the paper prints."""
    return float(stats.t.cdf(t, PAPER_DF))


def effect_table(found: Sequence[Case]) -> str:
    """The paper's two tables in one, and ours: the size of the change, and the tests on the right side."""
    rows = []
    for name, (size, tests) in PAPER.items():
        rows.append([name, "(paper)", str(PAPER_DF + 1), *(f"{v:.3g}" for v in size)])
        rows[-1] += [f"{shown(printed_p(t))} (printed: {p:.4g})" for t, p in tests] + ["–"] * len(tests)
    for case in found:
        for n in sorted({min(FEW, case.config["n"]), case.config["n"]}):
            change = case.change(n)
            sd = float(change.std())
            size = (float(change.mean()), sd, float(change.abs().max()), sd / math.sqrt(n))
            tests = [below(v, tau) for v in (change, change.abs()) for tau in THRESHOLDS]
            rows.append([*case.label, str(n), *(f"{v:.3g}" for v in size), *map(shown, tests)])
    header = ["data", "posterior", "n", "mean %", "sd %", "largest %", "SE %"]
    header += [
        f"p, {what} < {tau}%" for what in ("mean", "mean of the absolute change") for tau in THRESHOLDS
    ]
    return table(header, rows)


def inflation_table(found: Sequence[Case]) -> str:
    """How large the paper's score is, and which steps it comes from."""
    header = [
        "data", "posterior", "u / first-order variance", "u with the cross term / first-order",
        "reruns / first-order", "share of the first step in u", f"steps that hold {SHARE:.1%} of u",
    ]  # fmt: skip
    rows = []
    for case in found:
        rows.append([*case.label, *(f"{case.ratio(key):.3g}" for key in ("without", "with_cross", "rerun"))])
        rows[-1] += [case.first_share, f"{case.holding} of {len(case.found['times'])}"]
    return table(header, rows)


def parts_table(found: Sequence[Case]) -> str:
    """What the first-order variance is made of, carried to the end and step by step."""
    header = [
        "data", "posterior", "all b²·Var(δε) / first-order variance",
        "all cross terms / first-order variance", "share of the b² terms cancelled",
        "cross / b²·Var(δε)", "cross / (a²·Var(x) + b²·Var(δε))", "the same, largest step",
        "as printed: cross / b²·JΣJᵀ",
    ]  # fmt: skip
    rows = []
    for case in found:
        rows.append([*case.label, *(f"{case.ratio(key):.3g}" for key in ("own", "cross"))])
        rows[-1] += [f"{100 * case.cancelled:.4f}%"]
        rows[-1] += [f"{case.typical('full_cross', key):.3g}" for key in ("full_own", "full_rest")]
        rows[-1] += [f"{case.steps('full_cross', 'full_rest').nan_to_num().max():.2g}"]
        rows[-1] += [f"{case.typical('cross', 'own'):.3g}"]
    return table(header, rows)


def figure(found: Sequence[Case], path: Path) -> None:
    """The cross term at each step, relative to what it could be compared with."""
    colors = flare.plot.COLORS
    curves = (
        ("cross", "without", "as printed / the recursion so far", flare.plot.ALL, "--", 2),
        ("cross", "own", "as printed / the step's b²·JΣJᵀ", colors(0.0), "--", 3),
        ("full_cross", "full_rest", "with ∂f/∂x / (a²·Var(x) + b²·Var(δε))", colors(1.0), "-", 2),
        ("full_cross", "full_own", "with ∂f/∂x / the step's b²·Var(δε)", colors(0.6), "-", 2),
    )
    fig, axes = plt.subplots(
        1, len(found), figsize=(1 + 2.7 * len(found), 3.6), sharey=True, layout="constrained"
    )
    for ax, case in zip(axes, found, strict=True):
        for above, under, label, color, line, order in curves:
            values = case.steps(above, under)
            ax.plot(case.found["times"], values, line, color=color, label=label, lw=1.4, zorder=order)
        ax.axhline(1, color="black", lw=0.6)
        ax.set(yscale="log", title=case.title, xlabel="level t (sampling goes to the right)")
        ax.invert_xaxis()
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("size of the cross term, relative")
    handles = axes[0].get_legend_handles_labels()
    fig.legend(*handles, loc="outside lower center", ncol=2, fontsize=9, frameon=False)
    fig.savefig(path, dpi=150)
    plt.close(fig)

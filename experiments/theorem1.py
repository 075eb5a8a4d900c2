"""Theorem 1 of the paper: the error of a random subnetwork against its size m, on the sines model.

V = J_t (J_popᵀ J_pop + λ)⁻¹ J_tᵀ over all parameters, Ṽ over a subset; the relative error of the trace, in
the limit λ → 0 that the theorem speaks of, and with the λ that the paper samples with.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator
from torch import Tensor

import flare
from flare import zoo
from tools.document import table

from .claims import Claim
from .lab import Found, Job

TITLE = "Theorem 1: a random subnetwork against all parameters"
SIZES = [165, 330, 660, 1320, 2640, 5280]
RIDGE = 1e-6
PROBES = 256
RATE = -0.5  # of the bound, in log-log


def least_squares(J_pop: Tensor, J_t: Tensor, index: Tensor) -> tuple[float, float]:
    """tr V for λ → 0 over the parameters of an index, by Lemma 1 of the paper, and the rank of H."""
    A, B = J_pop[:, index].T, J_t[:, index].T
    solved = torch.linalg.lstsq(A, B, driver="gelsd")
    return float(solved.solution.square().sum()), float(solved.rank)


def ridged(H: Tensor, J_t: Tensor, index: Tensor) -> tuple[float, float]:
    """tr V with λ over the parameters of an index, and tr H(H + λ)⁻¹, how many of them the data determines.

    The H of a subset is a part of H. The second trace is estimated with random signs.
    """
    A = H[index][:, index]
    A.diagonal().add_(RIDGE)
    signs = torch.randn(len(index), PROBES, generator=torch.Generator().manual_seed(0), dtype=H.dtype).sign()
    right = torch.cat([J_t[:, index].T, signs], dim=1)
    solved = torch.linalg.solve_triangular(torch.linalg.cholesky(A), right, upper=False)
    squared = solved.square().sum(0)
    return float(squared[:-PROBES].sum()), len(index) - RIDGE * float(squared[-PROBES:].mean())


def walked(model: zoo.Model, states: int) -> tuple[flare.Denoiser, list[tuple[Tensor, Tensor]]]:
    """The network in float64, and (x, t) at four steps of some trajectories."""
    denoiser = flare.Denoiser(model.denoiser.module.double(), "epsilon")
    run = flare.trajectories(denoiser, model.steps, n=states, shape=model.shape, seed=0)
    return denoiser, [
        (frame.x, torch.full((len(frame.x),), max(0, int(frame.step.time) - 1)))
        for frame in run
        if frame.index % 150 == 74
    ]


def measure(ridge: float, pairs: int, states: int, sizes: list[int], subsets: int) -> Found:
    """(tr Ṽ − tr V)/tr V for random subsets (sizes, subsets), and for the last layer."""
    model = zoo.load("sines")
    denoiser, points = walked(model, states)
    everything = flare.subsets.everything(denoiser)
    p, layer = everything.size, flare.subsets.last_layer(denoiser).size

    def rows(x: Tensor, t: Tensor) -> Tensor:
        return flare.autodiff.vjp.jacobian(denoiser, everything, x, t)[0].flatten(0, 1)

    def random(m: int, seed: int) -> Tensor:
        return torch.randperm(p, generator=torch.Generator().manual_seed(seed))[:m]

    drawn = flare.noising.pairs(model.data.double(), model.schedule, n=pairs, seed=0)
    blocks = (rows(batch.x, batch.t) for batch in drawn.batches("epsilon"))
    n = pairs * model.shape[0]
    known: Any = sum(J.T @ J for J in blocks) / n if ridge else torch.cat(list(blocks))
    J_t = torch.cat([rows(x, t) for x, t in points])
    solve = partial(ridged if ridge else least_squares, known, J_t)
    full, determined = solve(torch.arange(p))
    each = [[solve(random(m, seed)) for seed in range(subsets)] for m in sizes]
    found = torch.tensor(each, dtype=torch.float64)
    return {
        "parameters": p,
        "rows": n,
        "rows_of_data": model.data.numel(),
        "per_row": full / len(J_t),
        "determined": [*found[..., 1].mean(1).tolist(), determined],
        "last_layer": layer,
        "last_error": solve(torch.arange(p - layer, p))[0] / full - 1,
        "errors": found[..., 0] / full - 1,
    }


def jobs(quick: bool) -> list[Job]:
    """One job per setting: λ → 0 with fewer rows than the smallest m, λ = 1e-6 with more than parameters."""
    size: dict[str, Any] = {"states": 8, "sizes": SIZES, "subsets": 20}
    if quick:
        size = {"states": 2, "sizes": [165, 330, 1320], "subsets": 3}
    return [
        Job("theorem1-limit", measure, {"ridge": 0.0, "pairs": 12, **size}),
        Job("theorem1-ridge", measure, {"ridge": RIDGE, "pairs": 100 if quick else 3_000, **size}),
    ]


# --- what is written ---------------------------------------------------------------------------------------


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
        self.rows_of_data, self.per_row = found["rows_of_data"], found["per_row"]
        self.determined = found["determined"]  # parameters, at each size and over all

    @property
    def slope(self) -> float:
        """The slope of the median error against m, in log-log."""
        x, y = ([math.log(v) for v in values] for values in (self.sizes, self.medians))
        return statistics.linear_regression(x, y).slope

    @property
    def near(self) -> float:
        """The median error at the size closest to the last layer's."""
        return min(zip(self.sizes, self.medians, strict=True), key=lambda pair: abs(pair[0] - self.layer))[1]

    def traces(self) -> list[float]:
        """tr Ṽ per row of J_t, the mean at each size, and tr V."""
        return [*(self.per_row * (1 + self.signed.mean(1))).tolist(), self.per_row]

    def table(self) -> str:
        """Errors by size."""
        rows = [
            [f"random, {m:,}", *(f"{v:.3g}" for v in (found.mean(), found.quantile(0.5), found.max()))]
            for m, found in zip(self.sizes, self.errors, strict=True)
        ]
        rows.append([f"last layer, {self.layer:,}", *[f"{self.layer_error:.3g}"] * 3])
        return table(["subset, m", "mean error", "median", "largest"], rows)


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


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """The figure, one table per setting, and the meaning of the slopes."""
    found = [Setting(job) for job in jobs]
    limit, ridge = found
    figure(found, pictures / "theorem1.png")
    above = 100 * float((limit.signed > 0).double().mean())
    counted = list(zip([*ridge.sizes, ridge.parameters], ridge.traces(), ridge.determined, strict=True))
    apart = max(max(trace / count, count / trace) for _, trace, count in counted)
    return [
        f"The sines model, p = {limit.parameters:,}, float64; J_t at {limit.config['states']} samples × 4 "
        f"steps of their trajectories; {limit.config['subsets']} random subsets per size; the error is "
        "|tr(V − Ṽ)| / tr(V).",
        "![Error against the size of the subset](images/reproduction/theorem1.png)",
        f"### {limit.name}, {limit.rows} rows in J_pop, fewer than the smallest m",
        limit.table(),
        f"The median error falls like m^({limit.slope:.2f}), the bound like m^({RATE}). It is a bias more "
        f"than noise: {above:.0f}% of the subsets have too large a trace, since a least-squares fit to few "
        f"parameters is inflated. At the size of the last layer, {limit.layer}, a random subset errs by "
        f"{limit.near:.2g} and the last layer by {limit.layer_error:.2g}.",
        f"### {ridge.name}, the paper's setting, {ridge.rows:,} rows",
        ridge.table(),
        f"The theorem wants fewer rows than parameters; the training data alone has {limit.rows_of_data:,}. "
        f"With {ridge.rows:,} rows the median error falls like m^({ridge.slope:.2f}). The trace per row of "
        "J_t, beside how many parameters the data determines, tr H(H + λ)⁻¹:",
        table(
            ["m", "trace per row of J_t", "parameters determined"],
            [[f"{m:,}", f"{trace:,.0f}", f"{count:,.0f}"] for m, trace, count in counted],
        ),
        (
            f"The two are within a factor of {apart:.2f}: J_t looks like J_pop, so that the trace counts "
            "parameters, and a subset has fewer of them. "
            if apart < 2
            else "The trace is that of directions which so few rows leave free. "
        )
        + f"The last layer errs by {ridge.layer_error:.3g}, a random subset of its size by {ridge.near:.3g}.",
    ]


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """The rate of the bound, and random subsets against the last layer."""
    limit, ridge = (Setting(job) for job in jobs)
    if limit.slope > RATE:
        rate = "does not hold: even as λ → 0 the error falls more slowly"
    elif ridge.slope > RATE:
        rate = (
            f"holds with a correction: it does as λ → 0 with fewer rows ({limit.rows}) than parameters, but "
            f"with λ = {RIDGE:g} and {ridge.rows:,} rows the error falls more slowly"
        )
    else:
        rate = "holds"
    better = [setting.name for setting in (limit, ridge) if setting.near < setting.layer_error]
    ahead = (
        f"a random subset is ahead only for {better[0]}"
        if better
        else "the last layer is ahead in both settings"
    )
    return [
        Claim(
            "Theorem 1: the error of a random subset falls at least like m^(−1/2)",
            "a bound, λ → 0",
            f"slope {limit.slope:.2f} as λ → 0, {ridge.slope:.2f} with λ = {RIDGE:g}",
            rate,
        ),
        Claim(
            "A random subset approximates the full trace better than the last layer of the same size",
            "no guarantee for the last layer",
            "; ".join(f"{s.name}: {s.near:.2g} against {s.layer_error:.2g}" for s in (limit, ridge)),
            "holds" if len(better) == 2 else f"does not hold: {ahead}",
        ),
    ]

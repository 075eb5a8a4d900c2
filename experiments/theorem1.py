"""Theorem 1 of the paper: the error of a random subnetwork against its size m, on the sines model.

V = J_t (J_popᵀ J_pop + λ)⁻¹ J_tᵀ over all parameters, Ṽ over a subset; the relative error of the trace, in
the limit λ → 0 that the theorem speaks of, and with the λ that the paper samples with.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flare
from flare import bench
from tools.document import table

from .claims import Claim
from .jacobians import Jacobian
from .lab import Found, Job
from .theorem1_bound import DELTA, Constants
from .theorem1_case import RATE, Setting, constants_table, figure

TITLE = "Theorem 1: a random subnetwork against all parameters"
SIZES = [165, 330, 660, 1320, 2640, 5280]
RIDGE = 1e-6
PROBES = 256


def least_squares(J_pop: Tensor, J_t: Tensor, index: Tensor) -> tuple[Tensor, float]:
    """diag V for λ → 0 over the parameters of an index, by Lemma 1 of the paper, and the rank of H."""
    A, B = J_pop[:, index].T, J_t[:, index].T
    solved = torch.linalg.lstsq(A, B, driver="gelsd")
    return solved.solution.square().sum(0), float(solved.rank)


def ridged(H: Tensor, J_t: Tensor, index: Tensor) -> tuple[Tensor, float]:
    """diag V with λ over the parameters of an index, and tr H(H + λ)⁻¹, how many of them the data determines.

    The H of a subset is a part of H. The trace is estimated with random signs.
    """
    A = H[index][:, index]
    A.diagonal().add_(RIDGE)
    signs = torch.randn(len(index), PROBES, generator=torch.Generator().manual_seed(0), dtype=H.dtype).sign()
    right = torch.cat([J_t[:, index].T, signs], dim=1)
    solved = torch.linalg.solve_triangular(torch.linalg.cholesky(A), right, upper=False)
    squared = solved.square().sum(0)
    return squared[:-PROBES], len(index) - RIDGE * float(squared[-PROBES:].mean())


def walked(model: bench.Benchmark, states: int) -> tuple[flare.Denoiser, list[tuple[Tensor, Tensor]]]:
    """The network in float64, and (x, t) at four steps of some trajectories."""
    denoiser = flare.Denoiser(model.denoiser.module.double(), "epsilon")
    run = flare.trajectories(denoiser, model.sampler("ddpm"), n=states, shape=model.shape, seed=0)
    return denoiser, [
        (frame.x, torch.full((len(frame.x),), max(0, int(frame.step.time) - 1)))
        for frame in run
        if frame.index % 150 == 74
    ]


class Jacobians:
    """Rows of ∂f/∂θ over all parameters of the sines model, float64.

    Args:
        states: trajectories whose states J_t is taken at.
    """

    def __init__(self, states: int) -> None:
        self.model = bench.load("sines")
        self.denoiser, points = walked(self.model, states)
        self.everything = flare.subsets.everything(self.denoiser)
        self.dimension = self.model.shape[0]
        self.steps = torch.cat([self.rows(x, t) for x, t in points])

    def rows(self, x: Tensor, t: Tensor) -> Tensor:
        """The rows of a batch, (B·d, p)."""
        return Jacobian(self.denoiser).rows(x, t, self.everything).flatten(0, 1)

    def blocks(self, pairs: int) -> Iterator[Tensor]:
        """J_pop/√n of n training pairs, in blocks of rows: H = (1/n)·J_popᵀJ_pop."""
        drawn = flare.noising.pairs(self.model.data.double(), self.model.schedule, n=pairs, seed=0)
        return (self.rows(batch.x, batch.t) / math.sqrt(pairs) for batch in drawn.batches("epsilon"))


def measure(ridge: float, pairs: int, states: int, sizes: list[int], subsets: int) -> Found:
    """(tr Ṽ − tr V)/tr V for random subsets (sizes, subsets), and for the last layer."""
    found = Jacobians(states)
    J_t, d, p = found.steps, found.dimension, found.everything.size
    layer = flare.subsets.last_layer(found.denoiser).size

    def random(m: int, seed: int) -> Tensor:
        return torch.randperm(p, generator=torch.Generator().manual_seed(seed))[:m]

    blocks = found.blocks(pairs)
    known: Any = sum(J.T @ J for J in blocks) if ridge else torch.cat(list(blocks))
    solve = partial(ridged if ridge else least_squares, known, J_t)

    def solve_steps(index: Tensor) -> tuple[Tensor, float]:
        diagonal, determined = solve(index)
        return diagonal.view(-1, d).sum(1), determined

    full, determined = solve_steps(torch.arange(p))
    each = [[solve_steps(random(m, seed)) for seed in range(subsets)] for m in sizes]
    traces = torch.stack(
        [torch.stack([trace for trace, _ in row]) for row in each]
    )  # (sizes, subsets, steps)
    counts = [statistics.fmean(count for _, count in row) for row in each]
    return {
        "parameters": p,
        "rows": pairs * d,
        "rows_of_data": found.model.data.numel(),
        "per_step": float(full.mean()),
        "determined": [*counts, determined],
        "last_layer": layer,
        "last_error": float(solve(torch.arange(p - layer, p))[0].sum() / full.sum()) - 1,
        "errors": traces.sum(2) / full.sum() - 1,
        "step_errors": traces / full - 1,
        **({} if ridge else {"constants": asdict(Constants.of(known, J_t, d))}),
    }


def measure_constants(pairs: list[int], states: int) -> Found:
    """κ, μ and γ for several numbers of training pairs."""
    found = Jacobians(states)
    known = [torch.cat(list(found.blocks(n))) for n in pairs]
    return {"constants": [asdict(Constants.of(J, found.steps, found.dimension)) for J in known]}


def jobs(quick: bool) -> list[Job]:
    """One job per setting, λ → 0 with fewer rows than the smallest m and λ = 1e-6 with more than parameters.

    The third computes the constants of the bound for more and fewer rows.
    """
    states = 2 if quick else 8
    size: dict[str, Any] = {"states": states, "sizes": SIZES, "subsets": 20}
    if quick:
        size |= {"sizes": [165, 330, 1320], "subsets": 3}
    return [
        Job("theorem1-limit", measure, {"ridge": 0.0, "pairs": 12, **size}),
        Job("theorem1-ridge", measure, {"ridge": RIDGE, "pairs": 100 if quick else 3_000, **size}),
        Job("theorem1-constants", measure_constants,
            {"pairs": [1, 4, 12] if quick else [1, 4, 12, 48, 144], "states": states}),
    ]  # fmt: skip


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """The figure, one table per setting, the bound, and the meaning of the slopes."""
    found, constants = _read(jobs)
    limit, ridge = found
    figure(found, pictures / "theorem1.png")
    above = 100 * float((limit.signed > 0).double().mean())
    counted = list(zip([*ridge.sizes, ridge.parameters], ridge.traces(), ridge.determined, strict=True))
    apart = max(max(trace / count, count / trace) for _, trace, count in counted)
    return [
        f"The sines model, p = {limit.parameters:,}, float64; J_t at {limit.config['states']} samples × 4 "
        f"steps of their trajectories; {limit.config['subsets']} random subsets per size; H is the paper's "
        "(1/n)·J_popᵀJ_pop over n training pairs; the error is |tr(V − Ṽ)| / tr(V).",
        "![Error against the size of the subset](images/reproduction/theorem1.png)",
        f"### {limit.name}, {limit.rows} rows in J_pop, fewer than the smallest m",
        limit.table(),
        f"The median error falls like m^({limit.slope:.2f}), the bound like m^({RATE}). It is a bias more "
        f"than noise: {above:.0f}% of the subsets have too large a trace, since a least-squares fit to few "
        f"parameters is inflated. At the size of the last layer, {limit.layer}, a random subset errs by "
        f"{limit.near:.2g} and the last layer by {limit.layer_error:.2g}.",
        "### The bound itself",
        *_bound(limit, constants),
        f"### {ridge.name}, the paper's setting, {ridge.rows:,} rows",
        ridge.table(),
        f"The theorem wants fewer rows than parameters; the training data alone has {limit.rows_of_data:,}. "
        f"With {ridge.rows:,} rows "
        + (
            "nothing of J_t is outside the row space of J_pop, so that γ is infinite, μ = 1, and the bound "
            "says nothing. The median error "
            if ridge.rows > ridge.parameters
            else "the median error "
        )
        + f"falls like m^({ridge.slope:.2f}). The trace of a step, beside how many parameters the data "
        "determines, tr H(H + λ)⁻¹:",
        table(
            ["m", "trace of a step", "parameters determined"],
            [[f"{m:,}", f"{trace:,.0f}", f"{count:,.0f}"] for m, trace, count in counted],
        ),
        (
            f"The two are within a factor of {apart:.2f}: J_t looks like J_pop, so that the trace counts "
            "parameters, and a subset has fewer of them. "
            if apart < 2
            else f"The two differ by a factor of up to {apart:.3g}: so few rows leave most directions free. "
        )
        + f"The last layer errs by {ridge.layer_error:.3g}, a random subset of its size by {ridge.near:.3g}.",
    ]


def _read(jobs: Sequence[Job]) -> tuple[list[Setting], list[Constants]]:
    """The settings, and the constants by the number of rows."""
    settings = [Setting(job) for job in jobs if job.run is measure]
    (other,) = [job for job in jobs if job.run is measure_constants]
    return settings, [Constants(**values) for values in other.found()["constants"]]


def _bound(limit: Setting, constants: Sequence[Constants]) -> list[str]:
    """The constants, the bound beside the error, and what it is worth."""
    given, within = limit.constants, limit.within()
    spread = f"{min(given.alignments):.2g} to {max(given.alignments):.2g}"
    # the γ at which the printed bound is the median error of the smallest subset
    too_small = given.alignment * (limit.medians[0] / given.printed(limit.sizes[0])) ** 2
    least = min(min(c.printed(c.parameters), c.corrected(c.parameters)) for c in constants)
    return [
        "The bound is √(p·γ·μ/(m·δ))·κ, times constants and logarithms that the paper does not print, with "
        f"probability 1 − δ. From the Jacobians themselves: κ = {given.condition:.3g} (condition number of "
        f"J_pop), μ = {given.coherence:.3g} (coherence, at least n·d/p = "
        f"{given.rows / given.parameters:.2g}) and γ = {given.alignment:.3g} (alignment of all J_t; {spread} "
        f"for single steps). δ = {DELTA}, the hidden factors are taken as 1, and γ is the largest that the "
        "assumption ‖J_t P‖² ≥ γ·‖J_t(I − P)‖² allows, where P projects onto the row space of J_pop.",
        limit.bound_table(),
        f"Step by step, each with its own γ, {100 * within[0]:.1f}% of the errors are within the bound as "
        f"printed and {100 * within[1]:.1f}% within the one with 1/γ. "
        + (
            f"One of the bounds is below 1 from m = {min(limit.informative):,} on."
            if limit.informative
            else "Both are at least 1 at every m, so they are vacuous: they allow an error as large as the "
            "trace itself."
        ),
        "γ is on the wrong side in the paper: whatever satisfies the assumption with γ also satisfies it "
        "with less, so the printed bound could be made as small as one likes. With "
        f"γ = {too_small:.1g} it would be the median error at m = {limit.sizes[0]}, and with less it would "
        "be wrong. The more of J_t lies in the row space of J_pop, the less is left for a subset to fit "
        "badly, which speaks for 1/γ in its place; this is an argument, not a proof.",
        "The constants for fewer and more rows:",
        constants_table(constants),
        f"At m = p = {given.parameters:,}, where the error is 0, the smallest bound is {least:.3g}.",
    ]


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """The bound and its rate."""
    (limit, ridge), _ = _read(jobs)
    if limit.slope > RATE:
        rate = "does not hold: even as λ → 0 the error falls more slowly"
    elif ridge.slope > RATE:
        rate = (
            "holds with a correction: only as λ → 0 with fewer rows than parameters; measured with "
            f"{limit.rows} rows, while with λ = {RIDGE:g} and {ridge.rows:,} rows the error falls more slowly"
        )
    else:
        rate = "holds"
    return [
        _bound_claim(limit),
        Claim(
            "Theorem 1: the error of a random subset falls at least like m^(−1/2)",
            "a bound, λ → 0",
            f"slope {limit.slope:.2f} as λ → 0, {ridge.slope:.2f} with λ = {RIDGE:g}",
            rate,
        ),
    ]


def _bound_claim(limit: Setting) -> Claim:
    given = limit.constants
    first, last = limit.sizes[0], limit.sizes[-1]
    kept = [
        all(error <= bound(m) for m, error in zip(limit.sizes, limit.quantiles, strict=True))
        for bound in (given.printed, given.corrected)
    ]
    if not any(kept):
        verdict = "does not hold: the error is above the bound, with γ and with 1/γ"
    elif not limit.informative:
        verdict = "holds with a correction: it bounds the error but is vacuous, at least 1 at every m"
    elif not kept[0]:
        verdict = "holds with a correction: with 1/γ in place of γ"
    else:
        verdict = "holds"
    return Claim(
        "Theorem 1: |tr(V − Ṽ)| ≤ Õ(√(pγμ/(mδ))·κ)·tr(V)",
        "κ, μ and γ are not printed",
        f"κ = {given.condition:.3g}, μ = {given.coherence:.2g}, γ = {given.alignment:.3g}, δ = {DELTA}: "
        f"bound {given.printed(first):.3g} at m = {first} and {given.printed(last):.3g} at m = {last:,} "
        f"(with 1/γ {given.corrected(first):.3g} and {given.corrected(last):.3g}), error "
        f"{limit.quantiles[0]:.2g} and {limit.quantiles[-1]:.2g}",
        verdict,
    )

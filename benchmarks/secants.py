"""How true secants are: variance and rank against exact derivatives, a step size, dtype and network."""

from __future__ import annotations

import torch
from document import command, table
from networks import Case, shipped, unet

import flare.secants
from flare.linearization import spearman

STEPS = (0.5, 2.0, 8.0, 32.0, 128.0)  # in square roots of the rounding unit
SCORES = ("trace", "expected_residual")
DIRECTIONS = 4


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    n, steps, few = (40, 8, 2) if quick else (200, 25, 8)
    rows = []
    for dtype in (torch.float32, torch.float64):
        rows += _measure(shipped("grid", n, steps, dtype=dtype), dtype)
        rows += _measure(shipped("chirp", n, steps, dtype=dtype), dtype)
        rows += _measure(unet(few, steps=few // 2, size=16, dtype=dtype), dtype)
    head = ("network", "dtype", "step", "error of the variance", *(f"Spearman, {name}" for name in SCORES))
    return (
        "## Secants\n\nA secant is (f(z + h·δz) − f(z))/h: one more call instead of a derivative. h "
        "makes the change a fixed share of what is changed: step·√ε, ε the rounding unit of the "
        "network's dtype. Truncation grows with h, rounding falls with it. Below, the same samples and "
        f"the same {DIRECTIONS} directions by secants and by exact derivatives ({n} samples, {steps} "
        f"DDIM steps; the UNet {few} and {few // 2}): the median and the 95% quantile of the relative "
        "error of a sample's variance (its trace), and Spearman's rank correlation of two "
        f"scores.\n\n{table(head, rows)}\n\nThe library takes a step of {flare.secants.STEP:g}."
    )


def _measure(case: Case, dtype: torch.dtype) -> list[list[object]]:
    exact = case.sample(directions=DIRECTIONS, derivative="exact", score=SCORES)
    rows, own = [], flare.secants.STEP
    try:
        for step in STEPS:
            flare.secants.STEP = step
            found = case.sample(directions=DIRECTIONS, derivative="secant", score=SCORES)
            error = (found.scores["trace"] / exact.scores["trace"] - 1).abs().double()
            ranks = [f"{spearman(found.scores[name], exact.scores[name]):.5f}" for name in SCORES]
            spread = f"{error.median():.1e} ({error.quantile(0.95):.1e})"
            rows.append([case.name, str(dtype).removeprefix("torch."), f"{step:g}", spread, *ranks])
    finally:
        flare.secants.STEP = own
    return rows


if __name__ == "__main__":
    command("secants", __doc__, section)

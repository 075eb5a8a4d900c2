"""How true half precision is: scores computed in it, and by the float32 copy that is the library's way."""

from __future__ import annotations

import copy
import sys
import warnings

import torch

import flare
from flare.propagation import Tangent
from tools.document import DOCS, machine, replace_section, table

from .harness import spearman

PAGE = DOCS / "evidence" / "reliability.md"
SAMPLES, STEPS, DIRECTIONS, PARAMETERS = 128, 50, 8, 300
SCORES = ("trace", "expected_residual")


def section() -> str:
    """Measure and write it down."""
    rows = [
        row
        for name in ("grid", "sines")
        for dtype in (torch.bfloat16, torch.float16)
        for row in _of(name, dtype)
    ]
    head = (
        "network",
        "dtype",
        "derivatives",
        *(f"median ratio, {s}" for s in SCORES),
        *(f"Spearman, {s}" for s in SCORES),
        "two farthest off, trace",
    )
    return (
        f"The table compares scores of {SAMPLES} samples ({STEPS} DDIM steps, {DIRECTIONS} directions, a "
        f"dense posterior over {PARAMETERS} parameters) with scores of the same weights in float32. FLARE "
        "differentiates a copy in higher precision, by default with secants in float64. The rows with "
        "derivatives in half precision show the error that this avoids. Rounding decides whether a sample at "
        "the edge of the clipping range moves, and one such sample can lower the rank correlation of so few "
        "samples. The last column shows the ratios of the two samples that differ most.\n\n"
        f"{table(head, rows)}\n\nMeasured on {machine()}.\n"
    )


def _of(name: str, dtype: torch.dtype) -> list[list[object]]:
    model = flare.bench.load(name)
    half = copy.deepcopy(model.denoiser.module).to(dtype)
    low, full = flare.Denoiser(half), flare.Denoiser(copy.deepcopy(half).float())
    subset = flare.subsets.random(full, count=PARAMETERS, seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=1500, seed=0, weighting=model.weighting)
    options = {"n": SAMPLES, "shape": model.shape, "score": SCORES}
    steps = model.sampler("ddim", STEPS)
    fits = [flare.posteriors.dense(net, subset, pairs) for net in (low, full)]
    D = fits[1].directions(DIRECTIONS, torch.Generator().manual_seed(0))
    truth = flare.sample(full, steps, fits[1], directions=D, derivative="exact", **options)
    found = {
        "exact, by the float32 copy": flare.sample(
            low, steps, fits[0], directions=D, derivative="exact", **options
        ),
        "secant, by a float64 copy": flare.sample(
            low, steps, fits[0], directions=D, derivative="secant", **options
        ),
    }
    rule = Tangent(low.by("exact"), subset, D)
    found["exact, in half precision"] = flare.sample(low, steps, fits[0], rule=rule, **options)
    rows = []
    for label, result in found.items():
        kept = ~result.lost
        ratios = [f"{float((result.scores[s] / truth.scores[s])[kept].median()):.3f}" for s in SCORES]
        ranks = [f"{spearman(result.scores[s][kept], truth.scores[s][kept]):.3f}" for s in SCORES]
        off = (result.scores["trace"] / truth.scores["trace"])[kept].log().abs().topk(2).values.exp()
        worst = ", ".join(f"{factor:.3g}" for factor in off.tolist())
        rows.append([name, str(dtype).removeprefix("torch."), label, *ratios, *ranks, worst])
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    text = section()
    print(text)
    if "--write" in sys.argv:
        replace_section(PAGE, "precision", text)

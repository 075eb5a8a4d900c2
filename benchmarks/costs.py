"""What costs what on three networks: the verdict, variances and a fit, against plain sampling in 50 steps."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from unittest.mock import patch

import torch
from torch import Tensor

import flare
from flare.model import STEPS
from flare.posteriors.curvature import ggn, probe_count
from flare.sampling.distances import compute_distances
from flare.scorer import witnesses
from flare.scorer.choosing import FEWEST_PAIRS, SUBSET_SIZE, reference_size
from flare.scorer.witnesses import FEW_COMPARED, FEWEST_ENCODED
from tools.document import table

from .harness import Ratio, command, compare, judge, measure
from .networks import make_unet

DIRECTIONS = (1, 4, 16)
DRAWN = 1000  # samples whose drawing may take as long as a fit
VERDICT_TARGETS = {"MLP": 1.5, "UNet": 0.6}  # times plain sampling
DIRECTION_TARGETS = {"MLP": 2.0, "UNet": 1.6}  # bare calls per direction, with 16
IMAGES, SIDE = 1200, 32  # training images of the UNet


@dataclass(frozen=True)
class Case:
    """A scorer, and samples that it judges.

    Attributes:
        name: For the table.
        kind: "MLP" or "UNet".
        scorer: The scorer.
        fitted: The CPU seconds of a fit with the defaults.
        x: Samples, (n, *shape).
        steps: The steps in which directions are timed; their cost grows linearly.
    """

    name: str
    kind: str
    scorer: flare.Scorer
    fitted: float
    x: Tensor
    steps: int = STEPS

    def draw(self, steps: int = STEPS, **options: object) -> flare.Result:
        """Samples, plain or with directions."""
        scorer, n = self.scorer, len(self.x)
        posterior = scorer.posterior if options else None
        return flare.sample(
            scorer.denoiser, scorer.steps(steps), posterior, n=n, shape=scorer.shape, batch_size=n, **options
        )

    def call(self) -> None:
        """The network calls of plain sampling, and nothing else."""
        net, times = self.scorer.denoiser.module, self.scorer.steps(self.steps).transitions
        with torch.no_grad():
            for step in times:
                net(self.x, torch.tensor([step.level.time]).expand(len(self.x)))

    def judge(self) -> flare.Result:
        """The verdict."""
        return self.scorer.score(self.x, batch_size=len(self.x))

    def parts(self) -> dict[str, Callable[[], object]]:
        """What the verdict consists of."""
        training, encoder, n = self.scorer.training, self.scorer.encoder, len(self.x)
        encoded = encoder.encode(self.x, {}, n)
        return {
            "nearest training samples": lambda: training.find(self.x),
            "forward and backward passes": lambda: encoder.encode(self.x, {}, n),
            "distances between features": lambda: compute_distances(training.spaces, encoded),
        }


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    repeats = 1 if quick else 3
    columns: dict[str, list[str]] = {}
    shares, verdicts = [], []
    for case in _cases(quick):
        found = _measure(case, repeats)
        columns[case.name] = [ratio if isinstance(ratio, str) else ratio.short for ratio in found.values()]
        verdict, fit = found["the verdict, `Scorer.score`"], float(found[_FIT])  # type: ignore[arg-type]
        verdicts.append(
            judge(f"{case.name}: the verdict over plain sampling", verdict.median, VERDICT_TARGETS[case.kind])
        )  # type: ignore[union-attr]
        each = float(found["16 directions, bare calls per direction"])  # type: ignore[arg-type]
        verdicts.append(judge(f"{case.name}: calls per direction", each, DIRECTION_TARGETS[case.kind]))
        verdicts.append(judge(f"{case.name}: fit over drawing {DRAWN:,} samples", fit, 1.0))
        parts = {name: compare(part, case.judge, repeats).median for name, part in case.parts().items()}
        spaces = case.scorer.training.spaces
        sizes = [f"{len(spaces[name]):,} × {spaces[name].points.shape[1]:,}" for name in sorted(spaces)]
        shares.append(
            [case.name, f"{case.scorer.denoiser.parameter_count:,}", f"{len(case.x):,}",
             f"{case.scorer.encoder.states}", ", ".join(sizes), *(f"{share:.0%}" for share in parts.values())]
        )  # fmt: skip
    rows = [[what, *cells] for what, *cells in zip(found, *columns.values(), strict=True)]
    head = (
        "network",
        "parameters",
        "samples",
        "passes per sample",
        f"points ({', '.join(sorted(spaces))})",
        *parts,
    )
    return (
        f"## What costs what\n\nMultiples of plain sampling of as many samples in {STEPS} steps, in turns, "
        f"in CPU time on one thread: the median of {repeats} turns, with the least and the largest. Scorers "
        "of the MLPs have all defaults of `flare.fit`, which ran once. The UNet has random weights, and "
        f"{IMAGES:,} random training images of 3 × {SIDE} × {SIDE}, of which few are compared; its "
        f"directions are timed in {case.steps} steps, and its fit is the curvature of 16 pairs and the "
        "features of 16 samples, multiplied up to the defaults. *Bare calls* are those of the network "
        "without FLARE.\n\n"
        f"{table(('what', *columns), rows)}\n\n" + "\n".join(verdicts)
        + f"\n\nWhere the time of the verdict goes:\n\n{table(head, shares)}"
    )  # fmt: skip


_FIT = f"`flare.fit`, over drawing {DRAWN:,} samples"


def _measure(case: Case, repeats: int) -> dict[str, Ratio | str]:
    """The rows of the table for one network."""
    found: dict[str, Ratio | str] = {}
    found["plain sampling over bare calls"] = compare(lambda: case.draw(case.steps), case.call, repeats)
    verdict = compare(case.judge, case.draw, repeats)
    found["the verdict, `Scorer.score`"] = verdict
    for count in DIRECTIONS:

        def push(count: int = count, derivative: str = "auto") -> flare.Result:
            return case.draw(case.steps, directions=count, score="trace", derivative=derivative)

        name = f"{count} direction{'s' if count > 1 else ''}"
        found[f"variances by {name}"] = compare(push, lambda: case.draw(case.steps), repeats)
    found["16 directions, bare calls per direction"] = f"{compare(push, case.call, repeats).median / 16:.2f}"
    compiled = "–"
    if case.kind == "MLP" and shutil.which("g++"):
        compiled = f"{compare(lambda: push(derivative='compiled'), case.call, repeats).median / 16:.2f}"
    found["the same compiled, in float32"] = compiled
    found[_FIT] = f"{case.fitted / (verdict.seconds[1] * DRAWN / len(case.x)):.2f}"
    return found


def _cases(quick: bool) -> list[Case]:
    """Two shipped models, and a UNet of diffusers."""
    found = []
    warnings.simplefilter("ignore")  # about random weights
    for name in ("grid", "chirp"):
        model = flare.bench.load(name)
        scorer, fitted = measure(lambda: flare.fit(model, model.data))  # noqa: B023
        found.append(Case(f"{name}, an MLP", "MLP", scorer, fitted, model.data[: 50 if quick else 1000]))
        if quick:
            break
    data = torch.rand(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    model, scorer = fit_unet(data, SIDE)
    return [
        *found,
        Case(f"a UNet, 3 × {SIDE} × {SIDE}", "UNet", scorer, estimate_fit(scorer, data), data[:4], 3),
    ]


def fit_unet(data: Tensor, side: int, few: int = 30) -> tuple[flare.Model, flare.Scorer]:
    """A UNet with random weights, and a scorer with the features of few samples, which are not timed."""
    from diffusers import DDIMScheduler

    model = flare.from_diffusers((make_unet(side), DDIMScheduler()))
    with patch.object(witnesses, "FEWEST_ENCODED", few), patch.object(witnesses, "ENCODED", few):
        return model, flare.fit(model, data, held_out=data[:few], pairs=few, check=False)


def estimate_fit(scorer: flare.Scorer, data: Tensor) -> float:
    """CPU seconds of a fit with the defaults: the parts of a smaller one, multiplied up."""
    some = 16
    probes = cast("int", probe_count("auto", FEWEST_PAIRS, SUBSET_SIZE, data[0].numel()))

    def curve() -> object:
        pairs = flare.noising.pairs(data, scorer.schedule, n=some, seed=0, batch_size=some)
        return ggn(scorer.denoiser, scorer.posterior.subset, pairs, probes=probes)

    curve()
    encoded = FEWEST_ENCODED + reference_size(len(data)) + 2 * FEW_COMPARED
    per_pair, per_sample = (
        measure(part)[1] / some for part in (curve, lambda: scorer.encoder.encode(data[:some], {}, some))
    )
    return FEWEST_PAIRS * per_pair + encoded * per_sample


if __name__ == "__main__":
    command("costs", __doc__, section)

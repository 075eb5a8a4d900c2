"""What costs what on three networks: the verdict, variances and a fit, against plain sampling in 50 steps."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast
from unittest.mock import patch

import torch
from torch import Tensor

import flare
from flare.model import STEPS
from flare.posteriors.curvature import ggn, probe_count
from flare.scorer import witnesses
from flare.scorer.choosing import FEWEST_PAIRS, SUBSET_SIZE, reference_size
from flare.scorer.witnesses import FEW_COMPARED, FEWEST_ENCODED
from flare.scores.space import compute_distances
from tools.document import table

from .harness import command, compare, judge, measure
from .networks import make_unet

DIRECTIONS = (1, 4, 16)
DRAWN = 1000  # samples whose drawing may take as long as a fit
VERDICT_TARGETS = {"MLP": 1.5, "UNet": 0.6}  # times plain sampling
DIRECTION_TARGETS = {"MLP": 2.0, "UNet": 1.6}  # bare calls per direction, with 16
IMAGES, SIDE = 1200, 32  # training images of the UNet
UNET_STEPS, REPEATS = 3, 2


@dataclass(frozen=True)
class Case:
    """A scorer, and samples that it judges.

    Attributes:
        kind: "MLP" or "UNet".
        scorer: The scorer.
        fitted: The CPU seconds of a fit with the defaults.
        x: Samples, (n, *shape).
        steps: The steps in which directions are timed; their cost grows linearly.
    """

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


class Findings(NamedTuple):
    """What was measured on one network.

    Attributes:
        name: The network.
        column: Its column of the table, by row.
        targets: Figures next to their targets, as lines of a list.
        shares: Its row of the table of shares, by column.
    """

    name: str
    column: dict[str, str]
    targets: list[str]
    shares: dict[str, str]


def section(quick: bool = False) -> str:
    """Measure and write it down; networks are measured side by side."""
    repeats = 1 if quick else REPEATS
    with ProcessPoolExecutor(len(CASES), multiprocessing.get_context("spawn")) as pool:
        return tell(list(pool.map(examine, CASES, [repeats] * len(CASES))), repeats)


def tell(found: list[Findings], repeats: int) -> str:
    """The section, from what was measured on each network."""
    rows = [[what, *(each.column[what] for each in found)] for what in found[0].column]
    shares = [list(each.shares.values()) for each in found]
    return (
        f"## What costs what\n\nMultiples of plain sampling of as many samples in {STEPS} steps, in turns, "
        f"in CPU time on one thread: the median of {repeats} turns, with the least and the largest. Scorers "
        "of the MLPs have all defaults of `flare.fit`, which ran once. The UNet has random weights, and "
        f"{IMAGES:,} random training images of 3 × {SIDE} × {SIDE}, of which few are compared; its "
        f"sampling with directions is timed in {UNET_STEPS} steps, where the trial calls of a plan count, "
        "and its fit is the curvature of 16 pairs and the features of 16 samples, multiplied up to the "
        "defaults. *Bare calls* are those of the network without FLARE.\n\n"
        f"{table(('what', *(each.name for each in found)), rows)}\n\n"
        + "\n".join(line for each in found for line in each.targets)
        + f"\n\nWhere the time of the verdict goes:\n\n{table(list(found[0].shares), shares)}"
    )  # fmt: skip


def examine(name: str, repeats: int) -> Findings:
    """Measure everything on one network."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # about random weights
    case = CASES[name]()
    plain = compare(lambda: case.draw(case.steps), case.call, repeats)
    verdict = compare(case.judge, case.draw, repeats)
    column = {"plain sampling over bare calls": plain.short, "the verdict, `Scorer.score`": verdict.short}

    for count in DIRECTIONS:
        push = partial(case.draw, case.steps, directions=count, score="trace")
        pushed = compare(push, lambda: case.draw(case.steps), repeats)
        column[f"variances by {count} direction{'s' if count > 1 else ''}"] = pushed.short
    each = pushed.median * plain.median / count
    column[f"{count} directions, bare calls per direction"] = f"{each:.2f}"
    fit = case.fitted / (verdict.seconds[1] * DRAWN / len(case.x))
    column[f"`flare.fit`, over drawing {DRAWN:,} samples"] = f"{fit:.2f}"
    column["`flare.fit`, CPU seconds"] = f"{case.fitted:.1f}"
    targets = [
        judge(f"{name}: verdict", verdict.median, VERDICT_TARGETS[case.kind]),
        judge(f"{name}: calls per direction", each, DIRECTION_TARGETS[case.kind]),
        judge(f"{name}: fit", fit, 1.0),
    ]
    spaces = case.scorer.training.spaces
    sizes = [f"{len(spaces[key]):,} × {spaces[key].points.shape[1]:,}" for key in sorted(spaces)]
    shares = {
        "network": name,
        "parameters": f"{case.scorer.denoiser.parameter_count:,}",
        "samples": f"{len(case.x):,}",
        "passes per sample": f"{case.scorer.encoder.states}",
        f"points ({', '.join(sorted(spaces))})": ", ".join(sizes),
    }
    parts = case.parts().items()
    return Findings(
        name,
        column,
        targets,
        shares | {key: f"{compare(run, case.judge, 1).median:.0%}" for key, run in parts},
    )


def _shipped(name: str) -> Case:
    model = flare.bench.load(name)
    scorer, fitted = measure(lambda: flare.fit(model, model.data))
    return Case("MLP", scorer, fitted, model.data[:500])


def _unet() -> Case:
    data = torch.rand(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    _, scorer = fit_unet(data, SIDE)
    return Case("UNet", scorer, estimate_fit(scorer, data), data[:4], UNET_STEPS)


#: what makes a case, by the name of its network
CASES: dict[str, Callable[[], Case]] = {
    "grid MLP": partial(_shipped, "grid"),
    "chirp MLP": partial(_shipped, "chirp"),
    f"UNet, 3 × {SIDE} × {SIDE}": _unet,
}


def fit_unet(data: Tensor, side: int, few: int = 12) -> tuple[flare.Model, flare.Scorer]:
    """A UNet with random weights, and a scorer with few pairs and the features of few samples."""
    from diffusers import DDIMScheduler

    model = flare.from_diffusers((make_unet(side), DDIMScheduler()))
    subset = flare.subsets.random(model.denoiser, count=SUBSET_SIZE, seed=0)
    pairs = flare.noising.pairs(data, model.schedule, n=few, seed=0, batch_size=few)
    posterior = flare.posteriors.dense(model.denoiser, subset, pairs, 1.0, 1.0, probes=1)
    with patch.object(witnesses, "FEWEST_ENCODED", few), patch.object(witnesses, "ENCODED", few):
        return model, flare.fit(model, data, held_out=data[:few], posterior=posterior, check=False)


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

"""What the verdict costs on top of plain sampling, and what a gradient per sample costs in network calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import flare
from flare.autodiff.vjp import iterate_states
from flare.model import STEPS
from flare.scores.space import compute_distances
from tools.document import table

from .harness import Ratio, command, compare
from .networks import make_unet

TARGETS = {"MLP": 1.5, "UNet": 1.0}  # times plain sampling
GRADIENT_TARGET = 3.0  # forward calls, on UNets
PAIRS = 200  # of the fit, which is not what is timed


@dataclass(frozen=True)
class Case:
    """A scorer, and samples that it judges.

    Attributes:
        name: for the table.
        kind: "MLP" or "UNet".
        scorer: with its default settings but for few pairs.
        x: the samples, (n, *shape).
    """

    name: str
    kind: str
    scorer: flare.Scorer
    x: Tensor

    def draw(self) -> flare.Result:
        """Plain samples, in the default number of steps."""
        shape, n = self.scorer.shape, len(self.x)
        return flare.sample(self.scorer.denoiser, self.scorer.steps(), n=n, shape=shape, batch_size=n)

    def judge(self) -> flare.Result:
        """The verdict on as many samples."""
        return self.scorer.score(self.x, batch_size=len(self.x))

    def call(self) -> None:
        """One forward call of every state that the verdict differentiates."""
        self.scorer.denoiser(self._states.flatten(0, 1), self._times.repeat(len(self.x)))

    def differentiate(self) -> None:
        """The gradients of all states."""
        denoiser, subset, x = self.scorer.denoiser, self.scorer.posterior.subset, self._states
        for samples, _, run in iterate_states(denoiser, subset, x, self._times):
            run.pull(run.f, samples.stop - samples.start)
            del run  # with its graph, before the next call

    def parts(self) -> dict[str, Callable[[], object]]:
        """What most of the verdict consists of."""
        training, encoder, n = self.scorer.training, self.scorer.encoder, len(self.x)
        encoded = encoder.encode(self.x, {}, n)
        return {
            f"the exact search among {len(training.rows):,} training samples": lambda: training.find(self.x),
            "features, by forward and backward passes": lambda: encoder.encode(self.x, {}, n),
            "distances between features": lambda: compute_distances(training.spaces, encoded),
        }

    @property
    def _states(self) -> Tensor:
        return self.x[:, None].expand(len(self.x), self.scorer.encoder.states, *self.x.shape[1:])

    @property
    def _times(self) -> Tensor:
        return torch.full((self.scorer.encoder.states,), self.scorer.schedule.T // 2)


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    repeats = 2 if quick else 5
    rows, verdicts, shares = [], [], []
    for case in _cases(quick):
        on_top, gradient = (
            compare(case.judge, case.draw, repeats),
            compare(case.differentiate, case.call, repeats),
        )
        scorer = case.scorer
        rows.append(
            [case.name, f"{scorer.denoiser.parameter_count:,}", f"{scorer.posterior.size:,}",
             f"{len(case.x):,}", f"{scorer.encoder.states}", on_top.short, gradient.short]
        )  # fmt: skip
        verdicts.append(
            _tell(f"{case.name}: the verdict", on_top, TARGETS[case.kind], "times plain sampling")
        )
        found = {name: compare(part, case.judge, repeats).median for name, part in case.parts().items()}
        shares.append(f"{case.name}: " + ", ".join(f"{name} {share:.0%}" for name, share in found.items()))
        if case.kind == "UNet":
            verdicts.append(
                _tell(f"{case.name}: a gradient per sample", gradient, GRADIENT_TARGET, "forward calls")
            )
    head = (
        "network",
        "parameters",
        "m",
        "samples",
        "passes",
        "verdict over plain sampling",
        "gradient over forward call",
    )
    return (
        "## The verdict\n\n`scorer.score(x)` beside plain sampling of as many samples in "
        f"{STEPS} steps. The verdict takes so many passes per sample, with two gradients each over m "
        "parameters, and distances to the training data. In turns, in CPU time on one thread; the ratio is "
        f"the median of {repeats} turns, with the least and the largest. The last column is one gradient per "
        f"sample over all passes, against forward calls of the same states.\n\n{table(head, rows)}\n\n"
        + "\n".join(f"- {line}" for line in verdicts)
        + "\n\nWhere the time of the verdict goes:\n\n"
        + "\n".join(f"- {line}" for line in shares)
    )


def _cases(quick: bool) -> list[Case]:
    """The shipped models, and a UNet of diffusers."""
    found = []
    for name, n in (("grid", 1000), ("chirp", 1000), ("digits", 64)):
        model = flare.bench.load(name)
        scorer = flare.fit(model, model.data, pairs=PAIRS, check=False)
        x = model.data[: n // 10 if quick else n]
        found.append(Case(name, "UNet" if name == "digits" else "MLP", scorer, x))
    from diffusers import DDIMScheduler

    data = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about random weights and few pairs
        scorer = flare.fit((make_unet(), DDIMScheduler()), data, pairs=PAIRS // 4, check=False)
    return [*found, Case("UNet2DModel", "UNet", scorer, data[: 2 if quick else 8])]


def _tell(what: str, ratio: Ratio, target: float, unit: str) -> str:
    word = "met" if ratio.median <= target else "**missed**"
    return f"{what}: {ratio.median:.2f} {unit}, target {target}: {word}"


if __name__ == "__main__":
    command("verdict", __doc__, section)

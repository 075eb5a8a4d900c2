"""Ways to compute the network's changes: what each costs, how true it is, how it depends on the batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import flare
from flare.autodiff.finite_difference import Movable
from flare.propagation import Tangent
from tools.document import table

from .harness import command, compare, spearman
from .networks import Case, shipped, unet

DIRECTIONS = 4
SCORES = ("trace", "expected_residual")
BATCH_LIMIT, MEDIAN_LIMIT, LARGEST_LIMIT = 1e-3, 1e-3, 1e-2  # what the default must keep to


class Float32Difference:
    """The way that is not taken: differences in float32, one-sided or symmetric, with a step from θ alone."""

    def __init__(self, case: Case, directions: Tensor, share: float, symmetric: bool) -> None:
        self.denoiser = case.denoiser
        self.movable = Movable(case.denoiser, case.posterior.subset, directions.T.float().contiguous())
        self.share, self.symmetric = share, symmetric

    def __call__(
        self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """f and δf."""
        value = self.denoiser(x, t, cond)

        def there(k: int, h: float) -> Tensor:
            state = x if dx is None else torch.add(x, dx[k], alpha=h)
            with self.movable.along(k, h) as params:
                return self.denoiser.call(params, state, t, cond)

        changes = []
        for k, size in enumerate(self.movable.sizes.tolist()):
            h = self.share / size
            ahead = there(k, h)
            changes.append((ahead - there(k, -h)) / (2 * h) if self.symmetric else (ahead - value) / h)
        return value, torch.stack(changes)


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    n, steps, repeats = (6, 5, 1) if quick else (40, 50, 3)
    cases = [shipped(name, n, steps) for name in ("grid", "sines", "chirp", "damped")]
    cases.append(unet(3, 2, size=8) if quick else unet(8, 8, size=16))
    rows, worst = [], []
    for case in cases:
        added, default = _measure(case, repeats)
        rows += added
        worst.append((case.name, *default))
    head = (
        "network", "way", "calls per direction", "error, median", "error, largest", "Spearman",
        "other batch size",
    )  # fmt: skip
    verdicts = [
        f"- {name}: error {median:.0e} in the median and {largest:.0e} at most (limits {MEDIAN_LIMIT:g}, "
        f"{LARGEST_LIMIT:g}), batches differ by {batch:.0e} (limit {BATCH_LIMIT:g}): "
        + ("met" if _good(median, largest, batch) else "**missed**")
        for name, median, largest, batch in worst
    ]
    return (
        "## Ways to differentiate\n\nThe tangent rule needs the change of f along each direction. Below, "
        f"the same {n} samples (the UNet {cases[-1].n}) and {DIRECTIONS} directions by each way, {steps} "
        f"DDIM steps (the UNet {len(cases[-1].steps)}). *Calls per direction*: CPU time beside bare float32 "
        "calls, everything included. *Error*: relative, of the trace of a sample, against exact derivatives "
        "of a float64 copy of the network. *Other batch size*: the largest relative change of a sample's "
        "trace if it is sampled in a batch of its own instead of with all the others.\n\n"
        f"{table(head, rows)}\n\nDifferences in float32 lose their digits to rounding, which changes with "
        "the batch size and the processor; a symmetric one costs two calls and gains about one digit. Exact "
        "derivatives in float32 are as true as the float32 trajectory that they follow. A float64 copy of "
        "the network keeps all the digits of a float32 sample. It is the default on a CPU "
        "(`derivative='auto'`), for both scores:\n\n" + "\n".join(verdicts)
    )


def _measure(case: Case, repeats: int) -> tuple[list[list[object]], tuple[float, float, float]]:
    directions = case.posterior.directions(DIRECTIONS, torch.Generator().manual_seed(0))
    options = {"directions": directions, "score": SCORES}
    truth = case.in_float64().sample(**options, derivative="exact")
    ways = {
        "one-sided, float32": partial(_by_rule, case, directions, 2.8e-3, False),
        "symmetric, float32": partial(_by_rule, case, directions, 3e-3, True),
        "exact, float32": partial(case.sample, **options, derivative="exact"),
        "secant, float64 (default)": partial(case.sample, **options, derivative="secant"),
    }
    rows, bare = [], case.bare()
    for name, way in ways.items():
        ratio = compare(way, bare, repeats).median / DIRECTIONS
        whole, single = way(), way(batch_size=1)
        figures = {}
        for score in whole.scores:
            error = (whole.scores[score] / truth.scores[score] - 1).abs().double()
            batch = (single.scores[score] / whole.scores[score] - 1).abs().max().item()
            figures[score] = (error.median().item(), error.max().item(), batch)
        median, largest, batch = figures["trace"]
        rank = spearman(whole.scores["trace"], truth.scores["trace"])
        rows.append(
            [
                case.name,
                name,
                f"{ratio:.2f}",
                f"{median:.0e}",
                f"{largest:.0e}",
                f"{rank:.5f}",
                f"{batch:.0e}",
            ]
        )
    # the default, in the worse of the two scores
    return rows, tuple(max(column) for column in zip(*figures.values(), strict=True))  # type: ignore[return-value]


def _by_rule(case: Case, directions: Tensor, share: float, symmetric: bool, **more: object) -> flare.Result:
    """Samples whose changes come from float32 differences: the tangent rule with another push."""
    rule = Tangent(case.denoiser, case.posterior.subset, directions)
    rule.push = Float32Difference(case, directions, share, symmetric)
    return case.sample(rule=rule, score="trace", **more)


def _good(median: float, largest: float, batch: float) -> bool:
    return median <= MEDIAN_LIMIT and largest <= LARGEST_LIMIT and batch <= BATCH_LIMIT


if __name__ == "__main__":
    command("secants", __doc__, section)

"""Ways to compute the network's changes: what each costs, how true it is, how it depends on the batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import flare
from flare.autodiff.finite_difference import Movable
from flare.autodiff.jvp import Push
from flare.propagation import Tangent
from tools.document import table

from .harness import command, compare
from .networks import Case, shipped, unet

DIRECTIONS = 4
SHARES = (7e-4, 2.8e-3)  # relative changes of the parameters
LIMIT = 1e-3  # what the default must keep to


class Float32Difference:
    """The way that is not taken: one-sided differences in float32, with a step from θ alone."""

    def __init__(self, case: Case, directions: Tensor, share: float) -> None:
        self.denoiser = case.denoiser
        self.movable = Movable(case.denoiser, case.posterior.subset, directions.T.float().contiguous())
        self.share = share

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
            changes.append((there(k, h) - value) / h)
        return value, torch.stack(changes)


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    n, steps, repeats = (2, 5, 1) if quick else (8, 50, 1)
    cases = [shipped(name, n, steps) for name in ("grid", "chirp", "digits")]
    cases.append(unet(2, 2, size=8) if quick else unet(3, 10, size=32))
    rows, verdicts, first = [], [], []
    for case in cases:
        for way, figures in _measure(case, repeats).items():
            cells = [f"{value:.0e}" for value in figures[1:]]
            first += figures[4:]
            rows.append([case.name, way, f"{figures[0]:.2f}", *cells, *["–"] * (4 - len(cells))])
            met = "met" if figures[2] <= LIMIT and figures[3] <= LIMIT else "**missed**"
            verdicts.append(f"- {case.name}, {way}: scores to {LIMIT:g}, and across batch sizes: {met}")
    head = (
        "network",
        "way",
        "bare calls per direction",
        "error, median",
        "error, largest",
        "other batch size",
        "first state",
    )
    return (
        f"## Ways to differentiate\n\n{n} samples (the UNet2DModel {cases[-1].n}) and {DIRECTIONS} directions"
        f" in {steps} DDIM steps (the UNet2DModel {len(cases[-1].steps)}). *Error*: relative, of the trace "
        "of a sample, against exact derivatives of a float64 copy of the network. *Other batch size*: the "
        "largest relative change of a sample's trace if it is drawn alone. *First state*: the largest "
        "relative error of the network's change at the first step, which a plan could look at. `digits` is a "
        f"trained UNet, and UNet2DModel has random weights. Calls are timed once.\n\n{table(head, rows)}\n\n"
        + "\n".join(verdicts) + f"\n\nA trial at the first states with this limit would take float32 "
        f"differences in {sum(error <= LIMIT for error in first)} of {len(first)} cases. `derivative='auto'` "
        "makes none: it takes secants in float64, or exact derivatives through convolutions."
    )  # fmt: skip


def _measure(case: Case, repeats: int) -> dict[str, list[float]]:
    """Bare calls per direction, median and largest error, and batch dependence, by way."""
    directions = case.posterior.directions(DIRECTIONS, torch.Generator().manual_seed(0))
    options = {"directions": directions, "score": "trace"}
    truth = case.in_float64().sample(**options, derivative="exact").score
    ways = {
        f"one-sided, float32, step {share:g}": partial(_by_rule, case, directions, share) for share in SHARES
    }
    ways |= {
        "exact, float32": partial(case.sample, **options, derivative="exact"),
        "secant, float64": partial(case.sample, **options, derivative="secant"),
    }
    found, bare = {}, case.bare()
    first = _push_first(case, Push(case.in_float64().denoiser.by("exact"), case.posterior.subset, directions))
    for name, way in ways.items():
        whole, single = way().score, way(batch_size=1).score
        error, batch = ((one / other - 1).abs().double() for one, other in ((whole, truth), (single, whole)))
        ratio = compare(way, bare, repeats).median / DIRECTIONS
        found[name] = [ratio, error.median().item(), error.max().item(), batch.max().item()]
        if name.startswith("one-sided"):
            push = Float32Difference(case, directions, way.args[2])
            found[name].append(
                float(((_push_first(case, push) - first).norm(dim=2) / first.norm(dim=2)).max())
            )
    return found


def _push_first(case: Case, push: Any) -> Tensor:
    """Changes of the network at the first states, where x does not move yet, (directions, n, d)."""
    x = torch.randn(case.n, *case.shape, generator=torch.Generator().manual_seed(0)).to(push.denoiser.dtype)
    time = torch.tensor([case.steps.transitions[0].level.time]).expand(case.n)
    return push(x, None, time, {})[1].flatten(2).double()


def _by_rule(case: Case, directions: Tensor, share: float, **more: object) -> flare.Result:
    """Samples whose changes come from float32 differences: the tangent rule with another push."""
    rule = Tangent(case.denoiser, case.posterior.subset, directions)
    rule.push = Float32Difference(case, directions, share)
    return case.sample(rule=rule, score="trace", **more)


if __name__ == "__main__":
    command("secants", __doc__, section)

"""The curvature as a preconditioner: does training with Σ·∇ need fewer steps than AdamW?

The paper ends with the hope for "tighter integrations with second-order optimizers". A posterior is one
already: `posterior.covariance(gradient)` is a damped natural-gradient step. Both optimizers start from the
same weights, early in training, and see the same batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import flare
from flare import bench
from tools.document import table

from .claims import Claim
from .lab import Found, Job

TITLE = "The curvature as a preconditioner"
NAMES = ("grid", "sines")
WARM_UP, REFRESH, PAIRS, BATCH = 300, 100, 1_000, 256
RATES = {"AdamW": (5e-4, 1e-3, 2e-3, 4e-3), "preconditioned": (0.03, 0.1, 0.3)}
DAMPINGS = (3.0, 10.0, 30.0)
FULL, QUICK = {"steps": 1_000, "validation": 20_000}, {"steps": 20, "validation": 500}
EVERY = 20  # steps between two looks at the validation loss


def preconditioner_job(name: str, seed: int, steps: int, validation: int) -> Found:
    """The validation loss of every setting of both optimizers, by step."""
    model = bench.load(name)
    config = {**model.config, "training": {**model.config["training"], "seed": seed}}
    net = bench.build(config)[0]
    look = flare.noising.pairs(model.data, model.schedule, n=validation, seed=99, weighting=model.weighting)
    first = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in _train(net, model, seed, WARM_UP if steps > WARM_UP else 5, _use(first)):
        pass
    curves: dict[str, list[float]] = {}
    for rate in RATES["AdamW"]:
        own = copy.deepcopy(net)
        optimizer = torch.optim.AdamW(own.parameters(), lr=rate)
        curves[f"AdamW, {rate:g}"] = _watch(own, model, seed + 1, steps, look, _use(optimizer))
    for damping in DAMPINGS:
        for rate in RATES["preconditioned"]:
            own = copy.deepcopy(net)
            advance = _Preconditioned(own, model, rate, damping)
            curves[f"preconditioned, {rate:g}, {damping:g}"] = _watch(
                own, model, seed + 1, steps, look, advance
            )
    return {"curves": curves}


def _train(
    net: nn.Module, model: bench.Benchmark, seed: int, steps: int, advance: Callable[[int], None]
) -> Any:
    """Steps on batches that depend on the seed alone; yields after each."""
    batches = flare.noising.pairs(
        model.data, model.schedule, n=steps * BATCH, seed=seed, weighting=model.weighting, batch_size=BATCH
    )
    for step, batch in enumerate(batches.batches("epsilon")):
        net.zero_grad()
        _loss(net, batch).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        advance(step)
        yield step


def _watch(
    net: nn.Module, model: bench.Benchmark, seed: int, steps: int, look: Any, advance: Callable[[int], None]
) -> list[float]:
    """The validation loss at every `EVERY`th step; inf from the step on at which training diverges."""
    found = [_validate(net, look)]
    for step in _train(net, model, seed, steps, advance):
        if (step + 1) % EVERY == 0:
            value = _validate(net, look)
            if not value < 10 * found[0]:
                return found + [math.inf] * (steps // EVERY + 1 - len(found))
            found.append(value)
    return found


def _loss(net: nn.Module, batch: Any) -> Tensor:
    error = (net(batch.x, batch.t) - batch.target).square().flatten(1).mean(1)
    return (batch.weight * error).mean()


@torch.no_grad()
def _validate(net: nn.Module, look: Any) -> float:
    found = [(float(_loss(net, batch)), len(batch.x)) for batch in look.batches("epsilon")]
    return sum(value * n for value, n in found) / sum(n for _, n in found)


def _use(optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    return lambda step: optimizer.step()


class _Preconditioned:
    """θ ← θ − rate·(H + δ·tr(H)/m·I)⁻¹∇ of all linear layers; AdamW moves what the norms learn.

    H is a Kronecker factorization, renewed every `REFRESH` steps.
    """

    def __init__(self, net: nn.Module, model: bench.Benchmark, rate: float, damping: float) -> None:
        self.net, self.model, self.rate, self.damping = net, model, rate, damping
        own = dict(net.named_parameters())
        self.linear = {name: p for name, p in own.items() if "norm" not in name}
        self.others = torch.optim.AdamW([p for name, p in own.items() if name not in self.linear], lr=1e-3)

    def __call__(self, step: int) -> None:
        if step % REFRESH == 0:
            self._renew(step)
        gradient = self.subset.gather({name: p.grad for name, p in self.linear.items()})
        change = self.subset.scatter(-self.rate * self.posterior.covariance(gradient))
        with torch.no_grad():
            for name, parameter in self.linear.items():
                parameter += change[name]
        self.others.step()

    def _renew(self, step: int) -> None:
        net = flare.Denoiser(copy.deepcopy(self.net).eval().requires_grad_(False))
        pairs = flare.noising.pairs(
            self.model.data, self.model.schedule, n=PAIRS, seed=step, weighting=self.model.weighting
        )
        self.subset = flare.subsets.named(net, list(self.linear))
        fitted = flare.posteriors.kronecker(net, self.subset, pairs, prior_precision=1.0, scale=1.0)
        # tr Σ for a large δ gives tr H: m/δ − tr Σ ≈ tr H/δ²
        probe = torch.randn(16, fitted.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        large = 1e6
        trace = large**2 * float(
            (probe * (probe / large - fitted.refit(large).covariance(probe))).sum(1).mean()
        )
        self.posterior = fitted.refit(self.damping * trace / fitted.size)


def jobs(quick: bool) -> list[Job]:
    """Two seeds per model: settings are chosen on the first and reported on the second."""
    size = QUICK if quick else FULL
    return [
        Job(f"preconditioner-{name}-{seed}", preconditioner_job, {"name": name, "seed": seed, **size})
        for name in NAMES
        for seed in (0, 1)
    ]


def best(curves: dict[str, list[float]], method: str) -> str:
    """The setting of a method with the lowest loss at the end."""
    return min((name for name in curves if name.startswith(method)), key=lambda name: curves[name][-1])


def steps_to(curve: Sequence[float], loss: float) -> int | None:
    """The first step at which the loss is reached, to within `EVERY`."""
    return next((EVERY * k for k, value in enumerate(curve) if value <= loss), None)


def section(jobs: Sequence[Job], pictures: Path) -> list[str]:
    """A table and a figure."""
    rows, drawn = [], []
    for name in sorted({job.config["name"] for job in jobs}):
        chosen, reported = (
            next(job.found() for job in jobs if job.config["name"] == name and job.config["seed"] == seed)
            for seed in (0, 1)
        )
        settings = {method: best(chosen["curves"], method) for method in RATES}
        curves = {method: reported["curves"][setting] for method, setting in settings.items()}
        goal = curves["AdamW"][-1]
        reached = steps_to(curves["preconditioned"], goal)
        drawn.append((name, curves))
        rows.append(
            [
                name,
                settings["AdamW"].partition(", ")[2],
                settings["preconditioned"].partition(", ")[2],
                *(f"{curves[method][-1]:.4f}" for method in RATES),
                EVERY * (len(curves["AdamW"]) - 1),
                "never" if reached is None else reached,
            ]
        )
    figure, axes = plt.subplots(
        1, len(drawn), figsize=(4 * len(drawn), 3), layout="constrained", squeeze=False
    )
    for ax, (name, curves) in zip(axes[0], drawn, strict=True):
        for method, curve in curves.items():
            ax.plot([EVERY * k for k in range(len(curve))], curve, label=method)
        ax.set(title=name, xlabel="step", ylabel="validation loss", yscale="log")
        ax.legend(fontsize=8)
    figure.savefig(pictures / "preconditioner.png", dpi=150)
    plt.close(figure)
    return [
        "`posterior.covariance(gradient)` is (H + δI)⁻¹ ∇, a damped natural-gradient step. Both optimizers "
        f"start from the same weights, after {WARM_UP} steps of AdamW, and see the same batches of {BATCH}; "
        f"gradients are clipped. H is a Kronecker factorization of {PAIRS:,} pairs, renewed every {REFRESH} "
        "steps, and δ a multiple of its mean eigenvalue. The scales of the norms follow AdamW. Learning "
        "rates and dampings are chosen on one seed (the lowest loss at the end) and reported on another.",
        table(
            ["model", "AdamW: rate", "preconditioned: rate, δ", "loss, AdamW", "loss, preconditioned",
             "steps of AdamW", "steps to its loss, preconditioned"],
            rows,
        ),
        "![Validation loss by step](images/reproduction/preconditioner.png)",
        "A renewal of H costs as much as about "
        f"{2 * PAIRS / BATCH:.0f} steps or more, which the table does not count.",
    ]  # fmt: skip


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """None: the paper hopes, and claims nothing."""
    return []

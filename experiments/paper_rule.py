"""The paper's recursion with every set of coefficients, and several posteriors, along one trajectory.

All of them add up diag(J Σ Jᵀ) over the steps, with J = ∂f/∂θ at the realized state. J has only d rows: d
reverse passes give all of it, and one product with a square root of Σ gives the exact diagonal. Posteriors
over parts of the parameters take their columns of the same J. The tangent rule is exact in the same way: the
d rows of ∂x_0/∂θ are carried along, and meet Σ once, at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import flare
from flare import bench
from flare.propagation import RULES, Ingredients, Rule

from .jacobians import Jacobian, Push

BATCH = 250  # samples at once: J of all parameters takes 80 MB for sines
#: the names of the sums, and their rules
WEIGHTINGS = {"main": "decoupled", "appendix": "decoupled_appendix", "released": "released"}

Root = tuple[flare.subsets.Subset, Tensor]  # a subset and D (m, k) with D Dᵀ = Σ


class Source(ABC):
    """Gives diag(J Σ Jᵀ) at a state, under one or several posteriors."""

    @abstractmethod
    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """The diagonal (B, d) by the name of the posterior."""


class Rows(Source):
    """Exact: all d rows of J, times a square root of each Σ.

    Args:
        denoiser: the network.
        roots: by name, a subset and D (m, k) with D Dᵀ = Σ (or nearly, if k directions were drawn).
    """

    def __init__(self, denoiser: flare.Denoiser, roots: Mapping[str, Root]) -> None:
        self.jacobian = Jacobian(denoiser)
        self.roots = {name: (subset, root.to(denoiser.dtype)) for name, (subset, root) in roots.items()}

    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """‖J D‖² row by row."""
        _, seen = self.jacobian.look(x, t)
        return {
            name: (self.jacobian.pick(seen, subset) @ root).square().sum(-1)
            for name, (subset, root) in self.roots.items()
        }


class Redrawn(Source):
    """Exact, with another random subset at every step, from the curvature of all parameters.

    Args:
        denoiser: the network.
        name: what the posterior is called.
        H: the curvature of all parameters, (p, p).
        size: m, the size of each subset.
        scale: s.
        prior_precision: δ.
    """

    def __init__(
        self, denoiser: flare.Denoiser, name: str, H: Tensor, size: int, scale: float, prior_precision: float
    ) -> None:
        self.denoiser, self.jacobian = denoiser, Jacobian(denoiser)
        self.name, self.H, self.size, self.s, self.delta = name, H, size, scale, prior_precision
        order = torch.arange(len(H)).split([value.numel() for value in denoiser.params.values()])
        self.positions = {
            name: part.view_as(value)
            for (name, value), part in zip(denoiser.params.items(), order, strict=True)
        }

    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """J Σ Jᵀ of the subset of this step."""
        subset = flare.subsets.random(self.denoiser, count=self.size, seed=step)
        here = subset.gather(self.positions)
        precision = self.s * self.H[here][:, here]
        precision.diagonal().add_(self.delta)
        J = self.jacobian.rows(x, t, subset)
        rows = torch.linalg.solve_triangular(
            torch.linalg.cholesky(precision), J.flatten(0, 1).T.to(precision), upper=False
        )
        return {self.name: rows.square().sum(0).view(J.shape[:2]).to(x)}


class Directions(Source):
    """By k random directions: unbiased, for networks and samples that are too large for all of J.

    Args:
        denoiser: the network.
        roots: by name, a subset and directions D (m, k).
    """

    def __init__(self, denoiser: flare.Denoiser, roots: Mapping[str, Root]) -> None:
        self.push = {
            name: Push(denoiser, subset, root.to(denoiser.dtype)) for name, (subset, root) in roots.items()
        }

    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """Σ_k (J D_k)²."""
        return {name: push(x, None, t)[1].square().sum(0) for name, push in self.push.items()}


class LastLayer(Source):
    """Exact for a linear last layer of any size: Σ has one and the same block for every output.

    J of output i is the last hidden state in the block of row i of the weight, so H is block diagonal, and
    one block of (width + 1)² numbers says everything.

    Args:
        denoiser: the network.
        name: what the posterior is called.
        block: a dense posterior over one block, from `first_row`.
    """

    def __init__(self, denoiser: flare.Denoiser, name: str, block: Any) -> None:
        self.jacobian, self.name, self.subset = Jacobian(denoiser), name, block.subset
        self.root = block.exact_directions().to(denoiser.dtype)

    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """h Σ_block hᵀ for every output."""
        h = self.jacobian.rows(x, t, self.subset, outputs=1)
        return {self.name: (h @ self.root).square().sum(-1).expand(-1, x.shape[1])}


def first_row(denoiser: flare.Denoiser) -> flare.subsets.Subset:
    """The parameters of the first output of a linear last layer: a row of the weight and a bias."""
    last = flare.subsets.last_layer(denoiser)
    first = {name: torch.arange(shape[1:].numel()) for name, shape in last.shapes.items()}
    return flare.subsets.Subset(first, last.shapes)


@dataclass
class Sums:
    """The state of a batch.

    Attributes:
        totals: the sums so far, by posterior and weighting, (B, d) each.
        passed: Π a² of the steps so far, by weighting.
        step: how many steps there were.
    """

    totals: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    passed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WEIGHTINGS, 1.0))
    step: int = 0


class PaperSums(Rule):
    """The sums of all posteriors and weightings; `found` has their traces, batch after batch.

    Args:
        denoiser: the network, which drives the samples.
        steps: the sampler's table.
        sources: where diag(J Σ Jᵀ) comes from.
    """

    def __init__(
        self, denoiser: flare.Denoiser, steps: flare.samplers.Steps, sources: Sequence[Source]
    ) -> None:
        self.denoiser, self.sources = denoiser, sources
        some = flare.subsets.last_layer(denoiser)
        nothing = torch.zeros(some.size, 0, dtype=denoiser.dtype)
        self.weightings: dict[str, Any] = {
            name: RULES[rule].build(
                Ingredients(denoiser=denoiser, subset=some, directions=nothing, steps=steps, driver=denoiser)
            )
            for name, rule in WEIGHTINGS.items()
        }
        self.found: dict[str, list[Tensor]] = {}

    def init(self, x: Tensor, cond: Any, history: int, noise: Any) -> Sums:
        """Start with empty sums."""
        return Sums()

    def step(self, state: Sums, row: Any, x: Tensor, t: Tensor, z: Tensor | None) -> tuple[Tensor, Sums]:
        """f, and all sums after the row."""
        totals = {}
        for source in self.sources:
            for name, own in source(state.step, x, t).items():
                for weighting, rule in self.weightings.items():
                    a, b = rule.coefficients(row)
                    before = state.totals.get((name, weighting), torch.zeros_like(own))
                    totals[name, weighting] = rule.add(before, state.passed[weighting], a, b**2 * own)
        passed = {
            weighting: state.passed[weighting] * rule.coefficients(row)[0] ** 2
            for weighting, rule in self.weightings.items()
        }
        return self.denoiser(x, t), Sums(totals, passed, state.step + 1)

    def finish(self, state: Sums, x: Tensor, noise: Any) -> None:
        """Keep the traces."""
        for (name, weighting), total in state.totals.items():
            self.found.setdefault(f"{name}, {weighting}", []).append(total.sum(1))


class ExactTangent(Rule):
    """The tangent rule with all of Σ: ∂x/∂θ (B, d, m) is carried along, and `found` has the traces.

    Args:
        denoiser: the network, which drives the samples.
        roots: by name, a subset and D (m, k) with D Dᵀ = Σ.
    """

    def __init__(self, denoiser: flare.Denoiser, roots: Mapping[str, Root]) -> None:
        self.denoiser, self.jacobian = denoiser, Jacobian(denoiser)
        # posteriors over the same subset share ∂x/∂θ
        self.subsets = {id(subset): subset for subset, _ in roots.values()}
        self.roots = {name: (id(subset), root.to(denoiser.dtype)) for name, (subset, root) in roots.items()}
        self.found: dict[str, list[Tensor]] = {}

    def init(self, x: Tensor, cond: Any, history: int, noise: Any) -> dict[int, Tensor]:
        """Nothing has moved."""
        return {key: x.new_zeros(*x.shape, subset.size) for key, subset in self.subsets.items()}

    def step(
        self, state: dict[int, Tensor], row: Any, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """f, and ∂x/∂θ after the row: zero through x̂0 where that is clipped."""
        by_x, seen = self.jacobian.look(x, t)
        f = self.denoiser(x, t)
        clean = row.clean(x, f)
        free = torch.ones_like(x) if row.clip is None else (row.limit(clean) == clean).to(x)
        a, b = (row.A + row.B[0] * row.p * free)[..., None], (row.B[0] * row.q * free)[..., None]
        return f, {
            key: a * moved + b * (self.jacobian.pick(seen, self.subsets[key]) + by_x @ moved)
            for key, moved in state.items()
        }

    def finish(self, state: dict[int, Tensor], x: Tensor, noise: Any) -> None:
        """Keep the traces."""
        for name, (key, root) in self.roots.items():
            variance = (state[key] @ root).square().sum(-1)
            self.found.setdefault(f"{name}, tangent", []).append(variance.sum(1))


def traces(
    model: bench.Benchmark,
    steps: flare.samplers.Steps,
    rule: PaperSums | ExactTangent,
    posterior: Any,
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Samples (n, d), and all traces (n,) of a rule: {"posterior, weighting": trace}.

    Args:
        model: the model that is sampled.
        steps: the sampler's table.
        rule: what is added up along the trajectories.
        posterior: any posterior of the model: `flare.sample` wants one.
        **options: n, seed, and what else `flare.sample` takes.
    """
    # the rule keeps its own figures; one cheap score, since flare.sample computes at least one
    result = flare.sample(
        model.denoiser, steps, posterior, shape=model.shape, rule=rule, score="error_profile", levels=0.1,
        **{"batch_size": BATCH, **options},
    )  # fmt: skip
    return result.samples, {name: torch.cat(parts) for name, parts in rule.found.items()}

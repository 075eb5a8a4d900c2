"""The paper's recursion with every set of coefficients, and several posteriors, along one trajectory.

All of them add up diag(J Σ Jᵀ) over the steps, with J = ∂f/∂θ at the realized state. J has only d rows: d
reverse passes give all of it, and one product with a square root of Σ gives the exact diagonal. Posteriors
over parts of the parameters take their columns of the same J. The tangent rule is exact in the same way: the
d rows of ∂x_0/∂θ are carried along, and meet Σ once, at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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


class Secants(Source):
    """As `Directions`, by difference quotients in float64: one network call per direction.

    Args:
        denoiser: the network.
        roots: by name, a subset and directions D (m, k).
    """

    STEP = 1e-6  # the change of the parameters relative to their size

    def __init__(self, denoiser: flare.Denoiser, roots: Mapping[str, Root]) -> None:
        self.net = denoiser.wide(torch.float64)
        self.moved: dict[str, list[tuple[float, dict[str, Tensor]]]] = {}
        for name, (subset, D) in roots.items():
            here, D = subset.gather(self.net.params), D.double()
            sizes = (self.STEP * here.norm() / D.norm(dim=0)).tolist()
            self.moved[name] = [
                (h, {**self.net.params, **_merge(self.net, subset, here + h * d)})
                for h, d in zip(sizes, D.T, strict=True)
            ]

    @torch.no_grad()
    def __call__(self, step: int, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """Σ_k ((f(θ + h·D_k) − f(θ))/h)²."""
        wide = x.double()
        f = self.net(wide, t)
        out = {}
        for name, moved in self.moved.items():
            total = torch.zeros_like(f)
            for h, params in moved:
                total += ((self.net.call(params, wide, t) - f) / h).square()
            out[name] = total.to(x)
        return out


def _merge(denoiser: flare.Denoiser, subset: flare.subsets.Subset, values: Tensor) -> dict[str, Tensor]:
    """The tensors of a subset with new values in its entries."""
    before = subset.gather(denoiser.params)
    change = subset.scatter((values - before)[None])
    return {name: denoiser.params[name] + part[0] for name, part in change.items()}


def weigh(denoiser: flare.Denoiser, steps: flare.samplers.Steps) -> dict[str, Tensor]:
    """The weight that each step's J Σ Jᵀ has in the sum, (steps,) float64 by the name of the weighting."""
    some = flare.subsets.last_layer(denoiser)
    nothing = torch.zeros(some.size, 0, dtype=denoiser.dtype)
    given = Ingredients(denoiser=denoiser, subset=some, directions=nothing, steps=steps, driver=denoiser)
    rows = steps.rows(denoiser.prediction)
    unit = torch.eye(len(rows), dtype=torch.float64)
    out = {}
    for name, label in WEIGHTINGS.items():
        rule: Any = RULES[label].build(given)
        total, passed = torch.zeros_like(unit[0]), 1.0
        for own, row in zip(unit, rows, strict=True):
            a, b = rule.coefficients(row)
            total, passed = rule.add(total, passed, a, b**2 * own), passed * a**2
        out[name] = total
    return out


def choose_nodes(weights: Mapping[str, Tensor], count: int) -> list[int]:
    """About `count` steps, the ends included: dense where a weighting is heavy and toward the data."""
    shares = [weight / weight.sum() for weight in weights.values()]
    toward = 1 / torch.arange(len(shares[0]), 0, -1, dtype=torch.float64)
    place = (torch.stack([*shares, toward / toward.sum()]).mean(0).cumsum(0) * (count - 1)).ceil().long()
    return sorted({0, len(toward) - 1, *(1 + torch.nonzero(place.diff()).flatten()).tolist()})


def interpolate(weight: Tensor, nodes: Sequence[int]) -> Tensor:
    """The weights of the nodes, (nodes,), if J Σ Jᵀ of the other steps is interpolated between them."""
    place = torch.tensor(nodes)
    steps = torch.arange(len(weight))
    right = torch.searchsorted(place, steps).clamp(min=1)
    left = right - 1
    share = (steps - place[left]).double() / (place[right] - place[left])
    out = torch.zeros(len(nodes), dtype=weight.dtype)
    return out.index_add(0, left, weight * (1 - share)).index_add(0, right, weight * share)


class PaperSums(Rule):
    """The sums of all posteriors and weightings; `found` has their traces, batch after batch.

    Args:
        denoiser: the network, which drives the samples.
        steps: the sampler's table.
        sources: where diag(J Σ Jᵀ) comes from.
        nodes: about how many steps J Σ Jᵀ is computed at, and interpolated between; by default all.
    """

    def __init__(
        self,
        denoiser: flare.Denoiser,
        steps: flare.samplers.Steps,
        sources: Sequence[Source],
        nodes: int | None = None,
    ) -> None:
        self.denoiser, self.sources = denoiser, sources
        weights = weigh(denoiser, steps)
        chosen = list(range(len(steps))) if nodes is None else choose_nodes(weights, nodes)
        table = {name: interpolate(weight, chosen).tolist() for name, weight in weights.items()}
        self.weights = {
            step: {name: values[i] for name, values in table.items()} for i, step in enumerate(chosen)
        }
        self.found: dict[str, list[Tensor]] = {}

    def init(self, x: Tensor, cond: Any, history: int, noise: Any) -> tuple[int, dict[str, Tensor]]:
        """No steps yet, and empty sums."""
        return 0, {}

    def step(
        self, state: tuple[int, dict[str, Tensor]], row: Any, x: Tensor, t: Tensor, z: Tensor | None
    ) -> tuple[Tensor, tuple[int, dict[str, Tensor]]]:
        """f, and all sums after the row."""
        index, totals = state
        if index in self.weights:
            totals = dict(totals)
            for source in self.sources:
                for name, own in source(index, x, t).items():
                    for weighting, weight in self.weights[index].items():
                        key = f"{name}, {weighting}"
                        totals[key] = totals.get(key, 0.0) + weight * own.double().sum(1)
        return self.denoiser(x, t), (index + 1, totals)

    def finish(self, state: tuple[int, dict[str, Tensor]], x: Tensor, noise: Any) -> None:
        """Keep the traces."""
        for name, total in state[1].items():
            self.found.setdefault(name, []).append(total.to(x))


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
        model.denoiser, steps, posterior, shape=model.shape, rule=rule, score="trace",
        **{"batch_size": BATCH, **options},
    )  # fmt: skip
    return result.samples, {name: torch.cat(parts) for name, parts in rule.found.items()}

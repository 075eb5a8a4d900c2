"""Loss gradients of samples, one per noise level, in several coordinates at once; all influences from these.

A backward pass costs the same for a random subset, a sketch and the most sensitive parameters: the gradient
of all parameters is contracted to the coordinates of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

import flare
from flare.autodiff.vjp import split_chunks
from flare.posteriors import Dense
from flare.posteriors.curvature import Origin, ggn, spectrum
from flare.scores.renoising import Renoising

from .lab import load_or_fit
from .methods import PRINTED
from .subjects import Subject

LEVELS = (0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # as fractions of T
FEW = flare.core.INFLUENCE_LEVELS
REPEATS = flare.core.SHARED_REPEATS
KINDS = ("random", "sketch", "sensitive", "last")
RANKING = 300  # pairs that rank the parameters by sensitivity
_ROWS = 26  # gradients at once


@dataclass(frozen=True)
class Joined(flare.subsets.Subset):
    """Several coordinates of all parameters side by side.

    Attributes:
        parts: the coordinates by name.
    """

    parts: Mapping[str, flare.subsets.Subset]

    @classmethod
    def of(cls, denoiser: flare.Denoiser, parts: Mapping[str, flare.subsets.Subset]) -> Joined:
        """Of a network."""
        whole = flare.subsets.everything(denoiser)
        return cls(whole.indices, whole.shapes, parts)

    @property
    def size(self) -> int:
        """The sum of the sizes."""
        return sum(part.size for part in self.parts.values())

    def contract(self, entries: Tensor) -> Tensor:
        """The coordinates of every part, (..., size), of all parameters (..., p)."""
        lead, sizes = entries.shape[:-1], [len(index) for index in self.indices.values()]
        tensors = {
            name: part.view(*lead, *self.shapes[name])
            for name, part in zip(self.indices, entries.split(sizes, dim=-1), strict=True)
        }
        return torch.cat([part.gather(tensors, len(lead)) for part in self.parts.values()], dim=-1)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Columns (..., size) by part."""
        sizes = [part.size for part in self.parts.values()]
        return dict(zip(self.parts, rows.split(sizes, dim=-1), strict=True))


def choose_parts(subject: Subject, m: int) -> dict[str, flare.subsets.Subset]:
    """m coordinates of every kind; the last layer has fewer if it is smaller, random ones if larger."""
    denoiser = subject.denoiser
    last = flare.subsets.last_layer(denoiser)
    if last.size > m:
        last = _pick(last, _draw_mask(last.size, m))
    return {
        "random": flare.subsets.random(denoiser, count=m, seed=0),
        "sketch": flare.subsets.sketch(denoiser, m, seed=0),
        "sensitive": flare.subsets.sensitive(denoiser, subject.pairs(min(RANKING, m), seed=1), count=m),
        "last": last,
    }


def fit_posteriors(
    subject: Subject, m: int, count: int, probes: int, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """The dense posteriors of every kind with the paper's s and δ, from one pass over the pairs.

    Args:
        subject: the model.
        m: coordinates of every kind.
        count: training pairs.
        probes: rows of the Jacobian per pair.
        identity: what says which model it is; the files are found by it.
    """
    made: dict[str, Any] = {}

    def fit(kind: str) -> Any:
        if not made:
            joined = Joined.of(subject.denoiser, choose_parts(subject, m))
            made["joined"] = joined
            made["H"], made["statistics"] = ggn(subject.denoiser, joined, subject.pairs(count), probes=probes)
        rows = made["joined"].split(made["H"])
        block = made["joined"].split(rows[kind].T)[kind]
        subset = made["joined"].parts[kind]
        origin = Origin.of(subject.denoiser, subset, made["statistics"], subject.schedule)
        return Dense(origin, *PRINTED.values(), *spectrum(block))

    key = {**identity, "m": m, "pairs": count, "probes": probes}
    return {
        kind: load_or_fit(f"choice-{identity['study']}-{kind}", key, lambda k=kind: fit(k), subject.denoiser)
        for kind in KINDS
    }


@torch.no_grad()
def level_gradients(
    at: Renoising,
    coordinates: flare.subsets.Subset,
    x: Tensor,
    cond: Mapping[str, Tensor],
    chosen: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Per sample and level, ∇_θ of the mean over the noises of ½‖f − y‖², and the mean of ‖f − y‖².

    Args:
        at: levels and noise.
        coordinates: what to differentiate by, m of them.
        x: samples, (B, *shape).
        cond: their conditions.
        chosen: which of the levels; by default all. The noise of a level does not depend on the choice.

    Returns:
        (B, L, m) and (B, L).
    """
    noised = at.noise(x)
    own_levels = list(range(len(at.levels))) if chosen is None else list(chosen)
    levels, grid = len(own_levels), (len(at.levels), at.repeats)
    states, targets = (
        value.unflatten(1, grid)[:, own_levels].flatten(0, 1) for value in (noised.x, noised.target)
    )
    times = noised.t.view(grid)[own_levels].repeat(len(x), 1)
    own = {key: value.repeat_interleave(levels) for key, value in cond.items()}
    params = coordinates.params(at.denoiser)

    def one(z: Tensor, y: Tensor, t: Tensor, label: dict[str, Tensor]) -> Any:
        shared = {key: value.expand(at.repeats) for key, value in label.items()}

        def loss(values: dict[str, Tensor]) -> Tensor:
            error = at.denoiser.call(values, z, t, shared) - y
            return 0.5 * error.square().flatten(1).sum(1).mean()

        return grad_and_value(loss)(params)

    gradients, errors = [], []
    for here in _chunks(at.denoiser, coordinates, len(states)):
        with at.denoiser.workarounds():
            labels = {key: value[here] for key, value in own.items()}
            found, value = vmap(one)(states[here], targets[here], times[here], labels)
        gradients.append(coordinates.gather(found, lead=1))
        errors.append(2 * value)
    return torch.cat(gradients).unflatten(0, (-1, levels)), torch.cat(errors).unflatten(0, (-1, levels))


def _chunks(denoiser: flare.Denoiser, coordinates: flare.subsets.Subset, rows: int) -> Iterator[slice]:
    for here, _ in split_chunks(denoiser, coordinates, rows, 1):
        for first in range(here.start, here.stop, _ROWS):
            yield slice(first, min(first + _ROWS, here.stop))


def level_weights(at: Renoising, x: Tensor) -> Tensor:
    """√w of every level, (L,), the square roots of the min-SNR weights."""
    return at.noise(x[:1]).weight[:: at.repeats].sqrt()


def combine(gradients: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over levels, (B, L, m) -> (B, m): gradients add up before they are squared."""
    return torch.einsum("blm,l->bm", gradients.double(), weights.double()) / len(weights)


def quadratic(posterior: Any, g: Tensor) -> Tensor:
    """gᵀΣg over the last axis."""
    return posterior.quadratic(g.double())


def shrink(posterior: Any, denoiser: flare.Denoiser, m: int) -> tuple[Any, Tensor]:
    """The posterior over a random m of its coordinates, and which ones, (size,) bool."""
    chosen = _draw_mask(posterior.size, m)
    Q = posterior.eigenvectors[chosen]
    origin = posterior.origin
    part = Origin.of(denoiser, _pick(posterior.subset, chosen), origin.statistics)
    block = (Q * posterior.eigenvalues) @ Q.T
    return Dense(part, *PRINTED.values(), *spectrum(block)), chosen


def _draw_mask(size: int, m: int) -> Tensor:
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.randperm(size, generator=torch.Generator().manual_seed(0))[:m]] = True
    return chosen


def _pick(subset: flare.subsets.Subset, chosen: Tensor) -> flare.subsets.Subset:
    """Some coordinates of a subset."""
    masks = dict(zip(subset.indices, chosen.split([len(i) for i in subset.indices.values()]), strict=True))
    indices = {name: index[masks[name]] for name, index in subset.indices.items() if masks[name].any()}
    return flare.subsets.Subset(indices, {name: subset.shapes[name] for name in indices})

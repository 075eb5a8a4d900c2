"""Loss gradients of samples, one per noise level, in several coordinates at once; all influences from these.

A backward pass costs the same for a random subset, a sketch and the most sensitive parameters: the gradient
of all parameters is contracted to the coordinates of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

import flare
from flare.diffusion.parameterizations import min_snr_weight
from flare.scores import Renoising

from .lab import load_or_fit
from .methods import PRINTED
from .subjects import Subject

LEVELS = (0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # as fractions of T
FEW = (0.03, 0.15, 0.4, 0.7)  # the library's default levels of the influence
REPEATS = 2  # noise draws per level
KINDS = ("random", "sketch", "sensitive", "last")
RANKING = 300  # pairs that rank the parameters by sensitivity
_ROWS = 26  # gradients at once


@dataclass(frozen=True)
class Joined:
    """Several coordinates of all parameters side by side.

    Attributes:
        parts: The coordinates by name.
    """

    parts: Mapping[str, flare.subsets.Subset]

    @property
    def size(self) -> int:
        """The sum of the sizes."""
        return sum(part.size for part in self.parts.values())

    def params(self, denoiser: flare.Denoiser) -> Mapping[str, Tensor]:
        """All parameters, to differentiate by."""
        return denoiser.params

    def gather(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """The coordinates of every part, (..., size), of parameter-shaped tensors."""
        return torch.cat([part.gather(tensors, lead) for part in self.parts.values()], dim=-1)

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
    """The dense posteriors of every kind with the paper's s and δ, from disk after the first time.

    Args:
        subject: The model.
        m: Coordinates of every kind.
        count: Training pairs.
        probes: Rows of the Jacobian per pair.
        identity: What says which model it is; the files are found by it.
    """

    def fit(kind: str) -> Any:
        part = choose_parts(subject, m)[kind]
        return flare.posteriors.dense(subject.denoiser, part, subject.pairs(count), **PRINTED, probes=probes)

    key = {**identity, "m": m, "pairs": count, "probes": probes}
    return {
        kind: load_or_fit(f"choice-{identity['study']}-{kind}", key, lambda k=kind: fit(k), subject.denoiser)
        for kind in KINDS
    }


@torch.no_grad()
def level_gradients(
    at: Renoising,
    coordinates: flare.subsets.Subset | Joined,
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
    for first in range(0, len(states), _ROWS):
        here = slice(first, first + _ROWS)
        with at.denoiser.workarounds():
            labels = {key: value[here] for key, value in own.items()}
            found, value = vmap(one)(states[here], targets[here], times[here], labels)
        gradients.append(coordinates.gather(found, lead=1))
        errors.append(2 * value)
    return torch.cat(gradients).unflatten(0, (-1, levels)), torch.cat(errors).unflatten(0, (-1, levels))


def level_weights(at: Renoising, x: Tensor) -> Tensor:
    """√w of every level, (L,), the square roots of the min-SNR weights."""
    alpha, sigma = (
        torch.tensor([getattr(level, name) for level in at.levels], dtype=torch.float64)
        for name in ("alpha", "sigma")
    )
    return min_snr_weight(at.denoiser.prediction, alpha, sigma).sqrt().to(x)


def combine(gradients: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over levels, (B, L, m) -> (B, m): gradients add up before they are squared."""
    return torch.einsum("blm,l->bm", gradients.double(), weights.double()) / len(weights)


def quadratic(posterior: Any, g: Tensor) -> Tensor:
    """gᵀΣg over the last axis."""
    return posterior.quadratic(g.double())


def shrink(posterior: Any, denoiser: flare.Denoiser, m: int) -> tuple[Any, Tensor]:
    """The posterior over a random m of its coordinates, and which ones, (size,) bool."""
    chosen = _draw_mask(posterior.size, m)
    subset = _pick(posterior.subset, chosen)
    Q = posterior.eigenvectors[chosen]
    values, vectors = torch.linalg.eigh((Q * posterior.eigenvalues) @ Q.T)
    norm = float(subset.gather(denoiser.params).double().square().sum())
    origin = replace(posterior.origin, subset=subset, squared_norm=norm)
    small = replace(posterior, origin=origin, eigenvalues=values.clamp(min=0), eigenvectors=vectors)
    return small.refit(**PRINTED), chosen


def _draw_mask(size: int, m: int) -> Tensor:
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.randperm(size, generator=torch.Generator().manual_seed(0))[:m]] = True
    return chosen


def _pick(subset: flare.subsets.Subset, chosen: Tensor) -> flare.subsets.Subset:
    """Some coordinates of a subset."""
    masks = dict(zip(subset.indices, chosen.split([len(i) for i in subset.indices.values()]), strict=True))
    indices = {name: index[masks[name]] for name, index in subset.indices.items() if masks[name].any()}
    return flare.subsets.Subset(indices, {name: subset.shapes[name] for name in indices})

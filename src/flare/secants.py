"""Changes of a function by secants: (f(z + h·δz) − f(z))/h, one more call a direction and no derivative.

h makes the change a fixed share of what is changed, `STEP`·√ε: between truncation, which grows with h, and
rounding, which falls with it (`benchmarks/secants.py` shows both). The parameters are moved in a copy, and
only where the subset has them: a direction costs m numbers and not p. One h moves them for all samples of a
batch, so it is that of the typical sample; a sample that moves much farther is looked at apart.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .denoiser import Denoiser, Params
from .subsets import Subset

STEP = 8.0  # in square roots of the rounding unit: the share is 0.28% in float32
_FLOOR = 1e-3  # the least size of a number that a share is taken of
_ALIGNED = 64  # bytes: products with unaligned tensors may round otherwise


class Movable:
    """A copy of the tensors that a subset has a part in, moved in place along directions.

    Args:
        denoiser: the network; its own tensors stay.
        subset: which numbers move.
        directions: δθ_k, (K, m).
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        own, dtype = subset.params(denoiser), directions.dtype
        grain = _ALIGNED // dtype.itemsize
        lengths = {name: -(-value.numel() // grain) * grain for name, value in own.items()}
        flat = directions.new_zeros(sum(lengths.values()))
        parts, offset = [], 0
        self._views: dict[str, Tensor] = {}
        for name, value in own.items():
            self._views[name] = flat[offset : offset + value.numel()].view(value.shape).copy_(value)
            parts.append(subset.indices[name].to(flat.device) + offset)
            offset += lengths[name]
        self._flat, self._positions = flat, torch.cat(parts)
        self._trained = subset.gather(own).to(dtype)
        self._dtypes = {name: value.dtype for name, value in own.items()}
        self.directions = directions
        #: how large each direction is beside what it moves, (K,)
        self.sizes = relative(self._trained[None], directions[:, None])[:, 0]

    def along(self, k: int, h: float) -> Params:
        """θ + h·δθ_k by name, until the next call."""
        there = torch.add(self._trained, self.directions[k], alpha=h)
        self._flat.index_copy_(0, self._positions, there)
        return {name: view.to(self._dtypes[name]) for name, view in self._views.items()}


def secants(f: Callable[[int, float], Tensor], value: Tensor, sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """(f(k, h) − value)/h for each of K directions, (K, *value.shape).

    Args:
        f: the function, moved by h along direction k.
        value: the function where it stands.
        sizes: how large the change along each direction is beside what it changes, (K,); where it is zero
            nothing moves.
        dtype: in which f is computed.
    """
    out = value.new_empty(len(sizes), *value.shape)
    for k, size in enumerate(sizes.tolist()):
        if size > 0:
            h = _share(dtype) / size
            torch.sub(f(k, h), value, out=out[k]).div_(h)
        else:
            out[k] = 0
    return out


def rowwise(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    change: Tensor,
    value: Tensor,
    sizes: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """(f(x + h·change) − value)/h of a function of the samples alone, each with an h of its own.

    Args:
        f: (B, *shape) -> (B, *out).
        x: the samples, (B, *shape).
        change: theirs, (B, *shape).
        value: f(x), (B, *out).
        sizes: ‖change‖/‖x‖ of each, (B,).
        dtype: in which f is computed.
    """
    h = _share(dtype) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny ** 0.5)
    wide, out = (h.view(-1, *[1] * (v.ndim - 1)) for v in (x, value))
    return (f(x + wide * change) - value) / out


def relative(value: Tensor, change: Tensor) -> Tensor:
    """‖change_k‖/‖value‖ of each row: (B, ...), (K, B, ...) -> (K, B)."""
    floor = _FLOOR * value[0].numel() ** 0.5
    return change.flatten(2).norm(dim=2) / value.flatten(1).norm(dim=1).clamp(min=floor)


def _share(dtype: torch.dtype) -> float:
    return STEP * torch.finfo(dtype).eps ** 0.5

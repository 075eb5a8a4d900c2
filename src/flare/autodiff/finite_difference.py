"""Changes of a function by difference quotients: (f(z + h·δz) − f(z))/h, one more call per direction.

The step h makes the change a share `STEP`·√ε of what is changed, with ε the rounding unit: truncation grows
with h, rounding falls with it. In float64 that share is 1e-7 and a quotient has seven digits. In float32
it would have two or three, and those would change with the processor and the size of the batch:
`jvp.prepare` therefore takes a float64 copy of the network (`benchmarks/secants.py` measures what each
way costs and gives).

Nothing that a sample's quotient depends on may come from the rest of its batch. Where parameters move, one h
moves them for all samples: it follows from the direction δθ alone. Where only the state moves, each sample
has an h of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.conditions import Cond
from ..network.denoiser import Denoiser, Params
from ..network.subsets import Subset

STEP = 8.0  # in square roots of the rounding unit
_FLOOR = 1e-3  # the least size of a number that a share is taken of
_ALIGNED = 64  # bytes: products with unaligned tensors may round otherwise


class Movable:
    """A copy of the tensors that a subset has a part in, moved in place along directions.

    Only the m numbers of the subset are written per direction, not the p of the network.

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
        #: the size of each direction relative to what it moves, (K,)
        self.sizes = relative_size(self._trained[None], directions[:, None])[:, 0]

    def along(self, k: int, h: float) -> Params:
        """θ + h·δθ_k by name, until the next call."""
        there = torch.add(self._trained, self.directions[k], alpha=h)
        self._flat.index_copy_(0, self._positions, there)
        return {name: view.to(self._dtypes[name]) for name, view in self._views.items()}


class Secant:
    """f(x, t) and its changes along K directions of (θ, x).

    Args:
        denoiser: the network, in float64.
        subset: whose parameters move; None if none do.
        directions: δθ_k, (K, m); None if no parameters move.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset | None, directions: Tensor | None) -> None:
        self.denoiser = denoiser
        given = subset is not None and directions is not None
        self.movable = Movable(denoiser, subset, directions) if given else None  # type: ignore[arg-type]

    def __call__(self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None) -> tuple[Tensor, Tensor]:
        """f (B, *shape) and δf (K, B, *shape), both in the dtype of x; see `jvp.Push`."""
        inner = x.to(torch.promote_types(x.dtype, self.denoiser.dtype))
        value = self.denoiser(inner, t, cond)
        if self.movable is not None:
            change = self._jointly(self.movable, inner, dx, t, cond, value)
        elif dx is not None:
            sizes = relative_size(inner, dx)
            change = torch.stack(
                [
                    difference(lambda z: self.denoiser(z, t, cond), inner, one, value, size)
                    for one, size in zip(dx, sizes, strict=True)
                ]
            )
        else:
            raise ValueError("nothing moves: give a subset with directions, or dx.")
        return value.to(x.dtype), change.to(x.dtype)

    def _jointly(
        self, movable: Movable, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None, value: Tensor
    ) -> Tensor:
        """Both move; h follows from the size of δθ, which has nothing to do with the samples."""
        out = value.new_empty(len(movable.directions), *value.shape)
        for k, size in enumerate(movable.sizes.tolist()):
            h = standard_step(size)
            state = x if dx is None else torch.add(x, dx[k], alpha=h)
            torch.sub(self.denoiser.call(movable.along(k, h), state, t, cond), value, out=out[k]).div_(h)
        return out


def difference(
    f: Callable[[Tensor], Tensor], x: Tensor, change: Tensor, value: Tensor, sizes: Tensor
) -> Tensor:
    """(f(x + h·change) − value)/h of a function of the samples alone, with a step h per sample.

    Args:
        f: (B, *shape) -> (B, *out).
        x: the samples, (B, *shape).
        change: of each sample, (B, *shape).
        value: f(x), (B, *out).
        sizes: ‖change‖/‖x‖ of each, (B,).
    """
    h = _relative_step(x.dtype) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny ** 0.5)
    wide, out = (h.view(-1, *[1] * (v.ndim - 1)) for v in (x, value))
    return (f(x + wide * change) - value) / out


def relative_size(value: Tensor, change: Tensor) -> Tensor:
    """‖change_k‖/‖value‖ of each row: (B, ...), (K, B, ...) -> (K, B)."""
    floor = _FLOOR * value[0].numel() ** 0.5
    return change.flatten(2).norm(dim=2) / value.flatten(1).norm(dim=1).clamp(min=floor)


def standard_step(size: Tensor | float) -> float:
    """The step h in float64 along a direction of this relative size."""
    size = float(size)
    return _relative_step(torch.float64) / (size if size > 0 else 1.0)


def _relative_step(dtype: torch.dtype) -> float:
    return STEP * torch.finfo(dtype).eps ** 0.5

"""Changes of a function by difference quotients: (f(z + h·δz) − f(z))/h, one more call per direction.

The step h makes the relative change ‖h·δz‖/‖z‖ equal to `STEP`·√ε, where ε is the rounding unit. A larger h
increases the truncation error, a smaller h the rounding error. In float64 the relative change is 1e-7 and a
quotient has seven correct digits. In float32 it would have two or three, which would depend on the processor
and the batch size. `jvp.prepare` therefore uses a float64 copy of the network; `benchmarks/secants.py`
measures cost and accuracy.

The quotient of a sample must not depend on the other samples of its batch. If parameters move, one h serves
all samples and depends on the direction δθ alone. If only the state moves, every sample has its own h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..core.conditions import Cond
from ..network.denoiser import Denoiser, Params
from ..network.subsets import Subset

STEP = 8.0  # relative change, in square roots of the rounding unit
_FLOOR = 1e-3  # the smallest root mean square of a value that a change is relative to
_LARGE = 2**24  # numbers: larger copies of parameters are avoided
_ALIGNED = 64  # bytes: products with unaligned tensors may round differently


class Movable:
    """Parameters that move along directions: per direction only the m entries are written, not all p.

    They move in a copy of the tensors with entries that move. A large network that is itself a copy, made in
    float64 for these quotients, moves in place, so that there is no third set of its parameters.

    Args:
        denoiser: the network; its own tensors have their trained values after every use.
        subset: the parameters that move.
        directions: δθ_k, (K, m).
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        own, dtype = subset.params(denoiser), directions.dtype
        self._subset, self.directions = subset, directions
        self._trained = subset.pick(own).to(dtype)
        large = sum(value.numel() for value in own.values()) > _LARGE
        plain = all(value.dtype == dtype and value.is_contiguous() for value in own.values())
        self._place = _Own(own, subset) if large and plain and denoiser.is_copy else _Copy(own, subset, dtype)
        sizes = [relative_size(self._trained[None], subset.expand(one)[None, None])[0] for one in directions]
        #: the size of each direction relative to the trained values, (K,); there may be none
        self.sizes = torch.cat([directions.new_zeros(0), *sizes])

    @contextmanager
    def along(self, k: int, h: float) -> Iterator[Params]:
        """Inside, θ + h·δθ_k by name."""
        there = torch.add(self._trained, self._subset.expand(self.directions[k]), alpha=h)
        try:
            self._place.write(there)
            yield self._place.params
        finally:
            self._place.restore(self._trained)


class _Copy:
    """A copy of the tensors in one piece of memory."""

    def __init__(self, own: Params, subset: Subset, dtype: torch.dtype) -> None:
        grain = _ALIGNED // dtype.itemsize
        lengths = {name: -(-value.numel() // grain) * grain for name, value in own.items()}
        self._flat = next(iter(own.values())).new_zeros(sum(lengths.values()), dtype=dtype)
        parts, offset = [], 0
        self._views: dict[str, Tensor] = {}
        for name, value in own.items():
            self._views[name] = self._flat[offset : offset + value.numel()].view(value.shape).copy_(value)
            parts.append(subset.indices[name].to(self._flat.device) + offset)
            offset += lengths[name]
        self._positions = torch.cat(parts)
        self._dtypes = {name: value.dtype for name, value in own.items()}

    @property
    def params(self) -> Params:
        return {name: view.to(self._dtypes[name]) for name, view in self._views.items()}

    def write(self, values: Tensor) -> None:
        self._flat.index_copy_(0, self._positions, values)

    def restore(self, values: Tensor) -> None:
        """Nothing: the next direction writes all entries."""


class _Own:
    """The tensors of the network themselves."""

    def __init__(self, own: Params, subset: Subset) -> None:
        self.params: Params = {}
        self._tensors = [value.data.view(-1) for value in own.values()]
        self._indices = [subset.indices[name].to(value.device) for name, value in own.items()]

    def write(self, values: Tensor) -> None:
        parts = values.split([len(index) for index in self._indices])
        for tensor, index, part in zip(self._tensors, self._indices, parts, strict=True):
            tensor.index_copy_(0, index, part)

    def restore(self, values: Tensor) -> None:
        self.write(values)


class Secant:
    """f(x, t) and its changes along K directions of (θ, x).

    Args:
        denoiser: the network, in float64.
        subset: the parameters that move; None if none do.
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
            change = self._along_both(self.movable, inner, dx, t, cond, value)
        elif dx is not None:
            sizes = relative_size(inner, dx)
            change = torch.stack(
                [
                    difference(lambda z: self.denoiser(z, t, cond), inner, one, value, size)
                    for one, size in zip(dx, sizes, strict=True)
                ]
            )
        else:
            raise ValueError("give a subset with directions, or dx, or both; got neither.")
        return value.to(x.dtype), change.to(x.dtype)

    def _along_both(
        self, movable: Movable, x: Tensor, dx: Tensor | None, t: Tensor, cond: Cond | None, value: Tensor
    ) -> Tensor:
        """δf along (δθ_k, δx_k); h depends on δθ_k alone, not on the samples."""
        out = value.new_empty(len(movable.directions), *value.shape)
        for k, size in enumerate(movable.sizes.tolist()):
            h = standard_step(size)
            state = x if dx is None else torch.add(x, dx[k], alpha=h)
            with movable.along(k, h) as params:
                there = self.denoiser.call(params, state, t, cond)
            torch.sub(there, value, out=out[k]).div_(h)
        return out


def difference(
    f: Callable[[Tensor], Tensor], x: Tensor, change: Tensor, value: Tensor, sizes: Tensor
) -> Tensor:
    """(f(x + h·change) − value)/h for a function of the samples, with one step h per sample.

    Args:
        f: the function, (B, *shape) -> (B, *out).
        x: the samples, (B, *shape).
        change: the change of each sample, (B, *shape).
        value: f(x), (B, *out).
        sizes: ‖change‖/‖x‖ per sample, (B,).
    """
    h = _relative_step(x.dtype) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny ** 0.5)
    wide, out = (h.view(-1, *[1] * (v.ndim - 1)) for v in (x, value))
    return (f(x + wide * change) - value) / out


def relative_size(value: Tensor, change: Tensor) -> Tensor:
    """‖change_k‖/‖value‖ per row: (B, ...), (K, B, ...) -> (K, B)."""
    floor = _FLOOR * value[0].numel() ** 0.5
    return change.flatten(2).norm(dim=2) / value.flatten(1).norm(dim=1).clamp(min=floor)


def standard_step(size: Tensor | float) -> float:
    """The step h in float64 for a direction of this relative size."""
    size = float(size)
    return _relative_step(torch.float64) / (size if size > 0 else 1.0)


def _relative_step(dtype: torch.dtype) -> float:
    return STEP * torch.finfo(dtype).eps ** 0.5

"""Changes of a function by difference quotients: (f(z + h·δz) − f(z))/h, one more call per direction.

The step h makes the relative change ‖h·δz‖/‖z‖ equal to `STEP`·√ε, where ε is the rounding unit. A larger h
increases the truncation error, a smaller h the rounding error. In float64 the relative change is 1e-7 and a
quotient has seven correct digits. In float32 it would have two or three, which would depend on the processor
and the batch size. `jvp.prepare` therefore uses a float64 copy of the network; `benchmarks/secants.py`
measures cost and accuracy.

The quotient of a sample must not depend on the other samples of its batch. If parameters move, one h serves
all samples and depends only on the direction δθ. If only the state moves, every sample has its own h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, Params

STEP = 8.0  # relative change, in square roots of the rounding unit
_FLOOR = 1e-3  # the smallest root mean square of a value that a change is relative to
_LARGE = 2**24  # numbers: larger copies of parameters are avoided


class Movable:
    """Parameters that move along directions: each direction writes only the m entries, not all p.

    They move in a copy of the tensors with entries that move. A large network that is already a float64 copy
    is moved in place, which avoids a third set of parameters.

    Args:
        denoiser: The network; its own tensors have their trained values after every use.
        subset: The parameters that move.
        directions: δθ_k, (K, m).
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, directions: Tensor) -> None:
        own, dtype = subset.params(denoiser), directions.dtype
        self._subset, self.directions = subset, directions
        self._trained = subset.pick(own).to(dtype)
        large = sum(value.numel() for value in own.values()) > _LARGE
        plain = all(value.dtype == dtype and value.is_contiguous() for value in own.values())
        self._in_place = large and plain and denoiser.is_copy
        self._dtypes = {name: value.dtype for name, value in own.items()}
        self._tensors = {
            name: value.data
            if self._in_place
            else value.detach().to(dtype).clone(memory_format=torch.contiguous_format)
            for name, value in own.items()
        }
        self._indices = [subset.indices[name].to(value.device) for name, value in own.items()]
        sizes = [relative_size(self._trained[None], subset.expand(one)[None, None])[0] for one in directions]
        #: the size of each direction relative to the trained values, (K,); there may be none
        self.sizes = torch.cat([directions.new_zeros(0), *sizes])

    @contextmanager
    def along(self, k: int, h: float) -> Iterator[Params]:
        """Inside, θ + h·δθ_k by name; an empty dict if the network itself has moved."""
        try:
            self._write(torch.add(self._trained, self._subset.expand(self.directions[k]), alpha=h))
            moved = {} if self._in_place else self._tensors
            yield {name: value.to(self._dtypes[name]) for name, value in moved.items()}
        finally:
            if self._in_place:  # a copy is overwritten by the next direction
                self._write(self._trained)

    def _write(self, values: Tensor) -> None:
        parts = values.split([len(index) for index in self._indices])
        for tensor, index, part in zip(self._tensors.values(), self._indices, parts, strict=True):
            tensor.view(-1).index_copy_(0, index, part)


def difference(
    f: Callable[[Tensor], Tensor], x: Tensor, change: Tensor, value: Tensor, sizes: Tensor
) -> Tensor:
    """(f(x + h·change) − value)/h for a function of the samples, with one step h per sample.

    Args:
        f: The function, (B, *shape) -> (B, *out).
        x: The samples, (B, *shape).
        change: The change of each sample, (B, *shape).
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

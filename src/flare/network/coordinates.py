"""The coordinates of uncertain parameters: a linear map from R^m into the parameters of a network.

The coordinates of a `Subset` are single parameters. The coordinates of a `Sketch` are signed sums of all
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .denoiser import Denoiser, Params


@dataclass(frozen=True)
class Subset:
    """m of a network's p parameters, in the order of its named parameters.

    As a linear map, a subset is the p × m matrix S that puts m numbers in their places: `scatter` is S v, and
    `gather` is Sᵀ u. A subclass can reparameterize the entries (`expand`, `contract`).

    Attributes:
        indices: The sorted flat positions of the entries that move, by parameter tensor.
        shapes: The shapes of these tensors.
    """

    kind: ClassVar[str] = "subset"

    indices: Mapping[str, Tensor]
    shapes: Mapping[str, torch.Size]

    @property
    def size(self) -> int:
        """m, the number of coordinates."""
        return self.entry_count

    @property
    def entry_count(self) -> int:
        """The number of parameters that move."""
        return sum(len(index) for index in self.indices.values())

    @property
    def whole(self) -> bool:
        """Whether the coordinates are all entries of whole tensors."""
        return all(len(index) == self.shapes[name].numel() for name, index in self.indices.items())

    def expand(self, vectors: Tensor) -> Tensor:
        """The change of every entry that moves, (..., entries), for coordinates (..., m)."""
        return vectors

    def contract(self, entries: Tensor) -> Tensor:
        """The transpose of `expand`: (..., entries) -> (..., m)."""
        return entries

    def scatter(self, vectors: Tensor) -> dict[str, Tensor]:
        """S v for v (..., m), as parameter-shaped tensors that are zero where nothing moves."""
        lead = vectors.shape[:-1]
        parts = self.expand(vectors).split([len(index) for index in self.indices.values()], dim=-1)
        out = {}
        for (name, index), part in zip(self.indices.items(), parts, strict=True):
            flat = part.new_zeros(*lead, self.shapes[name].numel())
            flat[..., index.to(part.device)] = part
            out[name] = flat.view(*lead, *self.shapes[name])
        return out

    def gather(self, tensors: Params, lead: int = 0) -> Tensor:
        """Sᵀ u, (..., m), for parameter-shaped tensors u with `lead` leading axes."""
        return self.contract(self.pick(tensors, lead))

    def pick(self, tensors: Params, lead: int = 0) -> Tensor:
        """The entries that move, (..., entries), of parameter-shaped tensors with `lead` leading axes."""
        parts = []
        for name, index in self.indices.items():
            flat = tensors[name].reshape(*tensors[name].shape[:lead], -1)  # of a scalar, one entry
            parts.append(flat if len(index) == flat.shape[-1] else flat[..., index.to(flat.device)])
        return torch.cat(parts, dim=-1)

    def params(self, denoiser: Denoiser) -> dict[str, Tensor]:
        """The trained values of the tensors with entries that move."""
        return {name: denoiser.params[name] for name in self.indices}

    def locate(self, denoiser: Denoiser) -> Tensor:
        """The coordinates of the trained parameters, (m,) float64: the z for which S z is closest to θ̂."""
        return self.gather({name: value.double() for name, value in self.params(denoiser).items()})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a file stores."""
        return {f"subset.{name}": index for name, index in self.indices.items()}

    def metadata(self) -> dict[str, Any]:
        """The metadata that a file stores."""
        return {"shapes": {name: list(shape) for name, shape in self.shapes.items()}}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Subset:
        """Read what `tensors` and `metadata` wrote, and check it; its tensors are removed from `tensors`."""
        shapes = {name: torch.Size(shape) for name, shape in meta["shapes"].items()}
        indices = {name: tensors.pop(f"subset.{name}") for name in shapes}
        for name, index in indices.items():
            valid = index.dtype == torch.int64 and index.ndim == 1 and min(shapes[name], default=1) >= 1
            ascending = valid and bool((index.diff() > 0).all()) and len(index) > 0
            if not (ascending and int(index[0]) >= 0 and int(index[-1]) < shapes[name].numel()):
                raise ValueError(
                    f"the subset of {name!r} must be ascending positions in a tensor of shape "
                    f"{tuple(shapes[name])}."
                )
        return cls(indices, shapes)

    def __repr__(self) -> str:
        return f"Subset({self.size:,} numbers in {len(self.indices)} tensors)"


@dataclass(frozen=True, repr=False)
class Sketch(Subset):
    """A count sketch of all parameters: m buckets, each a signed sum of the parameters that fell into it.

    S has a single entry in each row, +1 or −1, at a random column. A coordinate moves all parameters of its
    bucket together, each by ±1 times the coordinate. The columns of S are orthogonal but not of norm 1, so
    `gather` does not undo `scatter`: SᵀS is the diagonal matrix of the bucket sizes.

    Attributes:
        buckets: The column of every parameter, (p,) int64.
        signs: ±1 for every parameter, (p,) int8.
        count: m, the number of buckets.
    """

    kind: ClassVar[str] = "sketch"

    buckets: Tensor
    signs: Tensor
    count: int

    @property
    def size(self) -> int:
        """m, the number of buckets."""
        return self.count

    @property
    def whole(self) -> bool:
        """False: a bucket has entries of many tensors."""
        return False

    def expand(self, vectors: Tensor) -> Tensor:
        """The coordinate of every parameter's bucket, with its sign."""
        return vectors[..., self.buckets.to(vectors.device)] * self.signs.to(vectors)

    def contract(self, entries: Tensor) -> Tensor:
        """The signed sum over every bucket."""
        signed = entries * self.signs.to(entries)
        columns = self.buckets.to(entries.device).expand(entries.shape)
        return entries.new_zeros(*entries.shape[:-1], self.count).scatter_add_(-1, columns, signed)

    def locate(self, denoiser: Denoiser) -> Tensor:
        """(SᵀS)⁻¹Sᵀθ̂: the signed mean over every bucket, 0 in an empty one."""
        sizes = self.buckets.bincount(minlength=self.count).clamp(min=1)
        return super().locate(denoiser) / sizes.to(denoiser.device)

    def tensors(self) -> dict[str, Tensor]:
        """The buckets, as int32, and the signs; the positions are those of all parameters."""
        return {"sketch.buckets": self.buckets.to(torch.int32), "sketch.signs": self.signs}

    def metadata(self) -> dict[str, Any]:
        """The shapes, and the number of buckets."""
        return {**super().metadata(), "buckets": self.count}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Sketch:
        """Read what `tensors` and `metadata` wrote, and check it."""
        shapes = {name: torch.Size(shape) for name, shape in meta["shapes"].items()}
        buckets, signs = tensors.pop("sketch.buckets"), tensors.pop("sketch.signs")
        count, p = meta["buckets"], sum(shape.numel() for shape in shapes.values())
        valid = isinstance(count, int) and buckets.dtype == torch.int32 and signs.dtype == torch.int8
        if not valid or buckets.shape != (p,) or signs.shape != (p,):
            raise ValueError(f"a sketch must have an int32 bucket and an int8 sign per parameter, {p} each.")
        if not (count <= p and ((buckets >= 0) & (buckets < count)).all() and (signs.abs() == 1).all()):
            raise ValueError(f"a sketch must have buckets in 0 to {min(count, p) - 1}, and signs of 1 or -1.")
        return cls(all_positions(shapes), shapes, buckets.long(), signs, count)

    def __repr__(self) -> str:
        return f"Sketch({self.size:,} sums of {self.entry_count:,} numbers in {len(self.indices)} tensors)"


#: the classes of coordinates by the name that files give them
KINDS: dict[str, type[Subset]] = {each.kind: each for each in (Subset, Sketch)}


def all_positions(shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The flat positions of all entries of tensors with these shapes."""
    return {name: torch.arange(shape.numel()) for name, shape in shapes.items()}

"""Which parameters are uncertain: a subset of the numbers of the network, as sorted indices per tensor."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.validation import require_positive_int
from .denoiser import Denoiser, Params, require_denoiser


@dataclass(frozen=True)
class Subset:
    """m of a network's p parameters, in the order of its named parameters.

    Attributes:
        indices: per parameter tensor with entries in the subset, their sorted flat positions.
        shapes: the shapes of these tensors.
    """

    indices: Mapping[str, Tensor]
    shapes: Mapping[str, torch.Size]

    @property
    def size(self) -> int:
        """m, the number of parameters in the subset."""
        return sum(len(index) for index in self.indices.values())

    @property
    def whole(self) -> bool:
        """Whether the subset consists of whole tensors."""
        return all(len(index) == self.shapes[name].numel() for name, index in self.indices.items())

    def scatter(self, vectors: Tensor) -> dict[str, Tensor]:
        """Vectors over the subset, (..., m), as parameter-shaped tensors that are zero outside the subset."""
        lead = vectors.shape[:-1]
        parts = vectors.split([len(index) for index in self.indices.values()], dim=-1)
        out = {}
        for (name, index), part in zip(self.indices.items(), parts, strict=True):
            flat = part.new_zeros(*lead, self.shapes[name].numel())
            flat[..., index.to(part.device)] = part
            out[name] = flat.view(*lead, *self.shapes[name])
        return out

    def gather(self, tensors: Params, lead: int = 0) -> Tensor:
        """The entries in the subset, (..., m), of parameter-shaped tensors with `lead` leading axes."""
        return torch.cat(
            [
                tensors[name].reshape(*tensors[name].shape[:lead], -1)[..., index.to(tensors[name].device)]
                for name, index in self.indices.items()
            ],
            dim=-1,
        )

    def params(self, denoiser: Denoiser) -> dict[str, Tensor]:
        """The trained values of the tensors with entries in the subset."""
        return {name: denoiser.params[name] for name in self.indices}

    def __repr__(self) -> str:
        return f"Subset({self.size:,} numbers in {len(self.indices)} tensors)"


def everything(denoiser: Denoiser) -> Subset:
    """All parameters; tied weights appear once."""
    require_denoiser(denoiser)
    return _whole(denoiser, list(denoiser.params))


def random(
    denoiser: Denoiser, count: int | None = None, fraction: float | None = None, seed: int = 0
) -> Subset:
    """Parameters drawn uniformly from the whole network, without replacement.

    Args:
        denoiser: the network.
        count: m, the number of parameters.
        fraction: m/p, the fraction of all parameters; give either `count` or `fraction`.
        seed: seed of the draw.
    """
    require_denoiser(denoiser)
    p = denoiser.parameter_count
    if (count is None) == (fraction is None):
        raise ValueError("give either count= or fraction=, for instance fraction=0.1.")
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], got {fraction}.")
        count = max(1, round(fraction * p))
    m = require_positive_int("count", count)  # type: ignore[arg-type]
    if m > p:
        raise ValueError(
            f"count must be at most {p:,}, the number of parameters of {denoiser.name}, got {m:,}."
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(p, generator=generator)[:m].sort().values
    indices, shapes, offset = {}, {}, 0
    for name, value in denoiser.params.items():
        here = chosen[(chosen >= offset) & (chosen < offset + value.numel())] - offset
        if len(here):
            indices[name], shapes[name] = here, value.shape
        offset += value.numel()
    return Subset(indices, shapes)


def named(denoiser: Denoiser, patterns: str | Sequence[str]) -> Subset:
    """Whole tensors by name, with shell patterns: `named(denoiser, ["out.*", "blocks.1.*"])`."""
    require_denoiser(denoiser)
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not fnmatch.filter(denoiser.params, pattern):
            raise ValueError(
                f"no parameter of {denoiser.name} matches {pattern!r}; "
                f"it has: {_some(list(denoiser.params))}."
            )
    names = [n for n in denoiser.params if any(fnmatch.fnmatchcase(n, pattern) for pattern in patterns)]
    return _whole(denoiser, names)


def last_layer(denoiser: Denoiser, name: str | None = None, example: Sequence[Any] | None = None) -> Subset:
    """The layer that computes the output: weight and bias of a linear layer or a convolution.

    Args:
        denoiser: the network.
        name: the name of the module; by default the last linear layer or convolution that is called.
        example: (x, t) or (x, t, cond) for a call that shows which layer is last; by default the last
            registered layer is taken.
    """
    require_denoiser(denoiser)
    layer = name if name is not None else _last_called(denoiser, example)
    names = [n for n in denoiser.params if n.startswith(f"{layer}.")]
    if not names:
        raise ValueError(
            f"{denoiser.name} has no module {layer!r} with parameters; its tensors are: "
            f"{_some(list(denoiser.params))}. Give last_layer(denoiser, name=...)."
        )
    return _whole(denoiser, names)


_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def _last_called(denoiser: Denoiser, example: Sequence[Any] | None) -> str:
    layers = {name: m for name, m in denoiser.module.named_modules() if isinstance(m, _AFFINE)}
    if not layers:
        raise ValueError(
            f"{denoiser.name} has no linear layer or convolution; name the last layer with "
            "last_layer(denoiser, name=...) or choose tensors with named(denoiser, patterns)."
        )
    called = list(layers)
    if example is not None:
        called = []
        hooks = [
            layer.register_forward_hook(lambda *_, n=name: called.append(n)) for name, layer in layers.items()
        ]
        try:
            denoiser(*example)
        finally:
            for hook in hooks:
                hook.remove()
    return called[-1]


def _whole(denoiser: Denoiser, names: Sequence[str]) -> Subset:
    shapes = {name: denoiser.params[name].shape for name in names}
    return Subset({name: torch.arange(shape.numel()) for name, shape in shapes.items()}, shapes)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")

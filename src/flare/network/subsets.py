"""Which parameters are uncertain: all, random ones, a layer, tensors by name, or a sketch of all of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.validation import require_positive_int
from .coordinates import Sketch, Subset, all_positions
from .denoiser import Denoiser, require_denoiser

_HUGE = 2**27  # parameters: a permutation of them would take a gigabyte

__all__ = [
    "Sketch",
    "Subset",
    "choose_count",
    "everything",
    "last_layer",
    "named",
    "pick_flat",
    "random",
    "sketch",
]


def everything(denoiser: Denoiser) -> Subset:
    """All parameters; tied weights appear once.

    >>> flare.subsets.everything(denoiser).size
    8330
    """
    require_denoiser(denoiser)
    return _whole(denoiser, list(denoiser.params))


def random(
    denoiser: Denoiser, count: int | None = None, fraction: float | None = None, seed: int = 0
) -> Subset:
    """Parameters drawn uniformly from the whole network, without replacement.

    >>> flare.subsets.random(denoiser, count=50, seed=0).size
    50
    >>> flare.subsets.random(denoiser, fraction=0.1).size
    833

    Args:
        denoiser: the network.
        count: m, the number of parameters.
        fraction: m/p, the fraction of all parameters; give either `count` or `fraction`.
        seed: seed of the draw.
    """
    require_denoiser(denoiser)
    m, p = choose_count(denoiser, count, fraction), denoiser.parameter_count
    return pick_flat(denoiser, _draw_distinct(p, m, torch.Generator().manual_seed(seed)))


def _draw_distinct(p: int, m: int, generator: torch.Generator) -> Tensor:
    """m of the numbers 0 to p − 1; a permutation of billions would need more memory than the network."""
    if p < _HUGE or 2 * m > p:
        return torch.randperm(p, generator=generator)[:m]
    found = torch.empty(0, dtype=torch.long)
    while len(found) < m:
        found = torch.cat([found, torch.randint(p, (m - len(found),), generator=generator)]).unique()
    return found


def sketch(
    denoiser: Denoiser, count: int | None = None, fraction: float | None = None, seed: int = 0
) -> Sketch:
    """A count sketch of all parameters: every parameter joins one of m buckets with a random sign.

    No parameter is left out, and no p × m matrix is formed: `gather` and `scatter` cost O(p). The entries of
    the embedding are ±1, so that one unit of a coordinate moves each parameter of its bucket by one unit.
    Structures that need whole layers, such as kronecker, refuse a sketch.

    >>> flare.subsets.sketch(denoiser, count=50).size
    50

    Args:
        denoiser: the network.
        count: m, the number of buckets.
        fraction: m/p, the number of buckets relative to all parameters; give either `count` or `fraction`.
        seed: seed of the buckets and signs.
    """
    require_denoiser(denoiser)
    m, p = choose_count(denoiser, count, fraction), denoiser.parameter_count
    generator = torch.Generator().manual_seed(seed)
    buckets = torch.randint(m, (p,), generator=generator)
    signs = (2 * torch.randint(2, (p,), generator=generator) - 1).to(torch.int8)
    shapes = {name: value.shape for name, value in denoiser.params.items()}
    return Sketch(all_positions(shapes), shapes, buckets, signs, m)


def pick_flat(denoiser: Denoiser, positions: Tensor) -> Subset:
    """The subset of some positions in the concatenation of all parameters."""
    chosen = positions.cpu().sort().values
    indices, shapes, offset = {}, {}, 0
    for name, value in denoiser.params.items():
        here = chosen[(chosen >= offset) & (chosen < offset + value.numel())] - offset
        if len(here):
            indices[name], shapes[name] = here, value.shape
        offset += value.numel()
    return Subset(indices, shapes)


def named(denoiser: Denoiser, patterns: str | Sequence[str]) -> Subset:
    """Whole tensors by name, with shell patterns: `named(denoiser, ["out.*", "blocks.1.*"])`.

    >>> flare.subsets.named(denoiser, "blocks.1.*").size
    3232
    """
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

    >>> flare.subsets.last_layer(denoiser).size
    330

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
    return Subset(all_positions(shapes), shapes)


def choose_count(denoiser: Denoiser, count: int | None, fraction: float | None) -> int:
    """m from either a count or a fraction of the parameters."""
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
    return m


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")

"""Which parameters are uncertain: all, random ones, a layer, tensors by name, sensitive ones, or a sketch.

Tensors that are not floating point have no derivative. They stay fixed and are not part of any subset.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.progress import Progress
from ..core.validation import require_positive_int
from ..diffusion.noising import Pairs
from ..network.coordinates import Sketch, Subset, all_positions
from ..network.denoiser import Denoiser, require_denoiser
from ..storage.resume import Resume
from .curvature import Probes, ggn

__all__ = ["Sketch", "Subset", "everything", "last_layer", "named", "random", "sensitive", "sketch"]

_HUGE = 2**27  # parameters: a permutation of them would take a gigabyte
_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def everything(denoiser: Denoiser) -> Subset:
    """All parameters; tied weights appear once.

    >>> flare.subsets.everything(denoiser).size
    8330
    """
    shapes = _shapes(denoiser)
    return Subset(all_positions(shapes), shapes)


def random(
    denoiser: Denoiser, count: int | None = None, fraction: float | None = None, seed: int = 0
) -> Subset:
    """Parameters drawn uniformly from the whole network, without replacement.

    >>> flare.subsets.random(denoiser, count=50, seed=0).size
    50
    >>> flare.subsets.random(denoiser, fraction=0.1).size
    833

    Args:
        denoiser: The network.
        count: m, the number of parameters.
        fraction: m/p, the fraction of all parameters; give either `count` or `fraction`.
        seed: Random seed for the draw.
    """
    shapes = _shapes(denoiser)
    m, p = _choose_count(denoiser, shapes, count, fraction)
    return _pick(shapes, _draw_distinct(p, m, torch.Generator().manual_seed(seed)))


def _draw_distinct(p: int, m: int, generator: torch.Generator) -> Tensor:
    """Draw m of the numbers 0 to p − 1, without the memory of a whole permutation."""
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

    The sketch covers every parameter without a p × m matrix: `gather` and `scatter` cost O(p). The entries of
    the embedding are ±1, so one unit of a coordinate moves each parameter of its bucket by one unit.
    Structures that need whole layers, such as kronecker, do not accept a sketch.

    >>> flare.subsets.sketch(denoiser, count=50).size
    50

    Args:
        denoiser: The network.
        count: m, the number of buckets.
        fraction: m/p, the number of buckets relative to all parameters; give either `count` or `fraction`.
        seed: Random seed for the buckets and signs.
    """
    shapes = _shapes(denoiser)
    m, p = _choose_count(denoiser, shapes, count, fraction)
    generator = torch.Generator().manual_seed(seed)
    buckets = torch.randint(m, (p,), generator=generator)
    signs = (2 * torch.randint(2, (p,), generator=generator) - 1).to(torch.int8)
    return Sketch(all_positions(shapes), shapes, buckets, signs, m)


def sensitive(
    denoiser: Denoiser,
    pairs: Pairs,
    count: int | None = None,
    fraction: float | None = None,
    *,
    probes: Probes = 1,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Subset:
    """The parameters to which the output is most sensitive: the m largest diagonal entries of H.

    An entry is the weighted mean over the pairs of the squared gradient of the output. Ties are broken by the
    order of the parameters.

    >>> flare.subsets.sensitive(denoiser, pairs, count=50).size
    50

    Args:
        denoiser: The network.
        pairs: The training pairs; a few hundred are enough to rank the parameters.
        count: m, the number of parameters.
        fraction: m/p, the fraction of all parameters; give either `count` or `fraction`.
        probes: The number of random probes per pair, or None for all rows of the Jacobian.
        resume: A directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
        progress: Wraps the batches of pairs.
    """
    shapes = _shapes(denoiser)
    m, _ = _choose_count(denoiser, shapes, count, fraction)
    diagonal, _ = ggn(
        denoiser, Subset(all_positions(shapes), shapes), pairs, probes=probes, diagonal=True,
        resume=Resume.of(resume), progress=progress,
    )  # fmt: skip
    return _pick(shapes, diagonal.argsort(descending=True, stable=True)[:m])


def named(denoiser: Denoiser, patterns: str | Sequence[str]) -> Subset:
    """Whole tensors by name, with shell patterns: `named(denoiser, ["out.*", "blocks.1.*"])`.

    >>> flare.subsets.named(denoiser, "blocks.1.*").size
    3232
    """
    shapes = _shapes(denoiser)
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not fnmatch.filter(shapes, pattern):
            raise ValueError(
                f"no parameter of {denoiser.name} matches {pattern!r}; it has: {_some(list(shapes))}."
            )
    chosen = {n: s for n, s in shapes.items() if any(fnmatch.fnmatchcase(n, each) for each in patterns)}
    return Subset(all_positions(chosen), chosen)


def last_layer(denoiser: Denoiser, name: str | None = None) -> Subset:
    """The layer that computes the output: weight and bias of a linear layer or a convolution.

    >>> flare.subsets.last_layer(denoiser).size
    330

    Args:
        denoiser: The network.
        name: The name of the module; by default the last linear layer or convolution that is registered.
    """
    shapes = _shapes(denoiser)
    if name is None:
        layers = [layer for layer, module in denoiser.module.named_modules() if isinstance(module, _AFFINE)]
        if not layers:
            raise ValueError(
                f"{denoiser.name} has no linear layer or convolution; name the last layer with "
                "last_layer(denoiser, name=...) or choose tensors with named(denoiser, patterns)."
            )
        name = layers[-1]
    chosen = {n: shape for n, shape in shapes.items() if n.startswith(f"{name}.")}
    if not chosen:
        raise ValueError(
            f"{denoiser.name} has no module {name!r} with parameters; its tensors are: "
            f"{_some(list(shapes))}. Give last_layer(denoiser, name=...)."
        )
    return Subset(all_positions(chosen), chosen)


def _shapes(denoiser: Denoiser) -> dict[str, torch.Size]:
    """The shapes of all parameters that can be uncertain, by name."""
    require_denoiser(denoiser)
    return {name: p.shape for name, p in denoiser.params.items() if p.is_floating_point()}


def _choose_count(
    denoiser: Denoiser, shapes: dict[str, torch.Size], count: int | None, fraction: float | None
) -> tuple[int, int]:
    """m, from either a count or a fraction of the parameters, and their number p."""
    p = sum(shape.numel() for shape in shapes.values())
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
    return m, p


def _pick(shapes: dict[str, torch.Size], positions: Tensor) -> Subset:
    """The subset of some positions in the concatenation of all tensors."""
    chosen = positions.cpu().sort().values
    indices, offset = {}, 0
    for name, shape in shapes.items():
        here = chosen[(chosen >= offset) & (chosen < offset + shape.numel())] - offset
        if len(here):
            indices[name] = here
        offset += shape.numel()
    return Subset(indices, {name: shapes[name] for name in indices})


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")

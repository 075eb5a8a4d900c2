"""The layers of a network: which ones to record, and their pooled outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..core.conditions import Cond, take_rows
from ..core.validation import one_of
from .denoiser import Denoiser

COUNT = 12  # layers that are looked at, evenly spaced in depth
_KINDS = (nn.Linear, _ConvNd)
_POSITIONS = {1: 64, 2: 8, 3: 4}  # per axis, to which the outputs of a convolution are pooled


@contextmanager
def watching(module: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Remember the outputs of these layers, by name in the order of their first calls.

    If a layer is called several times, only the first call counts until the caller clears the dictionary.
    """
    seen: dict[str, Tensor] = {}

    def remember(name: str, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and name not in seen:
            seen[name] = output.detach().clone()  # a later layer may write to it

    handles = [module.get_submodule(name).register_forward_hook(partial(remember, name)) for name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def find_layers(
    denoiser: Denoiser, x: Tensor, times: Sequence[Tensor], cond: Cond, names: Sequence[str] | None = None
) -> dict[str, int]:
    """The layers to record, with the number of their outputs after pooling.

    By default these are convolution and linear layers whose outputs depend on x, at most `COUNT`, evenly
    spaced in depth. Two calls per time show what depends on x; nothing is differentiated. Layers that are
    not called at every time, such as experts for some noise levels, are left out.

    Args:
        denoiser: The network.
        x: Two different states, (2, *shape).
        times: Times of both, (1,) each.
        cond: The conditions of the first one, which all calls get.
        names: The layers that the user asks for.
    """
    modules = dict(denoiser.module.named_modules())
    for name in names or ():
        one_of("layer", name, modules)
    asked = names or [name for name, module in modules.items() if isinstance(module, _KINDS)]
    found = []
    with watching(denoiser.module, asked) as seen:
        for t in times:
            for row in x.split(1):
                denoiser(row, t, take_rows(cond, slice(0, 1)))
                found.append(dict(seen))
                seen.clear()
    first = found[0]
    always = [
        name for name in first if all(name in own and own[name].shape == first[name].shape for own in found)
    ]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    changed = [name for name in always if any(not torch.equal(a[name], b[name]) for a, b in pairs)]
    for name in names or ():
        if name not in changed:
            rarely = any(name in own for own in found) and name not in always
            problem = (
                "is missing or has another shape at some noise levels"
                if rarely
                else "is not a tensor that depends on x"
            )
            raise ValueError(
                f"layers: the output of {name!r} {problem}. Name other layers, such as convolutions or "
                "linear layers."
            )
    if not names:
        places = torch.linspace(0, len(changed) - 1, min(COUNT, len(changed))).round().long()
        changed = [changed[place] for place in places.tolist()]
    return {name: pool(modules[name], first[name].unsqueeze(0)).shape[1] for name in changed}


@torch.no_grad()
def count_products(denoiser: Denoiser, x: Tensor, t: Tensor, cond: Cond) -> float:
    """About how many multiplications a call with one sample takes, in convolution and linear layers.

    At least one per parameter.
    """
    modules = {name: m for name, m in denoiser.module.named_modules() if isinstance(m, _KINDS)}
    with watching(denoiser.module, list(modules)) as seen:
        denoiser(x, t, cond)
    products = sum(y.numel() * modules[name].weight[0].numel() for name, y in seen.items())
    return float(max(products, denoiser.parameter_count, 1))


def pool(layer: nn.Module, y: Tensor) -> Tensor:
    """Outputs of a layer for R rows, (R, ...), as vectors (R, p), averaged to few positions."""
    rows, y = len(y), y.to(torch.promote_types(y.dtype, torch.float32))
    if isinstance(layer, _ConvNd) and (axes := len(layer.kernel_size)) in _POSITIONS:
        maps = y.reshape(-1, *y.shape[-axes - 1 :])
        size = [min(side, _POSITIONS[axes]) for side in maps.shape[2:]]
        if size != list(maps.shape[2:]):
            average: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[axes - 1]
            maps = average(maps, size)
        return maps.reshape(rows, -1)
    if isinstance(layer, nn.Linear):
        tokens = y.reshape(rows, -1, y.shape[-1]).mT
        if tokens.shape[2] > _POSITIONS[1]:
            tokens = F.adaptive_avg_pool1d(tokens, _POSITIONS[1])
        return tokens.reshape(rows, -1)
    return y.reshape(rows, -1)

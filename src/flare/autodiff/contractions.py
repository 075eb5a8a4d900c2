"""Single entries of the gradient of a layer's parameter, from the layer's inputs and its output gradients.

The gradient of a linear layer y = W a is the sum of g aᵀ over all positions, where g is the gradient of y. An
entry (o, i) of it is Σ g_o·a_i: a few entries cost little, and the whole matrix is only formed if
many are requested. A convolution is a linear layer for each position in its kernel, applied to shifted
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor, nn

CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)  # fmt: skip
vjp: Any = torch.func.vjp  # the annotations do not cover has_aux=False
vmap: Any = torch.func.vmap

_NUMBERS = 2**22  # products that are in memory at once
FEW = 16  # entries are picked one by one if they are fewer than 1 in 16

#: (a, g, B) -> (B, entries): the inputs a (B·K, ...) and output gradients g (B·K, ...) of a layer, K rows of
#: every sample one after the other, to the entries of every sample's gradient
Contraction = Callable[[Tensor, Tensor, int], Tensor]


def contraction(module: nn.Module, name: str, index: Tensor) -> Contraction:
    """The fastest way to compute entries (flat positions `index`) of a layer's own parameter `name`."""
    few = FEW * len(index) < module.get_parameter(name).numel()
    if name == "bias" and isinstance(module, nn.Linear):
        return lambda a, g, samples: sum_rows(take(g.movedim(-1, 1), index), samples)
    if name == "weight" and isinstance(module, nn.Linear):
        return partial(_of_linear, module.in_features, index, few)
    if name == "bias" and isinstance(module, CONVOLUTIONS):
        return lambda a, g, samples: sum_rows(take(g, index), samples)
    if name == "weight" and few and is_dense_convolution(module):
        return _few_of_convolution(module, index)
    if isinstance(module, nn.Embedding):
        return partial(_of_embedding, module, index)
    if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
        return partial(_of_norm, module, name, index)
    return partial(_by_derivative, module, name, index)


def _of_linear(inputs: int, index: Tensor, few: bool, a: Tensor, g: Tensor, samples: int) -> Tensor:
    if few or a.numel() == samples * inputs:  # of one place per sample, the whole matrix saves nothing
        pair = index // inputs, index % inputs
        return _sum_products(g.movedim(-1, 1), a.movedim(-1, 1), *pair, samples)
    a, g = (v.unflatten(0, (samples, -1)).flatten(1, -2) for v in (a, g))  # (B, places, i), (B, places, o)
    return take((g.mT @ a).flatten(1), index)


def is_dense_convolution(module: Any) -> bool:
    """Whether a layer is a convolution without groups, padded with a fixed number of zeros."""
    if not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return False
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _few_of_convolution(module: Any, index: Tensor) -> Contraction:
    _, inputs, *kernel = module.weight.shape
    o, i, *at = torch.unravel_index(index, (len(module.weight), inputs, *kernel))
    around = [side for padding in reversed(module.padding) for side in (padding, padding)]

    def contract(a: Tensor, g: Tensor, samples: int) -> Tensor:
        windows = F.pad(a, around)
        for axis, (size, stride, dilation) in enumerate(
            zip(kernel, module.stride, module.dilation, strict=True), 2
        ):  # a view: (B·K, channels, places ..., positions in the kernel ...)
            windows = windows.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
        places = windows.shape[2 : g.ndim]
        windows = windows.movedim((1, *range(g.ndim, windows.ndim)), tuple(range(1 + len(kernel))))
        step = max(1, _NUMBERS // max(1, len(g) * places.numel()))
        pick = [each.split(step) for each in (o, i, *at)]
        found = [
            (windows[tuple(here)] * g.movedim(1, 0)[out]).flatten(2).sum(2).T
            for out, *here in zip(*pick, strict=True)
        ]
        return sum_rows(torch.cat(found, 1), samples)

    return contract


def _of_embedding(module: nn.Embedding, index: Tensor, a: Tensor, g: Tensor, samples: int) -> Tensor:
    """y is the row a of the weight; a row for padding has no gradient."""
    o, i = index // module.embedding_dim, index % module.embedding_dim
    g = g.reshape(samples, -1, module.embedding_dim)
    a = a.reshape(samples, -1)
    found = [((a == row)[..., None] * g.index_select(2, i[o == row])).sum(1) for row in o.unique()]
    kept = torch.cat(found, 1)  # ascending in o, as the index is
    return kept if module.padding_idx is None else kept * (o != module.padding_idx)


def _of_norm(module: Any, name: str, index: Tensor, a: Tensor, g: Tensor, samples: int) -> Tensor:
    """y = w·z + b with z the normalized inputs."""
    if name == "weight" and isinstance(module, nn.GroupNorm):
        g = g * F.group_norm(a, module.num_groups, eps=module.eps)
    elif name == "weight":
        g = g * F.layer_norm(a, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        g = g.flatten(-len(module.normalized_shape)).movedim(-1, 1)
    return sum_rows(take(g, index), samples)


def forward(module: Any, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
    """The output of a plain layer with other weights, without its hooks."""
    own = dict(module._parameters)
    module._parameters.update(weights)
    try:
        return type(module).forward(module, a)
    finally:
        module._parameters.update(own)


def _by_derivative(module: nn.Module, name: str, index: Tensor, a: Tensor, g: Tensor, samples: int) -> Tensor:
    """Differentiate only the layer, which gives the whole gradient of its parameter."""

    def one(rows: Tensor, u: Tensor) -> Any:
        back = vjp(lambda value: forward(module, {name: value}, rows), module.get_parameter(name).detach())[1]
        return back(u)[0]

    full = vmap(one)(*(v.unflatten(0, (samples, -1)) for v in (a, g)))
    return take(full.flatten(1), index)


def _sum_products(g: Tensor, a: Tensor, o: Tensor, i: Tensor, samples: int) -> Tensor:
    """Σ g_o·a_i over the places of each sample, (B, pairs), for g and a (B·K, channels, ...)."""
    step = max(1, _NUMBERS // max(1, g[:, 0].numel()))
    pairs = zip(o.split(step), i.split(step), strict=True)
    found = [sum_rows(g.index_select(1, p) * a.index_select(1, q), samples) for p, q in pairs]
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def sum_rows(values: Tensor, samples: int) -> Tensor:
    """(B·K, entries, ...) summed over the K rows of each sample and their places, (B, entries)."""
    total = values.flatten(2).sum(2) if values.ndim > 2 else values
    return total.unflatten(0, (samples, -1)).sum(1) if len(values) > samples else total


def take(values: Tensor, index: Tensor) -> Tensor:
    """Columns of (B, entries, ...); all of them without a copy."""
    return values if len(index) == values.shape[1] else values.index_select(1, index)

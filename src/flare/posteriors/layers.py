"""The inputs and the back-propagated outputs of linear layers and convolutions, for Kronecker factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..autodiff.by_layer import ByLayer
from ..autodiff.contractions import is_dense_convolution
from ..core.memory import is_out_of_memory
from ..diffusion.noising import Batch
from ..network.denoiser import Denoiser
from ..network.layer_calls import Recording, is_plain, plain_layers
from ..network.subsets import Subset


@dataclass(frozen=True)
class Layer:
    """A layer whose weight is in the subset, and whether its bias is, too."""

    module: Any
    bias: bool

    @property
    def inputs(self) -> int:
        """The number of inputs per place, plus 1 for a bias."""
        return self.module.weight[0].numel() + self.bias

    @property
    def outputs(self) -> int:
        """The number of outputs per place."""
        return len(self.module.weight)

    def arrange(self, inputs: Tensor, grads: list[Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """Arrange inputs and gradients by place: a (B, L, i) and g (k, B, L, o)."""
        g = torch.stack(grads)
        if isinstance(self.module, nn.Linear):
            a = inputs
        else:
            a, g = _unfold(inputs, self.module), g.flatten(3).transpose(2, 3)
        a = a.reshape(rows, -1, a.shape[-1])
        if self.bias:
            a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
        return a, g.reshape(len(g), rows, -1, g.shape[-1])


def find_layers(denoiser: Denoiser, subset: Subset) -> dict[str, Layer]:
    """Find the layers that make up the subset; raise if it contains anything else."""
    if not subset.whole:
        raise ValueError(
            f"a kronecker posterior needs whole layers, but the {subset.kind} has other coordinates: "
            f"{subset!r}. Choose layers with subsets.named or subsets.last_layer, or use dense, diagonal or "
            "low_rank."
        )
    found: dict[str, Layer] = {}
    owners: dict[int, list[str]] = {}
    for name, p in denoiser.module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(p), []).append(name)
    for name in subset.indices:
        if len(tied := owners[id(denoiser.params[name])]) > 1:
            raise ValueError(
                f"{' and '.join(tied)} are one tensor, whose curvature is not a Kronecker product. Leave it "
                "out, or use a dense posterior."
            )
        owner, _, tensor = name.rpartition(".")
        module = denoiser.module.get_submodule(owner)
        if not _is_supported(module):
            raise ValueError(
                "a kronecker posterior needs linear layers and plain convolutions of torch itself, but "
                f"{name!r} belongs to a {type(module).__name__} that may differ. Leave it out with "
                "subsets.named(denoiser, patterns), or use a dense posterior."
            )
        if tensor == "weight":
            found[owner] = Layer(module, f"{owner}.bias" in subset.indices)
        elif owner not in found:
            raise ValueError(f"the subset has {name!r} without its weight; include the whole layer.")
    return found


def _is_supported(module: nn.Module) -> bool:
    return is_plain(module) and (
        isinstance(module, nn.Linear)
        or (is_dense_convolution(module) and isinstance(module, (nn.Conv1d, nn.Conv2d)))
    )


def backpropagate(
    denoiser: Denoiser, subset: Subset, layers: Mapping[str, Layer], batch: Batch, u: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute the inputs a (B, L, i) and the pulled-back probes g (k, B, L, o) of each layer."""
    found = [layer for layer in plain_layers(denoiser) if layer.name in layers]
    names = {name for layer in found for name in layer.tensors.values()}
    try:
        recording = Recording(denoiser, found, names, batch.x, batch.t, batch.cond)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"a kronecker posterior needs a network that runs under torch.func.vmap; {denoiser.name} raised: "
            f"{str(error).splitlines()[0]} Use a dense or diagonal posterior."
        ) from error
    if recording.loose:
        raise ValueError(
            f"{', '.join(sorted(recording.loose))}: used outside the layer that owns it, so its curvature is "
            "not a Kronecker product. Leave it out, or use a dense posterior."
        )
    if not ByLayer(denoiser, subset, batch.x, batch.t, batch.cond).together:
        raise ValueError(
            f"a kronecker posterior needs a network with the same gradients under torch.func.vmap; those of "
            f"{denoiser.name} differ, for instance because of its backward hooks. Use a dense or diagonal "
            "posterior."
        )
    times = Counter(call.layer.name for call in recording.calls)
    for name in layers:
        if times[name] == 0:
            raise ValueError(f"layer {name!r} is never called, so it has no curvature; leave it out.")
        if times[name] > 1:
            raise ValueError(
                f"layer {name!r} is called more than once per pass, so its curvature is not a Kronecker "
                "product. Leave it out, or use a dense posterior."
            )
    pulled: list[dict[int, Tensor]] = [{} for _ in range(u.shape[1])]  # per probe, by call
    for j, by_call in enumerate(pulled):
        recording.pull(u[:, j], by_call.__setitem__)
    result = {}
    for place, call in enumerate(recording.calls):
        blank = u.new_zeros(call.shape)  # if f does not depend on the layer
        grads = [by_call.get(place, blank) for by_call in pulled]
        result[call.layer.name] = layers[call.layer.name].arrange(call.inputs, grads, len(batch.x))
    return result


def _unfold(x: Tensor, conv: Any) -> Tensor:
    """Extract the patches that a convolution multiplies, (B, L, in·kernel)."""
    options = {key: getattr(conv, key) for key in ("kernel_size", "dilation", "padding", "stride")}
    if isinstance(conv, nn.Conv1d):
        x = x.unsqueeze(2)
        neutral = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {key: (neutral[key], *value) for key, value in options.items()}
    return F.unfold(x, **options).transpose(1, 2)

"""The inputs and the back-propagated outputs of linear layers and convolutions, for Kronecker factors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..diffusion.noising import Batch
from ..network.denoiser import Denoiser
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

    def arrange(self, inputs: Tensor, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Arrange inputs and gradients by place: a (B, L, i) and g (k, B, L, o)."""
        if isinstance(self.module, nn.Linear):
            a, g = inputs, torch.stack(grads)
            if a.ndim == 2:
                a, g = a.unsqueeze(1), g.unsqueeze(2)
            a, g = a.flatten(1, -2), g.flatten(2, -2)
        else:
            a = _unfold(inputs, self.module)
            g = torch.stack(grads).flatten(3).transpose(2, 3)
        if self.bias:
            a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
        return a, g


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
        if not _is_supported(module) or tensor not in ("weight", "bias"):
            raise ValueError(
                f"a kronecker posterior needs linear layers and plain convolutions, but {name!r} belongs to "
                f"a {type(module).__name__}; leave it out with subsets.named(denoiser, patterns)."
            )
        if tensor == "weight":
            found[owner] = Layer(module, f"{owner}.bias" in subset.indices)
        elif owner not in found:
            raise ValueError(f"the subset has {name!r} without its weight; include the whole layer.")
    return found


def _is_supported(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (
        isinstance(module, (nn.Conv1d, nn.Conv2d))
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def backpropagate(
    denoiser: Denoiser, layers: Mapping[str, Layer], batch: Batch, u: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute the inputs a (B, L, i) and the pulled-back probes g (k, B, L, o) of each layer."""
    params = {name: p.detach().requires_grad_() for name, p in denoiser.params.items()}
    with _record_layers(layers) as seen, torch.enable_grad():
        f = denoiser.call(params, batch.x, batch.t, batch.cond)
    if unused := [name for name in layers if name not in seen]:
        raise ValueError(f"layer {unused[0]!r} is never called, so it has no curvature; leave it out.")
    outputs = [output for _, output in seen.values()]
    pulled = [
        torch.autograd.grad(f, outputs, u[:, j], retain_graph=True, allow_unused=True)
        for j in range(u.shape[1])
    ]
    result = {}
    for place, (name, (inputs, output)) in enumerate(seen.items()):
        grads = [p[place] if p[place] is not None else torch.zeros_like(output) for p in pulled]
        result[name] = layers[name].arrange(inputs, grads)
    return result


@contextmanager
def _record_layers(layers: Mapping[str, Layer]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record the input and the output of each layer during one forward pass."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def record(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if name in seen:
                raise ValueError(
                    f"layer {name!r} is called more than once per pass, so its curvature is not a Kronecker "
                    "product. Leave it out, or use a dense posterior."
                )
            # copies: the next layer may work in place
            seen[name] = (inputs[0].detach().clone(), output)
            return output.clone()

        return hook

    hooks = [layer.module.register_forward_hook(record(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _unfold(x: Tensor, conv: Any) -> Tensor:
    """Extract the patches that a convolution multiplies, (B, L, in·kernel)."""
    options = {key: getattr(conv, key) for key in ("kernel_size", "dilation", "padding", "stride")}
    if isinstance(conv, nn.Conv1d):
        x = x.unsqueeze(2)
        neutral = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {key: (neutral[key], *value) for key, value in options.items()}
    return F.unfold(x, **options).transpose(1, 2)

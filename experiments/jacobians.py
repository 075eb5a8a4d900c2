"""Derivatives of small networks: all of J = ∂f/∂θ by layers, and changes of f along directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

import flare


class Jacobian:
    """J = ∂f/∂θ over a subset, sample by sample, for networks of linear layers and layer norms.

    The gradient of an output by a weight is the gradient by the layer's output times the layer's input: d
    backward passes of the whole batch give all of J, and only its columns in the subset are multiplied out.

    Args:
        denoiser: The network.
    """

    def __init__(self, denoiser: flare.Denoiser) -> None:
        self.denoiser = denoiser
        self.layers = {
            name: layer
            for name, layer in denoiser.module.named_modules()
            if isinstance(layer, (nn.Linear, nn.LayerNorm))
        }

    @torch.enable_grad()
    def look(
        self, x: Tensor, t: Tensor, outputs: int | None = None
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """∂f/∂x (B, d, d), and for each layer its input (B, in) and ∂f/∂(output), (B, d, out).

        The input of a layer norm is given normalized.

        Args:
            x: States, (B, d).
            t: Times, (B,).
            outputs: The number of outputs, the first ones, to differentiate; by default all d.
        """
        x = x.detach().requires_grad_()
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        def watch(name: str) -> Any:
            return lambda layer, inputs, output: seen.update({name: (inputs[0], output)})

        hooks = [layer.register_forward_hook(watch(name)) for name, layer in self.layers.items()]
        try:
            params = {name: value.detach().requires_grad_() for name, value in self.denoiser.params.items()}
            f = self.denoiser.call(params, x, t.contiguous())  # no row shares its time features
        finally:
            for hook in hooks:
                hook.remove()
        inner = [x, *(output for _, output in seen.values())]
        count = f.shape[1] if outputs is None else outputs
        rows = [torch.autograd.grad(f[:, i].sum(), inner, retain_graph=True) for i in range(count)]
        by_x = torch.stack([row[0] for row in rows], 1)
        found = {}
        for (name, (given, _)), *grads in zip(seen.items(), *(row[1:] for row in rows), strict=True):
            layer, given = self.layers[name], given.detach()
            if isinstance(layer, nn.LayerNorm):
                given = nn.functional.layer_norm(given, layer.normalized_shape, eps=layer.eps)
            found[name] = given, torch.stack(grads, 1)
        return by_x, found

    def pick(self, seen: Mapping[str, tuple[Tensor, Tensor]], subset: flare.subsets.Subset) -> Tensor:
        """The columns of a subset, (B, d, m)."""
        parts = []
        for name, index in subset.indices.items():
            layer, _, kind = name.rpartition(".")
            given, g = seen[layer]
            if kind == "bias":
                parts.append(g[..., index])
            elif isinstance(self.layers[layer], nn.LayerNorm):
                parts.append(g[..., index] * given[:, None, index])
            else:
                row, column = index // given.shape[1], index % given.shape[1]
                parts.append(g[..., row] * given[:, None, column])
        return torch.cat(parts, -1)

    def rows(self, x: Tensor, t: Tensor, subset: flare.subsets.Subset, outputs: int | None = None) -> Tensor:
        """J over a subset, (B, d, m), or its rows of the first outputs."""
        return self.pick(self.look(x, t, outputs)[1], subset)


class Push:
    """f(x, t) and its change along K directions of (θ, x), by forward-mode differentiation.

    Args:
        denoiser: The network.
        subset: The parameters that move; None if none do.
        directions: D, (m, K); None if no parameters move.
    """

    def __init__(
        self,
        denoiser: flare.Denoiser,
        subset: flare.subsets.Subset | None = None,
        directions: Tensor | None = None,
    ) -> None:
        self.denoiser = denoiser
        self.changes: dict[str, Tensor] = {}
        if subset is not None and directions is not None:
            self.changes = subset.scatter(directions.T.to(denoiser.dtype))
        self.here = {name: denoiser.params[name] for name in self.changes}

    def __call__(
        self, x: Tensor, dx: Tensor | None, t: Tensor, cond: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """f (B, *shape) and δf (K, B, *shape).

        Args:
            x: States, (B, *shape).
            dx: Changes of the states, (K, B, *shape); None if they do not move.
            t: Times, (B,).
            cond: Conditions of the batch.
        """

        def f(params: dict[str, Tensor], state: Tensor) -> Tensor:
            return self.denoiser.call(params, state, t, cond)

        def along(change: dict[str, Tensor], step: Tensor | None) -> Any:
            if step is None:
                return jvp(lambda params: f(params, x), (self.here,), (change,))
            return jvp(f, (self.here, x), (change, step))

        with torch.no_grad(), self.denoiser.forward_mode():
            return vmap(along, in_dims=(0, None if dx is None else 0), out_dims=(None, 0))(self.changes, dx)

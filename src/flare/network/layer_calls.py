"""The calls of a network's layers during one pass: what goes in, and gradients of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.conditions import Cond, detach
from .denoiser import Denoiser


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        layer: the name of the layer.
        inputs: its arguments, positional or by keyword, without those that are None.
        shape: of its output; None if that is not a tensor.
    """

    layer: str
    inputs: tuple[Any, ...]
    shape: torch.Size | None


class Recording:
    """One pass of a network that remembers the calls of some layers.

    The graph begins at these layers: parameters, x and conditions get no gradients.

    Args:
        denoiser: the network.
        layers: modules of `denoiser.module` by name.
        x: the states, (B, *shape).
        t: the times, (B,).
        cond: the conditions of the batch.

    Attributes:
        f: the output of the network, (B, *shape).
        calls: the calls of the layers, in their order.

    Raises:
        RuntimeError: a layer runs without gradients, or another one writes to its input.
    """

    def __init__(
        self, denoiser: Denoiser, layers: Mapping[str, nn.Module], x: Tensor, t: Tensor, cond: Cond | None
    ) -> None:
        self.calls: list[Call] = []
        self._leaves: list[Tensor] = []  # where the graph begins
        self._receiver = _Receiver()
        self._versions: list[tuple[str, Tensor, int]] = []
        with ExitStack() as stack, torch.enable_grad():
            for name, module in layers.items():
                hook = module.register_forward_hook(self._record_calls(name), with_kwargs=True)
                stack.callback(hook.remove)
            self.f = denoiser.call({}, x.detach(), t, detach(cond))
        for name, value, version in self._versions:
            if value._version != version:
                raise RuntimeError(
                    f"a later operation writes to the input of layer {name!r} in place, so that it has no "
                    "gradient. Write to a copy."
                )

    def _record_calls(self, name: str) -> Callable[..., Any]:
        """A hook that records the calls of one layer."""
        receiver = self._receiver

        def record(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Any:
            if not torch.is_grad_enabled():
                raise RuntimeError(
                    f"layer {name!r} runs without gradients: under torch.no_grad, or with reentrant "
                    "checkpointing. Turn this off for the fit."
                )
            inputs = tuple(self._keep(name, v) for v in (*args, *kwargs.values()) if v is not None)
            number, shape = len(self.calls), output.shape if isinstance(output, Tensor) else None
            self.calls.append(Call(name, inputs, shape))
            if shape is None:
                return output
            if not output.requires_grad:
                self._leaves.append(output.detach().requires_grad_())
                output = self._leaves[-1].clone()  # a later layer may write to it, which a leaf forbids
            output.register_hook(partial(receiver, number))
            return output

        return record

    def _keep(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach()
        if not value.is_inference():
            self._versions.append((name, value, value._version))
        return value

    def pull(self, u: Tensor, receive: Callable[[int, Tensor], None]) -> None:
        """Call receive(k, (∂f/∂y)ᵀu) for the output y of the k-th call, last layers first.

        Calls whose output f does not depend on are left out. The graph can be used again.

        Args:
            u: (B, *shape).
            receive: what to do with the gradients.
        """
        if not self._leaves or not self.f.requires_grad:
            return
        self._receiver.receive = receive
        try:
            torch.autograd.grad(self.f, self._leaves, u, retain_graph=True, allow_unused=True)
        finally:
            self._receiver.receive = None


class _Receiver:
    """Where hooks of the graph send gradients: hooks that know the recording would keep its graph alive."""

    receive: Callable[[int, Tensor], None] | None = None

    def __call__(self, number: int, g: Tensor) -> None:
        if self.receive is not None:
            self.receive(number, g)

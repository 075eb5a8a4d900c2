"""One pass of a network over rows that stay apart, and what its plain layers see in it.

The network runs under `torch.func.vmap` and sees one row at a time, so rows cannot mix. A plain layer runs on
all rows at once, with its weights out of the graph; its inputs and the gradients of its outputs are recorded.
Whether a weight is used anywhere else is read off the graph of every pass. Weights that are, and those of
other modules, get a copy per row, whose gradients autograd computes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.conditions import Cond, detach, has_rows, map_values
from .denoiser import Denoiser
from .forward_mode import Workarounds, plain_attention

CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)  # fmt: skip
_KINDS = (nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.Embedding, *CONVOLUTIONS)

vmap: Any = torch.func.vmap  # the annotations do not cover nested in_dims


@dataclass(frozen=True)
class Layer:
    """A plain layer: a module of torch itself, not of a subclass, that treats rows separately.

    Attributes:
        name: its name in the network.
        module: the layer.
        tensors: the names of its parameters in the network, by its own names for them.
    """

    name: str
    module: nn.Module
    tensors: Mapping[str, str]

    def leading(self, a: Tensor) -> int:
        """How many leading axes of rows a (R, ...) become the batch of the layer."""
        if isinstance(self.module, nn.Linear):
            return a.ndim - 1
        if isinstance(self.module, CONVOLUTIONS):
            return a.ndim - len(self.module.kernel_size) - 1
        return 2 if isinstance(self.module, nn.GroupNorm) else 1


def forward(module: Any, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
    """What a plain layer computes with other weights, without its hooks."""
    own = dict(module._parameters)
    module._parameters.update(weights)
    try:
        return type(module).forward(module, a)
    finally:
        module._parameters.update(own)


def plain_layers(denoiser: Denoiser) -> Iterator[Layer]:
    """The plain layers of a network that have parameters."""
    names = {id(value): name for name, value in denoiser.params.items()}
    for name, module in denoiser.module.named_modules():
        tensors = {key: names[id(p)] for key, p in module._parameters.items() if p is not None}
        if tensors and is_plain(module):
            yield Layer(name, module, tensors)


def is_plain(module: nn.Module) -> bool:
    """Whether a layer computes what its class in torch does; subclasses, wrappers and patches may not."""
    if isinstance(module, nn.Embedding) and (module.max_norm or module.scale_grad_by_freq or module.sparse):
        return False
    return type(module) in _KINDS and not {"forward", "_conv_forward", "weight", "bias"} & vars(module).keys()


@dataclass(frozen=True)
class Call:
    """One call of a plain layer.

    Attributes:
        layer: the layer.
        inputs: of all rows, (R·n, ...), where n is the number of inputs per row.
        shape: of the outputs, (R·n, ...).
    """

    layer: Layer
    inputs: Tensor
    shape: torch.Size


class Recording:
    """One pass of a network over rows that remembers the calls of its plain layers.

    Args:
        denoiser: the network.
        layers: its plain layers.
        names: the parameters to differentiate by.
        x: the states, (R, *shape).
        t: the times, (R,).
        cond: the conditions of the rows.
        loose: parameters that get a copy per row although they belong to plain layers.

    Attributes:
        f: the output of the network, (R, *shape).
        calls: the calls of plain layers with parameters among `names`, in their order.
        loose: the parameters among `names` that have a copy per row.

    Raises:
        RuntimeError: the network cannot run under vmap, or writes to the input of a layer in place.
    """

    def __init__(
        self, denoiser: Denoiser, layers: Iterable[Layer], names: Iterable[str],
        x: Tensor, t: Tensor, cond: Cond | None, loose: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.denoiser, self._layers, self._names = denoiser, tuple(layers), set(names)
        owned = {name for layer in self._layers for name in layer.tensors.values()}
        self.loose = {name for name in self._names if name not in owned} | set(loose)
        found = self._run(x, t, cond)
        while found:  # one more run, unless the network changes from run to run
            self.loose |= found
            found = self._run(x, t, cond)

    def _run(self, x: Tensor, t: Tensor, cond: Cond | None) -> set[str]:
        """Call the network; the names of parameters that are used outside their layers."""
        self.calls: list[Call] = []
        self._leaves: list[Tensor] = []  # where the graph begins
        self._receiver = _Receiver()
        self._versions: list[tuple[str, Tensor, int]] = []
        params = self.denoiser.params
        tight = {name: params[name].detach().requires_grad_() for name in self._names - self.loose}
        self._copies = {
            name: params[name].detach().expand(len(x), *params[name].shape).requires_grad_()
            for name in sorted(self.loose)
        }
        self._current = {**params, **tight}
        cond = detach(cond)
        axes = map_values(lambda value: 0 if has_rows(value) else None, cond)
        single = map_values(lambda value: value.unsqueeze(1) if has_rows(value) else value, cond)

        def one(row: Tensor, x: Tensor, t: Tensor, own: Cond, copies: dict[str, Tensor]) -> Tensor:
            self.row = row
            return self.denoiser.call(tight | copies, x.unsqueeze(0), t.unsqueeze(0), own).squeeze(0)

        rows = (torch.arange(len(x), device=x.device), x.detach().clone(), t.clone(), single, self._copies)
        try:
            with self._taps(), torch.enable_grad(), plain_attention(), _FusedAttention(self), _quiet():
                self.f = vmap(one, in_dims=(0, 0, 0, axes, 0))(*rows)
        finally:
            self.denoiser.restore()
        for name, value, version in self._versions:
            if value._version != version:
                raise RuntimeError(f"a later operation writes to the input of layer {name!r} in place.")
        return find_leaves(self.f, tight)

    @contextmanager
    def _taps(self) -> Iterator[None]:
        """Inside, plain layers whose weights are not loose run on all rows at once."""
        with ExitStack() as stack:
            for layer in self._layers:
                if self.loose.isdisjoint(layer.tensors.values()):
                    vars(layer.module)["forward"] = partial(self._tap, layer)
                    stack.callback(vars(layer.module).pop, "forward")
            yield

    def _tap(self, layer: Layer, input: Tensor) -> Any:
        own = layer.module._parameters
        if any(own[key] is not self._current[name] for key, name in layer.tensors.items()):
            return type(layer.module).forward(layer.module, input)  # the network has replaced its weights
        return on_all_rows(partial(self._record, layer), self.row, input)

    def _record(self, layer: Layer, a: Tensor) -> Tensor:
        """The outputs of a layer for all rows; if gradients are wanted, the graph goes on from here."""
        lead = a.shape[: layer.leading(a)]
        inputs = a.flatten(0, len(lead) - 1)
        weights = {key: self.denoiser.params[name] for key, name in layer.tensors.items()}
        y = forward(layer.module, weights, inputs)
        shape = y.shape
        if torch.is_grad_enabled() and not self._names.isdisjoint(layer.tensors.values()):
            inputs = inputs.detach()
            self._versions.append((layer.name, inputs, inputs._version))
            if not y.requires_grad:
                self._leaves.append(y.detach().requires_grad_())
                y = self._leaves[-1].clone()  # a later layer may write to it, which a leaf forbids
            elif y._is_view():
                y = y.clone()  # writing to a view removes its hooks from the graph
            y.register_hook(partial(self._receiver, len(self.calls)))
            self.calls.append(Call(layer, inputs, shape))
        return y.unflatten(0, lead) if len(lead) > 1 else y

    def pull(self, u: Tensor, receive: Callable[[int, Tensor], None]) -> dict[str, Tensor]:
        """The gradients of the copies, (R, ...) by name; call receive(k, (∂f/∂y)ᵀu) for the k-th call.

        The last layers come first; calls whose output y does not change f are left out. The graph can be used
        again.

        Args:
            u: (R, *shape).
            receive: what to do with the gradients of a layer's outputs.
        """
        leaves = [*self._leaves, *self._copies.values()]
        if not leaves or not self.f.requires_grad:
            return {}
        self._receiver.receive = receive
        try:
            found = torch.autograd.grad(self.f, leaves, u, retain_graph=True, allow_unused=True)
        finally:
            self._receiver.receive = None
        grads = zip(self._copies, found[len(self._leaves) :], strict=True)
        return {name: g for name, g in grads if g is not None}


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, vmap does not warn of operations that it runs one row at a time: nobody can do better."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def find_leaves(f: Tensor, leaves: Mapping[str, Tensor]) -> set[str]:
    """The names of the leaves that the graph of f reaches."""
    names = {id(leaf): name for name, leaf in leaves.items()}
    found, seen, stack = set(), set(), [f.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if id(leaf) in names:
            found.add(names[id(leaf)])
        stack.extend(after for after, _ in node.next_functions)
    return found


class _Receiver:
    """Where hooks of the graph send gradients: hooks that know the recording would keep its graph alive."""

    receive: Callable[[int, Tensor], None] | None = None

    def __call__(self, number: int, g: Tensor) -> None:
        if self.receive is not None:
            self.receive(number, g)


class _AllRows(torch.autograd.Function):
    """A function of rows under vmap that runs once, on all rows: `row` makes every call one of rows."""

    @staticmethod
    def forward(run: Any, row: Tensor, *inputs: Tensor | None) -> Tensor:
        """Never runs."""
        raise RuntimeError("a layer is called outside of vmap.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing: `vmap` is all that runs."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: Any, row: Tensor, *inputs: Tensor | None) -> tuple[Any, int]:
        """Call `run` with the inputs of all rows, (R, ...)."""
        if in_dims[1] is None:
            raise RuntimeError("a layer is called in another vmap.")
        pairs = zip(inputs, in_dims[2:], strict=True)
        return run(*(None if v is None else _rows(v, axis, info.batch_size) for v, axis in pairs)), 0


on_all_rows: Any = _AllRows.apply  # has no annotations


def _rows(value: Tensor, axis: int | None, count: int) -> Tensor:
    return value.expand(count, *value.shape) if axis is None else value.movedim(axis, 0)


class _FusedAttention(Workarounds):
    """Inside, attention under vmap runs fused over all rows, and recurrent layers run step by step."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func` or what replaces it."""
        if func is F.embedding and is_batchedtensor(args[1]) and _changes_gradients(args[2:], kwargs or {}):
            raise RuntimeError("vmap ignores the options of an embedding whose weights differ by row.")
        if func is F.scaled_dot_product_attention and [z.ndim for z in args] == [4, 4, 4]:
            options = dict(kwargs or {})
            mask = options.pop("attn_mask", None)
            return on_all_rows(partial(_attend, options), self._recording.row, *args, mask)
        return super().__torch_function__(func, types, args, kwargs)


def _changes_gradients(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an embedding has options for its gradients."""
    return bool(args) or kwargs.get("padding_idx") is not None or bool(kwargs.get("scale_grad_by_freq"))


def _attend(options: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of all rows: the inputs are (R, n, heads, length, size)."""
    lead = q.shape[:2]
    if mask is not None:
        mask = mask.view(len(mask), *[1] * (5 - mask.ndim), *mask.shape[1:])
        mask = mask.expand(-1, lead[1], -1, -1, -1).flatten(0, 1)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        q, k, v = (z.flatten(0, 1) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return y.unflatten(0, lead)

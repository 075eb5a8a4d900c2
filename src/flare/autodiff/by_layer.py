"""Gradients of every row over a subset of the parameters.

One pass serves all rows, and its backward pass only goes through the activations. The network runs under
`torch.func.vmap` and sees one row at a time, so rows cannot mix. A plain layer runs on all rows at once, with
its weights out of the graph; the entries of the subset come from its inputs and the gradients of its outputs
(`contractions`). The graph of every pass shows whether a weight is used anywhere else. Such weights, and the
weights of other modules, get one copy per row, whose gradient autograd computes.

A network that cannot run under vmap, such as one that branches on the values of x, or that differs under
vmap, is differentiated one row at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.conditions import Cond, detach, has_rows, map_values, take_rows
from ..core.memory import is_out_of_memory
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..network.forward_mode import Workarounds, plain_attention
from ..network.layers import watching
from .contractions import CONVOLUTIONS, Contraction, contraction, forward, sum_rows, take

TOLERANCE = 1e-3  # of the trial, relative to the gradient of a tensor
_UNKNOWN = 2**62  # numbers: one row at a time
_KINDS = (nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.Embedding, *CONVOLUTIONS)

vmap: Any = torch.func.vmap  # the annotations do not cover nested in_dims


@dataclass(frozen=True)
class Layer:
    """A plain layer: an instance of a class of torch.nn, not of a subclass, that processes rows separately.

    Attributes:
        name: Its name in the network.
        module: The layer.
        tensors: The names of its parameters in the network, by its own names for them.
        contractions: How to compute the entries in the subset of these parameters, by name in the network.
    """

    name: str
    module: nn.Module
    tensors: Mapping[str, str]
    contractions: Mapping[str, Contraction]


def is_plain(module: nn.Module) -> bool:
    """Whether a layer computes what its class in torch does; subclasses, wrappers and patches may not."""
    if isinstance(module, nn.Embedding) and (module.max_norm or module.scale_grad_by_freq or module.sparse):
        return False
    return type(module) in _KINDS and not {"forward", "_conv_forward", "weight", "bias"} & vars(module).keys()


class ByLayer:
    """Gradients of a network over a subset, computed by layer if the rows can run together.

    Args:
        denoiser: The network.
        subset: The parameters to differentiate by.
        x: States, (R, *shape). Two of them are tried, because a network may behave differently under vmap,
            such as one with backward hooks.
        t: Their times, (R,).
        cond: Their conditions.
        watch: Names of layers whose outputs a pass remembers.

    Attributes:
        row_size: About how many numbers a pass keeps per row.
        problem: Why rows cannot run together; empty if they can.
        loose: The parameters of the subset that get a copy per row.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        subset: Subset,
        x: Tensor,
        t: Tensor,
        cond: Cond | None,
        watch: Sequence[str] = (),
    ) -> None:
        if torch.is_inference_mode_enabled():
            raise RuntimeError("torch.inference_mode allows no gradients; use torch.no_grad instead.")
        self.denoiser, self.subset, self.watch = denoiser, subset, watch
        self.index = {name: value.to(denoiser.device) for name, value in subset.indices.items()}
        names = {id(value): name for name, value in denoiser.params.items()}
        self.layers: list[Layer] = []
        for name, module in denoiser.module.named_modules():
            tensors = {own: names[id(p)] for own, p in module._parameters.items() if p is not None}
            if tensors and is_plain(module):
                entries = {
                    tensor: contraction(module, own, self.index[tensor])
                    for own, tensor in tensors.items()
                    if tensor in self.index
                }
                self.layers.append(Layer(name, module, tensors, entries))
        self.loose = set(self.index).difference(*(layer.tensors.values() for layer in self.layers))
        finite = x.flatten(1).isfinite().all(1).nonzero().flatten()
        rows = finite[[0, -1]].unique() if len(finite) else torch.zeros(1, dtype=torch.long, device=x.device)
        self.row_size, self.problem = self._try(x[rows], t[rows], take_rows(cond, rows))

    def _try(self, x: Tensor, t: Tensor, cond: Cond) -> tuple[int, str]:
        """How many numbers a row keeps, and why rows cannot run together; empty if they can."""
        u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        alone, seen, kept = (
            RowByRow(self, x, t, cond),
            {p.data_ptr() for p in self.denoiser.params.values()},
            0,
        )

        def count(value: Tensor) -> Tensor:
            """Count memory that several operations share only once."""
            nonlocal kept
            if value.data_ptr() not in seen:
                seen.add(value.data_ptr())
                kept += value.numel()
            return value

        try:
            with saved_tensors_hooks(count, lambda value: value):
                theirs = [alone.differentiate(0, u[:1])]
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            kept, theirs = _UNKNOWN, [alone.differentiate(0, u[:1])]  # a network that uses torch.func inside
        kept += sum(self.subset.shapes[name].numel() for name in self.loose)
        try:
            run = Pass(self, x, t, cond)
            ours = run.entries(u, len(x))
        except Exception as error:  # of vmap, or of the network, which then raises it again
            if is_out_of_memory(error):
                raise
            return kept, (str(error).splitlines() or [type(error).__name__])[0]
        kept += sum(call.shape.numel() for call in run.calls) // len(x)
        theirs += [alone.differentiate(row, u[row : row + 1]) for row in range(1, len(x))]
        same = _agree(ours, {name: torch.cat([each[name] for each in theirs]) for name in self.index})
        return kept, "" if same else "gradients under vmap differ, for instance because of backward hooks"

    def run(self, x: Tensor, t: Tensor, cond: Cond | None) -> Pass | RowByRow:
        """Call the network with rows x (R, *shape), t (R,)."""
        if not self.problem:
            try:
                return Pass(self, x, t, cond)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
        return RowByRow(self, x, t, cond)


class Rows:
    """A call of the network with R rows.

    Attributes:
        f: The output of the network, (R, *shape), without gradients.
        seen: The outputs of the watched layers by name, (R, ...) each.
    """

    f: Tensor
    seen: dict[str, Tensor]
    layers: ByLayer

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor, (B, entries), summed over the R/B rows of each sample."""
        raise NotImplementedError

    def pull(self, u: Tensor, samples: int) -> Tensor:
        """Jᵀu over the subset, (B, m), for u (R, *shape), summed over the R/B rows of each sample."""
        subset, entries = self.layers.subset, self.entries(u, samples)
        parts = [
            entries[name] if name in entries else u.new_zeros(samples, len(index))
            for name, index in subset.indices.items()
        ]
        rows = subset.contract(torch.cat(parts, 1))
        if rows.shape[1] != subset.size:
            raise ValueError(
                f"{type(subset).__name__} has {subset.size} coordinates, but its contract gives "
                f"{rows.shape[1]}; a subclass of Subset defines expand and contract, and inherits gather."
            )
        return rows


class RowByRow(Rows):
    """Calls with one row each, differentiated only by autograd."""

    def __init__(self, layers: ByLayer, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self.layers, self._rows = layers, (x.detach(), t, detach(cond))
        # all parameters: a network with its own checkpoints differentiates by all of them
        self._params = {
            name: value.detach().requires_grad_(value.is_floating_point())
            for name, value in layers.denoiser.params.items()
        }

    @cached_property
    def _outputs(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The output and the layer outputs, from one call per row."""
        found = []
        with watching(self.layers.denoiser.module, self.layers.watch) as seen:
            for row in range(len(self._rows[0])):
                seen.clear()
                found.append((self.layers.denoiser(*self._row(row)), dict(seen)))
        first = found[0][1]
        names = [
            name
            for name in first
            if all(name in own and own[name].shape == first[name].shape for _, own in found)
        ]
        return torch.cat([f for f, _ in found]), {
            name: torch.stack([own[name] for _, own in found]) for name in names
        }

    @property
    def f(self) -> Tensor:  # type: ignore[override]
        """The output of the network, (R, *shape), without gradients."""
        return self._outputs[0]

    @property
    def seen(self) -> dict[str, Tensor]:  # type: ignore[override]
        """The outputs of the watched layers."""
        return self._outputs[1]

    def _row(self, row: int) -> tuple[Tensor, Tensor, Cond]:
        x, t, cond = self._rows
        one = slice(row, row + 1)
        return x[one].clone(), t[one].clone(), take_rows(cond, one)

    def differentiate(self, row: int, u: Tensor) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor, (1, entries), of one row."""
        denoiser, index = self.layers.denoiser, self.layers.index
        grads: tuple[Tensor | None, ...] = (None,) * len(index)
        # replaced in the backward pass, too, where such a checkpoint calls its layers again
        with torch.enable_grad(), denoiser.replaced(self._params):
            f = denoiser.call(self._params, *self._row(row))
            leaves = [self._params[name] for name in index]
            if leaves and f.requires_grad:
                grads = torch.autograd.grad(f, leaves, u, allow_unused=True)
        denoiser.restore()
        found = {}
        for (name, places), g in zip(index.items(), grads, strict=True):
            found[name] = u.new_zeros(1, len(places))
            if g is not None:
                found[name] = take((g.to_dense() if g.is_sparse else g).reshape(1, -1), places)
        return found

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor."""
        rows = [self.differentiate(row, own) for row, own in enumerate(u.split(1))]
        return {name: sum_rows(torch.cat([each[name] for each in rows]), samples) for name in rows[0]}


class Call(NamedTuple):
    """One call of a plain layer with entries in the subset.

    Attributes:
        layer: The layer.
        inputs: The inputs of all rows, (R·n, ...), where n is the number of inputs per row.
        shape: The shape of the outputs, (R·n, ...).
        edge: The outputs in the graph; a later operation may write to the tensor itself.
    """

    layer: Layer
    inputs: Tensor
    shape: torch.Size
    edge: GradientEdge


class Pass(Rows):
    """A call with all rows together that remembers what its layers saw.

    Attributes:
        calls: The calls of plain layers with entries in the subset, in their order.

    Raises:
        RuntimeError: the network cannot run under vmap, or writes to the input of a layer in place.
    """

    def __init__(self, layers: ByLayer, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self.layers = layers
        while found := self._run(x, t, detach(cond)):  # one more run, unless the network changes in between
            layers.loose |= found
        self.f = self._output.detach()

    def _run(self, x: Tensor, t: Tensor, cond: Cond) -> set[str]:
        """Call the network; the names of parameters that are used outside their layers."""
        denoiser, loose = self.layers.denoiser, self.layers.loose
        params = denoiser.params
        tight = {
            name: params[name].detach().requires_grad_() for name in self.layers.index if name not in loose
        }
        self.calls: list[Call] = []
        self._versions: list[int] = []  # of their inputs
        self._copies = {
            name: params[name].detach().expand(len(x), *params[name].shape).requires_grad_()
            for name in sorted(loose)
        }
        self._current = {**params, **tight}
        axes = map_values(lambda value: 0 if has_rows(value) else None, cond)
        single = map_values(lambda value: value.unsqueeze(1) if has_rows(value) else value, cond)

        def one(row: Tensor, x: Tensor, t: Tensor, own: Cond, copies: dict[str, Tensor]) -> Any:
            self._row = row
            seen.clear()
            f = denoiser.call(tight | copies, x.unsqueeze(0), t.unsqueeze(0), own).squeeze(0)
            return f, dict(seen)

        rows = (torch.arange(len(x), device=x.device), x.detach().clone(), t.clone(), single, self._copies)
        with ExitStack() as stack:
            stack.callback(denoiser.restore)  # which also puts the forward of each layer back
            for layer in self.layers.layers:
                if loose.isdisjoint(layer.tensors.values()):
                    vars(layer.module)["forward"] = partial(self._tap, layer)
            stack.enter_context(warnings.catch_warnings())  # vmap warns of what it runs one row at a time
            warnings.filterwarnings("ignore", "There is a performance drop")
            stack.enter_context(torch.enable_grad())
            stack.enter_context(plain_attention())
            instead = {F.scaled_dot_product_attention: self._attend, F.embedding: _embed}
            stack.enter_context(Workarounds(instead))
            seen = stack.enter_context(watching(denoiser.module, self.layers.watch))
            self._output, self.seen = vmap(one, in_dims=(0, 0, 0, axes, 0))(*rows)
        for call, version in zip(self.calls, self._versions, strict=True):
            if call.inputs._version != version:
                raise RuntimeError(
                    f"a later operation writes to the input of layer {call.layer.name!r} in place."
                )
        return find_leaves(self._output, tight)

    def _tap(self, layer: Layer, input: Tensor) -> Any:
        """The forward of a plain layer whose weights are not loose: all rows at once."""
        own = layer.module._parameters
        if any(own[key] is not self._current[name] for key, name in layer.tensors.items()):
            return type(layer.module).forward(layer.module, input)  # the network has replaced its weights
        return on_all_rows(partial(self._record, layer), self._row, input)

    def _record(self, layer: Layer, a: Tensor) -> Tensor:
        """The outputs of a layer for all rows a (R, ...), which start the graph if gradients are needed."""
        module: Any = layer.module
        if isinstance(module, nn.Linear):
            axes = a.ndim - 1  # that become the batch of the layer
        elif isinstance(module, CONVOLUTIONS):
            axes = a.ndim - len(module.kernel_size) - 1
        else:
            axes = 2 if isinstance(module, nn.GroupNorm) else 1
        lead, inputs = a.shape[:axes], a.flatten(0, axes - 1)
        params = self.layers.denoiser.params
        y = forward(module, {key: params[name] for key, name in layer.tensors.items()}, inputs)
        if torch.is_grad_enabled() and layer.contractions:
            inputs = inputs.detach()
            if not y.requires_grad:
                y = y.detach().requires_grad_().clone()  # a later layer may write to it, not to a leaf
            elif y._is_view():
                y = y.clone()  # writing to a view removes it from the graph
            self._versions.append(inputs._version)
            self.calls.append(Call(layer, inputs, y.shape, get_gradient_edge(y)))
        return y.unflatten(0, lead) if axes > 1 else y

    def _attend(self, function: Any, *args: Any, **options: Any) -> Any:
        """Attention under vmap runs fused over all rows."""
        if [z.ndim for z in args] != [4, 4, 4]:
            return function(*args, **options)
        mask = options.pop("attn_mask", None)
        return on_all_rows(partial(_attend_all, options), self._row, *args, mask)

    def gradients(self, u: Tensor) -> tuple[Tensor | None, ...]:
        """(∂f/∂y)ᵀu for the outputs y of all calls, then for the copies; None if f does not depend on them.

        The graph can be used again.
        """
        ends: list[Any] = [*(call.edge for call in self.calls), *self._copies.values()]
        if not ends or not self._output.requires_grad:
            return (None,) * len(ends)
        return torch.autograd.grad(self._output, ends, u, retain_graph=True, allow_unused=True)

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor that f depends on."""
        found: dict[str, Tensor] = {}
        grads = self.gradients(u)
        for call, g in reversed(list(zip(self.calls, grads, strict=False))):
            if g is not None:
                for name, contract in call.layer.contractions.items():
                    entries = contract(call.inputs, g, samples)
                    found[name] = found[name] + entries if name in found else entries
        for name, g in zip(self._copies, grads[len(self.calls) :], strict=True):
            if g is not None:
                found[name] = sum_rows(take(g.reshape(len(g), -1), self.layers.index[name]), samples)
        return found


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


class _AllRows(torch.autograd.Function):
    """A function that runs once on all rows, although vmap calls it with a single row."""

    @staticmethod
    def forward(run: Any, row: Tensor, *inputs: Tensor | None) -> Tensor:
        """Never called."""
        raise RuntimeError("a layer is called outside of vmap.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Do nothing: only `vmap` runs."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, run: Any, row: Tensor, *inputs: Tensor | None) -> tuple[Any, int]:
        """Call `run` with the inputs of all rows, (R, ...)."""
        if in_dims[1] is None:
            raise RuntimeError("a layer is called in another vmap.")
        rows: list[Tensor | None] = []
        for value, axis in zip(inputs, in_dims[2:], strict=True):
            if value is not None:
                expand = axis is None
                value = value.expand(info.batch_size, *value.shape) if expand else value.movedim(axis, 0)
            rows.append(value)
        return run(*rows), 0


on_all_rows: Any = _AllRows.apply  # has no annotations


def _embed(function: Any, *args: Any, **options: Any) -> Any:
    """An embedding, unless vmap would ignore options for its gradients."""
    changed = args[2:] or options.get("padding_idx") is not None or options.get("scale_grad_by_freq")
    if is_batchedtensor(args[1]) and changed:
        raise RuntimeError("vmap ignores the options of an embedding whose weights differ by row.")
    return function(*args, **options)


def _attend_all(options: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of all rows: the inputs are (R, n, heads, length, size)."""
    lead = q.shape[:2]
    if mask is not None:
        mask = mask.view(len(mask), *[1] * (5 - mask.ndim), *mask.shape[1:])
        mask = mask.expand(-1, lead[1], -1, -1, -1).flatten(0, 1)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        q, k, v = (z.flatten(0, 1) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return y.unflatten(0, lead)


def _agree(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether two gradients agree in every tensor."""
    size = sum(float(value.abs().square().sum()) for value in theirs.values()) ** 0.5
    for name, value in theirs.items():
        own = ours.get(name, torch.zeros_like(value))
        # the second term: the gradient of a bias before a normalization is rounding alone
        slack = TOLERANCE * value.norm() + 0.1 * TOLERANCE * size
        if own.shape != value.shape or not bool((own - value).norm() <= slack):
            return False
    return True

"""Gradients of every row over a subset of the parameters.

One pass serves all rows together, and in the backward pass it only goes through the activations: the entries
of the subset come from what the plain layers saw (`contractions`). Rows stay apart and every use of a weight
counts, whatever the network does: see `network.layer_calls`. A network that cannot run under vmap, such as
one that branches on the values of x, is differentiated one row at a time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ..core.batch_size import is_out_of_memory
from ..core.conditions import Cond, detach, take_rows
from ..network.denoiser import Denoiser
from ..network.layer_calls import Recording, plain_layers
from ..network.subsets import Subset
from .contractions import Contraction, contraction, sum_rows, take


class ByLayer:
    """The layers of a network with entries in a subset.

    Args:
        denoiser: the network.
        subset: the parameters to differentiate by.
        x: states, (R, *shape); the first one is called to see what a pass keeps in memory.
        t: their times, (R,).
        cond: their conditions.

    Attributes:
        row_size: about how many numbers a pass keeps per row.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self.denoiser, self.subset = denoiser, subset
        self._layers = list(plain_layers(denoiser))
        self._contractions: dict[tuple[str, str], Contraction] = {}  # by layer and tensor
        for layer in self._layers:
            for own, name in layer.tensors.items():
                if name in subset.indices:
                    index = subset.indices[name].to(denoiser.device)
                    self._contractions[layer.name, name] = contraction(layer.module, own, index)
        self._loose: set[str] = set()
        graph = _Graph(denoiser)
        with graph.counting():
            RowByRow(self, x[:1], t[:1], take_rows(cond, slice(1)))
        plain = {name for _, name in self._contractions}
        copied = sum(shape.numel() for name, shape in subset.shapes.items() if name not in plain)
        self.row_size = graph.numbers + copied

    def run(self, x: Tensor, t: Tensor, cond: Cond | None) -> Pass | RowByRow:
        """Call the network with rows x (R, *shape), t (R,)."""
        try:
            return Pass(self, x, t, cond)
        except Exception as error:  # of vmap, or of the network, which then raises it again
            if is_out_of_memory(error):
                raise
            return RowByRow(self, x, t, cond)


class Pass:
    """A call of the network that remembers what its layers saw.

    Attributes:
        f: the output of the network, (R, *shape), without gradients.
    """

    def __init__(self, layers: ByLayer, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self._subset, self._contractions = layers.subset, layers._contractions
        self.recording = Recording(
            layers.denoiser, layers._layers, layers.subset.indices, x, t, cond, layers._loose
        )
        layers._loose |= self.recording.loose  # saves the next pass a second call
        self.f = self.recording.f.detach()

    def pull(self, u: Tensor, samples: int) -> Tensor:
        """Jᵀu over the subset, (B, m), for u (R, *shape), summed over the R/B rows of each sample."""
        found: dict[str, Tensor] = {}

        def receive(number: int, g: Tensor) -> None:
            call = self.recording.calls[number]
            for name in call.layer.tensors.values():
                if contract := self._contractions.get((call.layer.name, name)):
                    entries = contract(call.inputs, g, samples)
                    found[name] = found[name] + entries if name in found else entries

        for name, g in self.recording.pull(u, receive).items():
            found[name] = sum_rows(
                take(g.reshape(len(g), -1), self._subset.indices[name].to(g.device)), samples
            )
        return join(self._subset, found, u, samples)


class RowByRow:
    """Calls of the network with one row each, differentiated by autograd alone.

    Attributes:
        f: the outputs, (R, *shape), without gradients.
    """

    def __init__(self, layers: ByLayer, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self._subset = layers.subset
        self._leaves = {
            name: value.detach().requires_grad_()
            for name, value in self._subset.params(layers.denoiser).items()
        }
        self._rows = []
        with torch.enable_grad():
            for row in range(len(x)):
                one = slice(row, row + 1)
                own = detach(take_rows(cond, one))
                self._rows.append(layers.denoiser.call(self._leaves, x[one].detach(), t[one], own))
        self.f = torch.cat(self._rows).detach()

    def pull(self, u: Tensor, samples: int) -> Tensor:
        """Jᵀu over the subset, (B, m), for u (R, *shape), summed over the R/B rows of each sample."""
        found: dict[str, list[Tensor]] = {name: [] for name in self._leaves}
        for f, own in zip(self._rows, u.split(1), strict=True):
            grads: tuple[Tensor | None, ...] = (None,) * len(self._leaves)
            if f.requires_grad:
                leaves = list(self._leaves.values())
                grads = torch.autograd.grad(f, leaves, own, retain_graph=True, allow_unused=True)
            for (name, index), g in zip(self._subset.indices.items(), grads, strict=True):
                zero = u.new_zeros(1, len(index))
                found[name].append(zero if g is None else take(g.flatten()[None], index.to(g.device)))
        rows = {name: sum_rows(torch.cat(each), samples) for name, each in found.items()}
        return join(self._subset, rows, u, samples)


def join(subset: Subset, entries: dict[str, Tensor], u: Tensor, samples: int) -> Tensor:
    """Coordinates (B, m) from the entries of each tensor, (B, entries); those of missing ones are 0."""
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


class _Graph:
    """How many numbers autograd keeps for the backward pass, without parameters."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.numbers = 0
        self._seen = {value.data_ptr() for value in denoiser.params.values()}

    def counting(self) -> AbstractContextManager[None]:
        """Count what is kept inside; memory that several operations keep counts once."""
        return torch.autograd.graph.saved_tensors_hooks(self._count, lambda value: value)

    def _count(self, value: Tensor) -> Tensor:
        if value.data_ptr() not in self._seen:
            self._seen.add(value.data_ptr())
            self.numbers += value.numel()
        return value

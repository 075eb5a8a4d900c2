"""Gradients of every row over a subset of the parameters.

One pass serves all rows together, and in the backward pass it only goes through the activations: the entries
of the subset come from what the plain layers saw (`contractions`). Rows stay apart and every use of a weight
counts, whatever the data: see `network.layer_calls`. A network that cannot run under vmap, such as one that
branches on the values of x, or that differs under vmap, is differentiated one row at a time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property

import torch
from torch import Tensor

from ..core.conditions import Cond, detach, take_rows
from ..core.memory import is_out_of_memory
from ..network.denoiser import Denoiser
from ..network.layer_calls import Recording, plain_layers
from ..network.subsets import Subset
from .contractions import Contraction, contraction, sum_rows, take

TOLERANCE = 1e-3  # of the trial, relative to the gradient of a tensor
_UNKNOWN = 2**62  # numbers: one row at a time


class ByLayer:
    """The layers of a network with entries in a subset.

    Args:
        denoiser: the network.
        subset: the parameters to differentiate by.
        x: states, (R, *shape); a few of them are tried.
        t: their times, (R,).
        cond: their conditions.

    Attributes:
        row_size: about how many numbers a pass keeps per row.
        together: whether all rows run together. Two rows are tried, because a network may behave differently
            under vmap, such as one with backward hooks.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        if torch.is_inference_mode_enabled():
            raise RuntimeError("torch.inference_mode allows no gradients; use torch.no_grad instead.")
        self.denoiser, self.subset = denoiser, subset
        self._layers = list(plain_layers(denoiser))
        self._loose: set[str] = set()
        finite = x.flatten(1).isfinite().all(1).nonzero().flatten()
        rows = finite[[0, -1]].unique() if len(finite) else torch.zeros(1, dtype=torch.long, device=x.device)
        self.row_size, self.together = self._try(x[rows], t[rows], take_rows(cond, rows))

    @cached_property
    def _contractions(self) -> dict[tuple[str, str], Contraction]:
        """By layer and tensor."""
        index = {name: value.to(self.denoiser.device) for name, value in self.subset.indices.items()}
        return {
            (layer.name, name): contraction(layer.module, own, index[name])
            for layer in self._layers
            for own, name in layer.tensors.items()
            if name in index
        }

    def _try(self, x: Tensor, t: Tensor, cond: Cond) -> tuple[int, bool]:
        """The numbers that a row keeps, and whether rows together have the gradients of rows alone."""
        u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        graph = _Graph(self.denoiser)
        alone = RowByRow(self, x, t, cond)
        try:
            with graph.counting():
                alone.differentiate(0, u[:1])
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            graph.numbers = _UNKNOWN  # a network that uses torch.func inside
        plain = {name for layer in self._layers for name in layer.tensors.values()}
        copied = sum(shape.numel() for name, shape in self.subset.shapes.items() if name not in plain)
        try:
            ours = Pass(self, x, t, cond).entries(u, len(x))
        except Exception as error:  # of vmap, or of the network, which then raises it again
            if is_out_of_memory(error):
                raise
            return graph.numbers + copied, False
        return graph.numbers + copied, _agree(ours, alone.entries(u, len(x)))

    def run(self, x: Tensor, t: Tensor, cond: Cond | None) -> Pass | RowByRow:
        """Call the network with rows x (R, *shape), t (R,)."""
        if self.together:
            try:
                return Pass(self, x, t, cond)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
        return RowByRow(self, x, t, cond)


class Rows:
    """A call of the network with R rows.

    Attributes:
        f: the output of the network, (R, *shape), without gradients.
    """

    f: Tensor
    _subset: Subset

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor, (B, entries), summed over the R/B rows of each sample."""
        raise NotImplementedError

    def pull(self, u: Tensor, samples: int) -> Tensor:
        """Jᵀu over the subset, (B, m), for u (R, *shape), summed over the R/B rows of each sample."""
        return join(self._subset, self.entries(u, samples), u, samples)


class Pass(Rows):
    """A call with all rows together that remembers what its layers saw."""

    def __init__(self, layers: ByLayer, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self._subset, self._contractions = layers.subset, layers._contractions
        self.recording = Recording(
            layers.denoiser, layers._layers, layers.subset.indices, x, t, cond, layers._loose
        )
        layers._loose |= self.recording.loose  # saves the next pass a second call
        self.f = self.recording.f.detach()

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor that f depends on."""
        found: dict[str, Tensor] = {}

        def receive(number: int, g: Tensor) -> None:
            call = self.recording.calls[number]
            for name in call.layer.tensors.values():
                if contract := self._contractions.get((call.layer.name, name)):
                    entries = contract(call.inputs, g, samples)
                    found[name] = found[name] + entries if name in found else entries

        for name, g in self.recording.pull(u, receive).items():
            index = self._subset.indices[name].to(g.device)
            found[name] = sum_rows(take(g.reshape(len(g), -1), index), samples)
        return found


class RowByRow(Rows):
    """Calls with one row each, differentiated by autograd alone."""

    def __init__(self, layers: ByLayer, x: Tensor, t: Tensor, cond: Cond | None) -> None:
        self._subset, self._denoiser = layers.subset, layers.denoiser
        self._rows = (x.detach(), t, detach(cond))
        # all parameters: a network with a checkpoint of its own differentiates by all of them
        self._params = {
            name: value.detach().requires_grad_(value.is_floating_point())
            for name, value in layers.denoiser.params.items()
        }

    @cached_property
    def f(self) -> Tensor:  # type: ignore[override]
        """The output of the network, (R, *shape), without gradients."""
        return torch.cat([self._denoiser(*self._row(row)) for row in range(len(self._rows[0]))])

    def _row(self, row: int) -> tuple[Tensor, Tensor, Cond]:
        x, t, cond = self._rows
        one = slice(row, row + 1)
        return x[one].clone(), t[one].clone(), take_rows(cond, one)

    def differentiate(self, row: int, u: Tensor) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor, (1, entries), of one row."""
        leaves = [self._params[name] for name in self._subset.indices]
        grads: tuple[Tensor | None, ...] = (None,) * len(leaves)
        # replaced in the backward pass, too, where such a checkpoint calls its layers again
        with torch.enable_grad(), self._denoiser.replaced(self._params):
            f = self._denoiser.call(self._params, *self._row(row))
            if f.requires_grad:
                grads = torch.autograd.grad(f, leaves, u, allow_unused=True)
        self._denoiser.restore()
        found = {}
        for (name, index), g in zip(self._subset.indices.items(), grads, strict=True):
            found[name] = u.new_zeros(1, len(index))
            if g is not None:
                dense = g.to_dense() if g.is_sparse else g
                found[name] = take(dense.reshape(1, -1), index.to(g.device))
        return found

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor."""
        rows = [self.differentiate(row, own) for row, own in enumerate(u.split(1))]
        return {
            name: sum_rows(torch.cat([each[name] for each in rows]), samples) for name in self._subset.indices
        }


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

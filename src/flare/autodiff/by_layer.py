"""Gradients of every sample over a subset, from the inputs and the output gradients of the layers.

One pass serves all samples together, and on the way back it only goes through the activations. The entries of
the subset come from what every layer saw (`contractions`); `torch.func` would form the gradients of all
tensors with entries in the subset, for every sample, and then pick the entries.

This is right if every layer is called as a module and sees one row per sample. Both are tried once per
network and choice of tensors, on three rows, against ordinary gradients. A trial cannot see a path that a
network takes with other conditions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..core.batch_size import is_out_of_memory
from ..core.conditions import Cond, detach, take_rows
from ..network.denoiser import Denoiser
from ..network.layer_calls import Recording
from ..network.subsets import Subset
from .contractions import Contraction, contraction

TOLERANCE = 1e-3  # of the trial, relative to the gradient of a tensor

#: by network and names of tensors: the version of the weights that was tried, and how many numbers a pass
#: keeps per row; None if gradients are wrong
_TRIED: WeakKeyDictionary[Denoiser, dict[tuple[str, ...], tuple[int, int | None]]] = WeakKeyDictionary()


class ByLayer:
    """The layers of a network with entries in a subset.

    Args:
        denoiser: the network.
        subset: the parameters to differentiate by.
    """

    def __init__(self, denoiser: Denoiser, subset: Subset) -> None:
        self.denoiser, self.subset = denoiser, subset
        self.layers: dict[str, nn.Module] = {}
        #: by layer, the tensors of the subset in it and how their entries are computed
        self.contractions: dict[str, dict[str, Contraction]] = {}
        for name, index in subset.indices.items():
            layer, _, own = name.rpartition(".")
            module = self.layers[layer] = denoiser.module.get_submodule(layer)
            entries = contraction(module, own, index.to(denoiser.device))
            self.contractions.setdefault(layer, {})[name] = entries

    @property
    def _version(self) -> int:
        """A number that changes with the weights: a gate that was 0 may open."""
        return sum(value._version for value in self.denoiser.params.values())

    @property
    def _tried(self) -> tuple[int, int | None]:
        """The version of the weights that was tried last, and what was found."""
        return _TRIED.get(self.denoiser, {}).get(tuple(self.subset.indices), (-1, None))

    def _note(self, size: int | None) -> None:
        _TRIED.setdefault(self.denoiser, {})[tuple(self.subset.indices)] = self._version, size

    @property
    def row_size(self) -> int | None:
        """How many numbers a pass keeps per row, gradients included; None if they are wrong or untried."""
        version, size = self._tried
        return size if version == self._version else None

    def suits(self, x: Tensor, t: Tensor, cond: Cond | None) -> bool:
        """Whether the gradients of three of the rows x (R, *shape), t (R,) are right.

        The rows are tried once per version of the weights. Three: a network that sorts its rows by time would
        not be noticed with two.
        """
        if self._tried[0] != self._version:
            finite = x.flatten(1).isfinite().all(1).nonzero().flatten()
            if not len(finite):
                return False
            rows = finite[[0, len(finite) // 2, -1]]
            self._note(self._try(x[rows].detach(), t[rows], detach(take_rows(cond, rows))))
        return self.row_size is not None

    def run(self, x: Tensor, t: Tensor, cond: Cond | None) -> Pass | None:
        """Call the network with rows x (R, *shape), t (R,); None if a layer does not see R rows."""
        # contiguous: a network may compute the features of an expanded time only once
        recording = Recording(self.denoiser, self.layers, x, t.contiguous(), cond)
        for call in recording.calls:
            shapes = [getattr(value, "shape", None) for value in call.inputs] + [call.shape]
            if len(shapes) != 2 or not all(shape and shape[0] == len(x) for shape in shapes):
                self._note(None)
                return None
        return Pass(self, recording)

    def _try(self, x: Tensor, t: Tensor, cond: Cond) -> int | None:
        """The numbers per row, if all rows agree with ordinary passes, one per row; None otherwise."""
        u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        graph = _Graph(self.denoiser)
        try:
            with graph.counting():
                trial = self.run(x, t, cond)
            if trial is None:
                return None
            ours = trial.entries(u, len(x))
        except Exception as error:  # user code may raise anything
            if is_out_of_memory(error):
                raise
            return None
        for row in range(len(x)):
            one = slice(row, row + 1)
            theirs = self._differentiate(x[one], t[one], take_rows(cond, one), u[one])
            if not _agree({name: value[row] for name, value in ours.items()}, theirs):
                return None
        return -(-max(trial.numbers, graph.numbers) // len(x))

    def _differentiate(self, x: Tensor, t: Tensor, cond: Cond, u: Tensor) -> dict[str, Tensor]:
        """The entries of Jᵀu of one sample by autograd, with the gradient of one tensor at a time."""
        found = {name: u.new_zeros(len(index)) for name, index in self.subset.indices.items()}

        def pick(name: str, index: Tensor) -> Callable[[Tensor], None]:
            def hook(leaf: Tensor) -> None:
                assert leaf.grad is not None
                found[name], leaf.grad = leaf.grad.flatten()[index.to(leaf.device)], None

            return hook

        leaves = {}
        for name, value in self.subset.params(self.denoiser).items():
            leaves[name] = value.detach().requires_grad_()
            leaves[name].register_post_accumulate_grad_hook(pick(name, self.subset.indices[name]))
        with torch.enable_grad():
            f = self.denoiser.call(leaves, x, t, cond)
        if f.requires_grad:
            f.backward(u)
        return found


@dataclass(frozen=True)
class Pass:
    """A call of the network that remembers what its layers saw.

    Attributes:
        by_layer: the layers.
        recording: their calls.
    """

    by_layer: ByLayer
    recording: Recording

    @property
    def f(self) -> Tensor:
        """The output of the network, (R, *shape), without gradients."""
        return self.recording.f.detach()

    @property
    def numbers(self) -> int:
        """About how many numbers are in memory: inputs, outputs and gradients of the layers."""
        calls = self.recording.calls
        return sum(call.inputs[0].numel() + 2 * (call.shape or torch.Size()).numel() for call in calls)

    def pull(self, u: Tensor, samples: int) -> Tensor:
        """Jᵀu over the subset, (B, m), for u (R, *shape), summed over the R/B rows of each sample."""
        subset, entries = self.by_layer.subset, self.entries(u, samples)
        rows = subset.contract(torch.cat([entries[name] for name in subset.indices], 1))
        if rows.shape[1] != subset.size:
            raise ValueError(
                f"{type(subset).__name__} has {subset.size} coordinates, but its contract gives "
                f"{rows.shape[1]}; a subclass of Subset defines expand and contract, and inherits gather."
            )
        return rows

    def entries(self, u: Tensor, samples: int) -> dict[str, Tensor]:
        """Jᵀu at the entries of each tensor, (B, entries)."""
        found: dict[str, Tensor] = {}

        def receive(number: int, g: Tensor) -> None:
            call = self.recording.calls[number]
            for name, contract in self.by_layer.contractions[call.layer].items():
                entries = contract(call.inputs[0], g, samples)
                found[name] = found[name] + entries if name in found else entries

        self.recording.pull(u, receive)
        indices = self.by_layer.subset.indices
        unused = {name: index for name, index in indices.items() if name not in found}
        return found | {name: u.new_zeros(samples, len(index)) for name, index in unused.items()}


class _Graph:
    """How many numbers autograd keeps for the way back, without parameters: between the layers, too."""

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


def _agree(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    """Whether two gradients agree in every tensor."""
    size = torch.stack([value.norm() for value in theirs.values()]).norm()
    # the second term: the gradient of a bias before a normalization is rounding alone
    return all(
        bool((ours[name] - value).norm() <= TOLERANCE * value.norm() + 0.1 * TOLERANCE * size)
        for name, value in theirs.items()
    )


def find(denoiser: Denoiser, subset: Subset, x: Tensor, t: Tensor, cond: Cond | None) -> ByLayer | None:
    """The layers of the subset, if their gradients are right on the rows x (R, *shape), t (R,)."""
    layers = ByLayer(denoiser, subset)
    return layers if layers.suits(x, t, cond) else None

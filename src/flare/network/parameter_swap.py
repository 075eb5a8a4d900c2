"""Replacing the tensors of a module for the duration of a call, and noticing those that escape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class Places:
    """Where a module keeps its tensors, looked up once so that every later swap is cheap.

    Args:
        module: the module; names are those of `named_parameters` and `named_buffers`. A tied tensor has
            several places.
    """

    def __init__(self, module: nn.Module) -> None:
        names = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
        self._of: dict[str, list[tuple[dict[str, Any], str]]] = {n: [] for n in names.values()}
        for part in module.modules():
            for table in (part._parameters, part._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        self._of[names[id(tensor)]].append((table, key))
        #: tensors that are plain attributes: what a call writes there must not outlive it
        self._attributes: list[tuple[dict[str, Any], str, Any]] = [
            (vars(part), key, value)
            for part in module.modules()
            for key, value in vars(part).items()
            if isinstance(value, Tensor)
        ]

        self._all_attributes = [(vars(part), dict(vars(part))) for part in module.modules()]

    def restore(self) -> None:
        """Put back the attributes of all modules: a call under vmap leaves tensors that nobody can use."""
        for now, before in self._all_attributes:
            now.clear()
            now.update(before)

    @contextmanager
    def swap(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, these tensors replace those of the module with the same names."""
        before = list(self._attributes)
        try:
            for name, value in values.items():
                for table, key in self._of[name]:
                    before.append((table, key, table[key]))
                    table[key] = value
            yield
        finally:
            for table, key, own in reversed(before):
                table[key] = own


class Escapes(TorchFunctionMode):
    """Inside, parameters that a call uses as they are, although all of them are replaced by copies.

    Args:
        params: the parameters of the network by name.

    Attributes:
        names: the names of the parameters that were used.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._by_memory = {_memory(value): name for name, value in params.items() if value.numel()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, and look at its arguments if it computes with them."""
        out = func(*args, **(kwargs or {}))
        if any(isinstance(value, Tensor) for value in tree_leaves(out)):
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, Tensor) and _memory(value) in self._by_memory:
                    self.names.add(self._by_memory[_memory(value)])
        return out


def _memory(value: Tensor) -> int:
    """Where a tensor and all of its views are kept; -1 if they have no such place."""
    try:
        return value.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those of torch.func
        return -1

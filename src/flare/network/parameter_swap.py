"""Replacing the tensors of a module for the duration of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


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

    @contextmanager
    def swap(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, these tensors replace those of the module with the same names."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for name, value in values.items():
                for table, key in self._of[name]:
                    before.append((table, key, table[key]))
                    table[key] = value
            yield
        finally:
            for table, key, own in reversed(before):
                table[key] = own

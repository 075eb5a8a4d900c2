"""Registries of named options: a new option registers itself, and no other code is edited.

A package has a `Registry`. Posteriors, rules and scores are files: each registers what it defines when the
`__init__` of the package imports it. Samplers and schedules are functions of one file, which `register`
decorates. Functions, help texts and documents read the registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from .validation import one_of

Item = TypeVar("Item")
Same = TypeVar("Same")


class Registry(Mapping[str, Item], Generic[Item]):
    """Entries by name, in alphabetical order: objects with a `name` and a one-line `summary`, or functions.

    Args:
        kind: What the entries are, for error messages: "rule", "score", ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = {}

    def register(self, item: Same) -> Same:
        """Add an entry and return it unchanged; also a decorator for classes and functions."""
        entry: Any = item
        name = getattr(entry, "name", None) or entry.__name__
        if self._entries.get(name, item) is not item:
            raise ValueError(f"{self.kind} {name!r} is already registered; choose another name.")
        self._entries[name] = item
        return item

    def find(self, name: str) -> Item:
        """Return the entry with this name; otherwise raise with the nearest match."""
        found: Item = self._entries[one_of(self.kind, name, self._entries)]
        return found

    def __getitem__(self, name: str) -> Item:
        found: Item = self._entries[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

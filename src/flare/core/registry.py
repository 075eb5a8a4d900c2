"""Named options that register themselves: a new one is a new file, and nothing else is edited.

A room keeps a `Registry`. Each of its files adds what it defines, and the room's `__init__` imports all of
its files with `import_room`. Functions, help texts and documents read the registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, Protocol, TypeVar

from .validation import one_of


class Entry(Protocol):
    """What a registry holds: anything with a name and one line about it."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def summary(self) -> str:
        """One line for help texts and tables."""


Item = TypeVar("Item", bound=Entry)


class Registry(Mapping[str, Item], Generic[Item]):
    """Entries by name, sorted; an unknown name is refused with the nearest match.

    Args:
        kind: what its entries are, for messages: "rule", "score", ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Item] = {}

    def register(self, item: Item) -> Item:
        """Add an entry; usable as a decorator of classes with `name` and `summary`."""
        if self._entries.get(item.name, item) is not item:
            raise ValueError(f"there is a {self.kind} {item.name!r} already; choose another name.")
        self._entries[item.name] = item
        return item

    def find(self, name: str) -> Item:
        """The entry of this name."""
        return self._entries[one_of(self.kind, name, self._entries)]

    def __getitem__(self, name: str) -> Item:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


def import_room(package: str, path: list[str]) -> None:
    """Import every module of a package, so that each can register what it defines."""
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")

"""Registries of named options: a new option registers itself, and no other code is edited.

A package has a `Registry`. Posteriors, rules and scores are files: each registers what it defines when the
`__init__` of the package imports it. Samplers and schedules are functions of one file with a decorator.
Functions, help texts and documents read the registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .validation import one_of


class Entry(Protocol):
    """An entry of a registry: anything with a name and a one-line summary."""

    @property
    def name(self) -> str:
        """Name of the option."""

    @property
    def summary(self) -> str:
        """One line for help texts and tables."""


Item = TypeVar("Item", bound=Entry)
Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Mapping[str, Item], Generic[Item]):
    """Entries by name, in alphabetical order.

    Args:
        kind: What the entries are, for error messages: "rule", "score", ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Item] = {}

    def register(self, item: Item) -> Item:
        """Add an entry and return it; also a decorator for classes with `name` and `summary`."""
        if self._entries.get(item.name, item) is not item:
            raise ValueError(f"{self.kind} {item.name!r} is already registered; choose another name.")
        self._entries[item.name] = item
        return item

    def find(self, name: str) -> Item:
        """Return the entry with this name; otherwise raise with the nearest match."""
        return self._entries[one_of(self.kind, name, self._entries)]

    def __getitem__(self, name: str) -> Item:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True)
class Maker(Generic[Made]):
    """A function as an entry of a registry; calling the entry calls the function.

    Attributes:
        name: The name of the function.
        summary: The first line of its docstring.
        make: The function.
    """

    name: str
    summary: str
    make: Callable[..., Made]

    def __call__(self, *args: Any, **options: Any) -> Made:
        """Call the function."""
        return self.make(*args, **options)


def register_in(registry: Registry[Maker[Made]]) -> Callable[[Function], Function]:
    """Make a decorator that adds a function to the registry and returns it unchanged."""

    def register(function: Function) -> Function:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        registry.register(Maker(function.__name__, summary, function))
        return function

    return register

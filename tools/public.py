"""The public names of FLARE, read from the package: what the reference lists."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import flare


class Name(NamedTuple):
    """A public name.

    Attributes:
        path: The name as users write it, such as "flare.schedules.cosine".
        value: What it names.
    """

    path: str
    value: Any

    @property
    def is_module(self) -> bool:
        """Whether it names a module, which has public names, too."""
        return isinstance(self.value, ModuleType)

    @property
    def depth(self) -> int:
        """How many modules to go through: 1 for a name of `flare` itself."""
        return self.path.count(".")

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring as one line; that of a constant is not known at run time."""
        if not (callable(self.value) or self.is_module):
            return ""
        return " ".join((inspect.getdoc(self.value) or "").partition("\n\n")[0].split())


def public_names(module: ModuleType = flare) -> list[Name]:
    """The public names of a module, depth first: a module is followed by its own names."""
    return list(_walk(module, "flare"))


def _walk(module: ModuleType, path: str) -> Iterator[Name]:
    for key in _own(module):
        name = Name(f"{path}.{key}", getattr(module, key))
        yield name
        if name.is_module:
            yield from _walk(name.value, name.path)


def _own(module: ModuleType) -> list[str]:
    """The names in `__all__`; else the functions and classes that the module defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=lambda key: (key.lower(), key))
    return [
        key for key, value in vars(module).items()
        if not key.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__
    ]  # fmt: skip

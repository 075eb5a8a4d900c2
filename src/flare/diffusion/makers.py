"""Registry entries for functions: samplers and schedules register themselves with a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..core.registry import Registry

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Maker(Generic[Made]):
    """A function with its name and a one-line summary; calling the entry calls the function.

    Attributes:
        name: the name of the function.
        summary: the first line of its docstring.
        make: the function.
    """

    name: str
    summary: str
    make: Callable[..., Made]

    def __call__(self, *args: Any, **options: Any) -> Made:
        """What the function makes of these arguments."""
        return self.make(*args, **options)


def register_in(registry: Registry[Maker[Made]]) -> Callable[[Function], Function]:
    """A decorator that adds a function to the registry and returns it unchanged."""

    def register(function: Function) -> Function:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        registry.register(Maker(function.__name__, summary, function))
        return function

    return register

"""Feedback while the library works: progress bars and warnings.

Library loops yield, and `progress=` wraps what they yield.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Progress = Callable[[Any], Iterable[Any]]
_INSIDE = ("flare", "torch", "functools", "contextlib")  # packages whose frames a warning skips


class Sized(Generic[Item]):
    """An iterator with a known length, which progress bars need."""

    def __init__(self, items: Iterator[Item], length: int) -> None:
        self._items, self._length = items, length

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __len__(self) -> int:
        return self._length


def show_by_default(progress: Progress | bool | None) -> Progress | bool:
    """The request of the caller; by default a bar in a terminal or a notebook, and nothing elsewhere."""
    if progress is not None:
        return progress
    from rich.console import Console

    return sys.stderr.isatty() or Console(stderr=True).is_jupyter


def watch(items: Iterator[Item], length: int, progress: Progress | bool | None) -> Iterable[Item]:
    """Wrap the items in `progress`: a function such as `tqdm.tqdm`, or True for a rich progress bar."""
    if progress is None or progress is False:
        return items
    if progress is True:
        from rich.console import Console
        from rich.progress import track

        console = Console(stderr=True)
        if console.is_jupyter and find_spec("ipywidgets") is None:  # rich would warn at every bar
            return items
        return track(Sized(items, length), description="flare", console=console)
    if not callable(progress):
        raise TypeError(f"progress must be True, or a function such as tqdm.tqdm, got {progress!r}.")
    return progress(Sized(items, length))


def announce(text: str, progress: Progress | bool | None) -> None:
    """Print a line above the bar of progress=True; for a function of the caller, print nothing."""
    if progress is True:
        from rich.console import Console

        Console(stderr=True).print(text, highlight=False, markup=False)


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the caller's line of code, however deep in the library the warning arises."""
    level, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)

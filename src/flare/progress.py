"""Library loops yield; whoever wants a bar wraps what they yield, with tqdm, rich or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Progress = Callable[[Any], Iterable[Any]]


class Sized(Generic[Item]):
    """An iterator that knows its length, as progress bars like it."""

    def __init__(self, items: Iterator[Item], length: int) -> None:
        self._items, self._length = items, length

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __len__(self) -> int:
        return self._length


def watched(items: Iterator[Item], length: int, progress: Progress | None) -> Iterable[Item]:
    """The items, seen through `progress` (for instance `tqdm.tqdm` or `rich.progress.track`)."""
    return items if progress is None else progress(Sized(items, length))

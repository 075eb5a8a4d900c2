"""Progress bars, and Ctrl-C between two items of a loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, nullcontext
from types import FrameType
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..core.distributed import is_main
from .output import console, plain

Note = Callable[[Any], str]


class DelayedInterrupt:
    """A context that delays the first Ctrl-C until `check` is called; a second one stops at once.

    A loop that calls `check` between its items never stops inside one, so the files it writes are complete.
    """

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> DelayedInterrupt:
        self._before = signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Stop if Ctrl-C was pressed."""
        if self._asked:
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.check()
        self._asked = True


class Bar:
    """One bar with the time left, for one loop or several: call it on the items of each.

    Only the main process draws it, and counts its own items.

    Args:
        title: Description of the work.
        total: Number of items of all loops.
        quiet: Whether to draw nothing.
        note: Function that describes an item; its text follows the bar.
    """

    def __init__(self, title: str, total: int, quiet: bool, note: Note | None = None) -> None:
        self._title, self._total, self._quiet, self._note = title, total, quiet, note

    def __enter__(self) -> Bar:
        self._stack = ExitStack()
        self._interrupt = self._stack.enter_context(DelayedInterrupt())
        progress = _make_progress(disable=self._quiet or not is_main())
        self._progress = self._stack.enter_context(progress)
        self._task = self._progress.add_task(plain(self._title), total=self._total, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items and count them."""
        source: Any = iter(items)
        with closing(source) if hasattr(source, "close") else nullcontext():
            for item in source:
                self._interrupt.check()
                note = "" if self._note is None else self._note(item)
                self._progress.update(self._task, advance=1, note=note)
                yield item


def bar(title: str, quiet: bool, note: Note | None = None) -> Callable[[Any], Iterator[Any]]:
    """Make a function that yields the items of one loop and draws a bar."""

    def draw(items: Any) -> Iterator[Any]:
        with Bar(title, len(items), quiet, note) as progress:
            yield from progress(items)

    return draw


def _make_progress(disable: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console(stderr=True),
        disable=disable,
    )

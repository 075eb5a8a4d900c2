"""What the commands share: the application, its options, bars, and what an error looks like."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

app = typer.Typer(
    name="flare",
    help="Which samples of a diffusion model can you trust?",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
err = Console(stderr=True, highlight=False)
out = Console(highlight=False)

Run = Annotated[str, typer.Argument(help="A run directory, or a shipped model: grid, sines, chirp, damped.")]
Seed = Annotated[int, typer.Option(help="Seed of all the randomness.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves the choice to torch.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No bars and no remarks.")]

# What a user can mend; anything else is a defect and keeps its traceback.
EXPECTED = (ValueError, TypeError, OSError, FloatingPointError)


def main() -> None:
    """Run the application; exit 2 on bad input, 130 on Ctrl-C."""
    try:
        app()
    except EXPECTED as error:
        err.print(f"[red]error:[/red] {escape(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped.")
        sys.exit(130)


def set_threads(threads: int) -> None:
    """Set torch's threads, unless 0."""
    import torch

    if threads:
        torch.set_num_threads(threads)


@contextmanager
def between_items() -> Iterator[Callable[[], None]]:
    """Hold the first Ctrl-C back until the given function is called; a second one stops at once.

    So a loop is left between two items, never inside one, and what it keeps on disk is whole.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def stop_if_asked() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop_if_asked
    finally:
        signal.signal(signal.SIGINT, before)


def bar(title: str, quiet: bool, note: Callable[[Any], str] = lambda item: "") -> Any:
    """A function that passes items on and draws a bar with the time left; `note` says something of each."""

    def draw(items: Iterable[Any]) -> Iterator[Any]:
        total = len(items)  # type: ignore[arg-type]
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        source: Any = iter(items)
        with (
            between_items() as stop_if_asked,
            closing(source),
            Progress(*columns, console=err, disable=quiet) as progress,
        ):
            task = progress.add_task(title, total=total, note="")
            for done, item in enumerate(source, 1):
                stop_if_asked()
                if done % max(1, total // 1000) == 0 or done == total:
                    progress.update(task, completed=done, note=note(item))
                yield item

    return draw

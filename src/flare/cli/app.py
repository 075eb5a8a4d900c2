"""What the commands share: the application, its options, bars, and what an error looks like."""

from __future__ import annotations

import json as jsonlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from rich.console import Console


class _Commands(typer.core.TyperGroup):
    """The commands; Ctrl-C ends them with a word, where typer ends them without."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            remark("", f"stopped. {error}".strip())
            raise typer.Exit(130) from None


app = typer.Typer(
    name="flare",
    cls=_Commands,
    help="Which samples of a diffusion model can you trust?",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: it starts at once
    pretty_exceptions_enable=False,
)

Run = Annotated[str, typer.Argument(help="A run directory, or a shipped model: grid, sines, chirp, damped.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Your own network: package.module:function, which returns it."),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Training data: npy, npz, safetensors, csv or parquet.")
]


def check_device(name: str | None) -> str | None:
    """Return the name of a device if there is such a device here."""
    if name is None:
        return None
    import torch

    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    found = [f"{kind}:{i}" if kind == "cuda" else kind for kind, n in counts.items() for i in range(n)]
    try:
        device = torch.device(name)
        # counted, not tried by a tensor: each of several processes chooses a GPU of its own later
        if device.type in counts and (device.index or 0) >= counts[device.type]:
            raise RuntimeError("torch does not see such a device")
        if device.type not in counts:
            torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"--device {name} cannot be used: {reason}. Choose from: {', '.join(found)}."
        ) from error
    return name


def check_keep(share: float | None) -> float | None:
    """Return a share of samples to keep if it is one."""
    if share is not None and not 0 < share <= 1:
        from ..results.filtering import suggest_fraction

        raise ValueError(f"--keep must be a share in (0, 1], got {share:g}{suggest_fraction(share)}")
    return share


Device = Annotated[
    str | None,
    typer.Option(callback=check_device, help="cpu, cuda, mps, …; where the network is by default."),
]
Keep = Annotated[float, typer.Option(callback=check_keep, help="The share of the samples to keep.")]
Directions = Annotated[int, typer.Option(min=1, help="Draws of the posterior to push through.")]
Levels = Annotated[
    str,
    typer.Option(help="Reference levels of the score as fractions of T, with commas; its own by default."),
]
Posterior = Annotated[
    Path | None, typer.Option("--posterior", help="The posterior; RUN/posterior.safetensors by default.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else.")]
Seed = Annotated[int, typer.Option(help="Seed of all the randomness.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves the choice to torch.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No bars and no remarks.")]

TOGETHER = ("fit", "sample", "score", "evaluate")  # the commands that several processes can share

# What a user can mend; anything else is a defect and keeps its traceback.
EXPECTED = (ValueError, TypeError, OSError, FloatingPointError, NotImplementedError, RuntimeError)


def console(stderr: bool) -> Console:
    """A console for standard error (remarks) or standard output (answers); rich is imported when used."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def main() -> None:
    """Run the application; exit 2 on bad input, 130 on Ctrl-C."""
    warnings.showwarning = lambda message, *_, **__: remark("[yellow]warning:[/yellow]", str(message))
    try:
        app()
    except EXPECTED as error:
        remark("[red]error:[/red]", str(error))
        sys.exit(2)
    finally:
        if _several():
            from ..core.distributed import stop

            stop()


def _several() -> bool:
    """Whether torchrun or accelerate started this process beside others."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        answer(f"flare {__version__}")
        raise typer.Exit


@app.callback()
def _check_processes(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if _several() and context.invoked_subcommand not in TOGETHER:
        raise ValueError(
            f"flare {context.invoked_subcommand} runs in one process, but it was started in "
            f"{os.environ['WORLD_SIZE']}; start it by itself. Several can share: {', '.join(TOGETHER)}."
        )


def remark(label: str, text: str) -> None:
    """Say something on standard error; the text is taken as it is."""
    from rich.markup import escape

    console(stderr=True).print(f"{label} {escape(text)}".strip())


def parse_levels(text: str) -> list[float] | None:
    """Levels as they are typed: fractions of T with commas; None if there are none."""
    try:
        return [float(word) for word in text.split(",")] if text else None
    except ValueError:
        raise ValueError(
            f"--levels must be numbers with commas, such as 0.05,0.1,0.2, got {text!r}."
        ) from None


def answer(text: str) -> None:
    """Print the answer of a command on standard output, for a person or the next command."""
    typer.echo(text)


def start(threads: int) -> None:
    """Set torch's threads, unless 0, and join the processes that were started with this one."""
    import torch

    from ..core import distributed

    if threads:
        torch.set_num_threads(threads)
    distributed.start()


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Hold what is to be written; of several processes the main one does it for all.

    Who stops it with Ctrl-C is told whether there is anything to resume from.
    """
    from ..core.distributed import is_main, wait
    from ..storage.locks import lock

    with lock(path) if is_main() else nullcontext():
        wait()
        before = _kept(path)
        try:
            yield
        except KeyboardInterrupt:
            if _kept(path) - before:
                raise KeyboardInterrupt("The work so far is kept: the same command resumes it.") from None
            raise


def _kept(path: Path) -> set[tuple[str, int]]:
    """What is on disk to resume from, each file with the time of its last change."""
    from ..network.training import STATE_FILE
    from ..storage.resume import Resume

    found = set()
    for file in (*Resume.beside(path).directory.rglob("[!.]*.safetensors"), *path.glob(STATE_FILE)):
        with suppress(FileNotFoundError):  # another process may have removed it just now
            found.add((str(file), file.stat().st_mtime_ns))
    return found


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


@contextmanager
def one_bar(
    title: str, total: int, quiet: bool, note: Callable[[Any], str] = lambda item: ""
) -> Iterator[Callable[[Iterable[Any]], Iterator[Any]]]:
    """One bar with the time left for several loops: a function that passes their items on and counts them.

    Of several processes the main one draws it, for its own share.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    from ..core.distributed import is_main

    done, every = 0, max(1, total // 1000)
    with (
        between_items() as stop_if_asked,
        Progress(*columns, console=console(stderr=True), disable=quiet or not is_main()) as progress,
    ):
        task = progress.add_task(title, total=total, note="")

        def draw(items: Iterable[Any]) -> Iterator[Any]:
            nonlocal done
            source: Any = iter(items)
            with closing(source):
                for item in source:
                    stop_if_asked()
                    done += 1
                    if done % every == 0 or done == total:
                        progress.update(task, completed=done, note=note(item))
                    yield item

        yield draw


def bar(title: str, quiet: bool, note: Callable[[Any], str] = lambda item: "") -> Any:
    """A function that passes the items of one loop on and draws a bar; `note` says something of each."""

    def draw(items: Any) -> Iterator[Any]:
        with one_bar(title, len(items), quiet, note) as progress:
            yield from progress(items)

    return draw


def report(json: bool, quiet: bool, facts: Mapping[str, Any], last: str | None = None) -> None:
    """Say what is so: as JSON for machines; or as a table of remarks and `last`, a path to go on with.

    Without `last` the table itself is the answer, on standard output. Of several processes the main one
    speaks.
    """
    from ..core.distributed import is_main

    if not is_main():
        return
    if json:
        answer(jsonlib.dumps(facts, indent=2))
        return
    if not quiet:
        from rich.table import Table

        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for key, value in facts.items():
            table.add_row(key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
        console(stderr=last is not None).print(table)
    if last:
        answer(last)

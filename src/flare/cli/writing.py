"""How commands work: locks, progress bars, and results in parts that an interrupted command resumes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich import progress as rich

from .. import __version__
from ..bench import Benchmark
from ..core.distributed import broadcast, is_main, own_items, wait
from ..core.nonfinite import ADVICE, AllLostError
from ..core.progress import Progress, warn
from ..results.result import Result, join
from ..scorer.scorer import Scorer
from ..storage.locks import lock
from ..storage.resume import Resume
from .app import console, plain

Note = Callable[[Any], str]


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Lock the file or directory to write; with several processes the main one holds the lock for all.

    After Ctrl-C, the message says whether there is work to resume from.
    """
    with lock(path) if is_main() else nullcontext():
        wait()
        try:
            yield
        except KeyboardInterrupt:
            if any(Resume.beside(path).directory.rglob("[!.]*.safetensors")):
                raise KeyboardInterrupt("The work so far is kept: the same command resumes it.") from None
            raise


@contextmanager
def claim_new(path: Path) -> Iterator[None]:
    """Lock a file that is written at once; after a kill within the block, the same command may replace it."""
    with claim(path):
        unfinished = Resume.beside(path).directory
        unfinished.mkdir(exist_ok=True)
        try:
            yield
        finally:
            with suppress(OSError):  # it is not empty: parts of another command stay
                unfinished.rmdir()


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file; an unfinished job, with parts next to it, may replace it when resumed."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; name a file with --out.")
    if path.exists() and not overwrite and not Resume.beside(path).directory.is_dir():
        raise FileExistsError(f"{path} exists: choose another --out, or replace it with --overwrite.")


def refuse_replacing(directory: Path, is_known: bool, what: str, overwrite: bool) -> None:
    """Refuse to replace a finished directory of this kind without --overwrite, and anything else always."""
    if directory.exists() and not is_known and (directory.is_file() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} exists and is not {what}: choose another --out.")
    if is_known and not overwrite and not Resume.beside(directory).directory.is_dir():
        raise FileExistsError(f"{directory} is {what}: choose another --out, or replace it with --overwrite.")


@contextmanager
def make_in_parts(
    file: Path,
    n: int,
    part_size: int,
    make: Callable[[int, int, Progress], Result],
    source: Scorer | Benchmark,
    identity: Mapping[str, Any],
    title: str,
    quiet: bool,
    items_per_part: int = 1,
) -> Iterator[Result | None]:
    """Make the missing parts of a result, join all of them, and yield the whole to the main process.

    The block writes the result; after it, the parts are removed. The other processes get None. Parts of an
    earlier attempt with the same identity are reused. A part that loses all of its samples does not affect
    the others; it is an error only if no sample of the job is left.

    Args:
        file: The file to write; the parts are kept next to it.
        n: Number of samples.
        part_size: Number of samples per part.
        make: Makes samples first..first+count−1, called as make(first, count, progress).
        source: The source of the samples, with their shape and dtype.
        identity: Everything that a part depends on, except its first sample and its size.
        title: Title of the progress bar.
        quiet: Whether to draw no progress bar.
        items_per_part: Number of items that a part passes through its progress.
    """
    starts = range(0, n, part_size)
    with claim(file):
        resume = Resume.beside(file)
        parts = resume.for_job({**identity, "n": n, "version": __version__}, part_size)
        missing = torch.ones(len(starts))
        if is_main():  # the main process looks, for all of them
            missing = torch.tensor([float(parts.load(str(first), Result.load) is None) for first in starts])
        todo = own_items([starts[i] for i in broadcast(missing).nonzero().flatten().tolist()])
        with Bar(title, len(todo) * items_per_part, quiet) as progress:
            for first in todo:
                count = min(part_size, n - first)
                try:
                    part = make(first, count, progress)
                except AllLostError as error:
                    if count == n:
                        raise
                    warn(f"{error} They are returned as NaN.")
                    gone = torch.full((count, *source.shape), torch.nan, dtype=source.denoiser.dtype)
                    part = Result(gone, about={"lost": error.where})
                part.save(parts.path(str(first)))
        wait()
        if not is_main():
            yield None
            return
        yield _join_parts(file, n, [parts.path(str(first)) for first in starts])
        resume.clear()


def save_drawn(file: Path, whole: Result, about: Mapping[str, Any], started: float) -> dict[str, Any]:
    """Write drawn samples with the settings of the command; return these, and how many samples are lost."""
    seconds = round(time.perf_counter() - started, 2)
    about = {**about, "n": len(whole), **whole.about, **about, "seconds": seconds}
    whole.save(file, **about)
    lost = int(whole.lost.sum())
    said = ("lost", "problems", "scaling", "region_counts")  # by the scorer, or long
    facts = {key: value for key, value in about.items() if key not in said}
    facts |= {"lost": lost} if lost else {}
    if whole.verdict is not None:
        facts["doubtful"] = int(whole.verdict.doubtful().sum())
        limit = whole.verdict.describe_limit(whole.about.get("repeatability"))
        facts |= {"note": limit} if limit else {}
    return {"samples": str(file), **facts}


def _join_parts(file: Path, n: int, parts: list[Path]) -> Result:
    """Join all parts of a result; raise if one is missing or no sample is left."""
    if missing := [part for part in parts if not part.is_file()]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(parts)} parts are not in {missing[0].parent}: {file} must be in a "
            "directory that all machines share."
        )
    whole = join([Result.load(part) for part in parts])
    lost = whole.about.get("lost", {})
    if sum(map(len, lost.values())) == n:
        raise ValueError(f"all {n} samples have NaN or infinity, first at {next(iter(lost))}. {ADVICE}")
    return whole


class Bar:
    """One bar with the time left, for one loop or several: call it on the items of each.

    Only the main process draws it, and counts its own items. The first Ctrl-C stops a loop between two of its
    items, so the files that it writes are complete; a second one stops at once.

    Args:
        title: Description of the work.
        total: Number of items of all loops.
        quiet: Whether to draw nothing.
        note: Function that describes an item; its text follows the bar.
    """

    def __init__(self, title: str, total: int, quiet: bool, note: Note | None = None) -> None:
        self._title, self._total, self._note, self._interrupted = title, total, note, False
        self._progress = _make_progress(disable=quiet or not is_main())

    def __enter__(self) -> Bar:
        self._before = signal.signal(signal.SIGINT, self._receive)
        self._progress.start()
        self._task = self._progress.add_task(plain(self._title), total=self._total, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        signal.signal(signal.SIGINT, self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._check()
        self._interrupted = True

    def _check(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items and count them."""
        source: Any = iter(items)
        with closing(source) if hasattr(source, "close") else nullcontext():
            for item in source:
                self._check()
                note = "" if self._note is None else self._note(item)
                self._progress.update(self._task, advance=1, note=note)
                yield item


def bar(title: str, quiet: bool, note: Note | None = None) -> Callable[[Any], Iterator[Any]]:
    """Make a function that yields the items of one loop and draws a bar."""

    def draw(items: Any) -> Iterator[Any]:
        with Bar(title, len(items), quiet, note) as progress:
            yield from progress(items)

    return draw


def _make_progress(disable: bool) -> rich.Progress:
    return rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}"),
        console=console(stderr=True),
        disable=disable,
    )

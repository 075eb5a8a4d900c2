"""Results that are made in parts: by several processes, kept until all are there, then joined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .app import claim, one_bar

if TYPE_CHECKING:
    from ..core.progress import Progress
    from ..results.result import Result


def run_in_parts(
    file: Path,
    identity: dict[str, Any],
    n: int,
    size: int,
    make: Callable[[int, int, Progress], Result],
    nothing: Callable[[int, int], Result],
    write: Callable[[Result], None],
    title: str,
    units: int,
    quiet: bool,
) -> None:
    """Make a result of n samples in parts of `size`, and write it; parts of an earlier attempt are taken up.

    A part all of whose samples are lost costs only itself, unless it is the only one, or all are.

    Args:
        file: what is written in the end; the parts are kept beside it.
        identity: all that a part depends on besides its first sample.
        n: how many samples.
        size: how many per part.
        make: makes the part of (first, count), its work seen through a progress.
        nothing: makes the part of (first, count) all of whose samples are lost.
        write: writes the whole; called by the main process alone.
        title: of the bar.
        units: of work in a part, for the bar.
        quiet: whether there is none.
    """
    import torch

    from ..core.distributed import broadcast, is_main, own_items, wait
    from ..core.nonfinite import ADVICE, AllLostError
    from ..results.result import Result, join
    from ..storage.resume import Resume

    starts = range(0, n, size)
    with claim(file):
        shards = Resume.beside(file)
        parts = shards.of(identity, size)
        left = torch.ones(len(starts))
        if is_main():  # one of them looks: what is left is then shared out evenly
            left = torch.tensor([float(parts.load(str(k), Result.load) is None) for k in starts])
        todo = own_items(
            [first for first, open_ in zip(starts, broadcast(left).tolist(), strict=True) if open_]
        )
        with one_bar(title, len(todo) * units, quiet) as progress:
            for first in todo:
                count = min(size, n - first)
                try:
                    part = make(first, count, progress)
                except AllLostError as error:
                    if len(starts) == 1:
                        raise
                    warnings.warn(f"{error} They come back as NaN.", RuntimeWarning, stacklevel=1)
                    part = nothing(first, count)
                    part = replace(part, about={**part.about, "lost": error.where})
                part.save(parts.path(str(first)))
        wait()
        if is_main():
            if missing := [first for first in starts if not parts.path(str(first)).is_file()]:
                raise FileNotFoundError(
                    f"{len(missing)} of {len(starts)} parts are not in {parts.directory}: {file} must be in "
                    "a directory that all machines share."
                )
            whole = join([Result.load(parts.path(str(first))) for first in starts])
            lost = whole.about.get("lost", {})
            if sum(map(len, lost.values())) == n:
                raise ValueError(
                    f"all {n} samples have NaN or infinity, first at {next(iter(lost))}. {ADVICE}"
                )
            write(whole)
            shards.clear()

"""What the studies share: options, tables and where they are written."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import flare
from flare.storage.checkpoint import atomic

DOCS = Path(__file__).resolve().parent.parent / "docs" / "studies"


def options(description: str | None, **defaults: int) -> argparse.Namespace:
    """Parse --threads and one integer option for each default, such as seeds=5 for --seeds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=1)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    return given


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds."""
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {sd:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write(name: str, title: str, command: str, parts: Sequence[str], started: float) -> None:
    """Write docs/studies/NAME.md and print it."""
    machine = (
        f"Written by `{command}` in {time.time() - started:.0f} s with {torch.get_num_threads()} thread(s) "
        f"of {os.cpu_count()} cores ({platform.machine()}); torch {torch.__version__.split('+')[0]}, "
        f"FLARE {flare.__version__}."
    )
    text = "\n\n".join([f"# {title}", *parts, machine]) + "\n"
    with atomic(DOCS / f"{name}.md") as partial:
        partial.write_text(text, encoding="utf-8")
    print(text)

"""How soon the command line answers: `flare --help` against `python -c "import typer, rich"`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .harness import command, compare


def section(quick: bool = False) -> str:
    """Time both in turns and write the ratio down."""
    flare = [str(Path(sys.executable).with_name("flare")), "--help"]
    bare = [sys.executable, "-c", "import typer, rich"]

    def run(command: list[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    ratio = compare(lambda: run(flare), lambda: run(bare), 3 if quick else 11)
    return f"## Starting up\n\n`flare --help` against importing typer and rich alone: {ratio}."


if __name__ == "__main__":
    command("startup", __doc__, section)

"""How soon the command line answers: `flare --help` against `python -c "import typer, rich"`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import compare


def main() -> None:
    """Time both in turns and print the ratio."""
    flare = [str(Path(sys.executable).with_name("flare")), "--help"]
    bare = [sys.executable, "-c", "import typer, rich"]

    def run(command: list[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    print(
        f"flare --help against importing typer and rich: {compare(lambda: run(flare), lambda: run(bare), 21)}"
    )


if __name__ == "__main__":
    main()

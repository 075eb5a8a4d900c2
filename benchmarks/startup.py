"""How soon Python and the command line answer."""

from __future__ import annotations

import statistics
import subprocess
import sys

from tools.document import table

from .harness import command, cpu, judge

#: arguments of Python, and the target in seconds
CASES = {
    "`import flare`": (["-c", "import flare"], 0.1),
    "`flare sample --help`": (["-m", "flare", "sample", "--help"], 0.4),
    "`flare fit --help`": (["-m", "flare", "fit", "--help"], 0.4),
    "a mistyped command": (["-m", "flare", "smaple"], 0.4),
}


def section(quick: bool = False) -> str:
    """Start Python and write the seconds down."""
    found = {
        name: statistics.median(_start(words) for _ in range(1 if quick else 9))
        for name, (words, _) in CASES.items()
    }
    rows = [[name, f"{seconds:.2f}"] for name, seconds in found.items()]
    verdicts = [judge(f"{name}, seconds", seconds, CASES[name][1]) for name, seconds in found.items()]
    return (
        "## Starting up\n\nCPU seconds of a command from its start to its end, the median of 9, with the "
        f"start of Python ({_start(['-c', '']):.2f}).\n\n{table(('what', 'seconds'), rows)}\n\n"
        + "\n".join(verdicts)
    )


def _start(words: list[str]) -> float:
    before = cpu()
    subprocess.run([sys.executable, *words], check=False, capture_output=True)
    return cpu() - before


if __name__ == "__main__":
    command("startup", __doc__, section)

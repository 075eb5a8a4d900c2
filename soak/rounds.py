"""`make soak`: run the suite repeatedly: random order, busy processes next to it, other processors.

Each round has one setting. All rounds run; the exit code is 1 if one of them failed. Arguments after `--`
go to pytest: `make soak ARGS="--round 2 -- tests/diffusion/test_schedules.py"`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# a processor changes the kernels of MKL and of ATen together
ROUNDS: list[dict[str, str]] = [
    {},
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
    {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},  # threads that spin crawl on a busy machine
]
BUSY = 2  # processes that compete with the tests


@dataclass(frozen=True)
class Round:
    """The result of one round.

    Attributes:
        setting: the environment variables, as text.
        seed: of the random order.
        passed: how many tests passed.
        failed: how many tests failed or had errors.
        minutes: how long it took.
        code: the exit code of pytest.
    """

    setting: str
    seed: int
    passed: int
    failed: int
    minutes: float
    code: int


def run_round(number: int, seed: int, arguments: list[str]) -> Round:
    """Run the suite once, with the setting of this round and busy processes beside it."""
    setting = ROUNDS[number - 1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **setting}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "--shuffle", str(seed), "-m", "not browser"]
    command += ["--timeout", "1800", *arguments]  # ends tests that hang, not those that are slow here
    if env["OMP_NUM_THREADS"] != "1":
        command += ["-n", "1"]  # two workers with two threads each crawl on two cores
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    minutes = (time.monotonic() - started) / 60
    print(done.stdout, flush=True)
    text = " ".join(f"{name}={value}" for name, value in setting.items()) or "as it is"
    counts = count(done.stdout)
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return Round(text, seed, counts.get("passed", 0), failed, minutes, done.returncode)


def count(output: str) -> dict[str, int]:
    """The numbers of the last line of pytest that has some: {"passed": 10, "failed": 1}."""
    lines = [
        line for line in output.splitlines() if re.search(r"\d+ (passed|failed|errors?)\b.* in [\d.]+s", line)
    ]
    found = re.findall(r"(\d+) (passed|failed|error)", lines[-1] if lines else "")
    return {word: int(number) for number, word in found}


def table(rounds: list[Round]) -> str:
    """The rounds as a table."""
    lines = ["| setting | seed | passed | failed | minutes | |", "| --- | --- | --- | --- | --- | --- |"]
    for r in rounds:
        verdict = "green" if r.code == 0 else f"RED (pytest exits with {r.code})"
        lines.append(f"| {r.setting} | {r.seed} | {r.passed} | {r.failed} | {r.minutes:.1f} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    """Run the rounds in turn, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--round", type=int, choices=range(1, len(ROUNDS) + 1), help="run only this round; default: all"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order; each round adds its number")
    parser.add_argument("arguments", nargs="*", help="for pytest; put -- before options")
    options = parser.parse_args()
    numbers = [options.round] if options.round else range(1, len(ROUNDS) + 1)
    rounds = []
    for number in numbers:
        rounds.append(run_round(number, options.seed + number, options.arguments))
        print(table(rounds[-1:]), flush=True)
    print(f"\n{table(rounds)}")
    if any(r.code != 0 for r in rounds):
        sys.exit(1)


if __name__ == "__main__":
    main()

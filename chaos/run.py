"""`make chaos`: kill, cut, flip, fill and lock; writes its section of docs/evidence/reliability.md."""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import torch

from tools.document import DOCS, machine, replace_section, table

from . import faults, reproduction
from .commands import save_often, warm_up
from .kills import Job, kill_randomly

PAGE = DOCS / "evidence" / "reliability.md"
DENSE = [
    "fit",
    "sines",
    "--subset",
    200,
    "--pairs",
    20_000,
    "--no-check",
    "--out",
    "scorer",
    "--overwrite",
    "-q",
]
LOW_RANK = [*DENSE, "--structure", "low_rank", "--rank", 8]
SAMPLE = [
    "sample", "scorer", "-n", 80, "--batch-size", 10, "--steps", 40, "--directions", 2,
    "--out", "samples.safetensors", "--overwrite", "-q",
]  # fmt: skip
TRAIN = [*faults.TRAIN, "--steps", 900, "--save-every", 50]
JOBS = {
    "`bench train`": (Job(TRAIN, "run"), 5),
    "`fit`, dense": (Job(DENSE, "scorer", program=save_often), 6),
    "`fit`, low rank": (Job(LOW_RANK, "scorer", program=save_often), 4),
    "`sample` with variance": (Job(SAMPLE, "samples.safetensors", [faults.FIT]), 6),
    "`fit`, dense, two processes": (Job(DENSE, "scorer", processes=2, program=save_often), 4),
    "`sample` with variance, two processes": (
        Job(SAMPLE, "samples.safetensors", [faults.FIT], processes=2),
        4,
    ),
    "a small `reproduce`": (Job(["reproduce"], "runs", program=reproduction.main), 3),
}


def kill_commands(home: Path, seed: int, quick: bool) -> str:
    """Kill every command at random moments; returns the table."""
    dice, rows, lost = random.Random(seed), [], set()
    for name, (job, kills) in JOBS.items():
        outcome = kill_randomly(job, home / re.sub(r"\W+", "-", name), 1 if quick else kills, dice)
        rows.append([name, f"{outcome.seconds:.0f} s", outcome.kills, outcome.late, outcome.runs, "yes"])
        lost |= {
            said for text in outcome.said for said in re.findall(r"error: (process \d+ of.*?) torch", text)
        }
        print(f"{name}: {outcome.kills} kills", file=sys.stderr, flush=True)
    total = sum(row[2] for row in rows)
    head = ["command", "undisturbed", "kills", "with parts on disk", "ends compared", "equal to the last bit"]
    text = f"{total} kills with SIGKILL at random moments (seed {seed}).\n\n{table(head, rows)}\n"
    if lost:
        text += (
            f"\nWhen one of two processes is killed, the other stops with this message: {plain(min(lost))}\n"
        )
    return text


def inject_faults(home: Path) -> str:
    """Run every fault; returns the table."""
    rows = []
    for place, (name, case) in enumerate(faults.CASES.items()):
        if name in faults.MOUNTING and not faults.can_mount():
            rows.append([name, "not run: it needs permission to mount a file system"])
            continue
        rows.append([name, plain(case(home / f"case-{place}"))])
        print(name, file=sys.stderr, flush=True)
    return table(["fault", "what the command says"], rows)


def plain(said: str) -> str:
    """A message without what is particular to this machine."""
    said = re.sub(r"process \d+ on \S+", "process 4242 on node-1", said)
    said = re.sub(r"since [-\d]+ [:\d]+", "since 2025-01-01 12:00:00", said)
    return re.sub(r"/\S*/(?=[\w.])", "…/", said)


def main() -> None:
    """Run everything; the first failure ends it with an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the moments of the kills")
    parser.add_argument("--quick", action="store_true", help="one kill per command; nothing is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    with tempfile.TemporaryDirectory(prefix="flare-chaos-") as name:
        text = kill_commands(Path(name) / "kills", options.seed, options.quick)
        text += f"\n{inject_faults(Path(name) / 'faults')}\n\nMeasured on {machine()}.\n"
    print(text)
    if not options.quick:
        replace_section(PAGE, "chaos", text)


if __name__ == "__main__":
    main()

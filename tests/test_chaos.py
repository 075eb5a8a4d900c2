"""A little of `make chaos`: kills at random moments, one and two processes, and faults of files and disks."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))
import faults
from commands import run
from kills import Job, survives

SMALL = ["--pairs", 4000, "--count", 60, "--save-every", 0, "--out", "posterior.safetensors", "-q"]
FIT = ["fit", "sines", *SMALL]
SAMPLE = [*faults.SAMPLE[:4], "--batch-size", 5, *faults.SAMPLE[6:]]


@pytest.mark.parametrize(
    "job",
    [
        Job(FIT, "posterior.safetensors"),
        Job(SAMPLE, "samples.safetensors"),
        Job(FIT, "posterior.safetensors", processes=2),
    ],
    ids=["fit", "sample", "fit by two"],
)
def test_what_is_killed_ends_as_if_nothing_had_happened(tmp_path, job):
    # of two processes one may wait for the other that never came, as long as it is told to: a single kill
    kills = 2 if job.processes == 1 else 1
    outcome = survives(job, tmp_path, kills, dice=random.Random())
    assert outcome.kills == kills
    if job.processes > 1:
        assert all("lost the others" in said for said in outcome.said), outcome.said


@pytest.mark.parametrize(
    "case",
    ["full disk", "read-only directory", "flipped byte in a posterior",
     "truncated part, and one with a flipped byte", "posterior of another version",
     "two processes on one run directory"],
)  # fmt: skip
def test_a_fault_is_said_and_costs_nothing(tmp_path, case):
    if case in faults.MOUNTING and not faults.can_mount():
        pytest.skip("it takes the rights to mount a file system")
    assert faults.CASES[case](tmp_path / "case")


def test_a_command_for_one_process_says_so(tmp_path):
    said, _ = run(["train", "sines", "--out", "run"], tmp_path / "here", processes=2, code=2)
    assert "flare train runs in one process, but it was started in 2" in said
    assert "fit, sample, score, evaluate" in said

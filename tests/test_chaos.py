"""A little of `make chaos`: kills at named points, one and two processes, and faults of files and disks."""

from __future__ import annotations

import signal

import pytest

from chaos import faults
from chaos.commands import Command, run, save_often
from chaos.kills import Job, kill_at
from chaos.points import Point
from chaos.run import PAGE, plain
from tools.document import read_tables, section

pytestmark = pytest.mark.usefixtures("warm")
SMALL = ["--pairs", 4000, "--subset", 60, "--no-check", "--out", "scorer", "--overwrite", "-q"]
FIT = Job(["fit", "sines", *SMALL], "scorer", program=save_often)
SAMPLE = Job(faults.SAMPLE, "samples.safetensors", [faults.FIT])
# faults whose messages quote the operating system or safetensors
FOREIGN = (*faults.MOUNTING, "truncated part, and one with a flipped byte")
TRAIN = Job([*faults.TRAIN, "--steps", 120], "run")


@pytest.mark.parametrize(
    ("job", "points"),
    [
        (
            FIT,
            [
                Point("os.fsync"),  # the first sums are written beside their place, not yet moved there
                Point("flare.storage.resume.Resume.save_if_due", call=4),
                Point("flare.core.distributed.sum_over_processes"),  # all batches are through
                # the scorer is written, its parts are still there
                Point("flare.storage.resume.Resume.clear"),
            ],
        ),
        (
            SAMPLE,
            [
                Point("flare.results.result.Result.save", call=3),
                Point("os.fsync", call=2),
                Point("flare.storage.resume.Resume.clear"),
            ],
        ),
        (
            TRAIN,
            [
                Point("flare.network.training.Training.step", call=5),
                Point("os.fsync", call=3),  # the third state
                Point("flare.cli.bench_work.save_losses"),
            ],
        ),
    ],
    ids=["fit", "sample", "train"],
)
def test_what_is_killed_ends_as_if_nothing_had_happened(tmp_path, job, points):
    kill_at(job, tmp_path, points)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_processes_one_is_killed_and_the_other_says_so(tmp_path, rank):
    """The sums need both, so the other one is certain to wait for the one that is gone."""
    job = Job(FIT.arguments, FIT.product, processes=2, program=save_often)
    lost = Point("flare.storage.resume.Resume.save_if_due", call=3, rank=rank)
    (said,) = kill_at(job, tmp_path, [lost])
    assert f"process {1 - rank} of 2 lost contact with its peers" in said
    assert "start the same command again" in said


def test_a_process_is_killed_at_the_very_call(tmp_path):
    calls = tmp_path / "calls"

    def program() -> None:
        for count in range(5):
            signal.strsignal(9)
            calls.write_text(str(count + 1))

    command = Command(["program"], tmp_path / "here", program=program, points=[Point("signal.strsignal", 4)])
    assert command.codes() == [-signal.SIGKILL]
    assert calls.read_text() == "3"
    with pytest.raises(AssertionError, match=r"never came to Point.*call=99"):
        kill_at(SAMPLE, tmp_path, [Point("flare.results.result.Result.save", call=99)])


@pytest.mark.parametrize(
    "case",
    ["full disk", "read-only directory", "flipped byte in a posterior",
     "flipped byte in the state of a training", "truncated part, and one with a flipped byte",
     "scorer of another version", "two processes on one run directory"],
)  # fmt: skip
def test_a_fault_is_said_and_costs_nothing(tmp_path, case):
    if case in faults.MOUNTING and not faults.can_mount():
        pytest.skip("it takes the rights to mount a file system")
    said = plain(faults.CASES[case](tmp_path / "case"))
    _, rows = read_tables(section(PAGE.read_text(encoding="utf-8"), "chaos"))
    told = {row["fault"]: row["what the command says"] for row in rows}
    if case not in FOREIGN:
        assert said == told[case], "the page quotes another message: run `make chaos`"


def test_a_command_for_one_process_says_so(tmp_path):
    said, _ = run(["bench", "train", "sines", "--out", "run"], tmp_path / "here", processes=2, code=2)
    assert "flare bench train runs in one process, but it was started in 2" in said
    assert "several processes can share" in said

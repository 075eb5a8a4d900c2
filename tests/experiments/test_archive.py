"""Results that the repository keeps are found again by a study on another machine."""

from __future__ import annotations

import pytest
import torch

from experiments import archive, lab
from experiments.files import load_json, save_json


def squares(n: int) -> lab.Found:
    return {"sum": sum(k * k for k in range(n)), "all": torch.arange(n) ** 2}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Puts the studies and the archive below a directory, and forgets what the studies found."""

    def move(machine: str) -> None:
        monkeypatch.setattr(lab, "RUNS", tmp_path / machine)
        monkeypatch.setattr(archive, "RESULTS", tmp_path / "results")

    return move


def jobs(*sizes: int) -> list[lab.Job]:
    return [lab.Job("squares", squares, {"n": n}) for n in sizes]


def test_another_machine_goes_on_where_the_first_one_stopped(places):
    places("first")
    done, later = jobs(3, 4)
    done.execute()
    model = lab.RUNS / "models" / "grid-1"
    model.mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "training.safetensors"):
        (model / name).write_bytes(name.encode())
    (lab.RUNS / "models" / "unfinished").mkdir()
    (lab.RUNS / "models" / "unfinished" / "training.safetensors").write_bytes(b"half-way")
    assert archive.keep([done, later]) == 4  # figures and tensors, weights and their configuration
    assert archive.keep([done, later]) == 0
    places("second")
    assert not done.done
    assert archive.restore() == 4
    assert done.found()["all"].tolist() == [0, 1, 4]
    assert not later.done
    assert (lab.RUNS / "models" / "grid-1" / "model.safetensors").read_bytes() == b"model.safetensors"
    assert not (lab.RUNS / "models" / "unfinished").exists()


def test_results_that_no_study_asks_for_any_more_are_removed(places):
    places("first")
    old, new = jobs(3, 4)
    old.execute()
    archive.keep([old, new])
    new.execute()
    assert archive.keep([new]) == 2
    assert sorted(path.name for path in archive.RESULTS.iterdir()) == sorted(
        [new.path.name, new.path.with_suffix(".safetensors").name]
    )


def test_a_result_that_was_measured_again_replaces_the_kept_one(places):
    places("first")
    (job,) = jobs(3)
    job.execute()
    archive.keep([job])
    found = load_json(job.path)
    save_json(job.path, found | {"sum": 6})
    assert archive.keep([job]) == 1
    assert load_json(archive.RESULTS / job.path.name)["sum"] == 6

"""The laboratory keeps what was found, and finds it again."""

from __future__ import annotations

import pytest
import torch

from experiments import lab


def squares(n: int, fails: bool = False) -> lab.Found:
    if fails:
        raise ValueError("stopped half-way")
    return {"sum": sum(k * k for k in range(n)), "all": torch.arange(n) ** 2}


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "RUNS", tmp_path)
    return tmp_path


def test_a_result_is_kept_with_its_tensors_under_its_configuration(runs):
    job = lab.Job("squares", squares, {"n": 4})
    assert not job.done
    job.execute()
    assert lab.Job("squares", squares, {"n": 4}).done
    assert not lab.Job("squares", squares, {"n": 5}).done
    found = job.found()
    assert found["sum"] == 14
    assert found["all"].tolist() == [0, 1, 4, 9]
    assert found["seconds"] >= 0


def test_a_result_of_another_library_is_not_found(monkeypatch):
    job = lab.Job("squares", squares, {"n": 4})
    job.execute()
    with monkeypatch.context() as patch:
        patch.setattr(lab, "MEASURES", "99")
        assert not job.done
    with monkeypatch.context() as patch:
        patch.setitem(lab.DEFAULTS, "directions", 99)
        assert not job.done
    assert job.done


def test_the_key_of_a_result_does_not_name_the_package():
    job = lab.Job("train", lab.train_job, {"config": {}})
    identity = ["lab", "train_job", {"config": {}}, lab.code()]
    assert job.path.name == f"train-{lab.digest(identity)}.json"


def test_two_processes_do_not_run_the_same_jobs(runs):
    with lab.locked(runs), pytest.raises(BlockingIOError, match="another process runs the jobs"):
        lab.run([lab.Job("squares", squares, {"n": 4})])
    lab.run([])


def test_a_job_that_fails_leaves_nothing_behind(runs):
    job = lab.Job("squares", squares, {"n": 4, "fails": True})
    with pytest.raises(ValueError, match="half-way"):
        job.execute()
    assert not list(runs.iterdir())


def test_what_is_done_is_not_run_again(monkeypatch):
    jobs = [lab.Job("squares", squares, {"n": n}, stage=n) for n in (1, 2)]
    for job in jobs:
        job.execute()

    def never(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(lab, "ProcessPoolExecutor", never)
    lab.run(jobs)


def test_a_model_is_trained_once_for_each_configuration(runs, monkeypatch):
    config = lab.bench.configure("sines", samples=64, width=8, steps=3, batch_size=8, warmup=1)
    first = lab.load_or_train(config)
    monkeypatch.setattr(lab.flare.training, "train", lambda *_: pytest.fail("it was trained again"))
    again = lab.load_or_train(config)
    x, t = torch.randn(2, 10), torch.zeros(2, dtype=torch.long)
    assert torch.equal(first.denoiser(x, t), again.denoiser(x, t))
    other = lab.bench.configure("sines", samples=64, width=8, steps=4, batch_size=8, warmup=1)
    assert lab.model_directory(other) != lab.model_directory(config)


def test_every_experiment_says_what_it_runs_and_writes():
    from experiments import reproduce

    for name, module in reproduce.EXPERIMENTS.items():
        quick, full = module.jobs(True), module.jobs(False)
        assert len(quick) <= len(full), name
        assert len({job.path for job in full}) == len(full), f"two jobs of {name} share a result"
        assert not {job.path for job in quick} & {job.path for job in full if job.stage > 0}, name
        assert module.TITLE
        assert callable(module.section)
        assert callable(module.claims)

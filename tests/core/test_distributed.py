"""Two processes compute what one does, and a lost process is an error."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from reference import flat_index, naive_ggn, small_problem

import flare
from chaos.commands import Command, run
from chaos.points import Point
from flare import distributed, posteriors, subsets
from flare.posteriors import curvature
from flare.storage import checkpoint

pytestmark = pytest.mark.usefixtures("warm")


def together(program: Callable[[], None], cwd: Path) -> str:
    """Run a program in two processes and return their output."""
    return run(["program"], cwd, processes=2, program=program)[0]


def everything(n: int) -> dict[str, torch.Tensor]:
    """Results of all structures on a small problem of n pairs, in batches of 16."""
    _, denoiser, pairs = small_problem((3,), n=n)
    some = subsets.random(denoiser, fraction=0.5, seed=1)
    whole = subsets.named(denoiser, "second.*")
    found = {"H": curvature.ggn(denoiser, some, pairs)[0]}
    found["fisher"] = curvature.ggn(denoiser, some, pairs, kind="fisher")[0]
    found["product"] = posteriors.products.Products(denoiser, some, pairs)(
        torch.eye(some.size, dtype=torch.float64)
    )
    options = {"prior_precision": 1.0, "scale": "calibrated"}
    for name, subset, extra in (
        ("dense", some, {}),
        ("diagonal", some, {}),
        ("low_rank", some, {"rank": 5}),
        ("kronecker", whole, {}),
        ("matrix_free", some, {"tolerance": 1e-10, "precondition": True}),
    ):
        posterior = getattr(posteriors, name)(denoiser, subset, pairs, **options, **extra)
        found[name] = posterior.covariance(torch.eye(subset.size, dtype=torch.float64))
        found[f"{name} scale"] = torch.tensor(posterior.scale)
        if name == "matrix_free":
            found["draws"] = posterior.draw(3, torch.Generator().manual_seed(0))
    return found


def fit_everything() -> None:
    distributed.start()
    assert distributed.size() == 2
    for n in (40, 10):
        checkpoint.save(f"{n}-{distributed.rank()}.safetensors", everything(n))
    if distributed.is_main():
        sys.stdout.write("main alone")
    distributed.stop()


def test_two_processes_fit_what_one_fits(tmp_path):
    tmp_path = tmp_path / "here"
    assert together(fit_everything, tmp_path).count("main alone") == 1
    for n in (40, 10):  # 10 pairs are one batch: the second process has none
        alone = everything(n)
        first, second = (checkpoint.load(tmp_path / f"{n}-{rank}.safetensors")[0] for rank in (0, 1))
        for name, value in alone.items():
            assert torch.equal(first[name], second[name]), name
            torch.testing.assert_close(
                first[name], value, rtol=1e-8, atol=1e-9, msg=lambda m, k=name: f"{k}: {m}"
            )
    net, denoiser, pairs = small_problem((3,), n=40)
    index = flat_index(subsets.random(denoiser, fraction=0.5, seed=1), net)
    H = naive_ggn(net, pairs)[0][index][:, index]
    together_H = checkpoint.load(tmp_path / "40-0.safetensors")[0]["product"]
    torch.testing.assert_close(together_H, H, rtol=1e-10, atol=1e-12)


def share_some_rows() -> None:
    distributed.start()
    mine: list[int] = []

    def compute(rows: torch.Tensor) -> dict[str, torch.Tensor]:
        mine.extend(rows.tolist())
        return {"x": rows[:, None] * torch.tensor([1.0, torch.nan]), "y": -rows.double()}

    for count in (5, 1):  # one row is too few to share: both compute it
        found = distributed.share_rows(compute, torch.arange(10, 10 + count))
        checkpoint.save(f"{count}-{distributed.rank()}.safetensors", found)
    Path(f"mine-{distributed.rank()}.txt").write_text(str(mine))
    importlib.import_module("torch.distributed.nn")  # as a fit may do
    distributed.stop()
    tasks = Path("/proc/self/task").glob("*/comm")  # of Linux; a thread that is left may abort at the end
    assert not [name for path in tasks if "gloo" in (name := path.read_text())]


def test_two_processes_share_rows(tmp_path):
    tmp_path = tmp_path / "here"
    together(share_some_rows, tmp_path)
    for count in (5, 1):
        rows = torch.arange(10, 10 + count)
        for rank in (0, 1):
            found = checkpoint.load(tmp_path / f"{count}-{rank}.safetensors")[0]
            assert torch.equal(found["x"][:, 0], rows.float())
            assert found["x"][:, 1].isnan().all()
            assert torch.equal(found["y"], -rows.double())
    assert [(tmp_path / f"mine-{rank}.txt").read_text() for rank in (0, 1)] == [
        "[10, 12, 14, 10]",
        "[11, 13, 10]",
    ]


def fit_what_differs() -> None:
    distributed.start()
    rank = distributed.rank()
    _, denoiser, pairs = small_problem((3,), n=40)
    free = posteriors.matrix_free(denoiser, subsets.everything(denoiser), pairs, 1.0, 1.0)
    torch.manual_seed(rank)  # without a generator, each process draws its own noise
    checkpoint.save(f"draws-{rank}.safetensors", {"draws": free.draw(2)})
    other = denoiser.with_params({"second.bias": torch.full((3,), float(rank), dtype=denoiser.dtype)})
    try:
        posteriors.diagonal(other, subsets.everything(other), pairs, 1.0, 1.0)
    except ValueError as error:
        Path(f"said-{rank}.txt").write_text(str(error))
    distributed.stop()


def test_processes_that_differ_agree_or_raise(tmp_path):
    tmp_path = tmp_path / "here"
    together(fit_what_differs, tmp_path)
    first, second = (checkpoint.load(tmp_path / f"draws-{rank}.safetensors")[0]["draws"] for rank in (0, 1))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    for rank in (0, 1):
        said = (tmp_path / f"said-{rank}.txt").read_text()
        assert said.startswith("the weights, or the subset, are not the same in all 2 processes")


def add_up_ones() -> None:
    try:
        distributed.start()
        distributed.sum_over_processes(torch.ones(3))
    except ConnectionError as error:
        sys.exit(str(error))


@pytest.mark.parametrize("fate", ["killed", "silent"])
def test_a_lost_process_is_an_error_and_does_not_hang(tmp_path, fate, monkeypatch):
    if fate == "silent":
        monkeypatch.setenv("FLARE_TIMEOUT", "2")
    how = signal.SIGKILL if fate == "killed" else signal.SIGSTOP
    lost = Point("torch.distributed.all_reduce", rank=1, signal=how)
    command = Command(["program"], tmp_path / "here", processes=2, program=add_up_ones, points=[lost])
    command.processes[0].join()
    command.kill(1)
    assert command.codes()[0] == 1
    assert "process 0 of 2 lost contact with its peers" in command.said
    assert "start the same command again" in command.said
    if fate == "silent":
        assert "silent for 2 s" in command.said


def test_a_single_process_has_nothing_to_do(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    distributed.start()
    assert (distributed.size(), distributed.rank(), distributed.is_main()) == (1, 0, True)
    x = torch.randn(3)
    before = x.clone()
    distributed.sum_over_processes(x)
    distributed.wait()
    distributed.stop()
    assert torch.equal(x, before)
    assert distributed.broadcast(x) is x
    assert distributed.own_items(range(5)) == range(5)
    assert flare.distributed is distributed


def test_it_costs_a_single_process_no_import():
    code = (
        "import sys, torch, safetensors.torch; before = set(sys.modules);"
        "import flare.core.distributed, flare.storage.resume, flare.storage.locks;"
        "assert not [name for name in set(sys.modules) - before if name.startswith('torch')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_bad_timeout_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("FLARE_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="FLARE_TIMEOUT must be a number of seconds, got 'soon'"):
        distributed.start()

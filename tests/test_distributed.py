"""Two processes are as one: the sums, the posteriors, and what happens when one is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference import flat_index, naive_ggn, small_problem

import flare
from flare import checkpoint, curvature, distributed, posteriors, subsets

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HERE = Path(__file__).parent
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{HERE.parent / 'src'}"}


def together(program: str, cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in two processes."""
    (cwd / "program.py").write_text(program)
    command = [*TORCHRUN, "program.py", *arguments]
    return subprocess.run(command, cwd=cwd, env={**ENV, **env}, capture_output=True, text=True, timeout=200)


def everything(n: int) -> dict[str, torch.Tensor]:
    """What the structures give for a small problem of n pairs, in batches of 16."""
    _, denoiser, pairs = small_problem((3,), n=n)
    some = subsets.random(denoiser, fraction=0.5, seed=1)
    whole = subsets.named(denoiser, "second.*")
    found = {"H": curvature.ggn(denoiser, some, pairs)[0]}
    found["fisher"] = curvature.ggn(denoiser, some, pairs, kind="fisher")[0]
    found["product"] = curvature.Products(denoiser, some, pairs)(torch.eye(some.size, dtype=torch.float64))
    options = {"prior_precision": 1.0, "scale": "calibrated"}
    for name, subset, extra in (
        ("dense", some, {}),
        ("diagonal", some, {}),
        ("low_rank", some, {"rank": 5, "passes": 60}),  # until it has converged: rounding grows before
        ("kronecker", whole, {}),
        ("matrix_free", some, {"tolerance": 1e-10, "precondition": True}),
    ):
        posterior = getattr(posteriors, name)(denoiser, subset, pairs, **options, **extra)
        found[name] = posterior.covariance(torch.eye(subset.size, dtype=torch.float64))
        found[f"{name} scale"] = torch.tensor(posterior.scale)
        if name == "matrix_free":
            found["draws"] = posterior.draw(3, torch.Generator().manual_seed(0))
    return found


PROGRAM = """
import sys, torch
from test_distributed import everything
import flare

flare.distributed.start()
assert flare.distributed.size() == 2
for n in (40, 10):
    found = everything(n)
    flare.checkpoint.save(f"{n}-{flare.distributed.rank()}.safetensors", found)
if flare.distributed.is_main():
    print("main alone")
flare.distributed.stop()
"""


def test_two_processes_fit_what_one_fits(tmp_path):
    done = together(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("main alone") == 1
    for n in (40, 10):  # with 10 pairs, one batch: the second process has nothing to add
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


UNLIKE = """
import sys, torch
from reference import small_problem
import flare
from flare import posteriors, subsets

flare.distributed.start()
rank = flare.distributed.rank()
_, denoiser, pairs = small_problem((3,), n=40)
free = posteriors.matrix_free(denoiser, subsets.everything(denoiser), pairs, 1.0, 1.0)
draws = free.draw(2)  # without a generator, each process has noise of its own
flare.checkpoint.save(f"draws-{rank}.safetensors", {"draws": draws})
other = denoiser.moved({"second.bias": torch.full((3,), float(rank), dtype=denoiser.dtype)})
try:
    posteriors.diagonal(other, subsets.everything(other), pairs, 1.0, 1.0)
except ValueError as error:
    open(f"said-{rank}.txt", "w").write(str(error))
flare.distributed.stop()
"""


def test_processes_that_differ_are_made_to_agree_or_told(tmp_path):
    done = together(UNLIKE, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (checkpoint.load(tmp_path / f"draws-{rank}.safetensors")[0]["draws"] for rank in (0, 1))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    for rank in (0, 1):
        said = (tmp_path / f"said-{rank}.txt").read_text()
        assert said.startswith("the weights, or the subset, are not the same in all 2 processes")


LOST = """
import os, signal, sys, torch
import flare

flare.distributed.start()
if flare.distributed.rank() == 1:
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "silent":
        import time
        time.sleep(60)
try:
    flare.distributed.add_up(torch.ones(3))
except RuntimeError as error:
    open("said.txt", "w").write(str(error))
    raise
"""


@pytest.mark.parametrize("fate", ["killed", "silent"])
def test_a_lost_process_is_an_error_and_not_a_wait(tmp_path, fate):
    done = together(LOST, tmp_path, fate, FLARE_TIMEOUT="3")
    assert done.returncode != 0
    if fate == "silent":  # the launcher ends the rest of a group one of which was killed
        said = (tmp_path / "said.txt").read_text()
        assert "process 0 of 2 lost the others" in said
        assert "silent for 3 s" in said
        assert "start the same command again" in said


def test_a_process_by_itself_has_nothing_to_do(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    distributed.start()
    assert (distributed.size(), distributed.rank(), distributed.is_main()) == (1, 0, True)
    x = torch.randn(3)
    before = x.clone()
    distributed.add_up(x)
    distributed.wait()
    distributed.stop()
    assert torch.equal(x, before)
    assert distributed.of_main(x) is x
    assert distributed.share(range(5)) == range(5)
    assert flare.distributed is distributed


def test_it_costs_a_single_process_no_import():
    code = (
        "import sys, torch, safetensors.torch; before = set(sys.modules);"
        "import flare.distributed, flare.shards, flare.locks;"
        "assert not [name for name in set(sys.modules) - before if name.startswith('torch')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_bad_timeout_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("FLARE_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="FLARE_TIMEOUT must be a number of seconds, got 'soon'"):
        distributed.start()

"""The rounds of `make soak`, the interpreters of `make test-pythons`, and what keeps tests apart."""

from __future__ import annotations

import os
import random
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import isolated, pytest_collection_modifyitems
from hypothesis import HealthCheck, settings

from soak import pythons, rounds


def test_a_test_starts_with_the_same_seeds_and_leaves_nothing_behind(tmp_path):
    def draw() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]  # noqa: NPY002

    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), Path.cwd())
    home = os.environ["PATH"]
    drawn = []
    for _ in range(2):
        with isolated():
            drawn.append(draw())
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(3)
            torch.set_grad_enabled(False)
            torch.use_deterministic_algorithms(True)
            os.chdir(tmp_path)
            os.environ["FLARE_LEFT_BEHIND"] = "1"
            del os.environ["PATH"]
    assert drawn[0] == drawn[1]
    after = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), Path.cwd())
    assert after == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert "FLARE_LEFT_BEHIND" not in os.environ
    assert os.environ["PATH"] == home


@pytest.fixture(scope="module", params=[0, 1])
def number(request):
    torch.manual_seed(request.param + 5)  # would be seen by what is made after it
    return request.param


@pytest.fixture(scope="module")
def drawn(number):
    return torch.rand(())


def test_a_shared_fixture_does_not_depend_on_who_asks_first(drawn):
    torch.manual_seed(0)
    assert drawn == torch.rand(())


def test_hypothesis_tries_the_same_examples_each_time():
    assert settings().derandomize
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_a_shuffle_is_that_of_its_seed_and_keeps_files_together():
    def order(seed: int | None) -> list[tuple[str, int]]:
        items = [SimpleNamespace(path=Path(name), place=k) for name in "abcdef" for k in range(5)]
        pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: seed), items)
        return [(item.path.name, item.place) for item in items]

    assert order(None) == [(name, k) for name in "abcdef" for k in range(5)]
    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == order(None)
    files = [name for name, _ in order(1)]
    assert sum(a != b for a, b in pairwise(files)) == 5
    assert [k for name, k in order(1) if name == "a"] != [0, 1, 2, 3, 4]


def test_the_counts_are_those_of_the_last_line():
    assert rounds.count("....\n34 passed in 6.50s\n") == {"passed": 34}
    output = (
        "FAILED tests/a.py - 3 failed in 1s?\n2 failed, 1290 passed, 3 skipped, 1 error in 610.05s (0:10:10)"
    )
    assert rounds.count(output) == {"failed": 2, "passed": 1290, "error": 1}
    assert rounds.count("") == {}


def test_all_rounds_run_and_one_red_one_is_an_error(monkeypatch, capsys):
    ran = []

    def run_round(number, seed, arguments):
        ran.append((number, seed, arguments))
        return rounds.Round(f"setting {number}", seed, 10, int(number == 2), 0.5, int(number == 2))

    monkeypatch.setattr(rounds, "run_round", run_round)
    monkeypatch.setattr(sys, "argv", ["rounds.py", "--seed", "7", "--", "tests/x.py", "-k", "y"])
    with pytest.raises(SystemExit) as ended:
        rounds.main()
    assert ended.value.code == 1
    assert ran == [(k, 7 + k, ["tests/x.py", "-k", "y"]) for k in range(1, len(rounds.ROUNDS) + 1)]
    table = capsys.readouterr().out
    assert "| setting 2 | 9 | 10 | 1 | 0.5 | RED" in table
    assert "| setting 4 | 11 | 10 | 0 | 0.5 | green |" in table
    monkeypatch.setattr(sys, "argv", ["rounds.py", "--round", "3"])
    rounds.main()
    assert ran[4:] == [(3, 4, [])]


def test_an_interpreter_is_found_on_the_path_or_with_pyenv(monkeypatch, tmp_path):
    def plant(path: Path, script: str) -> str:
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert pythons.find("3.10") is None
    plant(tmp_path / "bin" / "python3.10", "exit 127")  # a shim of pyenv without its interpreter
    versions = tmp_path / "pyenv" / "versions"
    plant(versions / "3.10.9" / "bin" / "python", "echo 3.10")
    newest = plant(versions / "3.10.13" / "bin" / "python", "echo 3.10")
    assert pythons.find("3.10") == newest
    assert pythons.find("3.1") is None

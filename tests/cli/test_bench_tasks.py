"""`flare bench run`, `make-task` and `leaderboard`, as the guide of docs/leaderboard.md has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from running import flare

import flare as library
from flare.bench import contest

TASKS = Path(__file__).resolve().parents[2] / "tasks"


def absolute(model, samples, data, held_out, cond):
    return samples.abs().mean(1)


def guide() -> str:
    page = (TASKS.parent / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    return page.partition("```python\n")[2].partition("```")[0]


def test_the_score_of_the_guide_gets_a_row_next_to_the_others(tmp_path):
    (tmp_path / "mymodule.py").write_text(guide(), encoding="utf-8")
    told = flare(
        "bench", "run", "mymodule:score", TASKS / "grid", "--out", "results.json", cwd=tmp_path
    ).stdout
    assert "→ score" in told
    assert "neighbors" in told
    assert len(guide().strip().splitlines()) <= 10
    assert "grid" in contest.read_results(tmp_path / "results.json")["tasks"]


def test_a_task_is_made_and_the_leaderboard_shown_by_commands(tmp_path):
    x = library.bench.datasets.sines(200)
    for name, rows in (("s", x[:20]), ("train", x[20:150]), ("held", x[150:])):
        np.save(tmp_path / f"{name}.npy", rows.numpy())
    np.save(tmp_path / "bad.npy", (np.arange(20) < 5).astype(int))
    files = ["--samples", "s.npy", "--bad", "bad.npy", "--data", "train.npy", "--held-out", "held.npy"]
    flare("bench", "make-task", "own", "--model", "sines", *files, cwd=tmp_path)
    assert int(library.bench.Task(tmp_path / "own").bad.sum()) == 5
    library.bench.run(absolute, tmp_path / "own", tmp_path / "results" / "absolute.json")
    assert "absolute" in flare("bench", "leaderboard", "results", "--by", "far", cwd=tmp_path).stdout
    told = flare("bench", "run", "residual", TASKS / "grid", "own", "--out", "residual.json", cwd=tmp_path)
    assert "verdict" in told.stdout
    assert "the leaderboard has no results for own; ranked without." in told.stderr
    told = flare("bench", "run", "last_iterates", "own", "--out", "last.json", cwd=tmp_path, code=2)
    assert "last_iterates was skipped on own: samples were not drawn by FLARE" in " ".join(
        told.stderr.split()
    )

"""The work of `flare bench`: train models, and show the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from .. import bench
from ..bench import datasets, leaderboard
from ..bench.contest import Score
from ..bench.entries import ENTRIES
from ..bench.shipped import CONFIG_FILE, WEIGHTS_FILE
from ..bench.tasks import KINDS, find_tasks, import_named
from ..core.validation import one_of
from ..network.training import Training, save_losses, train
from ..storage.resume import Resume
from .app import answer, console, plain, remark
from .writing import bar, claim, refuse_replacing

NARROW = ("", "score", "AUROC", "95%", *KINDS, "bad in best half", "calls")  # columns of a terminal


def train_benchmark(
    directory: Path, config: dict[str, Any], save_every: int, overwrite: bool, quiet: bool
) -> None:
    """Train the benchmark model of a configuration into a run directory, or resume its training."""
    name = config["dataset"]["name"]
    net, schedule = bench.build(config)
    job = Training(net, datasets.make(**config["dataset"]), schedule, bench.train_config(config))
    with claim(directory):
        refuse_replacing(directory, (directory / CONFIG_FILE).is_file(), "a run directory", overwrite)
        resume = Resume.beside(directory)
        frames = train(job, resume.for_job(config).directory, save_every)
        for _ in bar(f"training {name}", quiet, lambda frame: f"loss {frame.loss:.4f}")(frames):
            pass
        (directory / WEIGHTS_FILE).unlink(missing_ok=True)
        bench.save(directory, config, job.weights())
        save_losses(directory / "loss.csv", job.losses)
        resume.clear()
        if not quiet:
            tail = job.losses[-max(1, len(job.losses) // 20) :].mean()
            remark("", f"trained {name}: mean loss {tail:.4f} over the last 5% of the steps.")
        answer(str(directory))


def find_score(name: str) -> tuple[str, Score]:
    """The name and the function of package.module:function, or of an entry of the leaderboard."""
    if ":" in name:
        return name.partition(":")[2], import_named("SCORE", name)
    return name, ENTRIES[one_of("score", name, ENTRIES)]


def find_results(tasks: Sequence[str]) -> Path:
    """The results of the leaderboard, next to the tasks."""
    return find_tasks(tasks or None)[0].parent / leaderboard.RESULTS


def show_rows(found: dict[str, Any], others: dict[str, dict[str, Any]]) -> None:
    """Print the leaderboard with a new score, on the tasks of the new score."""
    tasks = {task for task, figures in found["tasks"].items() if "auroc" in figures}
    comparable = {
        name: each
        for name, each in others.items()
        if all(each["tasks"].get(task, {}).get("task") == found["tasks"][task]["task"] for task in tasks)
    }
    results = {**comparable, f"→ {found['score']}": found}
    show_ranking(leaderboard.rank(results, sorted(tasks)))


def show_ranking(rows: list[dict[str, Any]]) -> None:
    """Print the main columns of the leaderboard."""
    cells = leaderboard.table(rows)
    chosen = [cells[0].index(column) for column in NARROW]
    table = Table(*(cells[0][k] for k in chosen), box=None, padding=(0, 2, 0, 0))
    for row in cells[1:]:
        table.add_row(*(plain(row[k]) for k in chosen))
    console(stderr=False).print(table)

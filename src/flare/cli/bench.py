"""`flare bench`: train benchmark models, and compare scores on tasks with known bad samples.

A command imports its dependencies when it runs, so help starts fast.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import flags as options
from .app import Command, show_facts, start
from .flags import MODELS, WEIGHTINGS, join

# Help must not import the library; a test compares these with its lists.
LEVEL_SAMPLINGS = "log_snr, uniform"
ORDERS = "all, points, curves, images, series and tables, subtle, near, far"

bench_app = typer.Typer(
    help="Train benchmark models, and compare scores on tasks with known bad samples.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


command = partial(bench_app.command, cls=Command)


@command()
def train(
    name: Annotated[str, typer.Argument(help=f"A benchmark: {join(MODELS)}.")],
    directory: Annotated[Path, typer.Option("--out", help="The run directory to write.")],
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Training pairs per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    ema: Annotated[
        float | None, typer.Option(help="Decay of the averaged weights, usually 0.999 to 0.9999.")
    ] = None,
    weighting: Annotated[str | None, typer.Option(help=f"Loss weights: {join(WEIGHTINGS)}.")] = None,
    level_sampling: Annotated[
        str | None,
        typer.Option(help=f"How noise levels are drawn: {LEVEL_SAMPLINGS}; log_snr favors SNR = 1."),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Size of the training set.")] = None,
    seed: options.Seed = 0,
    save_every: Annotated[
        int, typer.Option(min=1, help="Steps between two checkpoints, which training resumes from.")
    ] = 2_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a benchmark model; options default to the shipped model's.

    The same command resumes a run that was stopped or killed.

    Example: `flare bench train sines --out runs/sines --steps 5000`
    """
    from .. import bench
    from .bench_work import train_benchmark

    start()
    given = {
        "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "ema": ema,
        "weighting": weighting, "level_sampling": level_sampling, "seed": seed,
    }  # fmt: skip
    training: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    config = bench.configure(name, width=width, samples=samples, **training)
    train_benchmark(directory, config, save_every, overwrite, quiet)


@command()
def run(
    score: Annotated[
        str,
        typer.Argument(
            help="Your score as package.module:function, or the name of a score of the leaderboard."
        ),
    ],
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Task directories; by default all in ./tasks.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The results, a JSON file; the same command resumes an interrupted run.")
    ] = Path("results.json"),
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the tasks.")] = 1,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate a score on tasks with known bad samples, and print it next to the leaderboard.

    The function takes (model, samples, data, held_out, cond) and returns one number per sample; larger means
    less trust.

    Example: `flare bench run mymodule:score --out results.json`
    """
    from ..bench import contest, find_tasks, leaderboard
    from . import bench_work

    start()
    name, function = bench_work.find_score(score)
    found = contest.run(
        function, tasks, out, name=name, processes=processes, progress=False if quiet else None
    )
    if not quiet:
        asked = {path.name for path in find_tasks(tasks or None)}  # the file may have others, too
        found["tasks"] = {task: figures for task, figures in found["tasks"].items() if task in asked}
        shipped = leaderboard.read_leaderboard(bench_work.find_results(tasks or []))
        bench_work.show_rows(found, {key: each for key, each in shipped.items() if key != name})
    show_facts(False, True, {}, last=str(out))


@command("leaderboard")
def show_leaderboard(
    results: Annotated[Path, typer.Argument(help="The directory with one file of results per score.")] = Path(
        "tasks/leaderboard"
    ),
    by: Annotated[str, typer.Option(help=f"What the scores are ranked by: {ORDERS}.")] = "all",
) -> None:
    """Print the leaderboard from files of results.

    Example: `flare bench leaderboard --by images`
    """
    from ..bench import leaderboard
    from . import bench_work

    bench_work.show_ranking(leaderboard.rank(leaderboard.read_leaderboard(results), by=by))

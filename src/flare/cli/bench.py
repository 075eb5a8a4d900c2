"""`flare bench`: train benchmark models, run published baselines, evaluate filters, and compare scores.

A command imports its dependencies when it runs, so help starts fast.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from . import flags as options
from .app import Command, show_facts, start
from .flags import MODELS, SAMPLERS, WEIGHTINGS, join

PART = 500  # samples per part if the batch size is "auto": the parts must not depend on the memory

# Help must not import the library; a test compares these with its lists.
TRUTHS = "chirp, damped, grid, sines"
BASELINES = (
    "aleatoric, bayesdiff, ddpm_ood, denoising_error, density, diffpath, eigenscore, ensemble, flipd, "
    "generative, gradient_norms, instability, last_iterates, llla, msma, realism, residual, rods, "
    "scoped, sharpness"
)
LEVEL_SAMPLINGS = "log_snr, uniform"
GROUPS = "points, curves, images, series and tables"
ORDERS = "all, points, curves, images, series and tables, subtle, near, far"
STORED = "float16, float32, uint8"

bench_app = typer.Typer(
    help="Train benchmark models, run published baselines, evaluate filters, and compare scores.",
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
def baseline(
    name: Annotated[str, typer.Argument(help=f"One of {BASELINES}.")],
    models: Annotated[
        list[str],
        typer.Argument(
            help=f"A shipped model ({join(MODELS)}) or a trained directory; several for ensemble."
        ),
    ],
    n: Annotated[int | None, typer.Option("-n", min=1, help="Number of samples; 1000 by default.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the method as key=value, such as draws=20, levels=0.1,0.3 or total=false; "
            "repeat it for several."
        ),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="The samples to score, for methods that score existing samples.")
    ] = None,
    real: Annotated[
        int, typer.Option(min=1, help="Number of training samples that methods compare with.")
    ] = 2_000,
    pairs: Annotated[
        int, typer.Option(min=1, help="Training pairs for the posterior of the method.")
    ] = 20_000,
    sampler: Annotated[str, typer.Option(help=f"One of {join(SAMPLERS)}.")] = "ddpm",
    steps: Annotated[
        int | None, typer.Option(help="Steps per sample; one per noise level by default.")
    ] = None,
    file: options.ResultFile = Path("baseline.safetensors"),
    overwrite: options.Overwrite = False,
    batch_size: Annotated[str, typer.Option(help="Samples per network call, or auto.")] = "500",
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw samples of a benchmark model, or score its samples, by a published alternative to FLARE.

    `flare filter`, `flare report` and `flare bench evaluate` read the file. If the run is interrupted, run
    the same command again to resume it. To run baselines on your own network, use Python.

    Example: `flare bench baseline bayesdiff sines --option variant=released --out bayesdiff.safetensors`

    Several models: `flare bench baseline ensemble runs/a runs/b runs/c --out ensemble.safetensors`
    """
    from ..bench.baselines import BASELINES
    from ..results.result_files import check_suffix
    from . import bench_work, samples_in, writing

    start(device)
    chosen, size = BASELINES.find(name), options.parse_count("--batch-size", batch_size, "auto")
    own = bench_work.parse_options(chosen, option or [])
    bench_work.check_samples(chosen, samples, n)
    check_suffix(file)
    writing.refuse_existing(file, overwrite)
    opened = bench_work.open_models(chosen, models, device)
    model, table = opened[0], opened[0].sampler(sampler, steps)
    inputs: dict[str, Any] = {"table": table, "weights": [each.denoiser.fingerprint() for each in opened]}
    if "clip" in chosen.options:
        own.setdefault("clip", model.clip)
    count, items = n or 1000, len(opened) * chosen.trajectories(**own) * len(table)
    if samples is not None:
        existing = samples_in.read_array(samples, model.shape).to(model.denoiser.device)
        count, items, inputs["samples"] = len(existing), 1, existing
        detector = chosen.run(*((model.denoiser, model.schedule) if chosen.calls_model else ()), **own)
        if chosen.needs == "real data":
            inputs["real"] = bench_work.draw_real(model, real, seed)
            detector.fit(inputs["real"], seed=seed)
    needed: list[Any] = []
    if chosen.fit is not None:
        inputs["pairs"] = pairs
        drawn = model.pairs(model.data, pairs, seed, weighting=model.weighting)
        needed = [chosen.fit(model.denoiser, drawn)]

    def make(first: int, count: int, progress: Any) -> Any:
        if samples is not None:
            return bench_work.score_part(
                detector, existing[first : first + count], first, seed, size, progress
            )
        networks = [each.denoiser for each in opened] if chosen.needs == "models" else model.denoiser
        return chosen.run(
            networks, table, *needed, n=count, first=first, shape=model.shape, seed=seed, batch_size=size,
            progress=progress, **own,
        )  # fmt: skip

    about = {"run": models[0] if len(models) == 1 else models, "baseline": name, "seed": seed, **own}
    started = time.perf_counter()
    with writing.make_in_parts(
        file, count, PART if size == "auto" else size, make, model, about | inputs,
        title=f"{name} of {model.name}", quiet=quiet or json, items_per_part=items,
    ) as whole:  # fmt: skip
        if whole is not None:
            facts = writing.save_drawn(file, whole, about, started)
            then = ("flare", "bench", "evaluate", file, "--truth", model.name)
            known = model.name in TRUTHS.split(", ")
            show_facts(json, quiet, facts, last=str(file), then=then if known else ())


@command()
def evaluate(
    file: Annotated[Path, typer.Argument(help="Samples with scores, as `flare sample` writes them.")],
    truth: Annotated[
        str | None, typer.Option(help=f"Judge by the known truth of a benchmark: {TRUTHS}.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Held-out data.")] = None,
    keep: options.Keep = 0.5,
    score: Annotated[
        str | None, typer.Option(help="Which score; by default the verdict, or the first score in the file.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a filter: hallucination rates and AUROC by the truth, energy distance to held-out data.

    Example: `flare bench evaluate samples.safetensors --truth grid --keep 0.5`
    """
    from .bench_work import evaluate_filter

    if truth is None and data is None:
        raise ValueError("give --truth NAME for a benchmark, or --data FILE with held-out data.")
    start()
    name, facts = evaluate_filter(file, truth, data, keep, score)
    show_facts(json, quiet, facts, last=f"{keep:.0%} kept by {name}", then=("flare", "report", file))


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


@command()
def make_task(
    directory: Annotated[
        Path, typer.Argument(help="The task directory to write. Its name is the task's name.")
    ],
    model: Annotated[
        str,
        typer.Option(help="package.module:function that returns the model, or the name of a shipped one."),
    ],
    samples: Annotated[Path, typer.Option(help="Samples of the model, scaled as in training.")],
    bad: Annotated[
        Path, typer.Option(help="Which samples are bad: an npy file with 1 for bad and 0 for good.")
    ],
    data: Annotated[Path, typer.Option(help="The training data.")],
    held_out: Annotated[Path, typer.Option(help="Real data that the model was not trained on.")],
    seeds: Annotated[
        Path | None, typer.Option(help="The seed of each sample, increasing: an npy file of integers.")
    ] = None,
    group: Annotated[str, typer.Option(help=f"One of {GROUPS}.")] = "points",
    title: Annotated[str, typer.Option(help="Short description of the data and the model.")] = "",
    truth: Annotated[str, typer.Option(help="Source of the labels of bad samples.")] = "",
    stored_as: Annotated[
        str, typer.Option(help=f"How samples are stored: {STORED}; uint8 is for images in [-1, 1].")
    ] = "float32",
) -> None:
    """Make a task from your arrays: a directory that `flare bench run` accepts.

    Example: `flare bench make-task tasks/mine --model mymodule:model --samples s.npy --bad bad.npy --data
    train.npy --held-out held.npy`
    """
    from .. import bench
    from . import bench_work, samples_in

    start()
    made = bench.make_task(
        directory, model, samples_in.read_array(samples), bench_work.read_vector(bad, "--bad").bool(),
        samples_in.read_array(data), samples_in.read_array(held_out),
        seed=None if seeds is None else bench_work.read_vector(seeds, "--seeds").long(),
        group=cast("Any", group), title=title, truth=truth, stored_as=cast("Any", stored_as),
    )  # fmt: skip
    show_facts(False, True, {}, last=repr(made))

"""The commands that make and use a scorer: fit, sample, score, check and demo.

A command imports its dependencies when it runs, so help starts fast.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from . import flags
from .app import command, or_none, show_facts, start, translate
from .flags import PREDICTIONS, READABLE, RULES, SCHEDULES, SCORES, STRUCTURES, TIMES, WEIGHTINGS, join

DRAWN, EXISTING = 500, 1000  # samples per part, of those that are drawn and of existing ones


@command("fit")
def fit_(
    model: flags.ModelName,
    out: Annotated[Path, Option("--out", help="The directory to write.")],
    data: Annotated[
        Path | None,
        Option(
            help=f"Training data: a file ({join(READABLE)}), or a folder of images (png, jpg) or with one "
            "subfolder per class; a shipped model includes it."
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        Option(
            help="Real data that the network was not trained on, to compare samples with; by default a tenth "
            "of the training data, at most 1,000 samples, is set aside."
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        Option(
            help=f"Noise schedule, if MODEL does not include one: one of {join(SCHEDULES)}, with "
            "options as in cosine:T=1000 or edm:T=40,sigma_max=50; time= is what the network receives: "
            f"{join(TIMES)}."
        ),
    ] = None,
    prediction: Annotated[
        str | None, Option(help=f"What a module predicts: {join(PREDICTIONS)}; epsilon by default.")
    ] = None,
    subset: Annotated[
        str | None,
        Option(
            help="Uncertain parameters: how many to draw at random, everything, last_layer, or patterns of "
            "names such as 'out.*,blocks.1.*'; by default 1,000, or everything in a smaller network."
        ),
    ] = None,
    structure: Annotated[str, Option(help=f"One of {join(STRUCTURES)}.")] = "dense",
    pairs: Annotated[
        int | None,
        Option(help="Training pairs for the curvature; by default 20,000, fewer for large networks."),
    ] = None,
    prior_precision: Annotated[
        str, Option(help="A positive number, or how to tune it: marglik or validation.")
    ] = "marglik",
    scale: Annotated[
        str,
        Option(
            help="A positive number, or calibrated for N/σ². Or, for a table with named columns, an .npz "
            "file with the mean and std that standardized it for training."
        ),
    ] = "calibrated",
    cond: flags.Conditions = None,
    held_out_cond: Annotated[
        str | None, Option(help="The same for --held-out; by default the same column.")
    ] = None,
    null_cond: Annotated[
        str | None, Option(help="Value of --cond that means none, such as 10, or KEYWORD=10.")
    ] = None,
    rank: Annotated[int | None, Option(help="Eigenpairs of --structure low_rank; 64 by default.")] = None,
    weighting: Annotated[
        str | None, Option(help=f"Loss weights used in training: {join(WEIGHTINGS)}; by default uniform.")
    ] = None,
    check: Annotated[bool, Option("--check/--no-check", help="Check that the model fits the data.")] = True,
    seed: flags.Seed = 0,
    no_data: Annotated[
        bool, Option("--no-data", help="Omit training samples; score without neighbors and regions.")
    ] = False,
    overwrite: flags.Overwrite = False,
    processes: flags.Processes = 1,
    device: flags.Device = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Fit a scorer to a trained network and its data.

    The scorer holds a Laplace posterior over the parameters and the scores of real data. `flare sample` and
    `flare score` use it to give every sample a p-value: the share of real samples that look at least as
    doubtful. If the fit is interrupted, run the same command again to resume it. If the model does not fit
    the data, a warning names the likely cause.

    Example: `flare fit package.module:function --schedule cosine:T=1000 --data train.npy --out scorer`

    A diffusers pipeline: `flare fit path/to/pipeline --data images --out scorer`

    A shipped model: `flare fit digits --out scorer`
    """
    start(device, processes)  # before torch is imported, which other processes do for themselves
    from .. import Resume, distributed, fit
    from . import models_in, samples_in, writing

    writing.refuse_replacing(out, models_in.directory.is_scorer(out), "a scorer", overwrite)
    opened: Any = models_in.open_network(model, schedule, prediction, device)
    if data is None and not hasattr(opened, "data"):
        raise ValueError(f"{model} comes without data: give its training data with --data FILE.")
    x, fresh = (samples_in.read_training(path) for path in (data, held_out))
    given = {"cond": cond, "held_out_cond": held_out_cond}
    options: dict[str, Any] = {
        "subset": int(subset) if subset and subset.isdecimal() else subset,
        "prior_precision": flags.parse_number(prior_precision),
        "scale": samples_in.read_scaling(scale) if scale.endswith(".npz") else flags.parse_number(scale),
        **samples_in.read_training_conditions(opened.denoiser.module, given),
        "null_cond": samples_in.read_null_condition(null_cond, opened.denoiser.module),
        "weighting": weighting or getattr(opened, "weighting", "uniform"),
    }
    with writing.claim_new(out):
        resume = Resume.beside(out)
        scorer = fit(
            opened, opened.data if x is None else x, held_out=fresh, structure=structure, pairs=pairs,
            rank=rank, check=check, seed=seed, resume=resume,
            progress=writing.bar(f"fitting {model}", quiet or json), **options,
        )  # fmt: skip
        if distributed.is_main():
            scorer.save(out, data=not no_data)
        facts = models_in.describe_scorer(out, scorer, not no_data)
        needed = ("--cond", "FILE") if scorer.about["conditions"] else ()
        show_facts(json, quiet, facts, last=str(out), then=("flare", "sample", out, *needed))
        if distributed.is_main():
            resume.clear()
        distributed.wait()


@command()
def sample(
    scorer: flags.ScorerDirectory,
    n: flags.Count = 1000,
    seed: flags.Seed = 0,
    steps: flags.Steps = 50,
    sampler: flags.Sampler = None,
    directions: Annotated[
        str | None,
        Option(help="Also compute variance, from this many posterior draws, such as 16, or exact."),
    ] = None,
    rule: Annotated[
        str | None, Option(help=f"How variance is propagated: {join(RULES)}; tangent by default.")
    ] = None,
    score: Annotated[
        str | None, Option(help=f"Scores of the variance, separated by commas: {join(SCORES)}.")
    ] = None,
    batch_size: flags.BatchSize = "500",
    model: flags.Model = None,
    cond: flags.Conditions = None,
    out: flags.ResultFile = Path("samples.safetensors"),
    overwrite: flags.Overwrite = False,
    processes: flags.Processes = 1,
    device: flags.Device = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Draw samples, each with scores, a p-value and a reason.

    Scoring needs at least 8 forward and backward passes per sample. With --directions, every sample also has
    its epistemic variance. If the run is interrupted, run the same command again to resume it.

    Example: `flare sample scorer -n 1000 --out samples.safetensors`

    With variance: `flare sample scorer -n 1000 --directions 16`
    """
    start(device, processes)  # before torch is imported, which other processes do for themselves
    from ..results.result_files import check_suffix
    from . import models_in, samples_in, writing

    size = flags.parse_count("--batch-size", batch_size, "auto")
    if directions is None and (rule, score) != (None, None):
        raise ValueError("--rule and --score are for variance: also give --directions, such as 16.")
    check_suffix(out)
    opened = models_in.open_scorer(scorer, model, device, quiet)
    writing.refuse_existing(out, overwrite)
    about: dict[str, Any] = {"scorer": str(scorer), "n": n, "seed": seed}
    options: dict[str, Any] = {}
    if directions is not None:
        about["directions"] = flags.parse_count("--directions", directions, "exact")
        options = {"directions": models_in.share_directions(opened, about["directions"], seed)}
        options |= {"rule": rule} if rule else {}
        options |= {"score": score.split(",")} if score else {}
    given = samples_in.read_drawn_conditions(cond, opened, n) if cond else None
    table = opened.steps(steps)
    if sampler is not None:
        table = models_in.make_sampler(sampler, opened.model.schedule, steps, opened.clip)
    models_in.warn_of_problems([each for each in opened.problems(table) if each not in opened.problems()])

    def make(first: int, count: int, progress: Any) -> Any:
        return opened.sample(
            count, seed, steps=table, first=first, batch_size=size,
            cond=samples_in.take_part(given, first, count), progress=progress, **options,
        )  # fmt: skip

    started = time.perf_counter()
    with writing.make_in_parts(
        out, n, DRAWN if size == "auto" else size, make, opened,
        {**about, **options, "cond": given, "table": table, "scorer": opened.identity()},
        title=f"sampling with {scorer.name}", quiet=quiet or json, items_per_part=len(table),
    ) as whole:  # fmt: skip
        if whole is not None:
            facts = writing.save_drawn(out, whole, about, started)
            use = ("filter", out, "--keep", 0.5) if out.suffix == ".csv" else ("report", out)
            show_facts(json, quiet, facts, last=str(out), then=("flare", *use))


@command()
def score(
    scorer: flags.ScorerDirectory,
    samples: Annotated[
        Path,
        Argument(
            metavar="FILE_OR_FOLDER",
            help=f"A file ({join(READABLE)}), or a folder of images (png, jpg) or with one subfolder per "
            "class.",
        ),
    ],
    out: Annotated[
        Path,
        Option(
            "--out",
            help="A .safetensors or .npz file, or a .csv table of verdicts; a scored table keeps its "
            "columns.",
        ),
    ] = Path("scored.safetensors"),
    cond: flags.Conditions = None,
    model: flags.Model = None,
    overwrite: flags.Overwrite = False,
    processes: flags.Processes = 1,
    device: flags.Device = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Score existing samples, real data included, on the same scale as `flare sample`.

    Example: `flare score scorer mine.npy --out scores.csv`

    A table with all of its columns: `flare score scorer table.csv --out table-scored.csv`

    Images: `flare score scorer folder --out scores.csv`
    """
    start(device, processes)  # before torch is imported, which other processes do for themselves
    from ..results.result_files import check_suffix
    from . import models_in, samples_in, scored, writing

    check_suffix(out)
    opened = models_in.open_scorer(scorer, model, device, quiet)
    writing.refuse_existing(out, overwrite)
    found = samples_in.read_existing(samples, opened, cond, quiet or json)

    def make(first: int, count: int, progress: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the samples lie in|existing has NaN")  # said once, about all
            part = found.values[first : first + count]
            own = samples_in.take_part(found.cond, first, count)
            (result,) = progress(opened.score(x, own) for x in [part])
        return result

    with writing.make_in_parts(
        out, len(found.values), EXISTING, make, opened,
        {"samples": found.values, "cond": found.cond, "scorer": opened.identity()},
        title=f"scoring with {scorer.name}", quiet=quiet or json,
    ) as whole:  # fmt: skip
        if whole is not None:
            facts = scored.save_verdicts(
                out, found.names, whole, found.table, scorer=str(scorer), samples=str(samples)
            )
            if found.skipped:
                facts["skipped"] = found.skipped if json else len(found.skipped)
            then = ("flare", "filter", out, "--keep", 0.5)
            show_facts(json, quiet, facts, last=str(out), then=then)


@command()
def check(
    scorer: flags.ScorerDirectory,
    n: flags.Count = 32,
    draws: Annotated[int, Option(help="Number of posterior draws to rerun.")] = 64,
    steps: flags.Steps = 50,
    model: flags.Model = None,
    device: flags.Device = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Check that the model fits its data, and that first order is enough for variance; exit with 3 if not.

    The command compares the variance of the tangent rule with rerun models. If the rankings differ, it looks
    for a larger prior precision at which they agree.

    Example: `flare check scorer -n 32 --draws 64`
    """
    from . import models_in

    start(device)
    found = models_in.open_scorer(scorer, model, device, quiet).check(n, draws, steps=steps)
    linear, said = found.linearization, translate(str(found))
    facts: dict[str, Any] = {"score": linear.score, "n": n, "draws": draws}
    facts |= {"correlation": or_none(linear.correlation), "ratio": or_none(linear.ratio)}
    if json:
        facts |= {"problems": [translate(each) for each in found.problems], "checked": said}
    show_facts(json, quiet, facts, last=said, then=() if found.problems else ("flare", "sample", scorer))
    if found.problems:
        raise Exit(3)


@command()
def demo(
    out: Annotated[Path, Option("--out", help="The directory to write.")] = Path("flare-demo"),
    n: flags.Count = 300,
    keep: flags.Keep = 0.5,
    seed: flags.Seed = 0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Fit, sample and filter two shipped models, colored shapes and series, and write reports.

    Example: `flare demo --out flare-demo`
    """
    from .demo_command import run_demo

    start()
    run_demo(out, n, keep, seed, json, quiet)

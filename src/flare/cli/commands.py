"""The commands, with their arguments, flags and help; each calls a function of another module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from . import flags
from .app import command
from .flags import PREDICTIONS, READABLE, RULES, SCHEDULES, SCORES, STRUCTURES, TIMES, WEIGHTINGS, join


@command()
def fit(
    model: flags.ModelName,
    out: Annotated[Path, Option("--out", help="The directory to write.")],
    data: Annotated[
        Path | None, Option(help=f"Training data ({join(READABLE)}); a shipped model has its own.")
    ] = None,
    held_out: Annotated[
        Path | None,
        Option(
            help="Data that the network was not trained on, to compare samples with; by default a tenth of "
            "the training data, at most 1,000, which the curvature then leaves out."
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        Option(
            help=f"Noise levels of a MODEL that does not bring them along: one of {join(SCHEDULES)}, with "
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
        int | None, Option(help="Training pairs of the curvature; 20,000, or 4,000 for a large network.")
    ] = None,
    prior_precision: Annotated[
        str, Option(help="A positive number, or how to tune it: marglik or validation.")
    ] = "marglik",
    scale: Annotated[str, Option(help="A positive number, or calibrated for N/σ².")] = "calibrated",
    rank: Annotated[int | None, Option(help="Eigenpairs of --structure low_rank; 64 by default.")] = None,
    weighting: Annotated[
        str | None, Option(help=f"Loss weights of the training: {join(WEIGHTINGS)}; by default uniform.")
    ] = None,
    check: Annotated[bool, Option("--check/--no-check", help="Check that the model fits the data.")] = True,
    seed: flags.Seed = 0,
    memory: Annotated[
        int | None, Option(help="Bytes that the posterior may use; by default half of the free memory.")
    ] = None,
    no_data: Annotated[
        bool, Option("--no-data", help="Keep no training samples in the scorer, which then knows less.")
    ] = False,
    overwrite: flags.Overwrite = False,
    device: flags.Device = None,
    threads: flags.Threads = 0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Fit a scorer to a trained network and its data.

    It has a Laplace posterior over the parameters and the scores of real data. With it, `flare sample` and
    `flare score` give every sample a p-value: the share of real samples that look at least as doubtful.
    Checkpoints are kept next to the directory: the same command resumes an interrupted fit. If the model does
    not fit the data, a warning names the likely cause.

    Example: `flare fit package.module:function --schedule cosine:T=1000 --data train.npy --out scorer`

    A shipped model: `flare fit digits --out scorer`
    """
    from .fit_command import run_fit

    run_fit(
        model, out, data=data, held_out=held_out, schedule=schedule, prediction=prediction,
        weighting=weighting, no_data=no_data, overwrite=overwrite, device=device, threads=threads, json=json,
        quiet=quiet,
        options={
            "subset": int(subset) if subset and subset.isdecimal() else subset,
            "structure": structure,
            "pairs": pairs,
            "prior_precision": flags.parse_number(prior_precision),
            "scale": flags.parse_number(scale),
            "rank": rank,
            "check": check,
            "seed": seed,
            "memory": memory,
        },
    )  # fmt: skip


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
    best_of: Annotated[int, Option(min=1, help="Candidates per sample; the most plausible is kept.")] = 1,
    batch_size: flags.BatchSize = "500",
    model: flags.Model = None,
    out: flags.ResultFile = Path("samples.safetensors"),
    overwrite: flags.Overwrite = False,
    device: flags.Device = None,
    threads: flags.Threads = 0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Draw samples, each with scores, a p-value and a reason.

    This costs little more than plain sampling. With --directions, every sample also has its epistemic
    variance. Finished batches are kept next to the file: the same command resumes an interrupted run.

    Example: `flare sample scorer -n 1000 --out samples.safetensors`

    With variance: `flare sample scorer -n 1000 --directions 16`
    """
    from .scorer_commands import run_sample

    run_sample(
        scorer, out, n=n, seed=seed, steps=steps, sampler=sampler, directions=directions, rule=rule,
        score=score, best_of=best_of, batch_size=batch_size, model=model, overwrite=overwrite, device=device,
        threads=threads, json=json, quiet=quiet,
    )  # fmt: skip


@command()
def score(
    scorer: flags.ScorerDirectory,
    samples: Annotated[
        Path,
        Argument(
            metavar="FILE_OR_FOLDER", help=f"A file ({join(READABLE)}) or a folder of images (png, jpg)."
        ),
    ],
    out: Annotated[
        Path, Option("--out", help="A .safetensors or .npz file, or a .csv table of verdicts alone.")
    ] = Path("scored.safetensors"),
    strict: Annotated[
        bool, Option("--strict", help="Exit with 1 if a file of the folder could not be scored.")
    ] = False,
    model: flags.Model = None,
    overwrite: flags.Overwrite = False,
    device: flags.Device = None,
    threads: flags.Threads = 0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Score existing samples, real data included, on the same scale as `flare sample`.

    Example: `flare score scorer mine.npy --out scores.csv`

    Images: `flare score scorer folder --out scores.csv`
    """
    from .scorer_commands import run_score

    run_score(
        scorer, samples, out, strict=strict, model=model, overwrite=overwrite, device=device, threads=threads,
        json=json, quiet=quiet,
    )  # fmt: skip


@command("filter")
def filter_(
    file: flags.ScoredFile,
    keep: Annotated[
        float | None,
        Option(
            callback=flags.check_keep, help="Keep this share of every region, the most plausible samples."
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(help="With --keep: region by default; rank ranks all samples together and drops rare kinds."),
    ] = None,
    p_value: Annotated[
        float | None,
        Option(
            callback=flags.check_p_value,
            help="Or keep all samples with a p-value above this: 0.05 keeps about 95% of real data.",
        ),
    ] = None,
    out: flags.KeptFile = None,
    overwrite: flags.Overwrite = False,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Keep the most plausible samples; writes kept.safetensors, or kept.csv for a table.

    Example: `flare filter samples.safetensors --keep 0.5 --out kept.npz`

    Everything that looks like real data: `flare filter samples.safetensors --p-value 0.05`
    """
    from .result_commands import run_filter

    run_filter(file, out, keep=keep, by=by, p_value=p_value, overwrite=overwrite, json=json, quiet=quiet)


@command()
def calibrate(
    file: flags.ScoredFile,
    labels: Annotated[
        Path, Argument(help="A csv file with the columns index (or name) and bad (0 or 1), a row per label.")
    ],
    risk: Annotated[float, Option(help="Largest accepted share of bad samples among the kept.")] = 0.05,
    confidence: Annotated[float, Option(help="Probability that the guarantee holds.")] = 0.9,
    out: flags.KeptFile = None,
    overwrite: flags.Overwrite = False,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Find a threshold with a guarantee from labels of a few samples; exit with 3 if there is none.

    The labeled samples must be a random choice from the file.

    Example: `flare calibrate samples.safetensors labels.csv --risk 0.05 --out kept.npz`
    """
    from .result_commands import run_calibrate

    run_calibrate(
        file, labels, out, risk=risk, confidence=confidence, overwrite=overwrite, json=json, quiet=quiet
    )


@command()
def report(
    file: flags.ScoredFile,
    out: Annotated[Path, Option("--out", help="The HTML file to write.")] = Path("report.html"),
    keep: flags.Keep = 0.5,
    p_value: flags.PValue = 0.05,
    data: Annotated[
        Path | None, Option(help="Training data of the model, to show the nearest of each sample.")
    ] = None,
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    overwrite: flags.Overwrite = False,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Write a self-contained page: the verdict, the samples, and a slider over the threshold.

    Example: `flare report samples.safetensors --out report.html`
    """
    from .result_commands import run_report

    run_report(
        file, out, keep=keep, p_value=p_value, data=data, title=title, overwrite=overwrite, json=json,
        quiet=quiet,
    )  # fmt: skip


@command()
def check(
    scorer: flags.ScorerDirectory,
    n: flags.Count = 32,
    draws: Annotated[int, Option(help="Number of posterior draws to rerun.")] = 64,
    steps: flags.Steps = 50,
    model: flags.Model = None,
    device: flags.Device = None,
    threads: flags.Threads = 0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Check that the model fits its data, and that first order is enough for variance; exit with 3 if not.

    The variance of the tangent rule is compared with rerun models. If the rankings differ, the command looks
    for a larger prior precision at which they agree.

    Example: `flare check scorer -n 32 --draws 64`
    """
    from .scorer_commands import run_check

    run_check(scorer, n, draws, steps, model, device, threads, json, quiet)


@command()
def info(
    path: Annotated[
        str, Argument(help=f"A scorer, a file of samples, or a shipped model: {join(flags.MODELS)}.")
    ],
    json: flags.Json = False,
) -> None:
    """Show what a scorer, a file of samples or a shipped model holds.

    Example: `flare info scorer`
    """
    from .result_commands import run_info

    run_info(path, json)


@command()
def demo(
    out: Annotated[Path, Option("--out", help="The directory to write.")] = Path("flare-demo"),
    n: flags.Count = 1000,
    keep: flags.Keep = 0.5,
    seed: flags.Seed = 0,
    threads: flags.Threads = 0,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Fit, sample, judge and filter two shipped models, images of digits and points, and write reports.

    Example: `flare demo --out flare-demo`
    """
    from .demo_command import run_demo

    run_demo(out, n, keep, seed, threads, json, quiet)

"""`flare fit`: fit a posterior over a subset of a run's parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command, start, tell
from .bars import bar
from .claims import claim
from .output import remark, show_facts
from .own_runs import DEFAULTS, OwnFlags

if TYPE_CHECKING:
    from ..diffusion.noising import Pairs
    from ..network.coordinates import Subset
    from ..network.denoiser import Denoiser
    from ..posteriors import Posterior, Structure
    from .runs import Run

WORTH_TELLING = 1e12  # operations from which on a fit is announced before it starts
PRIORS = ("marglik", "validation")  # how --prior is tuned
SCALES = ("calibrated",)
CHEAPER = "--structure low_rank or diagonal"  # than dense
HELD_OUT = 0.1  # fraction of the data for --prior validation without --held-out
SENSITIVITY_PAIRS = 1000  # pairs that rank the parameters for --subset sensitive
_NEW = "For a new run of --model:"
SubsetName = Annotated[
    str,
    typer.Option(
        help="random, sensitive (the largest gradients), sketch (random sums of all parameters), last_layer, "
        "everything, or patterns of names such as 'out.*'."
    ),
]
HeldOut = Annotated[
    Path | None,
    typer.Option(
        help="Data that the network was not trained on, for --prior validation; by default "
        f"{HELD_OUT:.0%} of the training data, which the curvature then leaves out."
    ),
]
NewSchedule = Annotated[
    str | None, typer.Option(help=f"{_NEW} one of {{schedules}}; {DEFAULTS['schedule']} by default.")
]
NewLevels = Annotated[
    int | None,
    typer.Option(help=f"{_NEW} its number of noise levels, T; {DEFAULTS['levels']} by default."),
]
NewPrediction = Annotated[
    str | None, typer.Option(help=f"{_NEW} one of {{predictions}}; {DEFAULTS['prediction']} by default.")
]
NewClip = Annotated[float | None, typer.Option(help=f"{_NEW} clip x̂0 to ±this; the data's range by default.")]
NewWeighting = Annotated[
    str | None,
    typer.Option(help=f"{_NEW} loss weights, one of {{weightings}}; {DEFAULTS['weighting']} by default."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the configuration and posterior of a run of --model.")
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Check that the model fits the data.")]
Truncation = Annotated[
    str | None,
    typer.Option(
        help="For low_rank, one of {truncations}: keep only the leading eigenpairs of H or of Σ, "
        "without the prior on the others."
    ),
]
Prior = Annotated[
    str, typer.Option(help=f"Prior precision: a positive number, or how to tune it: {', '.join(PRIORS)}.")
]
SaveEvery = Annotated[
    float, typer.Option(min=0, help="Seconds between two checkpoints, from which a fit is resumed.")
]


@command()
def fit(
    run: options.Run,
    subset: SubsetName = "random",
    fraction: Annotated[
        float, typer.Option(help="Fraction of the parameters, for random, sensitive and sketch.")
    ] = 0.1,
    count: Annotated[
        int | None,
        typer.Option(help="Number of parameters, or of sums for sketch, instead of --fraction."),
    ] = None,
    structure: Annotated[str, typer.Option(help="One of {structures}.")] = "dense",
    prior: Prior = "",
    scale: Annotated[str, typer.Option(help="A positive number, or calibrated for N/σ².")] = "",
    rank: Annotated[int, typer.Option(help="Number of eigenpairs, for low_rank.")] = 64,
    truncation: Truncation = None,
    pairs: Annotated[int, typer.Option(help="Number of training pairs for the curvature.")] = 20_000,
    held_out: HeldOut = None,
    file: Annotated[Path | None, typer.Option("--out", help="RUN/posterior.safetensors by default.")] = None,
    save_every: SaveEvery = 30.0,
    model: options.Model = None,
    data: options.Data = None,
    schedule: NewSchedule = None,
    levels: NewLevels = None,
    prediction: NewPrediction = None,
    clip: NewClip = None,
    weighting: NewWeighting = None,
    overwrite: Overwrite = False,
    check: Check = True,
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit a Laplace posterior to a trained network and its training data.

    Checkpoints are kept beside the file: the same command resumes an interrupted fit. If the model does not
    fit the data, a warning names the likely cause.

    Example: `flare fit runs/sines --subset random --fraction 0.1 --structure dense --prior marglik`

    Your own network: `flare fit runs/mine --model package.module:function --data train.npy --levels 1000`
    """
    from ..core.distributed import is_main
    from ..core.validation import require_positive_int
    from ..posteriors import STRUCTURES
    from ..storage.resume import Resume

    start(threads)
    require_positive_int("--pairs", pairs)
    # flags are checked before anything is written
    fit_structure = STRUCTURES.find(structure)
    keywords = _parse_options(fit_structure, prior, scale, truncation)
    if held_out is not None and prior != "validation":
        raise ValueError(f"--held-out is for --prior validation, got {prior or 'no --prior'}.")
    settings: dict[str, Any] = {"schedule": schedule, "levels": levels, "prediction": prediction}
    settings |= {"clip": clip, "weighting": weighting}
    opened = _open_or_create(run, OwnFlags(model, data, settings, overwrite), device, quiet or json)
    file = _choose_file(opened) if file is None else file
    denoiser = opened.denoiser
    drawn: dict[str, Any] = {"n": pairs, "seed": seed}
    if prior == "validation" and held_out is None:
        drawn["held_out"] = HELD_OUT
    amount: dict[str, Any] = {"fraction": fraction} if count is None else {"count": count}
    chosen = _choose_subset(opened, subset, amount, drawn)
    if fit_structure.stores_matrix:
        _announce_cost(chosen.size, pairs, opened, quiet or json)
    elif truncation == "covariance":
        _announce_cost(chosen.size, pairs, opened, quiet or json, "--truncation curvature")
    if "rank" in fit_structure.options:
        keywords["rank"] = min(rank, chosen.size)
    if prior == "validation":
        keywords["validation"] = _draw_validation(opened, held_out, **drawn)
    found = _check_model(opened, seed) if check and is_main() else {}
    with claim(file):
        resume = Resume.beside(file, save_every)
        posterior = fit_structure(
            denoiser, chosen, opened.pairs(**drawn), **keywords, resume=resume,
            progress=bar(f"fitting {chosen.size:,} parameters", quiet or json),
        )  # fmt: skip
        if is_main():
            posterior.save(file, drawn=drawn)
            resume.clear()
    details = {"settings": opened.settings} | found if json else {}
    facts = {"posterior": str(file)} | _describe(posterior, denoiser) | details
    show_facts(json, quiet, facts, last=str(file))


def _parse_options(
    structure: Structure[Any], prior: str, scale: str, truncation: str | None
) -> dict[str, Any]:
    """Parse the flags that become arguments of the structure; those that are not given are left out."""
    from ..core.validation import one_of
    from ..posteriors.low_rank import TRUNCATIONS

    if truncation is not None and "truncation" not in structure.options:
        raise ValueError(f"--truncation is for --structure low_rank, got {structure.name}.")
    given = {
        "prior_precision": options.parse_number("--prior", prior, PRIORS),
        "scale": options.parse_number("--scale", scale, SCALES),
        "truncation": truncation and one_of("truncation", truncation, TRUNCATIONS),
    }
    return {name: value for name, value in given.items() if value is not None}


def _draw_validation(opened: Run, file: Path | None, n: int, seed: int, held_out: float = 0.0) -> Pairs:
    """Draw pairs for --prior validation: from a file, or from the rows that the training pairs leave out."""
    from ..diffusion import noising
    from .runs import read_samples

    rows = read_samples(file, opened.shape) if file else noising.split(opened.data, held_out, seed)[1]
    return replace(opened, data=rows).pairs(max(100, n // 20), seed + 1)


def _open_or_create(run: str, flags: OwnFlags, device: str | None, quiet: bool) -> Run:
    """Open a run; a new run of the user's own network is created first, and its settings are announced."""
    from ..core.distributed import is_main, wait
    from .own_runs import prepare_own, refuse_other_settings
    from .runs import open_run

    if flags.overwrite and flags.model is None:
        raise ValueError("--overwrite replaces the configuration of your own network: name it with --model.")
    created = False
    if flags.model is not None:
        with claim(Path(run)):
            created = is_main() and prepare_own(Path(run), flags)
        wait()
    opened = open_run(run, flags.model, flags.data, device)
    refuse_other_settings(opened, flags)
    if created and not quiet:
        said = ", ".join(f"{key} {value}" for key, value in opened.settings.items() if key != "time")
        remark("new run:", f"{said}. The network receives {opened.settings['time']}.")
    return opened


def _choose_file(opened: Run) -> Path:
    from .runs import POSTERIOR_FILE

    if opened.directory is None:
        raise ValueError(
            f"{opened.name} is a shipped model: say where to write the posterior with --out FILE."
        )
    return opened.directory / POSTERIOR_FILE


def _choose_subset(opened: Run, subset: str, amount: dict[str, Any], drawn: dict[str, Any]) -> Subset:
    """Choose the uncertain parameters by name, or by patterns of names.

    Args:
        opened: the run.
        subset: the value of --subset.
        amount: `count` or `fraction`.
        drawn: how the pairs of the fit are drawn; `sensitive` takes fewer of them.
    """
    from ..posteriors import subsets

    denoiser, seed = opened.denoiser, drawn["seed"]
    if subset in ("random", "sketch"):
        return getattr(subsets, subset)(denoiser, **amount, seed=seed)
    if subset == "sensitive":
        pairs = opened.pairs(**{**drawn, "n": min(drawn["n"], SENSITIVITY_PAIRS)})
        return subsets.sensitive(denoiser, pairs, **amount)
    if subset in ("last_layer", "everything"):
        return getattr(subsets, subset)(denoiser)
    return subsets.named(denoiser, subset.split(","))


def _describe(posterior: Posterior, denoiser: Denoiser) -> dict[str, Any]:
    """The facts of a posterior that the command prints."""
    return {
        "structure": posterior.structure,
        "parameters": posterior.size,
        "of": denoiser.parameter_count,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
        "residual_variance": posterior.origin.statistics.residual_variance,
    }


def _check_model(opened: Run, seed: int) -> dict[str, Any]:
    """Check that the model fits the data; warn if it does not."""
    from .. import check_model
    from ..sampling.model_check import STEPS

    schedule = opened.schedule
    table = None
    if schedule.continuous or schedule.variance_preserving:
        table = opened.sampler("euler" if schedule.continuous else "ddim", min(STEPS, schedule.T))
    found = check_model(opened.denoiser, opened.data, schedule, steps=table, seed=seed)
    for problem in found.problems:
        tell("[yellow]warning:[/yellow]", problem)
    return {"model_check": found.facts}


def _announce_cost(m: int, pairs: int, opened: Run, quiet: bool, instead: str = CHEAPER) -> None:
    """Print the cost of a large dense fit before it starts; refuse a fit that exceeds the free memory."""
    import torch

    from ..core.batch_size import free_memory

    memory = free_memory(torch.device("cpu"))
    told, operations = estimate_dense(m, pairs, math.prod(opened.shape), memory, instead)
    if operations > WORTH_TELLING and not quiet:
        remark("", told)


def estimate_dense(m: int, pairs: int, d: int, memory: int, instead: str = CHEAPER) -> tuple[str, float]:
    """Estimate the cost of a dense fit: in words, and as a number of operations.

    Args:
        m: the number of uncertain parameters.
        pairs: the number of training pairs.
        d: the number of values per sample.
        memory: free bytes.
        instead: flags of a cheaper fit.
    """
    from ..posteriors.ggn import probe_count

    rows = pairs * (probe_count("auto", pairs, m, d) or d)
    needed = 3 * 8 * m**2  # H, its eigenvectors and the workspace, float64
    operations = 2.0 * rows * m**2 + 10.0 * m**3  # JᵀJ, and the eigendecomposition
    told = (
        f"dense over {m:,} parameters needs about {needed / 1e9:.3g} GB and {operations:.1g} operations"
        f" ({rows:,} rows of JᵀJ, and an eigendecomposition)"
    )
    ways = f"{instead}, or fewer parameters with --subset random --fraction"
    if needed > memory:
        raise ValueError(f"{told}, but {memory / 1e9:.3g} GB are free. Use {ways}.")
    return f"{told}. Cheaper: {ways}.", operations

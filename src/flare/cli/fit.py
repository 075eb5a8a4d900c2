"""`flare fit`: fit a posterior to a run, and score real data to compare samples with."""

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
    from ..network.denoiser import Denoiser
    from ..network.subsets import Subset
    from ..posteriors import Posterior, Structure
    from ..sampling.model_check import ModelCheck
    from ..scoring.choices import Choices
    from ..scoring.fit import Parts
    from .runs import Run

WORTH_TELLING = 1e12  # operations from which on a fit is announced before it starts
PRIORS = ("marglik", "validation")  # how --prior is tuned
SCALES = ("calibrated",)
CHEAPER = "--structure low_rank or diagonal"  # than dense
FRACTION = 0.1  # of the parameters, if a subset is named without its size
SENSITIVITY_PAIRS = 1000  # pairs that rank the parameters for --subset sensitive
_NEW = "For a new run of --model:"
SubsetName = Annotated[
    str,
    typer.Option(
        help="random, sensitive (the largest gradients), sketch (random sums of all parameters), last_layer, "
        "everything, or patterns of names such as 'out.*'; auto: everything up to 1,000 parameters, 2,000 at "
        "random of more."
    ),
]
HeldOut = Annotated[
    Path | None,
    typer.Option(
        help="Data that the network was not trained on, to compare samples with and for --prior validation; "
        "by default a tenth of the training data, at most 1,000, which the curvature then leaves out."
    ),
]
NewSchedule = Annotated[
    str | None,
    typer.Option(
        help=f"{_NEW} one of {{schedules}}, with options as in edm:sigma_min=0.01,sigma_max=50,rho=5 or "
        f"cosine:time=fraction (the network receives one of {{times}}); {DEFAULTS['schedule']} by default."
    ),
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
Amount = Annotated[
    float | None,
    typer.Option(help="Fraction of the parameters, for random, sensitive and sketch; 0.1 by default."),
]
PairCount = Annotated[
    int | None,
    typer.Option(
        help="Number of training pairs for the curvature; by default 20,000, or 4,000 if the network has "
        "over a million parameters."
    ),
]
KeepData = Annotated[
    bool,
    typer.Option(
        "--keep-data/--no-data",
        help="Keep at most 20,000 training samples beside the posterior, for distances to the data; without "
        "them samples are judged by their influence alone.",
    ),
]
SaveEvery = Annotated[
    float, typer.Option(min=0, help="Seconds between two checkpoints, from which a fit is resumed.")
]


@command()
def fit(
    run: options.Run,
    subset: SubsetName = "auto",
    fraction: Amount = None,
    count: Annotated[
        int | None,
        typer.Option(help="Number of parameters, or of sums for sketch, instead of --fraction."),
    ] = None,
    structure: Annotated[str, typer.Option(help="One of {structures}.")] = "dense",
    prior: Prior = "",
    scale: Annotated[str, typer.Option(help="A positive number, or calibrated for N/σ².")] = "",
    rank: Annotated[int, typer.Option(help="Number of eigenpairs, for low_rank.")] = 64,
    truncation: Truncation = None,
    pairs: PairCount = None,
    held_out: HeldOut = None,
    keep_data: KeepData = True,
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
    """Fit a Laplace posterior to a trained network and its data, and score real data to compare with.

    `flare sample` and `flare score` then give every sample a p-value: the share of real samples that look at
    least as doubtful. Checkpoints are kept beside the file: the same command resumes an interrupted fit. If
    the model does not fit the data, a warning names the likely cause.

    Example: `flare fit runs/sines`

    Your own: `flare fit runs/mine --model package.module:function --data train.npy --held-out held.npy`
    """
    from ..core.distributed import is_main, wait
    from ..core.validation import require_positive_int
    from ..posteriors import STRUCTURES
    from ..scoring.files import remove_beside
    from ..storage.resume import Resume
    from .references import announce_reference, describe_scorer, divide_data, save_scorer

    start(threads)
    if pairs is not None:
        require_positive_int("--pairs", pairs)
    # flags are checked before anything is written
    fit_structure = STRUCTURES.find(structure)
    keywords = _parse_options(fit_structure, prior, scale, truncation)
    settings: dict[str, Any] = {"schedule": schedule, "levels": levels, "prediction": prediction}
    settings |= {"clip": clip, "weighting": weighting}
    opened = _open_or_create(run, OwnFlags(model, data, settings, overwrite), device, quiet or json)
    file = _choose_file(opened) if file is None else file
    denoiser = opened.denoiser
    parts, left_out = divide_data(opened, held_out, prior == "validation", seed)
    amount = {"fraction": fraction} if count is None else {"count": count}
    chosen = _choose(opened, (subset, amount), (structure, pairs, seed), parts)
    size = chosen.subset.size
    if fit_structure.stores_matrix:
        _announce_cost(size, chosen.pairs, opened, quiet or json)
    elif truncation == "covariance":
        _announce_cost(size, chosen.pairs, opened, quiet or json, "--truncation curvature")
    if "rank" in fit_structure.options:
        keywords["rank"] = min(rank, size)
    drawn = _describe_pairs(chosen.pairs, seed, left_out)
    if prior == "validation":
        keywords["validation"] = _draw_validation(opened, parts, chosen.pairs, seed)
    checked = _check_model(opened, parts, seed) if check and is_main() else None
    reported: dict[str, Any] = {}
    with claim(file):
        resume = Resume.beside(file, save_every)
        posterior = fit_structure(
            denoiser, chosen.subset, opened.pairs(**drawn), **keywords, resume=resume,
            progress=bar(f"fitting {size:,} parameters", quiet or json),
        )  # fmt: skip
        if is_main():
            remove_beside(file)  # it belongs to the posterior that is replaced
            posterior.save(file, drawn=drawn)
            announce_reference(parts, quiet or json)
            about = describe_scorer(chosen, parts, checked, seed)
            reported = save_scorer(opened, file, posterior, parts, about, keep_data)
            resume.clear()
        wait()
    found = {} if checked is None else {"model_check": checked.facts}
    details = {"settings": opened.settings} | found if json else {}
    facts = {"posterior": str(file)} | _describe(posterior, denoiser) | reported | details
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


def _describe_pairs(n: int, seed: int, left_out: float) -> dict[str, Any]:
    """How the training pairs are drawn, as arguments of `Run.pairs`; they are saved with the posterior."""
    return {"n": n, "seed": seed, **({"held_out": left_out} if left_out else {})}


def _draw_validation(opened: Run, parts: Parts, n: int, seed: int) -> Pairs:
    """Draw pairs for --prior validation from the real samples that are not in the training pairs."""
    return replace(opened, data=parts.real).pairs(max(100, n // 20), seed + 1)


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


def _choose(
    opened: Run, subset: tuple[str, dict[str, Any]], sizes: tuple[str, int | None, int], parts: Parts
) -> Choices:
    """Choose what is fitted as `flare.fit` does, where the flags leave it open.

    Args:
        opened: the run.
        subset: --subset, and `count` or `fraction`.
        sizes: --structure, --pairs and --seed.
        parts: the data.
    """
    from ..scoring.choices import choose
    from ..scoring.fit import FitSettings

    (kind, amount), (structure, pairs, seed) = subset, sizes
    is_open = kind == "auto" and set(amount.values()) == {None}
    given = None if is_open else _choose_subset(opened, kind, amount, parts, seed)
    settings = FitSettings(subset=given, structure=structure, pairs=pairs, seed=seed)
    chosen = choose(opened.denoiser, math.prod(opened.shape), len(parts.real), settings)
    return chosen if is_open else replace(chosen, subset_kind=kind.replace("auto", "random"))


def _choose_subset(opened: Run, subset: str, amount: dict[str, Any], parts: Parts, seed: int) -> Subset:
    """Choose the uncertain parameters by name, or by patterns of names.

    Args:
        opened: the run.
        subset: the value of --subset.
        amount: `count` or `fraction`.
        parts: the data, for `sensitive`.
        seed: of the choice.
    """
    from ..posteriors import subsets

    denoiser = opened.denoiser
    if amount.get("fraction", 0) is None:
        amount = {"fraction": FRACTION}
    if subset in ("auto", "random"):
        return subsets.random(denoiser, **amount, seed=seed)
    if subset == "sketch":
        return subsets.sketch(denoiser, **amount, seed=seed)
    if subset == "sensitive":
        pairs = replace(opened, data=parts.train).pairs(SENSITIVITY_PAIRS, seed)
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


def _check_model(opened: Run, parts: Parts, seed: int) -> ModelCheck:
    """Check that the model fits the data; warn if it does not."""
    from .. import check_model
    from ..sampling.model_check import STEPS

    schedule = opened.schedule
    table = None
    if schedule.continuous or schedule.variance_preserving:
        table = opened.sampler("euler" if schedule.continuous else "ddim", min(STEPS, schedule.T))
    held_out = parts.real if parts.held_out else None
    found = check_model(opened.denoiser, opened.data, schedule, steps=table, held_out=held_out, seed=seed)
    for problem in found.problems:
        tell("[yellow]warning:[/yellow]", problem)
    return found


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

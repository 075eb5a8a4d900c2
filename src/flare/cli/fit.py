"""`flare fit`: fit a posterior to a run, and score real data to compare samples with."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import fit_flags as flags
from . import options
from .app import command, start, tell
from .bars import bar
from .claims import claim
from .fit_choices import announce_cost, choose_fit, parse_options
from .output import remark, show_facts
from .own_runs import OwnFlags

if TYPE_CHECKING:
    from ..diagnostics.model_check import ModelCheck
    from ..diffusion.noising import Pairs
    from ..network.denoiser import Denoiser
    from ..posteriors import Posterior
    from ..scorer.fit import Parts
    from .runs import Run


@command()
def fit(
    run: options.Run,
    subset: flags.SubsetName = "auto",
    fraction: flags.Amount = None,
    count: Annotated[
        int | None,
        typer.Option(help="Number of parameters, or of sums for sketch, instead of --fraction."),
    ] = None,
    structure: Annotated[str, typer.Option(help="One of {structures}.")] = "dense",
    prior: flags.Prior = "",
    scale: Annotated[str, typer.Option(help="A positive number, or calibrated for N/σ².")] = "",
    rank: Annotated[int, typer.Option(help="Number of eigenpairs, for low_rank.")] = 64,
    truncation: flags.Truncation = None,
    pairs: flags.PairCount = None,
    held_out: flags.HeldOut = None,
    keep_data: flags.KeepData = True,
    file: Annotated[Path | None, typer.Option("--out", help="RUN/posterior.safetensors by default.")] = None,
    save_every: flags.SaveEvery = 30.0,
    model: options.Model = None,
    data: options.Data = None,
    schedule: flags.NewSchedule = None,
    levels: flags.NewLevels = None,
    prediction: flags.NewPrediction = None,
    clip: flags.NewClip = None,
    weighting: flags.NewWeighting = None,
    overwrite: flags.Overwrite = False,
    check: flags.Check = True,
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
    from ..diffusion.parameterizations import check_prediction
    from ..posteriors import STRUCTURES
    from ..scorer.directory import remove_beside
    from ..scorer.fit import MISFIT
    from ..storage.resume import Resume
    from .references import announce_reference, describe_scorer, divide_data, save_scorer

    start(threads)
    if pairs is not None:
        require_positive_int("--pairs", pairs)
    # flags are checked before anything is written
    fit_structure = STRUCTURES.find(structure)
    keywords = parse_options(fit_structure, prior, scale, truncation)
    settings: dict[str, Any] = {"schedule": schedule, "levels": levels}
    settings |= {"prediction": prediction and check_prediction(prediction)}
    settings |= {"clip": clip, "weighting": weighting}
    opened = _open_or_create(run, OwnFlags(model, data, settings, overwrite), device, quiet or json)
    file = _choose_file(opened) if file is None else file
    denoiser = opened.denoiser
    parts, left_out = divide_data(opened, held_out, prior == "validation", seed)
    amount = {"fraction": fraction} if count is None else {"count": count}
    chosen = choose_fit(opened, (subset, amount), (structure, pairs, seed), parts)
    size = chosen.subset.size
    if fit_structure.stores_matrix:
        announce_cost(size, chosen.pairs, opened, quiet or json)
    elif truncation == "covariance":
        announce_cost(size, chosen.pairs, opened, quiet or json, "--truncation curvature")
    if "rank" in fit_structure.options:
        keywords["rank"] = min(rank, size)
    drawn = _describe_pairs(chosen.pairs, seed, left_out)
    if prior == "validation":
        keywords["validation"] = _draw_validation(opened, parts, chosen.pairs, seed)
    checked = _check_model(opened, parts, seed) if check and is_main() else None
    reported: dict[str, Any] = {}
    with claim(file), warnings.catch_warnings():
        if checked is not None and checked.problems:  # said already, with the likely cause
            warnings.filterwarnings("ignore", MISFIT)
        resume = Resume.beside(file, save_every)
        posterior = fit_structure.function(
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


def _describe_pairs(n: int, seed: int, left_out: float) -> dict[str, Any]:
    """How the training pairs are drawn, as arguments of `Run.pairs`; they are saved with the posterior."""
    return {"n": n, "seed": seed, **({"held_out": left_out} if left_out else {})}


def _draw_validation(opened: Run, parts: Parts, n: int, seed: int) -> Pairs:
    """Draw pairs for --prior validation from the real samples that are not in the training pairs."""
    return replace(opened, data=parts.real).pairs(max(100, n // 20), seed + 1)


def _open_or_create(run: str, own: OwnFlags, device: str | None, quiet: bool) -> Run:
    """Open a run; a new run of the user's own network is created first, and its settings are announced."""
    from ..core.distributed import is_main, wait
    from ..scorer.directory import is_scorer
    from .own_runs import prepare_own, refuse_other_settings
    from .runs import open_run

    if is_scorer(Path(run)):
        raise ValueError(f"{run} is a scorer that is fitted already; choose another directory.")
    if own.overwrite and own.model is None:
        raise ValueError("--overwrite replaces the configuration of your own network: name it with --model.")
    created = False
    if own.model is not None:
        with claim(Path(run)):
            created = is_main() and prepare_own(Path(run), own)
        wait()
    opened = open_run(run, own.model, own.data, device)
    refuse_other_settings(opened, own)
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
    from ..scorer.fit import check_parts
    from ..scorer.inputs import OpenModel

    found = check_parts(OpenModel(opened.denoiser, opened.schedule), parts, seed)
    for problem in found.problems:
        tell("[yellow]warning:[/yellow]", problem)
    return found

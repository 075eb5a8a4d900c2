"""`flare fit`: fit a scorer to a network and its data, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.distributed import is_main, wait
from ..scorer import directory
from ..scorer.fit import fit
from ..scorer.scorer import Scorer
from ..storage.resume import Resume
from .app import start
from .bars import bar
from .claims import claim_new
from .models_in import open_network
from .output import show_facts
from .samples_in import read_samples, read_table


def run_fit(
    name: str,
    out: Path,
    *,
    data: Path | None,
    held_out: Path | None,
    schedule: str | None,
    prediction: str | None,
    weighting: str | None,
    no_data: bool,
    overwrite: bool,
    device: str | None,
    threads: int,
    json: bool,
    quiet: bool,
    options: dict[str, Any],
) -> None:
    """Fit and save a scorer; the same command resumes an interrupted fit.

    Args:
        name: MODEL.
        out: The directory to write.
        data: File of training data; None for the data of a shipped model.
        held_out: File of data that the network was not trained on.
        schedule: Value of --schedule.
        prediction: Value of --prediction.
        weighting: Value of --weighting; None for the one of a shipped model, or uniform.
        no_data: Whether the scorer keeps no training samples.
        overwrite: Whether to replace a scorer.
        device: Where to put the network.
        threads: Number of torch threads.
        json: Whether to print JSON.
        quiet: Whether to print no remarks.
        options: Other arguments of `flare.fit`.
    """
    start(threads, device)
    _refuse_existing(out, overwrite)
    model = open_network(name, schedule, prediction, device)
    if data is None and not hasattr(model, "data"):
        raise ValueError(f"{name} comes without data: give its training data with --data FILE.")
    x, columns = (model.data, []) if data is None else read_table(data)  # type: ignore[attr-defined]
    fresh = None if held_out is None else read_samples(held_out, tuple(x.shape[1:]), columns)
    weights: Any = weighting or getattr(model, "weighting", "uniform")
    with claim_new(out):
        resume = Resume.beside(out)
        scorer = fit(
            model, x, held_out=fresh, weighting=weights, resume=resume,
            progress=bar(f"fitting {name}", quiet or json), **options,
        )  # fmt: skip
        if columns:
            scorer.about["columns"] = columns
        if is_main():
            scorer.save(out, data=not no_data)
        show_facts(json, quiet, {"scorer": str(out)} | _describe(scorer, no_data), last=str(out))
        if is_main():
            resume.clear()
        wait()


def _refuse_existing(out: Path, overwrite: bool) -> None:
    """Refuse to replace a scorer without --overwrite, and anything else always."""
    if out.exists() and not directory.is_scorer(out) and (out.is_file() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not a scorer: choose another --out.")
    if directory.is_scorer(out) and not overwrite and not Resume.beside(out).directory.is_dir():
        raise FileExistsError(f"{out} is a scorer: choose another --out, or replace it with --overwrite.")


def _describe(scorer: Scorer, no_data: bool) -> dict[str, Any]:
    """The facts of a scorer that the command prints."""
    posterior, reference = scorer.posterior, scorer.reference
    kind = (
        "held-out samples"
        if reference.held_out
        else "samples set aside from the training data (better: --held-out)"
    )
    return {
        "structure": posterior.structure,
        "parameters": posterior.size,
        "of": scorer.model.denoiser.parameter_count,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
        "residual_variance": posterior.origin.statistics.residual_variance,
        "compared_with": f"{len(reference):,} {kind}",
        "kept_training_samples": 0 if no_data or scorer.data is None else len(scorer.data),
        **({"problems": problems} if (problems := scorer.about["problems"]) else {}),
    }

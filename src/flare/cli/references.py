"""What `flare fit` compares samples with: real data set aside, and the scorer beside the posterior."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import remark

if TYPE_CHECKING:
    from ..diagnostics.model_check import ModelCheck
    from ..posteriors import Posterior
    from ..scorer.choosing import Choices
    from ..scorer.fit import Parts
    from .runs import Run

VALIDATION = 0.1  # fraction of the data that is set aside for --prior validation without --held-out


def divide_data(opened: Run, held_out: Path | None, validation: bool, seed: int) -> tuple[Parts, float]:
    """Divide the data of a run into training data and reference, as `flare.fit` does.

    Args:
        opened: the run.
        held_out: a file of real data for the reference; by default a random part of the data is set aside.
        validation: whether that part is the one of `noising.split`, a tenth, for --prior validation.
        seed: of the choice.

    Returns:
        The parts, and the fraction of the data that the training pairs leave out.
    """
    from ..scorer.choosing import reference_size
    from ..scorer.fit import FitSettings, collect_parts, split_parts
    from ..scorer.inputs import OpenModel
    from .runs import read_samples

    if held_out is not None:
        settings = FitSettings(held_out=read_samples(held_out, opened.shape, opened.columns), seed=seed)
        return collect_parts(OpenModel(opened.denoiser, opened.schedule), opened.data, settings)[0], 0.0
    n = len(opened.data)
    size = max(1, round(VALIDATION * n)) if validation else reference_size(n)
    return split_parts(opened.data, {}, seed, size), size / n


def save_scorer(
    opened: Run, file: Path, posterior: Posterior, parts: Parts, about: dict[str, Any], data: bool
) -> dict[str, Any]:
    """Score the reference and write the scorer beside the posterior; return what the command reports."""
    from ..core import distributed
    from ..core.progress import warn
    from ..scorer.directory import save_beside
    from ..scorer.fit import FitSettings, make_scorer
    from ..scorer.inputs import OpenModel

    if posterior.needs_all_processes and distributed.size() > 1:
        warn(
            f"a {posterior.structure} posterior scores real samples in a single process only: there are no "
            "p-values until `flare fit` has run once more, alone.",
            UserWarning,
        )
        return {}
    model = OpenModel(opened.denoiser, opened.schedule)
    about |= {"columns": list(opened.columns)} if opened.columns else {}
    scorer = make_scorer(model, posterior, parts, FitSettings(seed=about["seed"]), about)
    save_beside(scorer, file, data)
    kind = "held-out samples" if parts.held_out else "samples set aside from the training data"
    return {
        "compared_with": f"{len(scorer.reference):,} {kind}",
        "kept_training_samples": len(scorer.data) if data and scorer.data is not None else 0,
    }


def describe_scorer(chosen: Choices, parts: Parts, checked: ModelCheck | None, seed: int) -> dict[str, Any]:
    """What a scorer tells about its fit, as JSON values."""
    from ..scorer.fit import describe

    return describe(chosen, parts, [], checked) | {"seed": seed}


def announce_reference(parts: Parts, quiet: bool) -> None:
    """Say how many real samples are scored for comparison, and where they come from."""
    if quiet:
        return
    n = len(parts.real)
    if parts.held_out:
        remark("", f"comparing with {n:,} held-out samples.")
    else:
        remark(
            "",
            f"comparing with {n:,} samples set aside from the training data, which the network may have "
            "seen; --held-out FILE with fresh data is better.",
        )

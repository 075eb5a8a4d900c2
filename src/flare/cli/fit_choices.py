"""What `flare fit` fits: its flags as arguments of a structure, the subset, and what a dense fit costs."""

from __future__ import annotations

import difflib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import options
from .output import remark

if TYPE_CHECKING:
    from ..network.coordinates import Subset
    from ..posteriors import Structure
    from ..scorer.choosing import Choices
    from ..scorer.fit import Parts
    from .runs import Run

WORTH_TELLING = 1e12  # operations from which on a fit is announced before it starts
PRIORS = ("marglik", "validation")  # how --prior is tuned
SCALES = ("calibrated",)
SUBSETS = ("auto", "random", "sensitive", "sketch", "last_layer", "everything")
CHEAPER = "--structure low_rank or diagonal"  # than dense
FRACTION = 0.1  # of the parameters, if a subset is named without its size
SENSITIVITY_PAIRS = 1000  # pairs that rank the parameters for --subset sensitive


def parse_options(structure: Structure, prior: str, scale: str, truncation: str | None) -> dict[str, Any]:
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


def choose_fit(
    opened: Run, subset: tuple[str, dict[str, Any]], sizes: tuple[str, int | None, int], parts: Parts
) -> Choices:
    """Choose what is fitted as `flare.fit` does, where the flags leave it open.

    Args:
        opened: the run.
        subset: --subset, and `count` or `fraction`.
        sizes: --structure, --pairs and --seed.
        parts: the data.
    """
    from ..scorer.choosing import choose
    from ..scorer.fit import FitSettings

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
    try:
        return subsets.named(denoiser, subset.split(","))
    except ValueError as error:
        near = difflib.get_close_matches(subset, SUBSETS, n=1)
        hint = f"did you mean {near[0]}? Choose" if near else "choose"
        raise ValueError(
            f"--subset {subset}: {hint} from {', '.join(SUBSETS)}, or give patterns of names: {error}"
        ) from error


def announce_cost(m: int, pairs: int, opened: Run, quiet: bool, instead: str = CHEAPER) -> None:
    """Print the cost of a large dense fit before it starts; refuse a fit that exceeds the free memory."""
    import torch

    from ..core.memory import free_memory

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
    from ..posteriors.curvature import probe_count

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

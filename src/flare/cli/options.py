"""Options that several commands take, and how their values are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from .files import READABLE


def check_device(name: str | None) -> str | None:
    """Return the name of a device if this machine has it."""
    if name is not None:
        from ..core.validation import require_device

        require_device("--device", name)
    return name


def check_keep(fraction: float | None) -> float | None:
    """Return the fraction of samples to keep if it lies in (0, 1]."""
    if fraction is not None and not 0 < fraction <= 1:
        from ..results.filtering import suggest_fraction

        raise ValueError(f"--keep must be a fraction in (0, 1], got {fraction:g}{suggest_fraction(fraction)}")
    return fraction


def check_p_value(p_value: float | None) -> float | None:
    """Return a p-value if it lies in (0, 1)."""
    if p_value is not None and not 0 < p_value < 1:
        raise ValueError(f"--p-value must lie in (0, 1), got {p_value:g}.")
    return p_value


def parse_levels(text: str) -> list[float] | None:
    """Parse comma-separated fractions of T; None for an empty text."""
    try:
        return [float(word) for word in text.split(",")] if text else None
    except ValueError:
        raise ValueError(
            f"--levels must be numbers with commas, such as 0.05,0.1,0.2, got {text!r}."
        ) from None


def parse_counts(option: str, text: str) -> list[int] | None:
    """Parse comma-separated integers of at least 1; None for an empty text."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise ValueError(f"{option} must be positive integers with commas, such as 10,100, got {text!r}.")
    return [int(word) for word in words] or None


def parse_batch_size(text: str) -> int | Literal["auto"]:
    """Parse a positive integer or "auto"."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--batch-size must be a number of at least 1, or auto, got {text!r}.")
    return int(text)


def parse_directions(text: str) -> int | Literal["exact"]:
    """Parse a positive integer or "exact"."""
    if text == "exact":
        return "exact"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--directions must be a number of at least 1, or exact, got {text!r}.")
    return int(text)


def parse_clip(text: str, default: float | None) -> float | None:
    """Parse a positive number or "none"; the default for an empty text."""
    if text == "none":
        return None
    value = parse_number("--clip", text, ())
    return default if value is None else float(value)


def parse_number(option: str, text: str, words: Sequence[str]) -> float | str | None:
    """Parse a positive number or one of `words`; None for an empty text."""
    if text in ("", *words):
        return text or None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        allowed = " or ".join(["a positive number", *(repr(word) for word in words)])
        raise ValueError(f"{option} must be {allowed}, got {text!r}.")
    return value


Run = Annotated[str, typer.Argument(help="A run directory, or a shipped model: {models}.")]
ScoredFile = Annotated[Path, typer.Argument(help="Samples with scores, as `flare sample` writes them.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Your own network: package.module:function that returns it, or a pair (network, schedule). "
        "The module is imported, with the current directory first on the path.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help=f"Training data ({', '.join(READABLE)}); by default the run's."),
]
Device = Annotated[
    str | None,
    typer.Option(callback=check_device, help="cpu, cuda, mps, …; by default where the network is."),
]
Keep = Annotated[float, typer.Option(callback=check_keep, help="Fraction of the samples to keep.")]
Directions = Annotated[
    str, typer.Option(help="Number of posterior draws to propagate, or exact for a square root of Σ.")
]
Clip = Annotated[
    str, typer.Option(help="Clip x̂0 to ±this number, or none; by default what the run was made with.")
]
Levels = Annotated[
    str,
    typer.Option(
        help="Reference levels as fractions of T, separated by commas; by default those of the score."
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(min=1, help="Noise draws per level, for scores that add noise; by default the score's own."),
]
Posterior = Annotated[
    Path | None,
    typer.Option(
        "--posterior", help="The posterior, with its scorer beside it; RUN/posterior.safetensors by default."
    ),
]
Sampler = Annotated[
    str, typer.Option(help="One of {samplers}, with options as in ddim:eta=1 or heun:churn=40.")
]
Steps = Annotated[
    int | None,
    typer.Option(help="Steps per sample, each a network call (two for heun); all levels by default."),
]
ScoreInFile = Annotated[
    str | None, typer.Option(help="Which score; by default the verdict, or the first score in the file.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")]
ResultFile = Annotated[Path, typer.Option("--out", help="A .safetensors, .npz or .csv file to write.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Threads = Annotated[int, typer.Option(min=0, help="Number of torch threads; 0 leaves it to torch.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no bars and no remarks.")]

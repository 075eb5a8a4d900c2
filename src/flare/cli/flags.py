"""Arguments and flags that several commands take, and the names that their help texts list.

Help must not import torch, so the names of the registries are typed here; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

MODELS = ("grid", "sines", "chirp", "damped", "shapes", "digits")
PREDICTIONS = ("epsilon", "sample", "v", "flow", "edm", "edm_sigma")
RULES = ("decoupled", "decoupled_appendix", "endpoint", "monte_carlo", "released", "tangent")
SAMPLERS = ("ddim", "ddpm", "ddpm_mean", "dpmpp_2m", "euler", "heun")
SCHEDULES = ("cosine", "edm", "flow", "linear", "scaled_linear")
SCORES = (
    "activations", "epistemic_distance", "error_profile", "expected_residual", "influence", "neighbors",
    "off_manifold", "residual_variance", "trace",
)  # fmt: skip
STRUCTURES = ("dense", "diagonal", "kronecker", "low_rank", "matrix_free")
TIMES = ("fraction", "index", "log_sigma", "log_snr", "sigma")
WEIGHTINGS = ("uniform", "min_snr")
READABLE = (".npy", ".npz", ".safetensors", ".csv", ".parquet")  # files of samples


def join(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names)


def check_keep(share: float | None) -> float | None:
    """Return the share of samples to keep if it lies in (0, 1]."""
    if share is not None and not 0 < share <= 1:
        hint = f"; did you mean {share / 100:g}?" if 1 < share <= 100 else "."
        raise ValueError(f"--keep must be a fraction in (0, 1], got {share:g}{hint}")
    return share


def check_p_value(p_value: float | None) -> float | None:
    """Return a p-value if it lies in (0, 1)."""
    if p_value is not None and not 0 < p_value < 1:
        raise ValueError(f"--p-value must lie in (0, 1), got {p_value:g}.")
    return p_value


def parse_number(text: str) -> float | str:
    """Parse a number; a word is returned unchanged, for the library to check."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_count(flag: str, text: str, word: str) -> Any:
    """Parse a positive integer, or this word."""
    if text != word and (not text.isdecimal() or int(text) < 1):
        raise ValueError(f"{flag} must be a number of at least 1, or {word}, got {text!r}.")
    return word if text == word else int(text)


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="package.module:function that returns the network, the directory of a diffusers pipeline, or a "
        f"shipped model: {join(MODELS)}. The function may return a torch module, a flare.Denoiser, a pair of "
        "one of these and a schedule, a flare.Model or a pipeline; its module is imported, with the current "
        "directory first on the path.",
    ),
]
ScorerDirectory = Annotated[Path, typer.Argument(metavar="SCORER", help="A directory from `flare fit`.")]
ScoredFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A file written by `flare sample` or `flare score`."),
]
Model = Annotated[str | None, typer.Option("--model", help="The network; by default MODEL of `flare fit`.")]
Conditions = Annotated[
    str | None,
    typer.Option(
        "--cond",
        help="Conditions of the network, such as classes: an .npy file with one row per sample, or a column "
        "of the table; KEYWORD=FILE or KEYWORD=COLUMN if the network takes several.",
    ),
]
Count = Annotated[int, typer.Option("-n", min=1, help="Number of samples.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps, …; by default the network's device.")]
Keep = Annotated[
    float, typer.Option(callback=check_keep, help="Share of the samples to keep, the most plausible ones.")
]
PValue = Annotated[
    float, typer.Option(callback=check_p_value, help="Largest p-value of samples that look doubtful.")
]
BatchSize = Annotated[str, typer.Option(help="Samples per network call; auto for as many as fit in memory.")]
Sampler = Annotated[
    str | None,
    typer.Option(
        help=f"One of {join(SAMPLERS)}, with options as in ddim:eta=1 or heun:churn=40/0.05/50/1.003 "
        "(S_churn, S_tmin, S_tmax, S_noise); by default ddim, euler for a flow, or the pipeline's own."
    ),
]
Steps = Annotated[int, typer.Option(help="Steps per sample, each a network call (two for heun).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing --out.")]
ResultFile = Annotated[Path, typer.Option("--out", help="A .safetensors, .npz or .csv file to write.")]
KeptFile = Annotated[
    Path | None,
    typer.Option("--out", help="A .safetensors, .npz or .csv file, or .npy for the samples without scores."),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Processes = Annotated[
    int,
    typer.Option(min=1, help="Processes of this machine that share the work; on a cluster, use torchrun."),
]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress bars or remarks.")]

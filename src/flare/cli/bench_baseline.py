"""Helpers of `flare bench baseline`: its options, and what a published baseline draws or scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from ..bench import Benchmark, load
from ..bench.baselines import Baseline
from ..core.memory import BatchSize
from ..core.noise_streams import REAL_STREAM, mix_seed
from ..core.progress import Progress
from ..core.validation import one_of
from ..diffusion import noising
from ..diffusion.noising import Pairs
from ..results.result import Result
from .named import parse_value

EXISTING = ("samples", "real data")  # needs of baselines that score existing samples
#: the flags that only some baselines take, and what these baselines need
TAKEN_BY = {
    "--samples": EXISTING,
    "--real": ("real data",),
    "--hypernetwork": ("hypernetwork",),
    "--train-steps": ("hypernetwork",),
}


def check_flags(baseline: Baseline, given: Collection[str], n: int | None) -> None:
    """Refuse flags that the baseline does not take, and a baseline without the samples that it scores."""
    for flag in TAKEN_BY:
        if flag in given and baseline.needs not in TAKEN_BY[flag]:
            raise ValueError(f"{flag} cannot be used with {baseline.name}, which needs {baseline.needs}.")
    if baseline.needs in EXISTING and ("--samples" not in given or n is not None):
        raise ValueError(
            f"{baseline.name} scores existing samples: name their file with --samples, and leave out -n."
        )


def parse_options(baseline: Baseline, texts: Sequence[str]) -> dict[str, Any]:
    """The values of --option key=value, checked against the signature of the baseline.

    >>> baseline = flare.bench.baselines.BASELINES["bayesdiff"]
    >>> parse_options(baseline, ["draws=3", "total=false", "variant=released"])
    {'draws': 3, 'total': False, 'variant': 'released'}
    """
    defaults, found = baseline.options, {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (sign and value):
            raise ValueError(f"--option must be key=value, such as draws=20, got {text!r}.")
        if not defaults:
            raise ValueError(f"--option {key} cannot be used with {baseline.name}, which has no options.")
        parsed = parse_value(value, ",")
        default = defaults[one_of(f"option of {baseline.name}", key, defaults)]
        if isinstance(default, bool) and not isinstance(parsed, bool):
            raise ValueError(f"--option {key} takes true or false, got {value!r}.")
        is_word = isinstance(parsed, bool) or (isinstance(parsed, str) and parsed != "exact")
        if isinstance(default, (int, float, tuple)) and not isinstance(default, bool) and is_word:
            raise ValueError(f"--option {key} takes numbers, such as {key}=1 or {key}=1,2, got {value!r}.")
        found[key] = parsed
    return found


def open_models(baseline: Baseline, runs: Sequence[str], device: str | None) -> list[Benchmark]:
    """Open one model, or several with the same shape and schedule for a baseline that needs several."""
    if (baseline.needs == "models") != (len(runs) > 1):
        wanted = "at least 2 models" if baseline.needs == "models" else "one model"
        raise ValueError(f"{baseline.name} needs {wanted}, got {len(runs)}: {', '.join(runs)}.")
    models = [load(run) for run in runs]
    for other in models[1:]:
        mine, theirs = ((model.shape, model.schedule.spec) for model in (models[0], other))
        if mine != theirs:
            raise ValueError(
                f"the models must have the same shape and schedule, got {models[0].name} with {mine} and "
                f"{other.name} with {theirs}."
            )
    for model in models if device is not None else ():
        model.denoiser = model.denoiser.to(str(device))
    return models


def draw_pairs(model: Benchmark, count: int, seed: int) -> Pairs:
    """Training pairs for the posterior of a baseline."""
    return noising.pairs(model.data, model.schedule, n=count, seed=seed, weighting=model.weighting)


def draw_real(model: Benchmark, count: int, seed: int) -> Tensor:
    """Random rows of the training data, or all of them if there are fewer."""
    generator = torch.Generator().manual_seed(mix_seed(seed, REAL_STREAM))
    rows = torch.randperm(len(model.data), generator=generator)[:count].sort().values
    return model.data[rows].to(model.denoiser.device)


def score_part(
    detector: Any, x: Tensor, first: int, seed: int, batch_size: BatchSize, progress: Progress
) -> Result:
    """Score existing samples, of which the first has this number; the part is one item of the progress."""
    (values,) = progress(detector.score(x, seed=seed, first=first, batch_size=batch_size) for _ in range(1))
    return Result(x, scores={detector.name: values})

"""Does a sample fit its conditions? Its denoising error with them, compared with the error without any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..core import SHARED_LEVELS, SHARED_REPEATS
from ..core.conditions import Cond, take_rows, to_device
from ..core.memory import BatchSize, plan_batches, run_batches
from ..model import Model
from ..sampling.finished import find_levels
from ..scores import error_profile

CONDITION = "condition_fit"  # the name of the score


def check_null(null: Mapping[str, float] | None, cond: Cond) -> dict[str, float]:
    """The values that mean no condition, by name; {} for None."""
    if null is not None and not isinstance(null, Mapping):
        like = f"{{{next(iter(cond), 'class_labels')!r}: {null!r}}}"
        raise TypeError(f"null_cond must be a dict such as {like}, got {type(null).__name__}.")
    for name, value in (null or {}).items():
        if name not in cond:
            known = f"the conditions are {', '.join(sorted(cond))}" if cond else "there are no conditions"
            raise ValueError(f"null_cond names {name!r}, but {known}; give cond= with the same names.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(
                f"null_cond must have one number per name, such as {{{name!r}: 10}}, got "
                f"{type(value).__name__} for {name!r}."
            )
    return dict(null or {})


def compare_conditions(
    model: Model,
    x: Tensor,
    cond: Cond,
    null: Mapping[str, float],
    seed: int,
    batch_size: BatchSize = "auto",
    memory: int | None = None,
) -> Tensor:
    """The ratio of the denoising error with the conditions to that without, (n,), a mean over levels.

    All samples share the noise. A ratio near 1 means that the conditions explain nothing about the sample.
    """
    denoiser, levels = model.denoiser.wide(), find_levels(model.schedule, SHARED_LEVELS)

    @torch.no_grad()
    def run(rows: slice) -> Iterator[Tensor]:
        own = x[rows].to(denoiser.device, denoiser.dtype)
        given = to_device(take_rows(cond, rows), own.device)
        without = given | {name: torch.full_like(given[name], value) for name, value in null.items()}
        with_them, base = (
            error_profile(denoiser, own, each, levels, SHARED_REPEATS, seed) for each in (given, without)
        )
        yield (with_them - base).double().exp().cpu()

    size = plan_batches(
        len(x), batch_size, memory, lambda count: list(run(slice(0, count))), denoiser.device,
        learned=model.learned, work=(CONDITION, tuple(x.shape[1:])),
    )  # fmt: skip
    return torch.cat(list(run_batches(len(x), size, run)))

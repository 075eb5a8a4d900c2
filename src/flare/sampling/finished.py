"""Scores of finished samples, for samples that were just drawn and for existing ones alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.conditions import take_rows, to_device
from ..diffusion.schedules import Level, Schedule
from ..network.denoiser import Denoiser
from ..scores import SCORES, Renoising

Levels = float | Sequence[float]


@dataclass(frozen=True)
class FinishedScores:
    """Scores of finished samples by name.

    Attributes:
        renoisings: How each score noises the samples.
        cond: The conditions of all samples.
        null: Null conditions of all samples, if they were given.
    """

    renoisings: Mapping[str, Renoising]
    cond: Mapping[str, Any] = field(default_factory=dict)
    null: Mapping[str, Any] | None = None

    def __call__(self, x: Tensor, rows: slice) -> dict[str, Tensor]:
        """Compute all scores, (B,) each.

        Args:
            x: The samples, (B, *shape).
            rows: Their places among all samples.
        """
        found = {}
        for name, at in self.renoisings.items():
            own = x.to(at.denoiser.device, at.denoiser.dtype)
            cond = to_device(take_rows(self.cond, rows), own.device)
            null = None if self.null is None else to_device(take_rows(self.null, rows), own.device)
            compute = SCORES[name].of_samples
            assert compute is not None
            found[name] = compute(own, cond, null, at)
        return found


def make_renoisings(
    names: Sequence[str],
    denoiser: Denoiser,
    schedule: Schedule,
    seed: int,
    *,
    levels: Levels | None = None,
    repeats: int | None = None,
) -> dict[str, Renoising]:
    """How the scores of finished samples among `names` noise the samples."""
    own = [SCORES[name] for name in names if SCORES[name].of_samples is not None]
    wide = denoiser.wide() if own else denoiser
    return {
        score.name: Renoising(
            wide,
            find_levels(schedule, score.levels if levels is None else levels),
            score.repeats if repeats is None else repeats,
            seed,
        )
        for score in own
    }


def find_levels(schedule: Schedule, fractions: Levels) -> list[Level]:
    """Find the levels at some fractions of T, or at a single one."""
    given = [fractions] if isinstance(fractions, (int, float)) else list(fractions)
    if not given or not all(isinstance(fraction, (int, float)) for fraction in given):
        raise ValueError(f"give at least one level as a number, such as 0.1, got {fractions!r}.")
    return [schedule.at_fraction(fraction) for fraction in given]

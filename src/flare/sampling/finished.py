"""Scores of finished samples, for samples that were just drawn and for existing ones alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..core import distributed
from ..core.conditions import Cond, check_conditions, take_rows, to_device
from ..core.validation import require_positive_int
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser
from ..posteriors import Posterior
from ..scores import SCORES, Finished, Renoising
from .options import Levels, find_levels


class RenoisingOptions(Protocol):
    """The options of `flare.sample` and `flare.score` that scores of finished samples take."""

    @property
    def levels(self) -> Levels | None:
        """Fractions of T; None for those of the score."""

    @property
    def repeats(self) -> int | None:
        """Noise draws per level; None for those of the score."""

    @property
    def cond(self) -> Cond | None:
        """The conditions of all samples."""

    @property
    def unconditional(self) -> Cond | None:
        """The conditions that stand for none."""

    @property
    def seed(self) -> int:
        """Of the noise."""


@dataclass(frozen=True)
class FinishedScores:
    """Scores of finished samples by name.

    Attributes:
        renoisings: how each score noises the samples.
        cond: the conditions of all samples.
        unconditional: the conditions that stand for none, if they were given.
    """

    renoisings: Mapping[str, Renoising]
    cond: dict[str, Any]
    unconditional: dict[str, Any] | None

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        denoiser: Denoiser,
        posterior: Posterior | None,
        schedule: Schedule,
        n: int,
        options: RenoisingOptions,
    ) -> FinishedScores:
        """Validate the options and prepare the network, for those of the names that are scores of samples."""
        own = [SCORES[name] for name in names if SCORES[name].of_samples is not None]
        if posterior is not None and any(score.needs_posterior for score in own):
            _require_own_products(posterior)
        if options.unconditional is not None and not any(score.compares_conditions for score in own):
            able = next(name for name, score in SCORES.items() if score.compares_conditions)
            asked = ", ".join(names) or "no score"
            raise ValueError(f"unconditional= is for score={able!r}, got {asked}; leave it out.")
        wide = denoiser.wide() if own else denoiser
        renoisings = {}
        for score in own:
            levels = score.levels if options.levels is None else options.levels
            repeats = score.repeats if options.repeats is None else options.repeats
            renoisings[score.name] = Renoising(
                wide,
                find_levels(schedule, levels),
                require_positive_int("repeats", repeats),
                options.seed,
                None if posterior is None else posterior.subset,
                None if posterior is None else posterior.quadratic,
            )
        without = None if options.unconditional is None else check_conditions(options.unconditional, n)
        return cls(renoisings, check_conditions(options.cond, n), without)

    def __call__(self, x: Tensor, rows: slice) -> dict[str, Tensor]:
        """Compute all scores, (B,) each.

        Args:
            x: the samples, (B, *shape).
            rows: which of all samples they are.
        """
        found = {}
        for name, at in self.renoisings.items():
            own = x.to(at.denoiser.device, at.denoiser.dtype)
            cond, without = (
                None if given is None else to_device(take_rows(given, rows), own.device)
                for given in (self.cond, self.unconditional)
            )
            compute = SCORES[name].of_samples
            assert compute is not None
            found[name] = compute(Finished(own, cond or {}, without), at)
        return found


def _require_own_products(posterior: Posterior) -> None:
    """Refuse a posterior whose Σ·v is computed by all processes together: each has samples of its own."""
    if posterior.needs_all_processes and distributed.size() > 1:
        raise ValueError(
            f"influence with a {posterior.structure} posterior needs a single process, got "
            f"{distributed.size()}. Run one process, or fit a dense, diagonal or low_rank posterior."
        )

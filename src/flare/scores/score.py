"""Shared by all scores: the registry, and denoising of a finished sample at a reference noise level.

A score is one number per sample. A larger score means that the sample deserves less trust.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..autodiff.jvp import Push
from ..core import LEVELS, REPEATS
from ..core.registry import Registry
from ..diffusion.parameterizations import coefficients
from ..diffusion.schedules import Level
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, times
from ..results.result import Spread
from .encoder import Reader


@dataclass(frozen=True)
class Viewpoint:
    """The view of scores on finished samples: the network, its uncertain parameters, low noise levels."""

    denoiser: Denoiser
    subset: Subset
    levels: Sequence[Level]


class Look:
    """Finished samples, denoised at one noise level: x̂0 = p·x + q·f(x, t) at x = α·x_0, and its changes.

    A value that several scores need is computed once.

    Args:
        spread: The samples with their deviations.
        denoiser: The network.
        level: The noise level.
        push_both: Pushes changes of the parameters and of the samples through the network.
        push_state: Pushes changes of only the samples.
    """

    def __init__(
        self, spread: Spread, denoiser: Denoiser, level: Level, push_both: Push, push_state: Push
    ) -> None:
        if spread.deviations is None:
            raise ValueError("this score needs the deviations of a rule that keeps its directions.")
        self.x, self.dx = spread.x, spread.deviations
        self._spread, self._denoiser, self._level = spread, denoiser, level
        self._push_both, self._push_state = push_both, push_state

    @cached_property
    def jointly(self) -> tuple[Tensor, Tensor]:
        """x̂0 (B, *shape) and δx̂0 (K, B, *shape) as x_0 and θ move together."""
        return self._denoise(self._push_both)

    @cached_property
    def by_state(self) -> Tensor:
        """δx̂0 (K, B, *shape) as only x_0 moves."""
        return self._denoise(self._push_state)[1]

    def _denoise(self, push: Push) -> tuple[Tensor, Tensor]:
        level = self._level
        inner, changed = level.alpha * self.x, level.alpha * self.dx
        f, df = push(inner, changed, times(level.time, self.x), self._spread.cond)
        p, q = coefficients(self._denoiser.prediction, level.alpha, level.sigma)
        return p * inner + q * f, p * changed + q * df


@dataclass(frozen=True)
class Score:
    """A score and its facts; `of_spread`, `of_look` or `reader` computes it, if it is not `error_profile`.

    A score with a reader is the mean distance to the nearest training samples, between the features that the
    reader takes from calls of the network. So is `neighbors`, which needs no network.

    Attributes:
        name: The name that users type.
        summary: One line for help texts and tables.
        of_spread: Computes it only from the spread of a trajectory, (B,).
        of_look: Computes its term of one reference level, (B,), from the deviations along directions.
        reader: Reads features of finished samples from calls of the network.
        of_existing: Whether it applies to samples without a trajectory.
        needs_posterior: Whether it needs a posterior.
        needs_data: Whether it needs training data.
        compares_conditions: Whether it can compare a sample's conditions with null conditions.
        levels: The levels of finished samples that it looks at by default, as fractions of T.
        repeats: Noise draws per level by default.
    """

    name: str
    summary: str
    of_spread: Callable[[Spread], Tensor] | None = None
    of_look: Callable[[Look], Tensor] | None = None
    reader: type[Reader] | None = None
    of_existing: bool = False
    needs_posterior: bool = True
    needs_data: bool = False
    compares_conditions: bool = False
    levels: Sequence[float] = LEVELS
    repeats: int = REPEATS

    @property
    def needs_directions(self) -> bool:
        """Whether it needs directions of the posterior."""
        return self.of_spread is not None or self.of_look is not None

    @property
    def needs_deviations(self) -> bool:
        """Whether the rule must keep the deviations of the samples along each direction."""
        return self.of_look is not None


#: every score by name
SCORES: Registry[Score] = Registry("score")


def evaluate(names: Sequence[str], spread: Spread, at: Viewpoint) -> dict[str, Tensor]:
    """Compute scores of trajectories by name, (B,) each; the directions are pushed once for all of them."""
    found = [SCORES[name] for name in names]
    sums: dict[str, Tensor] = {}
    if any(score.of_look for score in found):
        both = Push(at.denoiser, at.subset, spread.directions)
        state = Push(at.denoiser)
        for level in at.levels:
            look = Look(spread, at.denoiser, level, both, state)
            for score in found:
                if score.of_look is not None:
                    value = score.of_look(look) / len(at.levels)
                    sums[score.name] = sums[score.name] + value if score.name in sums else value
    return {
        score.name: sums[score.name] if score.of_spread is None else score.of_spread(spread)
        for score in found
    }


def check_names(score: str | Sequence[str]) -> list[str]:
    """Return the scores that were asked for as a list, if all of them exist."""
    asked = [score] if isinstance(score, str) else list(score)
    if not asked:
        raise ValueError(f"give at least one score: {', '.join(SCORES)}.")
    return [SCORES.find(name).name for name in dict.fromkeys(asked)]


def sum_squares(changes: Tensor) -> Tensor:
    """Σ_k ‖·‖², (K, B, *shape) -> (B,)."""
    return changes.square().sum(0).flatten(1).sum(1)

"""`flare.score`: scores of samples that exist already, real data included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..autodiff.jvp import prepare
from ..core.conditions import Cond, check_conditions, take_rows, to_device
from ..core.defaults import DIRECTIONS
from ..core.memory import check_batch_size, choose_batch_size, memory_budget, run_batches
from ..core.noise_streams import EXISTING_STREAM, NoiseStreams, mix_seed
from ..core.nonfinite import LostSamples, find_nonfinite
from ..core.validation import one_of, require_instance, require_positive_int, require_samples
from ..core.warn import warn
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser, require_denoiser, times
from ..network.forward_mode import Derivative
from ..network.probing import call
from ..posteriors import Posterior
from ..propagation import RULES, Endpoint
from ..results.spread import Spread
from ..scores import SCORES, Score, Viewpoint, evaluate
from .finished import FinishedScores
from .options import BatchSize, Directions, Levels, complete, draw_directions, find_levels, show_options


class ScoreOptions(TypedDict, total=False):
    """The keyword arguments of `flare.score`, which explains them."""

    score: str | None
    levels: Levels | None
    repeats: int | None
    directions: Directions
    derivative: str | Derivative
    cond: Cond | None
    unconditional: Cond | None
    seed: int
    first: int
    batch_size: BatchSize
    memory: int | None


@dataclass(frozen=True)
class ScoreSettings:
    """The options of one call of `flare.score`, with defaults for those that were not given."""

    score: str | None = None
    levels: Levels | None = None
    repeats: int | None = None
    directions: Directions = DIRECTIONS
    derivative: str | Derivative = Derivative.AUTO
    cond: Cond | None = None
    unconditional: Cond | None = None
    seed: int = 0
    first: int = 0
    batch_size: BatchSize = "auto"
    memory: int | None = None


@show_options(ScoreSettings)
@torch.no_grad()
def score(
    denoiser: Denoiser,
    posterior: Posterior | None,
    schedule: Schedule,
    existing: Tensor,
    **options: Unpack[ScoreOptions],
) -> Tensor:
    """Score samples that exist already, real data included: (n,).

    `trace` is the trace of the endpoint rule: how certain x̂0 is if the sample is re-noised a little.
    `expected_residual` is the same as in `sample`, with x_0 held fixed since there is no trajectory.
    `influence` and `error_profile` are the same as in `sample`. A score that is not finite becomes NaN, with
    a warning that names the sample.

    >>> flare.score(denoiser, posterior, schedule, data[:20], score="influence").shape
    torch.Size([20])
    >>> flare.score(denoiser, None, schedule, data[:20], score="error_profile").shape
    torch.Size([20])

    Args:
        denoiser: the network.
        posterior: over its parameters; None for `error_profile`, which needs none.
        schedule: the noise levels that it was trained on.
        existing: the samples, (n, *shape).
        **options: as follows.

            score: `trace`, `expected_residual`, `influence` or `error_profile`; by default that of `sample`
                with the tangent rule, and `error_profile` without a posterior.
            levels: where to look, as fractions of T; by default those of the score.
            repeats: noise draws per level: 1 by default for `trace`, 2 for `influence` and `error_profile`,
                whose noise is shared by all samples; `expected_residual` adds no noise.
            directions: how many draws from the posterior, 16 by default; "exact" for a square root of Σ.
                `influence` and `error_profile` need none.
            derivative: "exact", "compiled", "secant" or "auto"; see `sample`.
            cond: keyword arguments of the network; tensors have one row per sample.
            unconditional: the same arguments without the condition, such as the label of no class.
                `error_profile` then subtracts the profile under these.
            seed: of the noise and the directions.
            first: the index of the first sample, to score a part of many by itself.
            batch_size: how many samples go through the network at once, or "auto"; see `sample`.
            memory: bytes that "auto" may use; half of the free memory by default.
    """
    settings = complete(ScoreSettings, "score", options)
    existing = _check_arguments(denoiser, posterior, schedule, existing)
    scoring = _prepare(denoiser, posterior, schedule, existing, settings)
    device = scoring.denoiser.device
    n, size = len(existing), check_batch_size(settings.batch_size)
    if size is None:
        memory = memory_budget(settings.memory, device)
        size = choose_batch_size(n, memory, scoring.try_batch, device)
    scores = torch.cat(list(run_batches(n, size, scoring.run)))
    lost = LostSamples(n)
    lost.add(find_nonfinite([scores], 1), settings.first, f"the {scoring.score.name} of existing samples")
    if lost.about:
        scores = scores.where(scores.isfinite(), torch.nan)
        warn(lost.warning)
    return scores


def default_score(posterior: Posterior | None) -> str:
    """The score that is used if none is asked for: that of `sample` with the tangent rule.

    Without a posterior it is the first score that needs none.
    """
    if posterior is None:
        return next(name for name, score in SCORES.items() if not score.needs_posterior)
    return RULES["tangent"].default_score(posterior.is_calibrated)


def _prepare(
    denoiser: Denoiser,
    posterior: Posterior | None,
    schedule: Schedule,
    existing: Tensor,
    settings: ScoreSettings,
) -> _Scoring:
    """Validate the options, and prepare the network."""
    if posterior is not None:
        posterior.check(denoiser, schedule)
    cond = check_conditions(settings.cond, len(existing))
    name = settings.score or default_score(posterior)
    score = SCORES[one_of("score", name, [s.name for s in SCORES.values() if s.of_existing])]
    finished = FinishedScores.of([name], denoiser, posterior, schedule, len(existing), settings)
    if posterior is None and score.needs_posterior:
        able = default_score(None)
        raise ValueError(f"score={name!r} needs a posterior, got None; fit one, or use score={able!r}.")
    levels = find_levels(schedule, score.levels if settings.levels is None else settings.levels)
    if posterior is None or score.of_samples is not None:
        wide = denoiser.wide()
        x = existing[:1].to(wide.device, wide.dtype)
        own = to_device(take_rows(cond, slice(0, 1)), x.device)
        call(denoiser, x, times(levels[0].time, x), own)  # explains what the network cannot take
        return _OfSamples(wide, existing, score, finished)
    precise = prepare(
        denoiser, posterior.subset, settings.derivative, existing, levels[0].time, cond,
        all_of_sigma=isinstance(settings.directions, str),
        instead="flare.sample with rule='monte_carlo', which needs no derivative",
    )  # fmt: skip
    D = draw_directions(posterior, settings.directions, settings.seed)
    viewpoint = Viewpoint(precise, posterior.subset, levels)
    repeats = require_positive_int("repeats", score.repeats if settings.repeats is None else settings.repeats)
    # a stream of its own: that of the seed made the very samples that may be scored here
    seed = mix_seed(settings.seed, EXISTING_STREAM)
    D = D.to(precise.device, precise.dtype)
    return _OfSpread(precise, existing, score, cond, viewpoint, D, repeats, seed, settings.first)


@dataclass(frozen=True)
class _Scoring(ABC):
    """How existing samples are scored, batch by batch.

    Attributes:
        denoiser: the network, in the precision that the score needs.
        existing: the samples, (n, *shape).
        score: what is computed.
    """

    denoiser: Denoiser
    existing: Tensor
    score: Score

    def run(self, here: slice) -> Iterator[Tensor]:
        """Score the samples of a slice, (B,)."""
        x = self.existing[here].to(self.denoiser.device, self.denoiser.dtype)
        # not in half precision, where large scores overflow
        yield self.compute(x, here).to(torch.promote_types(self.existing.dtype, torch.float32))

    def try_batch(self, count: int) -> None:
        """Memory probe: score a few samples."""
        list(self.run(slice(0, count)))

    @abstractmethod
    def compute(self, x: Tensor, here: slice) -> Tensor:
        """Compute the score of the samples x (B, *shape) of a slice."""


@dataclass(frozen=True)
class _OfSamples(_Scoring):
    """By a score of finished samples."""

    finished: FinishedScores

    def compute(self, x: Tensor, here: slice) -> Tensor:
        """Noise the samples again."""
        return self.finished(x, here)[self.score.name]


@dataclass(frozen=True)
class _OfSpread(_Scoring):
    """By a score of a trajectory, at a sample that has none.

    Attributes:
        cond: the conditions of all samples.
        viewpoint: where the score looks at the samples.
        directions: D (m, k).
        repeats: noise draws per level.
        seed: of the noise.
        first: the index of the first sample.
    """

    cond: dict[str, Any]
    viewpoint: Viewpoint
    directions: Tensor
    repeats: int
    seed: int
    first: int

    def compute(self, x: Tensor, here: slice) -> Tensor:
        """Push the directions through the network."""
        cond = to_device(take_rows(self.cond, here), x.device)
        spread = self._still(x, cond) if self.score.needs_deviations else self._renoised(x, cond, here.start)
        return evaluate([self.score.name], spread, self.viewpoint)[self.score.name]

    def _still(self, x: Tensor, cond: Cond) -> Spread:
        """The spread of samples that are held fixed while the parameters move."""
        still = x.new_zeros(self.directions.shape[1], *x.shape)
        return Spread(x, torch.zeros_like(x), still, self.directions, cond)

    def _renoised(self, x: Tensor, cond: Cond, start: int) -> Spread:
        """The spread by the endpoint rule."""
        noise = NoiseStreams(self.seed, self.first + start, len(x), x.shape[1:], self._endpoint.extra_noise)
        return self._endpoint.finish(cond, x, noise)

    @cached_property
    def _endpoint(self) -> Endpoint:
        at = self.viewpoint
        return Endpoint(at.denoiser, at.subset, self.directions, at.levels, self.repeats)


def _check_arguments(
    denoiser: Denoiser, posterior: Posterior | None, schedule: Schedule, existing: Tensor
) -> Tensor:
    """Refuse arguments of the wrong kind; return the samples as a tensor."""
    require_denoiser(denoiser)
    if posterior is not None:
        require_instance(
            "posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense"
        )
    require_instance(
        "schedule", schedule, Schedule, "give the noise levels, such as flare.schedules.cosine(600)"
    )
    return require_samples("existing", existing)

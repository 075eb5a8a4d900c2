"""`flare.score`: scores of samples that exist already, real data included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..autodiff.jvp import prepare
from ..core.batch_size import check_batch_size, choose_batch_size, memory_budget, run_batches
from ..core.conditions import Cond, check_conditions, take_rows, to_device
from ..core.defaults import DIRECTIONS, ENDPOINT_LEVELS, LEVELS, REPEATS
from ..core.noise_streams import EXISTING_STREAM, NoiseStreams, mix_seed
from ..core.nonfinite import LostSamples, find_nonfinite
from ..core.validation import one_of, require_instance, require_positive_int, require_samples
from ..core.warn import warn
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser, require_denoiser
from ..network.derivative import Derivative
from ..posteriors import Posterior
from ..propagation import RULES, Endpoint
from ..results.spread import Spread
from ..scores import SCORES, Reference, Score, evaluate
from .options import BatchSize, Directions, Levels, complete, draw_directions, find_levels, show_options


class ScoreOptions(TypedDict, total=False):
    """The keyword arguments of `flare.score`, which explains them."""

    score: str | None
    levels: Levels | None
    repeats: int
    directions: Directions
    derivative: str | Derivative
    cond: Cond | None
    seed: int
    first: int
    batch_size: BatchSize
    memory: int | None


@dataclass(frozen=True)
class ScoreSettings:
    """The options of one call of `flare.score`, with defaults for those that were not given."""

    score: str | None = None
    levels: Levels | None = None
    repeats: int = REPEATS
    directions: Directions = DIRECTIONS
    derivative: str | Derivative = Derivative.AUTO
    cond: Cond | None = None
    seed: int = 0
    first: int = 0
    batch_size: BatchSize = "auto"
    memory: int | None = None


@show_options(ScoreSettings)
@torch.no_grad()
def score(
    denoiser: Denoiser,
    posterior: Posterior,
    schedule: Schedule,
    existing: Tensor,
    **options: Unpack[ScoreOptions],
) -> Tensor:
    """Score samples that exist already, real data included: (n,).

    `trace` is the trace of the endpoint rule: how certain x̂0 is if the sample is re-noised a little.
    `expected_residual` is the same as in `sample`, with x_0 held fixed since there is no trajectory. A score
    that is not finite becomes NaN, with a warning that names the sample.

    Args:
        denoiser: the network.
        posterior: over its parameters.
        schedule: the noise levels that it was trained on.
        existing: the samples, (n, *shape).
        **options: as follows.

            score: `trace` or `expected_residual`; by default that of `sample` with the tangent rule.
            levels: where to look, as fractions of T; by default those of the score.
            repeats: noise draws per level, for `trace`.
            directions: how many draws from the posterior, 16 by default; "exact" for a square root of Σ.
            derivative: "exact", "compiled", "secant" or "auto"; see `sample`.
            cond: keyword arguments of the network; tensors have one row per sample.
            seed: of the noise and the directions.
            first: the index of the first sample, to score a part of many by itself.
            batch_size: how many samples go through the network at once, or "auto"; see `sample`.
            memory: bytes that "auto" may use; half of the free memory by default.
    """
    settings = complete(ScoreSettings, "score", options)
    existing = _check_arguments(denoiser, posterior, schedule, existing)
    scoring = _Scoring.of(denoiser, posterior, schedule, existing, settings)
    device = scoring.reference.denoiser.device
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


def default_score(posterior: Posterior) -> str:
    """The score that is used if none is asked for: that of `sample` with the tangent rule."""
    return RULES["tangent"].default_score(posterior.is_calibrated)


@dataclass(frozen=True)
class _Scoring:
    """How existing samples are scored, batch by batch.

    Attributes:
        existing: the samples, (n, *shape).
        cond: the conditions of all samples.
        score: what is computed.
        reference: where it looks at the samples, with the network prepared for derivatives.
        directions: D (m, k).
        settings: the options of the call.
    """

    existing: Tensor
    cond: dict[str, Any]
    score: Score
    reference: Reference
    directions: Tensor
    settings: ScoreSettings

    @classmethod
    def of(
        cls,
        denoiser: Denoiser,
        posterior: Posterior,
        schedule: Schedule,
        existing: Tensor,
        settings: ScoreSettings,
    ) -> _Scoring:
        """Validate the options, and prepare the network."""
        posterior.check(denoiser, schedule)
        cond = check_conditions(settings.cond, len(existing))
        name = settings.score or default_score(posterior)
        score = SCORES[one_of("score", name, [s.name for s in SCORES.values() if s.of_existing])]
        default = LEVELS if score.needs_deviations else ENDPOINT_LEVELS
        levels = find_levels(schedule, default if settings.levels is None else settings.levels)
        require_positive_int("repeats", settings.repeats)
        precise = prepare(
            denoiser, posterior.subset, settings.derivative, existing, levels[0].time, cond,
            all_of_sigma=isinstance(settings.directions, str),
            instead="flare.sample with rule='monte_carlo', which needs no derivative",
        )  # fmt: skip
        D = draw_directions(posterior, settings.directions, settings.seed)
        reference = Reference(precise, posterior.subset, levels)
        return cls(existing, cond, score, reference, D.to(precise.device, precise.dtype), settings)

    def run(self, here: slice) -> Iterator[Tensor]:
        """Score the samples of a slice, (B,)."""
        network = self.reference.denoiser
        x = self.existing[here].to(network.device, network.dtype)
        cond = to_device(take_rows(self.cond, here), x.device)
        spread = self._still(x, cond) if self.score.needs_deviations else self._renoised(x, cond, here.start)
        yield evaluate([self.score.name], spread, self.reference)[self.score.name].to(self.existing.dtype)

    def try_batch(self, count: int) -> None:
        """Memory probe: score a few samples."""
        list(self.run(slice(0, count)))

    def _still(self, x: Tensor, cond: Cond) -> Spread:
        """The spread of samples that are held fixed while the parameters move."""
        still = x.new_zeros(self.directions.shape[1], *x.shape)
        return Spread(x, torch.zeros_like(x), still, self.directions, cond)

    def _renoised(self, x: Tensor, cond: Cond, start: int) -> Spread:
        """The spread by the endpoint rule."""
        # a stream of its own: that of the seed made the very samples that may be scored here
        seed, first = mix_seed(self.settings.seed, EXISTING_STREAM), self.settings.first + start
        noise = NoiseStreams(seed, first, len(x), x.shape[1:], self._endpoint.extra_noise)
        return self._endpoint.finish(cond, x, noise)

    @cached_property
    def _endpoint(self) -> Endpoint:
        at = self.reference
        return Endpoint(at.denoiser, at.subset, self.directions, at.levels, self.settings.repeats)


def _check_arguments(
    denoiser: Denoiser, posterior: Posterior, schedule: Schedule, existing: Tensor
) -> Tensor:
    """Refuse arguments of the wrong kind; return the samples as a tensor."""
    require_denoiser(denoiser)
    require_instance("posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense")
    require_instance(
        "schedule", schedule, Schedule, "give the noise levels, such as flare.schedules.cosine(600)"
    )
    return require_samples("existing", existing)

"""`flare.score`: scores of existing samples, including real data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..autodiff.jvp import prepare
from ..core import DIRECTIONS, SHARED_LEVELS
from ..core.conditions import Cond, check_conditions, take_rows, to_device
from ..core.memory import BatchSize, plan_batches, run_batches
from ..core.noise_streams import EXISTING_STREAM, NoiseStreams, mix_seed
from ..core.nonfinite import LostSamples, find_nonfinite
from ..core.precision import no_autocast
from ..core.progress import warn
from ..core.validation import one_of, require_instance, require_positive_int, require_samples
from ..diffusion.schedules import Level, Schedule
from ..model import Model
from ..network.denoiser import Denoiser, require_denoiser
from ..network.forward_mode import Derivative
from ..posteriors import Posterior
from ..propagation import RULES, Endpoint
from ..results.result import Spread
from ..scores import SCORES, Activations, Viewpoint, error_profile, evaluate
from ..scores.encoder import SIGNS, Encoder
from ..scores.neighbors import NEIGHBORS, TrainingData
from .finished import Levels, find_levels, make_encoder, trace_layers
from .plan import Directions, draw_directions

Compute = Callable[[Tensor, slice], Tensor]


@torch.no_grad()
@no_autocast()
def score(
    denoiser: Denoiser,
    posterior: Posterior | None,
    schedule: Schedule,
    existing: Tensor,
    *,
    score: str | None = None,
    levels: Levels | None = None,
    repeats: int | None = None,
    directions: Directions = DIRECTIONS,
    derivative: str | Derivative = Derivative.AUTO,
    cond: Cond | None = None,
    unconditional: Cond | None = None,
    data: Tensor | None = None,
    data_cond: Cond | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
    first: int = 0,
    batch_size: BatchSize = "auto",
    memory: int | None = None,
) -> Tensor:
    """Score existing samples, including real data: (n,).

    `trace` is the trace of the endpoint rule: how much x̂0 varies after a little noise is added to the sample.
    `expected_residual` is the same as in `sample`, with fixed x_0 because there is no trajectory.
    `error_profile` is the mean logarithm of the denoising error over many levels. `neighbors`, `activations`,
    `epistemic_distance` and `influence` are distances to the nearest training samples. A non-finite score
    becomes NaN, and a warning names the sample.

    >>> flare.score(denoiser, posterior, schedule, data[:20], score="influence", data=data[20:]).shape
    torch.Size([20])
    >>> flare.score(denoiser, None, schedule, data[:20], score="error_profile").shape
    torch.Size([20])

    Args:
        denoiser: The network.
        posterior: A posterior over its parameters; None for `error_profile`, `neighbors` and `activations`.
        schedule: The noise levels that it was trained on.
        existing: The samples, (n, *shape).
        score: `trace`, `expected_residual`, `error_profile`, `neighbors`, `activations`, `epistemic_distance`
            or `influence`; by default the same as in `sample` with the tangent rule, or `error_profile`
            without a posterior.
        levels: Noise levels, as fractions of T; the default depends on the score.
        repeats: Noise draws per level; by default 1 for `trace`, and 2 for `error_profile` and distances.
            Distances use the same noise for all samples, and need an even number because ε and −ε form a
            pair. `expected_residual` and `neighbors` add no noise.
        directions: The number of draws from the posterior, or "exact" for a square root of Σ, for `trace` and
            `expected_residual`.
        derivative: "exact", "compiled", "secant" or "auto"; see `sample`.
        cond: Keyword arguments of the network; tensors have one row per sample.
        unconditional: The same arguments with null conditioning, such as the label for no class.
            `error_profile` then subtracts the profile under null conditioning.
        data: Training data (N, *shape), for distances.
        data_cond: Its conditions, with one row per sample.
        layers: For `activations`, the names of the layers; see `flare.fit`.
        seed: Random seed for the noise and the directions.
        first: The index of the first sample, to score a part of many samples.
        batch_size: The number of samples that go through the network at once, or "auto"; see `sample`.
        memory: Bytes that "auto" may use; half of the free memory by default.
    """
    _check_arguments(denoiser, posterior, schedule)
    existing, n = require_samples("existing", existing), len(existing)
    own = check_conditions(cond, n)
    null = None if unconditional is None else check_conditions(unconditional, n)
    name = _choose_score(score, posterior, data, unconditional)
    if repeats is not None:
        require_positive_int("repeats", repeats)
    if posterior is not None:
        posterior.check(denoiser, schedule)
    model = Model(denoiser, schedule)
    model.try_on(existing, own)
    if data is not None:
        data = require_samples("data", data).cpu()
        if name == NEIGHBORS:
            scores = TrainingData.of(data, torch.arange(len(data))).find(existing).score
        else:
            given = check_conditions(data_cond, len(data))
            where = SHARED_LEVELS if levels is None else levels
            looks = SCORES[name].reader is Activations
            watched = trace_layers(model, data, given, layers, where)[0] if looks else {}
            encoder = make_encoder(
                model, posterior, watched, seed, _count_pairs(name, repeats), where, [name]
            )
            scores = _compare(name, encoder, (data, given), (existing, own), (batch_size, memory))
        dtype = torch.promote_types(existing.dtype, torch.float32)
        return _mark_lost(name, scores.to(existing.device, dtype), first)
    if SCORES[name].needs_directions:
        assert posterior is not None
        wide = prepare(
            denoiser, posterior.subset, derivative, existing, schedule.at(schedule.T).time, own,
            directions.shape[1] if isinstance(directions, Tensor) else directions,
            instead="flare.sample with rule='monte_carlo', which needs no derivative",
        )  # fmt: skip
        compute = _endpoint_score(
            name, wide, posterior, find_levels(schedule, SCORES[name].levels if levels is None else levels),
            draw_directions(posterior, directions, seed), repeats or SCORES[name].repeats, own,
            mix_seed(seed, EXISTING_STREAM), first,
        )  # fmt: skip
    else:
        wide = denoiser.wide()
        looked_at = find_levels(schedule, SCORES[name].levels if levels is None else levels)

        def compute(x: Tensor, rows: slice) -> Tensor:
            profile, base = (
                None if each is None
                else error_profile(
                    wide, x, to_device(take_rows(each, rows), x.device), looked_at,
                    repeats or SCORES[name].repeats, seed,
                )
                for each in (own, null)
            )  # fmt: skip
            assert profile is not None
            return profile if base is None else profile - base

    return _score_in_batches(name, compute, wide, existing, batch_size, memory, first)


def _score_in_batches(
    name: str,
    compute: Compute,
    denoiser: Denoiser,
    existing: Tensor,
    batch_size: BatchSize,
    memory: int | None,
    first: int,
) -> Tensor:
    """Compute a score batch by batch, (n,); warn of samples whose score is not finite, which become NaN.

    Args:
        name: The name of the score.
        compute: Computes it for samples (B, *shape) and their places among all samples.
        denoiser: The network, whose device and dtype the samples are brought to.
        existing: The samples, (n, *shape).
        batch_size: The batch size, or "auto" to choose it by memory.
        memory: Bytes that a chosen batch may use; None for half of the free memory.
        first: The index of the first sample, for messages.
    """

    def run(here: slice) -> Iterator[Tensor]:
        x = existing[here].to(denoiser.device, denoiser.dtype)
        # not in half precision, where large scores overflow
        yield compute(x, here).to(torch.promote_types(existing.dtype, torch.float32))

    n = len(existing)
    size = plan_batches(n, batch_size, memory, lambda count: list(run(slice(0, count))), denoiser.device)
    scores = torch.cat(list(run_batches(n, size, run)))
    return _mark_lost(name, scores, first)


def _mark_lost(name: str, scores: Tensor, first: int) -> Tensor:
    """Scores (n,) with NaN for those that are not finite, and a warning that names the samples."""
    if (found := find_nonfinite([scores], 1)) is None:
        return scores
    lost = LostSamples(len(scores))
    lost.add(found, first, f"the {name} of existing samples")
    warn(lost.warning)
    return scores.where(scores.isfinite(), torch.nan)


def _count_pairs(name: str, repeats: int | None) -> int:
    """The number of pairs ε and −ε for this many noise draws per level."""
    if repeats is None:
        return 1
    if repeats % SIGNS:
        raise ValueError(f"repeats must be even for score={name!r}: ε and −ε form a pair, got {repeats}.")
    return repeats // SIGNS


def _compare(
    name: str,
    encoder: Encoder,
    data: tuple[Tensor, Cond],
    existing: tuple[Tensor, Cond],
    batches: tuple[BatchSize, int | None],
) -> Tensor:
    """The mean distance of existing samples to the nearest training samples, between encoded ones, (n,)."""
    if name not in encoder.readers:
        raise ValueError(
            f"score={name!r} needs layers of the network to look at, and there are none. Name some: layers=."
        )
    spaces = encoder.make_spaces(encoder.encode(*data, *batches))
    if name not in spaces:
        raise ValueError(f"score={name!r} is not finite for any training sample, so nothing can be compared.")
    return spaces[name].score(encoder.encode(*existing, *batches)[name])


def default_score(posterior: Posterior | None) -> str:
    """The default score: the same as for `sample` with the tangent rule."""
    return "error_profile" if posterior is None else RULES["tangent"].default_score(posterior.is_calibrated)


def _endpoint_score(
    name: str,
    denoiser: Denoiser,
    posterior: Posterior,
    levels: list[Level],
    D: Tensor,
    repeats: int,
    cond: Cond,
    seed: int,
    first: int,
) -> Compute:
    """A score of trajectories, for existing samples: they are held fixed, or slightly re-noised."""
    D = D.to(denoiser.device, denoiser.dtype)
    viewpoint = Viewpoint(denoiser, posterior.subset, levels)
    endpoint = Endpoint(denoiser, posterior.subset, D, levels, repeats)

    def compute(x: Tensor, rows: slice) -> Tensor:
        own = to_device(take_rows(cond, rows), x.device)
        if SCORES[name].needs_deviations:
            spread = Spread(x, torch.zeros_like(x), x.new_zeros(D.shape[1], *x.shape), D, own)
        else:
            noise = NoiseStreams(seed, first + rows.start, len(x), x.shape[1:], endpoint.extra_noise)
            spread = endpoint.finish(own, x, noise)
        return evaluate([name], spread, viewpoint)[name]

    return compute


def _choose_score(
    score: str | None, posterior: Posterior | None, data: Tensor | None, unconditional: Cond | None
) -> str:
    """The name of the score; raise if an argument that it needs is missing."""
    name = default_score(posterior) if score is None else score
    spec = SCORES[one_of("score", name, [each.name for each in SCORES.values() if each.of_existing])]
    if posterior is None and spec.needs_posterior:
        raise ValueError(
            f"score={name!r} needs a posterior, got None; fit one, or use score={default_score(None)!r}."
        )
    if spec.needs_data != (data is not None):
        wanted = "needs training data: give data=" if spec.needs_data else "does not use data=: leave it out"
        raise ValueError(f"score={name!r} {wanted}.")
    if unconditional is not None and not spec.compares_conditions:
        able = next(each.name for each in SCORES.values() if each.compares_conditions)
        raise ValueError(f"unconditional= is for score={able!r}, got {name}; leave it out.")
    return name


def _check_arguments(denoiser: Denoiser, posterior: Posterior | None, schedule: Schedule) -> None:
    """Raise if an argument has the wrong type."""
    require_denoiser(denoiser)
    if posterior is not None:
        require_instance(
            "posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense"
        )
    require_instance(
        "schedule", schedule, Schedule, "give the noise levels, such as flare.schedules.cosine(600)"
    )

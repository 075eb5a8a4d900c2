"""`flare.sample` and `flare.score`: batches of trajectories, put together into one result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ..autodiff.jvp import prepare
from ..core.batch_size import MAX_BATCH, check_batch_size, choose_batch_size, memory_budget, run_batches
from ..core.conditions import Cond, check_conditions, take_rows, to_device
from ..core.defaults import DIRECTIONS, ENDPOINT_LEVELS, LEVELS, REPEATS
from ..core.noise_streams import GivenNoise, NoiseStreams, mix_seed, stream_bytes
from ..core.nonfinite import LostSamples, find_nonfinite
from ..core.progress import Progress, watch
from ..core.validation import one_of, require_instance, require_positive_int, require_samples
from ..diffusion.samplers import Step, Steps
from ..diffusion.schedules import Level, Schedule
from ..network.denoiser import HALVES, Denoiser, times
from ..network.derivative import Derivative
from ..network.probing import call
from ..posteriors import Posterior
from ..propagation import RULES, Endpoint, ExactTangent
from ..propagation.observables import Observable, Observer
from ..propagation.trajectory import Driven, Frame, Plain, Rule, walk
from ..results.result import Result, fill_lost, join
from ..results.spread import Spread
from ..scores import Reference, check_names, choose_default, evaluate

Directions = int | Literal["exact"] | Tensor


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    steps: Steps | None = None,
    posterior: Posterior | None = None,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    rule: str | Rule = "tangent",
    directions: Directions = DIRECTIONS,
    score: str | Sequence[str] | None = None,
    levels: float | Sequence[float] = LEVELS,
    covariance: bool = False,
    observe: Observable | None = None,
    derivative: str | Derivative = "auto",
    start: Tensor | None = None,
    noise: Callable[[], Tensor] | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
    batch_size: int | Literal["auto"] = "auto",
    memory: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | bool | None = None,
) -> Result:
    """Draw n samples, each with its epistemic variance if a posterior is given.

    The noise of sample i depends on the seed and i alone: the same seed gives the same samples and scores, to
    rounding, for every batch size and number of processes. The directions are drawn once and shared by all
    samples of a call.

    What the posterior adds is computed by a wider copy of the network (`autodiff.jvp.prepare`): in float64 by
    default. A network in half precision still drives its samples in that precision, with the state in
    float32.

    A sample with NaN or infinity, in its trajectory, its variance or its scores, is lost and costs no other:
    all that belongs to it is NaN (`Result.lost` tells which), a warning names the step and the index, and so
    does `about["lost"]`. Only if every sample is lost is that an error.

    >>> model = flare.zoo.load("sines")                                       # doctest: +SKIP
    >>> flare.sample(model.denoiser, model.steps, n=500, shape=(10,)).samples # doctest: +SKIP

    Args:
        denoiser: the network.
        steps: a sampler's table, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: over the parameters; None for plain sampling.
        n: how many samples; with `start` it follows from it.
        shape: the shape of one sample, (d,), (C, L) or (C, H, W); with `start` it follows from it.
        rule: how the posterior becomes variance: `tangent` (exact to first order), `monte_carlo`,
            `decoupled`, `released` or `endpoint`; or a rule of your own (see `trajectory.Rule`).
        directions: how many draws of the posterior to push through; "exact" for a square root of Σ; or a
            matrix D (m, k) with Σ ≈ D Dᵀ.
        score: one or several of `trace`, `off_manifold`, `residual_variance`, `expected_residual`; by default
            the last with the tangent rule and a calibrated posterior, and the trace otherwise.
        levels: the reference levels of the scores as fractions of T, which are averaged over; or a single one.
        covariance: whether to return the (n, d, d) covariances.
        observe: a function φ of the samples, (B, *shape) -> (B, *out), such as a decoder or a feature; the
            result has φ(x_0) and its epistemic variance. Its derivative is exact where torch has one, else a
            difference quotient in its own precision, which is off by about 1%.
        derivative: how changes of the network are computed: `exact` (forward-mode differentiation),
            `compiled` (the same by torch.compile, for long runs of small networks: it takes half a minute per
            batch size and needs a C++ compiler), `secant` (a difference quotient of a float64 copy), or
            `auto`: what `denoiser.by(...)` says, and by default secant for float32 on a CPU, exact elsewhere.
            `result.about` says which was taken.
        start: x_T, (n, *shape), instead of noise from the seed.
        noise: gives the noise of a step, (n, *shape), instead of noise from the seed; all samples are then
            one batch.
        cond: keyword arguments of the network; tensors, nested ones too, have one row per sample.
        seed: of all the noise, and of the directions.
        first: the index of the first sample, to draw samples first..first+n−1 of a seed by themselves.
        batch_size: how many samples go through the network at once; "auto" for as many as fit into the
            memory, measured on the first step of a few, and at most 1000. A batch that runs out of memory is
            begun again in halves, with a warning; `about["batch_size"]` tells what memory made of it.
        memory: bytes that "auto" may use; half of what is free by default.
        device: where to compute; by default where the network is.
        progress: True for a bar; or what wraps the frames (one `trajectory.Frame` per step and batch) and
            passes them on: `tqdm.tqdm`, or a function of yours that draws, or keeps the path. A batch that is
            begun again begins again with frame 0.
    """
    steps = _check_parts(denoiser, steps, posterior)
    n, shape, start = _size(n, shape, start)
    size = check_batch_size(batch_size)
    way = Derivative.parse(derivative).or_else(denoiser.derivative)
    if noise is not None:
        if size is not None and n > size:
            raise ValueError(f"noise= needs all samples in one batch; give batch_size={n}.")
        size = n
    cond = check_conditions(cond, n)
    if posterior is not None:
        posterior.check(denoiser, steps.schedule)
    if device is not None:
        denoiser = denoiser.to(device)
    rows = steps.rows(denoiser.prediction)
    propagate: Rule = Plain(denoiser)
    reference = None
    about: dict[str, Any] = {"sampler": steps.name, "steps": len(steps), "seed": seed}
    if isinstance(rule, str):
        one_of("rule", rule, RULES)
    if score is not None and posterior is None:
        raise ValueError(
            f"score={score!r} needs a posterior: fit one, for instance with flare.posteriors.dense."
        )
    if score is None:
        score = choose_default(posterior is not None and posterior.is_calibrated, rule == "tangent")
    asked = check_names(score)
    x = torch.zeros(1, *shape) if start is None else start[:1]
    if posterior is None:
        _call_once(denoiser, x, rows[0].time, cond)
    else:
        wide = precise = denoiser.wide()
        if rule == "monte_carlo" and asked == ["trace"]:
            _call_once(denoiser, x, rows[0].time, cond)
        else:
            exact = isinstance(directions, str)
            precise = prepare(denoiser, posterior.subset, way, x, rows[0].time, cond, all_of_sigma=exact)
            about["derivative"] = precise.derivative.value
        moving = wide if rule == "monte_carlo" else precise
        propagate = _rule(rule, moving, posterior, directions, steps.schedule, seed, denoiser)
        if isinstance(rule, str) and rule != "endpoint" and denoiser.dtype in HALVES:
            propagate = Driven(denoiser, propagate)
        reference = Reference(precise, posterior.subset, _levels(steps.schedule, levels))
        about |= _describe(posterior, rule, directions)
    _possible(asked, covariance, observe, propagate, rule, posterior)
    observer = None if observe is None else Observer(observe, way)
    x_T = start if start is not None else steps.start
    trip = _Trip(denoiser, rows, propagate, shape, x_T, cond, (seed, first), noise)
    parts: list[Result] = []
    losses = LostSamples(n)

    def finished(frame: Frame, traces: Sequence[Tensor], observer: Observer | None) -> Result:
        profile = torch.stack(list(traces), dim=1) if traces else None
        part = _part(frame, reference, asked, covariance, profile, denoiser.dtype)
        return part if observer is None else _observed(part, frame, observer)

    def work(here: slice) -> Iterator[Frame]:
        traces: list[Tensor] = []
        for frame in trip(here):
            losses.add(frame.lost, frame.first, frame.name)
            traces += [] if frame.trace is None else [frame.trace]
            part = finished(frame, traces, observer) if frame.last else None
            yield frame
        assert part is not None
        lost = _lost(part, frame.lost)
        losses.add(lost, frame.first, "what comes of the last step")
        parts.append(part if lost is None else fill_lost(part, lost))

    def little(count: int) -> None:
        # as many steps as a row looks back on, and then all that is done in the end
        for frame in replace(trip, rows=rows[: max(len(row.B) for row in rows)])(slice(0, count)):
            if frame.last:
                finished(frame, [], None if observe is None else Observer(observe, way))

    if size is None:
        size = choose_batch_size(
            n, memory_budget(memory, denoiser.device), little, denoiser.device, stream_bytes(shape)
        )
        if size < min(n, MAX_BATCH):
            about["batch_size"] = size
    too_large: list[int] = []
    # noise that was given is gone once it is drawn: that batch cannot be begun again
    frames = run_batches(n, size, work, too_large) if noise is None else work(slice(0, n))
    for _ in watch(frames, len(rows) * -(-n // size), progress):
        pass
    if too_large:
        about["batch_size"] = -(-too_large[-1] // 2)
    result = join(parts)
    if observer is not None and posterior is not None:
        about["observed by"] = observer.taken
    if losses.about:
        about["lost"] = losses.about
        warnings.warn(losses.warning, RuntimeWarning, stacklevel=3)
    return replace(result, about=about)


@torch.no_grad()
def score(
    denoiser: Denoiser,
    posterior: Posterior,
    schedule: Schedule,
    existing: Tensor,
    *,
    score: str | None = None,
    levels: float | Sequence[float] | None = None,
    repeats: int = REPEATS,
    directions: Directions = DIRECTIONS,
    derivative: str | Derivative = "auto",
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
    batch_size: int | Literal["auto"] = "auto",
    memory: int | None = None,
) -> Tensor:
    """Score samples that exist already, real data included: (n,).

    `trace` is that of the endpoint rule: how sure x̂0 is where the sample is re-noised a little.
    `expected_residual` is that of `sample` with x_0 held fixed, since no trajectory has led there.
    A score that is not a finite number is NaN, with a warning that names the sample.

    Args:
        denoiser: the network.
        posterior: over its parameters.
        schedule: the noise levels that it was trained on.
        existing: the samples, (n, *shape).
        score: `trace` or `expected_residual`; by default the same as that of `sample` with the tangent rule.
        levels: where to look, as fractions of T; by default those of the score.
        repeats: noise draws per level, for `trace`.
        directions: how many draws of the posterior; "exact" for a square root of Σ.
        derivative: `exact`, `compiled`, `secant` or `auto`; see `sample`.
        cond: keyword arguments of the network; tensors have one row per sample.
        seed: of the noise and the directions.
        first: the index of the first sample, to score a part of many by itself.
        batch_size: how many samples go through the network at once, or "auto"; see `sample`.
        memory: bytes that "auto" may use; half of what is free by default.
    """
    require_instance(
        "denoiser", denoiser, Denoiser, "wrap the network: flare.Denoiser(net, prediction='epsilon')"
    )
    require_instance("posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense")
    require_instance(
        "schedule", schedule, Schedule, "give the noise levels, such as flare.schedules.cosine(600)"
    )
    existing = require_samples("existing", existing)
    posterior.check(denoiser, schedule)
    cond = check_conditions(cond, len(existing))
    if score is None:
        score = choose_default(posterior.is_calibrated)
    one_of("score", score, ("trace", "expected_residual"))
    if levels is None:
        levels = ENDPOINT_LEVELS if score == "trace" else LEVELS
    points = _levels(schedule, levels)
    exact = isinstance(directions, str)
    denoiser = prepare(
        denoiser, posterior.subset, derivative, existing, points[0].time, cond, all_of_sigma=exact,
        instead="flare.sample with rule='monte_carlo', which needs no derivative",
    )  # fmt: skip
    D = draw_directions(posterior, directions, seed)
    endpoint = Endpoint(denoiser, posterior.subset, D, points, require_positive_int("repeats", repeats))
    reference = Reference(denoiser, posterior.subset, points)
    fixed = D.to(denoiser.device, denoiser.dtype)

    def work(here: slice) -> Iterator[Tensor]:
        x = existing[here].to(denoiser.device, denoiser.dtype)
        own = to_device(take_rows(cond, here), x.device)
        if score == "trace":
            # a stream of its own: that of the seed made the very samples that may be scored here
            noise = NoiseStreams(mix_seed(seed, -2), first + here.start, len(x), x.shape[1:], endpoint.draws)
            spread = endpoint.finish(own, x, noise)
        else:
            still = x.new_zeros(fixed.shape[1], *x.shape)
            spread = Spread(x, torch.zeros_like(x), still, fixed, own)
        yield evaluate([score], spread, reference)[score].to(existing.dtype)

    n, size = len(existing), check_batch_size(batch_size)
    if size is None:
        room = memory_budget(memory, denoiser.device)
        size = choose_batch_size(n, room, lambda count: list(work(slice(0, count))), denoiser.device)
    scores = torch.cat(list(run_batches(n, size, work)))
    losses = LostSamples(len(existing))
    losses.add(find_nonfinite([scores], 1), first, f"the {score} of existing samples")
    if losses.about:
        scores = scores.where(scores.isfinite(), torch.nan)
        warnings.warn(losses.warning, RuntimeWarning, stacklevel=3)
    return scores


def _possible(
    asked: Sequence[str],
    covariance: bool,
    observe: Observable | None,
    propagate: Rule,
    rule: str | Rule,
    posterior: Posterior | None,
) -> None:
    """Refuse before the first step what could not be given after the last."""
    if posterior is None:
        if covariance:
            raise ValueError("covariance=True needs a posterior: without one nothing is uncertain.")
        return
    needy = (["covariance=True"] if covariance else []) + (["observe"] if observe else [])
    needy += [name for name in asked if name != "trace"]
    if needy and not propagate.keeps_directions:
        name = rule if isinstance(rule, str) else type(rule).__name__
        raise ValueError(
            f"{needy[0]} needs a rule that keeps its directions, and {name} does not; use rule='tangent' or "
            "'monte_carlo', or score='trace'."
        )


def _rule(
    name: str | Rule,
    denoiser: Denoiser,
    posterior: Posterior,
    directions: Directions,
    schedule: Schedule,
    seed: int,
    driver: Denoiser,
) -> Rule:
    if not isinstance(name, str):
        return name
    D = draw_directions(posterior, directions, seed)
    if name == "endpoint":
        levels = [schedule.at_fraction(share) for share in ENDPOINT_LEVELS]
        return Endpoint(denoiser, posterior.subset, D, levels, driver=driver)
    if isinstance(directions, str):  # "exact"
        if name == "monte_carlo":
            raise ValueError("monte_carlo draws models; give a number of directions, such as 64.")
        if name == "tangent" and denoiser.derivative != "secant":
            return ExactTangent(denoiser, posterior.subset, D)
    return RULES[name](denoiser, posterior.subset, D)


def draw_directions(posterior: Posterior, directions: Directions, seed: int) -> Tensor:
    """The directions that `sample` and `score` push through, (m, k)."""
    if isinstance(directions, Tensor):
        if directions.ndim != 2 or len(directions) != posterior.size:
            raise ValueError(
                f"directions must be a matrix of {posterior.size} rows, got shape {tuple(directions.shape)}."
            )
        return directions
    if directions == "exact":
        return posterior.exact_directions()
    if isinstance(directions, str):
        raise ValueError(f"directions must be a number or 'exact', got {directions!r}.")
    # a stream of its own: sample indices are never negative
    generator = torch.Generator().manual_seed(mix_seed(seed, -1))
    return posterior.directions(require_positive_int("directions", directions), generator)


def _levels(schedule: Schedule, shares: float | Sequence[float]) -> list[Level]:
    given = [shares] if isinstance(shares, (int, float)) else list(shares)
    if not given or not all(isinstance(share, (int, float)) for share in given):
        raise ValueError(f"give at least one level as a number, such as 0.1, got {shares!r}.")
    return [schedule.at_fraction(share) for share in given]


@dataclass(frozen=True)
class _Trip:
    """The way of a batch from x_T to x_0, for any slice of the samples.

    Attributes:
        denoiser: the network.
        rows: the sampler's table.
        rule: what rides along.
        shape: of one sample.
        start: x_T, or the scale of its noise.
        cond: the conditions of all samples.
        origin: the seed, and the index of the first sample.
        given: noise from elsewhere.
    """

    denoiser: Denoiser
    rows: Sequence[Step]
    rule: Rule
    shape: tuple[int, ...]
    start: Tensor | float
    cond: dict[str, Any]
    origin: tuple[int, int]
    given: Callable[[], Tensor] | None

    def __call__(self, here: slice) -> Iterator[Frame]:
        """Walk the samples of a slice."""
        seed, index = self.origin
        # A network of half precision is called in it, but the state is not rounded at every step.
        dtype = torch.promote_types(self.denoiser.dtype, torch.float32)
        draws = 1 + sum(row.c > 0 for row in self.rows) + self.rule.draws
        noise = NoiseStreams(seed, index + here.start, here.stop - here.start, self.shape, draws)
        x = noise.next()  # drawn even if unused, so that `start` leaves the noise of the steps alone
        noise = noise if self.given is None else GivenNoise(self.given)
        x = self.start[here] if isinstance(self.start, Tensor) else x * self.start if self.start != 1 else x
        x = x.to(self.denoiser.device, dtype)
        cond = to_device(take_rows(self.cond, here), x.device)
        yield from walk(self.rows, self.rule, x, noise, cond, index + here.start)


def _part(
    frame: Frame,
    reference: Reference | None,
    asked: Sequence[str],
    covariance: bool,
    profile: Tensor | None,
    dtype: torch.dtype,
) -> Result:
    """The result of one batch, from its last frame."""
    drawn, spread = frame.x.to(dtype), frame.spread
    if spread is None or reference is None:
        return Result(drawn)
    return Result(
        drawn,
        spread.variance,
        evaluate(asked, spread, reference),
        _covariance(spread) if covariance else None,
        profile,
    )


def _lost(part: Result, before: Tensor | None) -> Tensor | None:
    """The samples that were lost on the way, and those whose own numbers are not finite in the end, (B,)."""
    own = [part.samples, *([] if part.variance is None else [part.variance])]
    found = [find_nonfinite(own, part.samples.ndim), find_nonfinite(part.scores.values(), 1), before]
    masks = [mask for mask in found if mask is not None]
    return torch.stack(masks).any(0) if masks else None


def _observed(part: Result, frame: Frame, observer: Observer) -> Result:
    """The result of one batch with what is observed of its samples."""
    if frame.spread is None:
        return replace(part, observed=observer.value(frame.x))
    value, variance = observer(frame.spread)
    return replace(part, observed=value, observed_variance=variance)


def _covariance(spread: Spread) -> Tensor:
    """Σ_k δx_0 δx_0ᵀ, (B, d, d)."""
    flat = cast("Tensor", spread.deviations).flatten(2)
    return torch.einsum("kbi,kbj->bij", flat, flat)


def _size(
    n: int | None, shape: Sequence[int] | None, start: Tensor | None
) -> tuple[int, tuple[int, ...], Tensor | None]:
    """How many samples of which shape, and the x_T that was given."""
    if start is not None:
        start = require_samples("start", start)
        if n not in (None, len(start)):
            raise ValueError(f"start has {len(start)} samples but n = {n}; leave n out.")
        if shape is not None and tuple(shape) != tuple(start.shape[1:]):
            raise ValueError(
                f"start has samples of shape {tuple(start.shape[1:])} but shape = {tuple(shape)}; "
                "leave shape out."
            )
        return len(start), tuple(start.shape[1:]), start
    if n is None or shape is None:
        raise ValueError("give n and shape, for instance n=1000, shape=(80,), or start=x_T.")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return (
        require_positive_int("n", n),
        tuple(require_positive_int("each axis of shape", s) for s in shape),
        None,
    )


def _check_parts(denoiser: Denoiser, steps: Steps | None, posterior: Posterior | None) -> Steps:
    """Refuse what stands in the place of something else, before it fails far from here."""
    require_instance(
        "denoiser", denoiser, Denoiser, "wrap the network: flare.Denoiser(net, prediction='epsilon')"
    )
    require_instance(
        "steps", steps, Steps, "give a sampler's table, such as flare.samplers.ddim(schedule, 50)"
    )
    if posterior is not None:
        require_instance(
            "posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense"
        )
    return cast("Steps", steps)


def _call_once(denoiser: Denoiser, x: Tensor, time: float, cond: Cond) -> None:
    """Call the network on one sample: what it fails on is told before anything else is done."""
    x = x[:1].to(denoiser.device, torch.promote_types(denoiser.dtype, torch.float32))
    call(denoiser, x, times(time, x), to_device(take_rows(cond, slice(0, 1)), x.device))


def _describe(posterior: Posterior, rule: str | Rule, directions: Directions) -> dict[str, Any]:
    """How the uncertainty is computed, as JSON values."""
    return {
        "rule": rule if isinstance(rule, str) else type(rule).__name__,
        "directions": directions.shape[1] if isinstance(directions, Tensor) else directions,
        "structure": posterior.structure,
        "parameters": posterior.size,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
    }

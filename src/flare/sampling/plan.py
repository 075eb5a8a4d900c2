"""The plan of a call of `flare.sample`: validated arguments, and all decisions but the batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor

from ..autodiff.jvp import prepare
from ..core.conditions import check_conditions, take_rows, to_device
from ..core.defaults import LEVELS
from ..core.memory import check_batch_size
from ..core.noise_streams import GivenNoise, NoiseSource, NoiseStreams
from ..core.validation import one_of, require_instance, require_positive_int, require_samples
from ..diffusion.samplers import Step, Steps
from ..network.denoiser import HALVES, Denoiser, require_denoiser, times
from ..network.forward_mode import Derivative
from ..network.probing import call
from ..posteriors import Posterior
from ..propagation import RULES, Coefficients, Ingredients, Rule, RuleSpec
from ..propagation.observables import Observer
from ..propagation.trajectory import Driven, Frame, Plain, history_length, walk
from ..scores import SCORES, Viewpoint, check_names
from .collect import Readout
from .finished import FinishedScores
from .options import BatchSize, Settings, complete, draw_directions, find_levels


@dataclass(frozen=True)
class Plan:
    """A validated call of `flare.sample`.

    Attributes:
        denoiser: the network in its own precision.
        rows: the sampler's table.
        rule: moves the samples, and propagates their uncertainty.
        readout: what is computed in the end.
        n: how many samples.
        shape: of one sample.
        start: x_T (n, *shape), or the scale of its noise.
        cond: the conditions of all samples.
        settings: the options of the call.
        about: how the samples are made, as JSON values.
    """

    denoiser: Denoiser
    rows: Sequence[Step]
    rule: Rule
    readout: Readout
    n: int
    shape: tuple[int, ...]
    start: Tensor | float
    cond: dict[str, Any]
    settings: Settings
    about: Mapping[str, Any]

    def walk(self, here: slice) -> Iterator[Frame]:
        """Walk the samples of a slice from x_T to x_0."""
        first = self.settings.first + here.start
        calls = 1 + sum(row.c > 0 for row in self.rows) + self.rule.extra_noise
        noise: NoiseSource = NoiseStreams(
            self.settings.seed, first, here.stop - here.start, self.shape, calls
        )
        x = noise.next()  # drawn even if unused, so that `start` leaves the noise of the steps alone
        if self.settings.noise is not None:
            noise = GivenNoise(self.settings.noise)
        if isinstance(self.start, Tensor):
            x = self.start[here]
        elif self.start != 1:
            x = x * self.start
        # a network in half precision is called in it, but the state is not rounded at every step
        x = x.to(self.denoiser.device, torch.promote_types(self.denoiser.dtype, torch.float32))
        cond = to_device(take_rows(self.cond, here), x.device)
        yield from walk(self.rows, self.rule, x, noise, cond, first)

    def shorten(self) -> Plan:
        """The same plan for a memory probe: enough steps to fill the multistep history."""
        return replace(self, rows=self.rows[: history_length(self.rows)])


def make_plan(
    denoiser: Denoiser,
    steps: Steps | None,
    posterior: Posterior | None,
    n: int | None,
    shape: Sequence[int] | None,
    options: Mapping[str, Any],
) -> Plan:
    """Validate a call of `flare.sample` and decide what it does; the arguments are explained there."""
    settings = complete(Settings, "sample", options)
    steps = _check_parts(denoiser, steps, posterior)
    n, shape, start = _check_size(n, shape, settings.start)
    settings = replace(settings, batch_size=_check_batches(settings, n))
    cond = check_conditions(settings.cond, n)
    if posterior is not None:
        posterior.check(denoiser, steps.schedule)
    if settings.device is not None:
        denoiser = denoiser.to(settings.device)
    rows = steps.rows(denoiser.prediction)
    way = Derivative.parse(settings.derivative).or_else(denoiser.derivative)
    spec = _find_rule(settings.rule)
    _check_coefficients(settings.coefficients, spec)
    scores = _choose_scores(settings.score, posterior, spec)
    finished = FinishedScores.of(scores, denoiser, posterior, steps.schedule, n, settings)
    probe = _Probe(torch.zeros(1, *shape) if start is None else start[:1], rows[0].time, cond)
    about: dict[str, Any] = {"sampler": steps.name, "steps": len(steps), "seed": settings.seed}
    rule: Rule = Plain(denoiser)
    viewpoint = None
    if posterior is not None:
        about |= _describe(posterior)
    if posterior is None or not _needs_propagation(scores, settings):
        probe.call(denoiser)
    else:
        precise = denoiser.wide()
        if spec.needs_derivatives or any(SCORES[name].needs_deviations for name in scores):
            precise = probe.prepare(denoiser, posterior, way, exact=isinstance(settings.directions, str))
            about["derivative"] = precise.derivative.value
        else:
            probe.call(denoiser)
        rule = _build_rule(spec, denoiser, precise, posterior, steps, settings)
        levels = find_levels(steps.schedule, LEVELS if settings.levels is None else settings.levels)
        viewpoint = Viewpoint(precise, posterior.subset, levels)
        about |= _describe_rule(spec, settings)
    observe = None if settings.observe is None else partial(Observer, settings.observe, way)
    readout = Readout(
        denoiser.dtype, scores, viewpoint, finished, settings.first, settings.covariance, observe
    )
    _check_readout(readout, rule, spec, posterior)
    x_T = start if start is not None else steps.start
    return Plan(denoiser, rows, rule, readout, n, shape, x_T, cond, settings, about)


@dataclass(frozen=True)
class _Probe:
    """One sample to try the network with before anything else: x (1, *shape), its time, its conditions."""

    x: Tensor
    time: float
    cond: dict[str, Any]

    def call(self, denoiser: Denoiser) -> None:
        """Call the network once; an error explains what it cannot take."""
        x = self.x.to(denoiser.device, torch.promote_types(denoiser.dtype, torch.float32))
        call(denoiser, x, times(self.time, x), to_device(take_rows(self.cond, slice(0, 1)), x.device))

    def prepare(self, denoiser: Denoiser, posterior: Posterior, way: Derivative, exact: bool) -> Denoiser:
        """The network with the derivative that suits it."""
        return prepare(denoiser, posterior.subset, way, self.x, self.time, self.cond, all_of_sigma=exact)


def _find_rule(rule: str | Rule | RuleSpec) -> RuleSpec:
    if isinstance(rule, RuleSpec):
        return rule
    if isinstance(rule, str):
        return RULES.find(rule)
    require_instance("rule", rule, Rule, "name one of flare.propagation.RULES, or derive from it")
    return RuleSpec.of(rule)


def _check_coefficients(coefficients: Coefficients, spec: RuleSpec) -> None:
    one_of("coefficients", coefficients, get_args(Coefficients))
    if coefficients not in spec.coefficients:
        able = [rule.name for rule in RULES.values() if coefficients in rule.coefficients]
        raise ValueError(
            f"coefficients={coefficients!r} belong to rule={able[0]!r}, not to {spec.name}; leave them out."
        )


def _build_rule(
    spec: RuleSpec,
    denoiser: Denoiser,
    precise: Denoiser,
    posterior: Posterior,
    steps: Steps,
    settings: Settings,
) -> Rule:
    """Build the rule beside the network that drives the samples."""
    directions = torch.zeros(posterior.size, 0)
    if spec.needs_directions:
        directions = draw_directions(posterior, settings.directions, settings.seed)
    given = Ingredients(
        denoiser=precise if spec.needs_derivatives else denoiser.wide(),
        driver=denoiser,
        subset=posterior.subset,
        directions=directions,
        exact=isinstance(settings.directions, str),
        steps=steps,
        coefficients=settings.coefficients,
        covariance=settings.covariance,
    )
    rule = spec.build(given)
    if denoiser.dtype in HALVES and not spec.drives_itself:
        return Driven(denoiser, rule)
    return rule


def _choose_scores(
    score: str | Sequence[str] | None, posterior: Posterior | None, spec: RuleSpec
) -> list[str]:
    if posterior is not None:
        return check_names(spec.default_score(posterior.is_calibrated) if score is None else score)
    names = [] if score is None else check_names(score)
    if any(SCORES[name].needs_posterior for name in names):
        raise ValueError(
            f"score={score!r} needs a posterior: fit one, for instance with flare.posteriors.dense."
        )
    return names


def _needs_propagation(scores: Sequence[str], settings: Settings) -> bool:
    """Whether the posterior is propagated: not if only scores of finished samples are asked for."""
    asked = settings.covariance or settings.observe is not None or not isinstance(settings.rule, str)
    return asked or any(SCORES[name].needs_directions for name in scores)


def _check_readout(readout: Readout, rule: Rule, spec: RuleSpec, posterior: Posterior | None) -> None:
    """Refuse before the first step what could not be computed after the last."""
    if posterior is None:
        if readout.covariance:
            raise ValueError("covariance=True needs a posterior: without one nothing is uncertain.")
        return
    needy = ["covariance=True"] if readout.covariance and not rule.keeps_covariance else []
    needy += ["observe"] if readout.observe else []
    needy += [name for name in readout.scores if SCORES[name].needs_deviations]
    if needy and not rule.keeps_directions:
        raise ValueError(
            f"{needy[0]} needs a rule that keeps its directions, and {spec.name} does not; use "
            "rule='tangent' or 'monte_carlo', or score='trace'."
        )


def _check_parts(denoiser: Denoiser, steps: Steps | None, posterior: Posterior | None) -> Steps:
    """Refuse arguments of the wrong kind before they fail far from here."""
    require_denoiser(denoiser)
    require_instance(
        "steps", steps, Steps, "give a sampler's table, such as flare.samplers.ddim(schedule, 50)"
    )
    if posterior is not None:
        require_instance(
            "posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense"
        )
    return cast("Steps", steps)


def _check_size(
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
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    axes = tuple(require_positive_int("each axis of shape", size) for size in sizes)
    return require_positive_int("n", n), axes, None


def _check_batches(settings: Settings, n: int) -> BatchSize:
    """The batch size, or "auto"; noise that is given comes for all samples at once."""
    size = check_batch_size(settings.batch_size)
    if settings.noise is None:
        return settings.batch_size
    if size is not None and n > size:
        raise ValueError(f"noise= needs all samples in one batch; give batch_size={n}.")
    return n


def _describe_rule(spec: RuleSpec, settings: Settings) -> dict[str, Any]:
    """How the uncertainty is propagated, as JSON values."""
    directions = settings.directions
    return {
        "rule": spec.name,
        **({} if spec.coefficients == ("main",) else {"coefficients": settings.coefficients}),
        "directions": directions.shape[1] if isinstance(directions, Tensor) else directions,
    }


def _describe(posterior: Posterior) -> dict[str, Any]:
    """The posterior, as JSON values."""
    return {
        "structure": posterior.structure,
        "parameters": posterior.size,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
    }

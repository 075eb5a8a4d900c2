"""The plan of a call of `flare.sample`: all decisions but the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ..autodiff.jvp import prepare
from ..core import LEVELS
from ..core.conditions import take_rows, to_device
from ..core.noise_streams import DIRECTIONS_STREAM, GivenNoise, NoiseSource, NoiseStreams, mix_seed
from ..core.validation import require_instance, require_positive_int
from ..diffusion.samplers import Step, Steps
from ..model import Model
from ..network.denoiser import HALVES, Denoiser
from ..network.forward_mode import Derivative
from ..posteriors import Posterior
from ..propagation import RULES, Ingredients, Rule
from ..propagation.observables import Observable, Observer
from ..propagation.trajectory import Frame, Plain, history_length, walk
from ..scores import SCORES, Viewpoint, check_names
from .finished import Levels, find_levels
from .readout import Readout

Directions = int | Literal["exact"] | Tensor


@dataclass(frozen=True)
class Plan:
    """The plan of a call of `flare.sample`, made before the first step.

    Attributes:
        denoiser: The network in its own precision.
        rows: The sampler's table.
        rule: Moves the samples, and propagates their uncertainty.
        driver: The network in half precision, if it moves the samples instead of the rule.
        readout: What is computed in the end.
        n: The number of samples.
        shape: The shape of one sample.
        start: x_T (n, *shape), or the scale of its noise.
        noise: Gives the noise of a step, (n, *shape); None for noise from the seed.
        cond: The conditions of all samples.
        seed: Random seed for the noise.
        first: The index of the first sample.
        about: How the samples are made, as JSON values.
        learned: What is known of the memory that the work takes, by its name; this run adds its own.
        work: A name for the work, if others may share what it learns.
    """

    denoiser: Denoiser
    rows: Sequence[Step]
    rule: Rule
    driver: Denoiser | None
    readout: Readout
    n: int
    shape: tuple[int, ...]
    start: Tensor | float
    noise: Callable[[], Tensor] | None
    cond: Mapping[str, Any]
    seed: int
    first: int
    about: Mapping[str, Any]
    learned: dict[Any, Any] | None = None
    work: Any = None

    def walk(self, here: slice) -> Iterator[Frame]:
        """Walk the samples of a slice from x_T to x_0."""
        first, count = self.first + here.start, here.stop - here.start
        calls = 1 + sum(row.c > 0 for row in self.rows) + self.rule.extra_noise
        noise: NoiseSource = NoiseStreams(self.seed, first, count, self.shape, calls)
        x = noise.next()  # drawn even if unused, so that `start` leaves the noise of the steps alone
        if self.noise is not None:
            noise = GivenNoise(self.noise)
        x = self.start[here] if isinstance(self.start, Tensor) else x * self.start
        # a network in half precision is called in it, but the state is not rounded at every step
        x = x.to(self.denoiser.device, torch.promote_types(self.denoiser.dtype, torch.float32))
        cond = to_device(take_rows(self.cond, here), x.device)
        yield from walk(self.rows, self.rule, x, noise, cond, first, self.driver)

    def shorten(self) -> Plan:
        """The same plan for a memory probe: enough steps to fill the multistep history."""
        return replace(self, rows=self.rows[: history_length(self.rows)])


def make_plan(
    model: Model,
    steps: Steps,
    posterior: Posterior | None,
    n: int,
    shape: tuple[int, ...],
    *,
    rule: str | Rule | type[Rule] = "tangent",
    directions: Directions = 1,
    score: str | Sequence[str] | None = None,
    levels: Levels | None = None,
    covariance: bool = False,
    observe: Observable | None = None,
    derivative: str | Derivative = Derivative.AUTO,
    start: Tensor | None = None,
    noise: Callable[[], Tensor] | None = None,
    cond: Mapping[str, Any] | None = None,
    seed: int = 0,
    first: int = 0,
) -> Plan:
    """Plan a call of `flare.sample`, which documents the arguments."""
    denoiser, cond = model.denoiser, cond or {}
    rows, spec = steps.rows(denoiser.prediction), _find_rule(rule)
    scores = _choose_scores(score, posterior, spec)
    way = Derivative.parse(derivative).or_else(denoiser.derivative)
    # noise, as the network will see it: zeros would amplify the rounding of a normalization
    few = slice(0, min(2, n))
    trial = torch.randn(few.stop, *shape, generator=torch.Generator().manual_seed(0))
    trial = trial if start is None else start[few]
    model.try_on(trial, take_rows(cond, few))
    about: dict[str, Any] = {"sampler": steps.name, "steps": len(steps), "seed": seed}
    moved: Rule = Plain(denoiser)
    driver = viewpoint = None
    if posterior is not None:
        about |= _describe(posterior)
        count = directions.shape[1] if isinstance(directions, Tensor) else directions
        exact = isinstance(count, str)
        precise = denoiser.wide()
        if spec.needs_derivatives or any(SCORES[name].needs_deviations for name in scores):
            precise = prepare(denoiser, posterior.subset, way, trial, rows[0].time, cond, count)
            about["derivative"] = precise.derivative.value
        if isinstance(spec, Rule):
            moved = spec
        else:
            given = Ingredients(
                denoiser=precise if spec.needs_derivatives else denoiser.wide(),
                subset=posterior.subset,
                directions=draw_directions(posterior, directions, seed),
                steps=steps,
                driver=denoiser,
                exact=exact,
                covariance=covariance,
            )
            moved = spec.build(given)
            if denoiser.dtype in HALVES and not spec.drives_itself:
                driver = denoiser
        found = find_levels(steps.schedule, LEVELS if levels is None else levels)
        viewpoint = Viewpoint(precise, posterior.subset, found)
        about |= {"rule": spec.name, "directions": count}
    readout = Readout(
        denoiser.dtype, scores, viewpoint, covariance,
        None if observe is None else partial(Observer, observe, way),
    )  # fmt: skip
    _check_readout(readout, moved, spec, posterior)
    x_T = steps.start if start is None else start
    # plain sampling takes the same memory whenever it is called
    plain = not (scores or observe or viewpoint)
    work = ("memory", shape, history_length(rows), tuple(sorted(cond)))
    return Plan(
        denoiser, rows, moved, driver, readout, n, shape, x_T, noise, cond, seed, first, about,
        model.learned if plain else None, work,
    )  # fmt: skip


def draw_directions(posterior: Posterior, directions: Directions, seed: int) -> Tensor:
    """Draw the directions that `sample` and `score` propagate, (m, k)."""
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
    generator = torch.Generator().manual_seed(mix_seed(seed, DIRECTIONS_STREAM))
    return posterior.directions(require_positive_int("directions", directions), generator)


def _find_rule(rule: str | Rule | type[Rule]) -> Rule | type[Rule]:
    if isinstance(rule, str):
        return RULES.find(rule)
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        require_instance("rule", rule, Rule, "name one of flare.propagation.RULES, or derive from it")
    return rule


def _choose_scores(
    score: str | Sequence[str] | None, posterior: Posterior | None, spec: Rule | type[Rule]
) -> list[str]:
    if posterior is None and score is None:
        return []
    default = "" if posterior is None else spec.default_score(posterior.is_calibrated)
    names = check_names(default if score is None else score)
    if posterior is None and any(SCORES[name].needs_posterior for name in names):
        raise ValueError(
            f"score={score!r} needs a posterior: fit one, for instance with flare.posteriors.dense."
        )
    if finished := [name for name in names if not SCORES[name].needs_directions]:
        name, needs_data = finished[0], SCORES[finished[0]].needs_data
        raise ValueError(
            f"score={name!r} needs {'training data' if needs_data else 'no sampler'}: score the samples "
            f"afterwards, with flare.score(..., score={name!r}{', data=data' if needs_data else ''})."
        )
    return names


def _check_readout(
    readout: Readout, rule: Rule, spec: Rule | type[Rule], posterior: Posterior | None
) -> None:
    """Raise before the first step if a result could not be computed after the last."""
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


def _describe(posterior: Posterior) -> dict[str, Any]:
    """The posterior, as JSON values."""
    return {
        "structure": posterior.structure,
        "parameters": posterior.size,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
    }

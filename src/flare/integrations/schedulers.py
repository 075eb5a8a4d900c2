"""A diffusers scheduler as a schedule and as a sampler table.

Levels and times are read from the scheduler after its own `set_timesteps`, so spacing, offsets, rescaled
betas, Karras sigmas and shifts match diffusers. Only the scheduler's own options are read: `from_config` also
keeps the options of the scheduler that the config came from.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.validation import one_of
from ..diffusion import samplers, schedules
from ..diffusion.samplers import Noise, Steps
from ..diffusion.schedules import Level, Schedule
from ..diffusion.steps import Threshold

PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v_prediction": "v", "flow_prediction": "flow"}
DATA = Level(-1, 1.0, 0.0)
_MIN_VARIANCE = 1e-20  # diffusers clamps the variance to this before its logarithm


class Variances(Protocol):
    """A network with a learned variance."""

    def variance(self, x: Tensor, t: Tensor, cond: Any) -> Tensor:
        """The learned variance, like x."""


def schedule_of(scheduler: Any) -> Schedule:
    """The noise levels that the network was trained on."""
    name, options = check_supported(scheduler), options_of(scheduler)
    if _is_flow(scheduler):
        shift = scheduler.shift if name == "FlowMatchEulerDiscreteScheduler" else options["flow_shift"]
        T = options["num_train_timesteps"]
        # a dynamic shift depends on the resolution, which only `steps(n, mu=...)` knows
        return schedules.flow(T, time_scale=T, shift=1.0 if options.get("use_dynamic_shifting") else shift)
    if _is_edm(scheduler):
        names = ("sigma_min", "sigma_max", "rho")
        return schedules.edm(*(options[name] for name in names), T=options["num_train_timesteps"])
    if options.get("timestep_type") == "continuous" and options["prediction_type"] == "v_prediction":
        raise ValueError(
            f"{name} with timestep_type='continuous' is not supported: it passes log(sigma)/4 to the network "
            "as time. Wrap the network so that it takes timesteps, and use timestep_type='discrete'."
        )
    alpha_bars = scheduler.alphas_cumprod.double().clone()
    if options.get("rescale_betas_zero_snr"):
        alpha_bars[-1] = 0.0  # some schedulers use 2⁻²⁴ instead, which can exceed the previous level
    return schedules.from_alpha_bars(alpha_bars)


def prediction_of(scheduler: Any) -> str:
    """What the network predicts: `epsilon`, `sample`, `v`, `flow`, or `edm` with its σ_data."""
    name, options = check_supported(scheduler), options_of(scheduler)
    if name == "FlowMatchEulerDiscreteScheduler":
        return "flow"
    if _is_edm(scheduler):
        if options["prediction_type"] != "epsilon":
            raise ValueError(
                f"{name} with prediction_type={options['prediction_type']!r} is not supported; use "
                "prediction_type='epsilon', for v_prediction with a network that returns −v."
            )
        return f"edm:{options['sigma_data']}"
    prediction = PREDICTIONS[one_of("prediction_type", options["prediction_type"], PREDICTIONS)]
    if prediction == "flow" and not _is_flow(scheduler):
        raise ValueError(
            f"prediction_type='flow_prediction' does not fit this {name}; use "
            "FlowMatchEulerDiscreteScheduler, or DPMSolverMultistepScheduler with use_flow_sigmas=True."
        )
    return prediction


def options_of(scheduler: Any) -> Mapping[str, Any]:
    """The scheduler's own options, without those that `from_config` kept from another scheduler."""
    own = inspect.signature(type(scheduler).__init__).parameters
    return {name: value for name, value in scheduler.config.items() if name in own}


def limit_of(scheduler: Any) -> Threshold | float | None:
    """How x̂0 is clipped: dynamic thresholding, a number r for [−r, r], or None."""
    options = options_of(scheduler)
    if options.get("thresholding"):
        return Threshold(options["dynamic_thresholding_ratio"], options["sample_max_value"])
    return options["clip_sample_range"] if options.get("clip_sample") else None


def steps_of(
    scheduler: Any,
    schedule: Schedule,
    n: int | None,
    *,
    skipped: int = 0,
    eta: float = 0.0,
    use_clipped: bool = False,
    network: Variances | None = None,
    **options: Any,
) -> Steps:
    """The sampler table of n steps of the scheduler.

    Args:
        scheduler: one of `SCHEDULERS`; it is not changed.
        schedule: from `schedule_of`.
        n: the number of steps; None for those that the scheduler is set to.
        skipped: how many of them are left out at the start.
        eta: for DDIM.
        use_clipped: for DDIM: `use_clipped_model_output`.
        network: a network with a learned variance, for DDPM schedulers that need one.
        **options: passed to the scheduler's `set_timesteps`, for instance `mu` or `timesteps`.
    """
    name = check_supported(scheduler)
    if name != "DDIMScheduler" and (eta or use_clipped):
        raise ValueError(f"eta and use_clipped belong to DDIMScheduler, got {name}; leave them out.")
    scheduler = copy.deepcopy(scheduler)
    if n is not None or options:
        count = () if "timesteps" in options else (n,)  # diffusers refuses both
        scheduler.set_timesteps(*count, **options)
    return SCHEDULERS[name](_Table(scheduler, schedule, skipped, eta, use_clipped, network))


@dataclass(frozen=True)
class _Table:
    """A scheduler after `set_timesteps`, and the other settings that determine the rows."""

    scheduler: Any
    schedule: Schedule
    skipped: int
    eta: float
    use_clipped: bool
    network: Variances | None

    def left(self, levels: list[Any]) -> list[Any]:
        """What is left of the levels, or of the jumps between them, after those that are skipped."""
        if not 0 <= self.skipped < len(levels):
            raise ValueError(
                f"skipped must lie in 0..{len(levels) - 1} for {len(levels)} steps, got {self.skipped}."
            )
        return levels[self.skipped :]

    @property
    def options(self) -> Mapping[str, Any]:
        return options_of(self.scheduler)

    @property
    def times(self) -> list[Any]:
        return self.scheduler.timesteps.tolist()

    def at(self, t: int) -> Level:
        """The level of a timestep."""
        T = len(self.scheduler.alphas_cumprod)
        if not 0 <= t < T:
            raise ValueError(
                f"timesteps must lie in 0..{T - 1}, got {t} from the scheduler; lower steps_offset or the "
                "number of steps."
            )
        bar = float(self.scheduler.alphas_cumprod[t])
        return Level(t, bar**0.5, (1 - bar) ** 0.5)

    def of_sigmas(self, flow: bool = False) -> list[Level]:
        """The levels of the scheduler's sigmas, including the target of the last step."""
        if _is_edm(self.scheduler):
            return [Level(s, 1.0, s) for s in self.scheduler.sigmas.double().tolist()]
        levels, times = [], [*self.times, -1]
        # log-linear spacing has one sigma too many
        sigmas = self.scheduler.sigmas.double()[: len(times)].tolist()
        for time, s in zip(times, sigmas, strict=True):
            alpha = 1 - s if flow else (s**2 + 1) ** -0.5
            levels.append(Level(time, alpha, s if flow else s * alpha))
        return levels


def _ddpm(table: _Table) -> Steps:
    kind = table.scheduler.variance_type
    if kind == "fixed_large_log":
        raise ValueError(
            "variance_type='fixed_large_log' is not supported: it takes the root of a logarithm, which is "
            "NaN in diffusers too. Use 'fixed_large'."
        )
    levels = table.left([table.at(t) for t in table.times])
    jumps = list(pairwise([*levels, DATA]))
    large = kind in ("fixed_large", "learned_range")
    steps = samplers.ddpm(
        table.schedule, jumps, clip=limit_of(table.scheduler), variance="large" if large else "small"
    )
    transitions = list(steps.transitions)
    if levels[-1].time > 0 and large:  # diffusers adds noise to the final sample
        transitions[-1] = replace(transitions[-1], c=levels[-1].sigma)
    if kind in ("learned", "learned_range"):
        if table.network is None:
            raise ValueError(
                f"variance_type={kind!r} needs a network that returns twice as many channels as it takes, "
                "which this one does not; use variance_type='fixed_small'."
            )
        for k, (here, there) in enumerate(jumps):
            noise = _learned_noise(table.network, kind, here, there)
            transitions[k] = replace(transitions[k], c=float(here.time > 0), noise=noise)
    return replace(steps, transitions=tuple(transitions))


def _learned_noise(network: Variances, kind: str, here: Level, there: Level) -> Noise:
    """The standard deviation of the noise, from the learned variance v of the network.

    v is the variance itself (`learned`), or it interpolates the log-variance between log β̃_t at v = −1 and
    log β_t at v = 1 (`learned_range`).
    """
    beta = 1 - (here.alpha / there.alpha) ** 2
    low = math.log(max((there.sigma / here.sigma) ** 2 * beta, _MIN_VARIANCE))
    high = math.log(beta)

    def scale(x: Tensor, t: Tensor, cond: Any) -> Tensor:
        v = network.variance(x, t, cond)
        if kind == "learned":
            return v.sqrt()
        fraction = (v + 1) / 2
        return torch.exp((fraction * high + (1 - fraction) * low) / 2)

    return scale


def _ddim(table: _Table) -> Steps:
    stride = table.options["num_train_timesteps"] // table.scheduler.num_inference_steps
    last = DATA if table.options["set_alpha_to_one"] else replace(table.at(0), time=-1)
    # the target is one stride below, on the grid of timesteps or not
    jumps = [(table.at(t), table.at(t - stride) if t >= stride else last) for t in table.times]
    return samplers.ddim(
        table.schedule, table.left(jumps), table.eta, clip=limit_of(table.scheduler),
        use_clipped=table.use_clipped,
    )  # fmt: skip


def _dpmpp(table: _Table) -> Steps:
    options = table.options
    order, kind = options["solver_order"], options["solver_type"]
    for option, allowed, nearest in [
        ("algorithm_type", ("dpmsolver++",), "dpmsolver++"),
        ("solver_order", (1, 2), 2),
        ("solver_type", ("midpoint",) if order == 2 else (kind,), "midpoint"),
    ]:
        if options[option] not in allowed:
            raise ValueError(
                f"{type(table.scheduler).__name__} with {option}={options[option]!r} is not supported; "
                f"use {option}={nearest!r}."
            )
    every = list(pairwise(table.of_sigmas(flow=_is_flow(table.scheduler))))
    jumps = table.left(every)
    clip, start = limit_of(table.scheduler), float(table.scheduler.init_noise_sigma)
    if order == 1:
        return replace(samplers.ddim(table.schedule, jumps, clip=clip), name="dpmpp_1m", start=start)
    last = options["euler_at_final"] or (options["lower_order_final"] and len(every) < 15)
    steps = samplers.dpmpp_2m(table.schedule, jumps, clip=clip, first_order_last=last)
    return replace(steps, start=start)


def _euler(table: _Table) -> Steps:
    """Euler's method in x/α: x' = (σ'/σ)·x + (α' − (σ'/σ)·α)·x̂0 in the variance-preserving state."""
    levels = table.of_sigmas()
    steps = samplers.ddim(table.schedule, table.left(list(pairwise(levels))))
    # diffusers starts from init_noise_sigma·z and returns x/α; α is 1 if the last sigma is 0
    transitions, alpha = list(steps.transitions), levels[-1].alpha
    end = transitions[-1]
    transitions[-1] = replace(end, A=end.A / alpha, B=tuple(b / alpha for b in end.B))
    start = float(table.scheduler.init_noise_sigma) * levels[0].alpha
    return replace(steps, name="euler_discrete", transitions=tuple(transitions), start=start)


def _edm_euler(table: _Table) -> Steps:
    steps = samplers.euler(table.schedule, table.left(list(pairwise(table.of_sigmas()))))
    return replace(steps, start=float(table.scheduler.init_noise_sigma))


def _heun(table: _Table) -> Steps:
    """Heun's method in x/α, as rows in the variance-preserving state."""
    scheduler = table.scheduler
    # every time and sigma but the first and the last are there twice, for both calls of a step
    doubled = scheduler.timesteps, scheduler.sigmas[:-1].double()
    times, sigmas = ([values[0].item(), *values[1::2].tolist()] for values in doubled)
    alphas = [(s**2 + 1) ** -0.5 for s in sigmas]
    levels = [Level(t, a, s * a) for t, s, a in zip(times, sigmas, alphas, strict=True)]
    jumps = table.left(list(pairwise([*levels, DATA])))
    steps = samplers.heun(table.schedule, jumps, clip=limit_of(scheduler))
    return replace(steps, name="heun_discrete", start=float(scheduler.init_noise_sigma) * alphas[0])


def _flow_euler(table: _Table) -> Steps:
    if table.options.get("invert_sigmas"):
        raise ValueError(
            "invert_sigmas=True is not supported; use FlowMatchEulerDiscreteScheduler with "
            "invert_sigmas=False."
        )
    jumps = table.left(list(pairwise(table.of_sigmas(flow=True))))
    steps = samplers.euler(table.schedule, jumps)
    if not table.options.get("stochastic_sampling"):
        return steps
    # x̂0, re-noised to the next level
    pairs = zip(steps.transitions, jumps, strict=True)
    renoised = tuple(replace(s, A=0.0, B=(there.alpha,), c=there.sigma) for s, (_, there) in pairs)
    return replace(steps, name="euler_stochastic", transitions=renoised)


SCHEDULERS: dict[str, Callable[[_Table], Steps]] = {
    "DDPMScheduler": _ddpm,
    "DDIMScheduler": _ddim,
    "DPMSolverMultistepScheduler": _dpmpp,
    "EDMDPMSolverMultistepScheduler": _dpmpp,
    "EDMEulerScheduler": _edm_euler,
    "EulerDiscreteScheduler": _euler,
    "FlowMatchEulerDiscreteScheduler": _flow_euler,
    "HeunDiscreteScheduler": _heun,
}


#: those that scale the network's input
SCALING = (
    "EDMDPMSolverMultistepScheduler",
    "EDMEulerScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
)


def check_supported(scheduler: Any) -> str:
    """Return the class name of the scheduler if it is one of `SCHEDULERS`; raise otherwise."""
    name = type(scheduler).__name__
    if name in SCHEDULERS:
        return name
    if not hasattr(scheduler, "set_timesteps"):
        raise TypeError(
            f"scheduler must be a diffusers scheduler, got {name}; use one of {', '.join(SCHEDULERS)}."
        )
    nearest = "FlowMatchEulerDiscreteScheduler" if "Flow" in name else "DPMSolverMultistepScheduler"
    raise ValueError(
        f"{name} is not supported; choose from {', '.join(SCHEDULERS)}. "
        f"Use {nearest}.from_config(scheduler.config)."
    )


def _is_edm(scheduler: Any) -> bool:
    return type(scheduler).__name__.startswith("EDM")


def _is_flow(scheduler: Any) -> bool:
    return "FlowMatch" in type(scheduler).__name__ or bool(options_of(scheduler).get("use_flow_sigmas"))

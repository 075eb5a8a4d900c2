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
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..core.validation import one_of
from ..diffusion import samplers, schedules
from ..diffusion.samplers import Noise, Steps
from ..diffusion.schedules import Level, Schedule
from ..diffusion.steps import Threshold
from ..network.denoiser import Denoiser

PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v_prediction": "v", "flow_prediction": "flow"}
Jump = tuple[Level, Level]  # a step from one level to another
DATA = Level(-1, 1.0, 0.0)
#: options of schedulers of which only these values are supported
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "algorithm_type": ("dpmsolver++",),
    "timestep_type": ("discrete",),  # "continuous" passes log(sigma)/4 to some networks as time
    "invert_sigmas": (False,),
    "solver_order": (1, 2),
    "solver_type": ("midpoint",),
    # fixed_large_log takes the root of a logarithm, which is NaN in diffusers, too
    "variance_type": (None, "fixed_small", "fixed_small_log", "learned", "learned_range", "fixed_large"),
}
_MIN_VARIANCE = 1e-20  # diffusers clamps the variance to this before its logarithm


def schedule_of(scheduler: Any) -> Schedule:
    """The noise levels that the network was trained on."""
    options = check_supported(scheduler)
    if _is_flow(scheduler):
        shift = scheduler.shift if "shift" in options else options["flow_shift"]
        T = options["num_train_timesteps"]
        # a dynamic shift depends on the resolution, which only `steps(n, mu=...)` knows
        return schedules.flow(T, time_scale=T, shift=1.0 if options.get("use_dynamic_shifting") else shift)
    if _is_edm(scheduler):
        names = ("sigma_min", "sigma_max", "rho")
        return schedules.edm(*(options[name] for name in names), T=options["num_train_timesteps"])
    alpha_bars = scheduler.alphas_cumprod.double().clone()
    if options.get("rescale_betas_zero_snr"):
        alpha_bars[-1] = 0.0  # some schedulers use 2⁻²⁴ instead, which can exceed the previous level
    return schedules.from_alpha_bars(alpha_bars)


def prediction_of(scheduler: Any) -> str:
    """What the network predicts: `epsilon`, `sample`, `v`, `flow`, or `edm` with its σ_data."""
    options = options_of(scheduler)
    kind, name = options.get("prediction_type", "flow_prediction"), type(scheduler).__name__
    if _is_edm(scheduler):  # v_prediction with these is −v
        one_of(f"prediction_type of {name}", kind, ["epsilon"])
        return f"edm:{options['sigma_data']}"
    known = [each for each in PREDICTIONS if each != "flow_prediction" or _is_flow(scheduler)]
    return PREDICTIONS[one_of(f"prediction_type of {name}", kind, known)]


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
    network: Denoiser,
    n: int | None,
    *,
    skipped: int = 0,
    eta: float = 0.0,
    use_clipped: bool = False,
    **options: Any,
) -> Steps:
    """The table of n steps of a scheduler.

    Args:
        scheduler: One of `SCHEDULERS`. It is not changed.
        schedule: The noise levels, from `schedule_of`.
        network: The network, whose learned variance some DDPM schedulers need.
        n: The number of steps; None for the steps that the scheduler is set to.
        skipped: The number of steps to leave out at the start, as image-to-image pipelines do.
        eta: For DDIM: 0 is deterministic, 1 adds as much noise as DDPM.
        use_clipped: For DDIM: diffusers' `use_clipped_model_output`.
        **options: Passed to the scheduler's `set_timesteps`, for example `mu` or `timesteps`.
    """
    name = type(scheduler).__name__
    if name != "DDIMScheduler" and (eta or use_clipped):
        raise ValueError(f"eta and use_clipped belong to DDIMScheduler, got {name}; leave them out.")
    scheduler = copy.deepcopy(scheduler)
    if n is not None or options:
        count = () if "timesteps" in options else (n,)  # diffusers refuses both
        scheduler.set_timesteps(*count, **options)
    jumps = _jumps_of(scheduler)
    if not 0 <= skipped < len(jumps):
        raise ValueError(f"skipped must lie in 0..{len(jumps) - 1} for {len(jumps)} steps, got {skipped}.")
    own: dict[str, Any] = {}
    if name == "DDIMScheduler":
        own = {"eta": eta, "use_clipped": use_clipped}
    elif name == "DDPMScheduler":
        own = {"network": network}
    steps = SCHEDULERS[name](scheduler, schedule, jumps[skipped:], **own)
    # diffusers starts from init_noise_sigma·z, of x/α in the first two
    alpha = jumps[0][0].alpha if name in ("EulerDiscreteScheduler", "HeunDiscreteScheduler") else 1.0
    return replace(steps, start=float(getattr(scheduler, "init_noise_sigma", steps.start)) * alpha)


def _jumps_of(scheduler: Any) -> list[Jump]:
    """The levels that each step goes from and to, after `set_timesteps`."""
    name, times = type(scheduler).__name__, scheduler.timesteps.tolist()
    if name == "DDPMScheduler":
        return list(pairwise([*(_level_at(scheduler, t) for t in times), DATA]))
    if name == "DDIMScheduler":
        options = options_of(scheduler)
        stride = options["num_train_timesteps"] // scheduler.num_inference_steps
        last = DATA if options["set_alpha_to_one"] else replace(_level_at(scheduler, 0), time=-1)
        # the target is one stride below, on the grid of timesteps or not
        targets = [_level_at(scheduler, t - stride) if t >= stride else last for t in times]
        return list(zip((_level_at(scheduler, t) for t in times), targets, strict=True))
    sigmas = scheduler.sigmas.double().tolist()
    if name == "HeunDiscreteScheduler":
        # every time and sigma but the first and the last is listed twice, for both calls of a step
        times, sigmas = ([values[0], *values[1::2]] for values in (times, sigmas[:-1]))
        return list(pairwise([*map(_level_of, times, sigmas), DATA]))
    if _is_edm(scheduler):
        return list(pairwise(Level(s, 1.0, s) for s in sigmas))
    times = [*times, -1]
    sigmas = sigmas[: len(times)]  # log-linear spacing has one sigma too many
    if _is_flow(scheduler):
        return list(pairwise(Level(t, 1 - s, s) for t, s in zip(times, sigmas, strict=True)))
    return list(pairwise(_level_of(t, s) for t, s in zip(times, sigmas, strict=True)))


def _level_at(scheduler: Any, t: int) -> Level:
    """The level of a timestep."""
    T = len(scheduler.alphas_cumprod)
    if not 0 <= t < T:
        raise ValueError(
            f"timesteps must lie in 0..{T - 1}, got {t} from the scheduler; lower steps_offset or the "
            "number of steps."
        )
    bar = float(scheduler.alphas_cumprod[t])
    return Level(t, bar**0.5, (1 - bar) ** 0.5)


def _level_of(time: float, ratio: float) -> Level:
    """The variance-preserving level with σ/α = ratio."""
    alpha = (ratio**2 + 1) ** -0.5
    return Level(time, alpha, ratio * alpha)


def _ddpm(scheduler: Any, schedule: Schedule, jumps: list[Jump], network: Denoiser) -> Steps:
    kind, last = scheduler.variance_type, jumps[-1][0]
    large = kind in ("fixed_large", "learned_range")
    clip = limit_of(scheduler)
    steps = samplers.ddpm(schedule, jumps, clip=clip, variance="large" if large else "small")
    transitions = list(steps.transitions)
    if last.time > 0 and large:  # diffusers adds noise to the final sample
        transitions[-1] = replace(transitions[-1], c=last.sigma)
    if kind in ("learned", "learned_range"):
        if not getattr(network, "learns_variance", False):
            raise ValueError(
                f"variance_type={kind!r} needs a network that returns twice as many channels as it takes, "
                "which this one does not; use variance_type='fixed_small'."
            )
        for k, (here, there) in enumerate(jumps):
            noise = _learned_noise(network, kind, here, there)
            transitions[k] = replace(transitions[k], c=float(here.time > 0), noise=noise)
    return replace(steps, transitions=tuple(transitions))


def _learned_noise(network: Any, kind: str, here: Level, there: Level) -> Noise:
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


def _ddim(scheduler: Any, schedule: Schedule, jumps: list[Jump], eta: float, use_clipped: bool) -> Steps:
    return samplers.ddim(schedule, jumps, eta, clip=limit_of(scheduler), use_clipped=use_clipped)


def _dpmpp(scheduler: Any, schedule: Schedule, jumps: list[Jump]) -> Steps:
    options = options_of(scheduler)
    clip = limit_of(scheduler)
    if options["solver_order"] == 1:
        return replace(samplers.ddim(schedule, jumps, clip=clip), name="dpmpp_1m")
    last = options["euler_at_final"] or (options["lower_order_final"] and len(scheduler.timesteps) < 15)
    return samplers.dpmpp_2m(schedule, jumps, clip=clip, first_order_last=last)


def _euler(scheduler: Any, schedule: Schedule, jumps: list[Jump]) -> Steps:
    """Euler's method in x/α: x' = (σ'/σ)·x + (α' − (σ'/σ)·α)·x̂0 in the variance-preserving state."""
    steps = samplers.ddim(schedule, jumps)
    # diffusers returns x/α; α is 1 if the last sigma is 0
    *others, end = steps.transitions
    alpha = jumps[-1][1].alpha
    end = replace(end, A=end.A / alpha, B=tuple(b / alpha for b in end.B))
    return replace(steps, name="euler_discrete", transitions=(*others, end))


def _heun(scheduler: Any, schedule: Schedule, jumps: list[Jump]) -> Steps:
    """Heun's method in x/α, as rows in the variance-preserving state."""
    return replace(samplers.heun(schedule, jumps, clip=limit_of(scheduler)), name="heun_discrete")


def _plain_euler(scheduler: Any, schedule: Schedule, jumps: list[Jump]) -> Steps:
    """Euler's method in x, of flows and of EDM."""
    steps = samplers.euler(schedule, jumps)
    if not options_of(scheduler).get("stochastic_sampling"):
        return steps
    # x̂0, re-noised to the next level
    pairs = zip(steps.transitions, jumps, strict=True)
    renoised = tuple(replace(s, A=0.0, B=(there.alpha,), c=there.sigma) for s, (_, there) in pairs)
    return replace(steps, name="euler_stochastic", transitions=renoised)


#: the table of each scheduler, from (scheduler, schedule, jumps)
SCHEDULERS: dict[str, Callable[..., Steps]] = {
    "DDPMScheduler": _ddpm,
    "DDIMScheduler": _ddim,
    "DPMSolverMultistepScheduler": _dpmpp,
    "EDMDPMSolverMultistepScheduler": _dpmpp,
    "EDMEulerScheduler": _plain_euler,
    "EulerDiscreteScheduler": _euler,
    "FlowMatchEulerDiscreteScheduler": _plain_euler,
    "HeunDiscreteScheduler": _heun,
}


def check_supported(scheduler: Any) -> Mapping[str, Any]:
    """Return the options of a scheduler if it and they are supported; raise otherwise."""
    name = type(scheduler).__name__
    if name in SCHEDULERS:
        options = options_of(scheduler)
        for option, allowed in _SUPPORTED.items():
            if (value := options.get(option, allowed[-1])) not in allowed:
                raise ValueError(
                    f"{name} with {option}={value!r} is not supported; use {option}={allowed[-1]!r}."
                )
        return options
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

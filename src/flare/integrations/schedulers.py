"""A scheduler of diffusers as a schedule and as rows.

The levels and times are read from the scheduler itself after its own `set_timesteps`, so that spacing,
offsets, rescaled betas, Karras sigmas and shifts are what they are there. Options are read only if they are
the scheduler's own: `from_config` keeps those of the scheduler that the config came from.
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
from ..diffusion.clipping import Threshold
from ..diffusion.samplers import Noise, Steps
from ..diffusion.schedules import Level, Schedule

PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v_prediction": "v", "flow_prediction": "flow"}
DATA = Level(-1, 1.0, 0.0)
_LOWEST = 1e-20  # the least variance of which diffusers takes the logarithm


class Variances(Protocol):
    """A network that answers with the size of the noise, too."""

    def variance(self, x: Tensor, t: Tensor, cond: Any) -> Tensor:
        """What it says of the variance, like x."""


def schedule_of(scheduler: Any) -> Schedule:
    """The levels that the network was trained on."""
    name, options = check_supported(scheduler), options_of(scheduler)
    if _is_flow(scheduler):
        shift = scheduler.shift if name == "FlowMatchEulerDiscreteScheduler" else options["flow_shift"]
        T = options["num_train_timesteps"]
        # a dynamic shift follows the resolution, which only `steps(n, mu=...)` is told
        return schedules.flow(T, time_scale=T, shift=1.0 if options.get("use_dynamic_shifting") else shift)
    if options.get("timestep_type") == "continuous" and options["prediction_type"] == "v_prediction":
        raise ValueError(
            f"{name} with timestep_type='continuous' is not supported: it gives the network log(sigma)/4 as "
            "time. Wrap the network so that it takes timesteps, and use timestep_type='discrete'."
        )
    alpha_bars = scheduler.alphas_cumprod.double().clone()
    if options.get("rescale_betas_zero_snr"):
        alpha_bars[-1] = 0.0  # some schedulers keep 2⁻²⁴ instead, which can be more than the level before has
    return schedules.from_alpha_bars(alpha_bars)


def prediction_of(scheduler: Any) -> str:
    """What the network predicts: epsilon, sample, v or flow."""
    name, options = check_supported(scheduler), options_of(scheduler)
    if name == "FlowMatchEulerDiscreteScheduler":
        return "flow"
    prediction = PREDICTIONS[one_of("prediction_type", options["prediction_type"], PREDICTIONS)]
    if prediction == "flow" and not _is_flow(scheduler):
        raise ValueError(
            f"prediction_type='flow_prediction' does not go with this {name}; use "
            "FlowMatchEulerDiscreteScheduler, or DPMSolverMultistepScheduler with use_flow_sigmas=True."
        )
    return prediction


def options_of(scheduler: Any) -> Mapping[str, Any]:
    """The options that the scheduler itself has, without those that `from_config` kept of another one."""
    own = inspect.signature(type(scheduler).__init__).parameters
    return {name: value for name, value in scheduler.config.items() if name in own}


def limit_of(scheduler: Any) -> Threshold | float | None:
    """What keeps x̂0 in range: a threshold, a number r for [−r, r], or nothing."""
    options = options_of(scheduler)
    if options.get("thresholding"):
        return Threshold(options["dynamic_thresholding_ratio"], options["sample_max_value"])
    return options["clip_sample_range"] if options.get("clip_sample") else None


def steps_of(
    scheduler: Any,
    schedule: Schedule,
    n: int,
    *,
    eta: float = 0.0,
    use_clipped: bool = False,
    network: Variances | None = None,
    **options: Any,
) -> Steps:
    """The rows of n steps of the scheduler.

    Args:
        scheduler: any of `SCHEDULERS`; it is not changed.
        schedule: of `schedule_of`.
        n: the number of steps.
        eta: of DDIM.
        use_clipped: DDIM's `use_clipped_model_output`.
        network: that learned the variance, for a DDPM scheduler which wants it.
        **options: of the scheduler's `set_timesteps`, for instance `mu` or `timesteps`.
    """
    name = check_supported(scheduler)
    if name != "DDIMScheduler" and (eta or use_clipped):
        raise ValueError(
            f"eta and use_clipped belong to DDIMScheduler, and this is a {name}; leave them out."
        )
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(n, **options) if "timesteps" not in options else scheduler.set_timesteps(
        **options
    )
    return SCHEDULERS[name](_Table(scheduler, schedule, eta, use_clipped, network))


@dataclass(frozen=True)
class _Table:
    """A scheduler with its timesteps set, and what else decides over the rows."""

    scheduler: Any
    schedule: Schedule
    eta: float
    use_clipped: bool
    network: Variances | None

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
                f"the scheduler asks for timestep {t}, and there are 0..{T - 1}; lower steps_offset or the "
                "number of steps."
            )
        bar = float(self.scheduler.alphas_cumprod[t])
        return Level(t, bar**0.5, (1 - bar) ** 0.5)

    def of_sigmas(self, flow: bool = False) -> list[Level]:
        """The levels of the scheduler's sigmas, the target of the last step included."""
        levels, times = [], [*self.times, -1]
        # log-linear sigmas are one more than there are steps to take them
        sigmas = self.scheduler.sigmas.double()[: len(times)].tolist()
        for time, s in zip(times, sigmas, strict=True):
            alpha = 1 - s if flow else (s**2 + 1) ** -0.5
            levels.append(Level(time, alpha, s if flow else s * alpha))
        return levels


def _ddpm(table: _Table) -> Steps:
    kind = table.scheduler.variance_type
    if kind == "fixed_large_log":
        raise ValueError(
            "variance_type='fixed_large_log' takes the root of a logarithm and gives NaN in diffusers, too; "
            "use 'fixed_large'."
        )
    levels = [table.at(t) for t in table.times]
    jumps = list(pairwise([*levels, DATA]))
    large = kind in ("fixed_large", "learned_range")
    steps = samplers.ddpm(
        table.schedule, jumps, clip=limit_of(table.scheduler), variance="large" if large else "small"
    )
    transitions = list(steps.transitions)
    if levels[-1].time > 0 and large:  # there diffusers adds noise to the finished sample
        transitions[-1] = replace(transitions[-1], c=levels[-1].sigma)
    if kind in ("learned", "learned_range"):
        if table.network is None:
            raise ValueError(
                f"variance_type={kind!r} needs a network with twice as many channels out as in, and this one "
                "has not; use variance_type='fixed_small'."
            )
        for k, (here, there) in enumerate(jumps):
            noise = _learned_noise(table.network, kind, here, there)
            transitions[k] = replace(transitions[k], c=float(here.time > 0), noise=noise)
    return replace(steps, transitions=tuple(transitions))


def _learned_noise(network: Variances, kind: str, here: Level, there: Level) -> Noise:
    """The scale of the noise as the network gives it.

    It answers with v: the variance itself (learned), or where its logarithm lies between those of β̃_t
    (v = −1) and β_t (v = 1).
    """
    beta = 1 - (here.alpha / there.alpha) ** 2
    low = math.log(max((there.sigma / here.sigma) ** 2 * beta, _LOWEST))
    high = math.log(beta)

    def scale(x: Tensor, t: Tensor, cond: Any) -> Tensor:
        v = network.variance(x, t, cond)
        if kind == "learned":
            return v.sqrt()
        share = (v + 1) / 2
        return torch.exp((share * high + (1 - share) * low) / 2)

    return scale


def _ddim(table: _Table) -> Steps:
    stride = table.options["num_train_timesteps"] // table.scheduler.num_inference_steps
    last = DATA if table.options["set_alpha_to_one"] else replace(table.at(0), time=-1)
    # the target is a stride below, whether that is on the grid or not
    jumps = [(table.at(t), table.at(t - stride) if t >= stride else last) for t in table.times]
    return samplers.ddim(
        table.schedule, jumps, table.eta, clip=limit_of(table.scheduler), use_clipped=table.use_clipped
    )


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
                f"DPMSolverMultistepScheduler with {option}={options[option]!r} is not supported; "
                f"make it with {option}={nearest!r}."
            )
    jumps = list(pairwise(table.of_sigmas(flow=_is_flow(table.scheduler))))
    if order == 1:
        return replace(samplers.ddim(table.schedule, jumps, clip=limit_of(table.scheduler)), name="dpmpp_1m")
    last = options["euler_at_final"] or (options["lower_order_final"] and len(jumps) < 15)
    return samplers.dpmpp_2m(table.schedule, jumps, clip=limit_of(table.scheduler), first_order_last=last)


def _euler(table: _Table) -> Steps:
    """Euler's method in x/α: x' = (σ'/σ)·x + (α' − (σ'/σ)·α)·x̂0 in the variance-preserving state."""
    levels = table.of_sigmas()
    steps = samplers.ddim(table.schedule, list(pairwise(levels)))
    # it starts from init_noise_sigma·z and returns x/α: α is 1 where the last sigma is 0
    transitions, alpha = list(steps.transitions), levels[-1].alpha
    end = transitions[-1]
    transitions[-1] = replace(end, A=end.A / alpha, B=tuple(b / alpha for b in end.B))
    start = float(table.scheduler.init_noise_sigma) * levels[0].alpha
    return replace(steps, name="euler_discrete", transitions=tuple(transitions), start=start)


def _flow_euler(table: _Table) -> Steps:
    if table.options.get("invert_sigmas"):
        raise ValueError(
            "invert_sigmas=True is not supported; use FlowMatchEulerDiscreteScheduler without it."
        )
    jumps = list(pairwise(table.of_sigmas(flow=True)))
    steps = samplers.euler(table.schedule, jumps)
    if not table.options.get("stochastic_sampling"):
        return steps
    # x̂0, noised again to the next level
    pairs = zip(steps.transitions, jumps, strict=True)
    again = tuple(replace(s, A=0.0, B=(there.alpha,), c=there.sigma) for s, (_, there) in pairs)
    return replace(steps, name="euler_stochastic", transitions=again)


SCHEDULERS: dict[str, Callable[[_Table], Steps]] = {
    "DDPMScheduler": _ddpm,
    "DDIMScheduler": _ddim,
    "DPMSolverMultistepScheduler": _dpmpp,
    "EulerDiscreteScheduler": _euler,
    "FlowMatchEulerDiscreteScheduler": _flow_euler,
}


def check_supported(scheduler: Any) -> str:
    """The name of the scheduler, if it is one of `SCHEDULERS`."""
    name = type(scheduler).__name__
    if name in SCHEDULERS:
        return name
    if not hasattr(scheduler, "set_timesteps"):
        raise TypeError(f"scheduler must be a scheduler of diffusers, got {name}.")
    nearest = "FlowMatchEulerDiscreteScheduler" if "Flow" in name else "DPMSolverMultistepScheduler"
    raise ValueError(
        f"{name} is not supported: its steps are not a table of {', '.join(SCHEDULERS)}. "
        f"Use {nearest}.from_config(scheduler.config)."
    )


def _is_flow(scheduler: Any) -> bool:
    return "FlowMatch" in type(scheduler).__name__ or bool(options_of(scheduler).get("use_flow_sigmas"))

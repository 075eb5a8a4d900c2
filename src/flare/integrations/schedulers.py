"""A scheduler of diffusers as a schedule and as rows.

The levels and times are read from the scheduler itself after its own `set_timesteps`, so that spacing,
offsets, rescaled betas, Karras sigmas and shifts are what they are there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import samplers, schedules
from ..checks import one_of
from ..limits import Threshold
from ..samplers import Noise, Steps
from ..schedules import Level, Schedule

PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v_prediction": "v", "flow_prediction": "flow"}
DATA = Level(-1, 1.0, 0.0)
_LOWEST = 1e-20  # the least variance of which diffusers takes the logarithm


class Variances(Protocol):
    """A network that answers with the size of the noise, too."""

    def variance(self, x: Tensor, t: Tensor, cond: Any) -> Tensor:
        """What it says of the variance, like x."""


def schedule_of(scheduler: Any) -> Schedule:
    """The levels that the network was trained on."""
    name, config = supported(scheduler), scheduler.config
    if _is_flow(scheduler):
        shift = scheduler.shift if name == "FlowMatchEulerDiscreteScheduler" else config.flow_shift
        T = config.num_train_timesteps
        # a dynamic shift follows the resolution, which only `steps(n, mu=...)` is told
        return schedules.flow(T, time_scale=T, shift=1.0 if config.get("use_dynamic_shifting") else shift)
    return schedules.from_alpha_bars(scheduler.alphas_cumprod.double())


def prediction_of(scheduler: Any) -> str:
    """What the network predicts: epsilon, sample, v or flow."""
    if supported(scheduler) == "FlowMatchEulerDiscreteScheduler":
        return "flow"
    return PREDICTIONS[one_of("prediction_type", scheduler.config.prediction_type, PREDICTIONS)]


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
    name = supported(scheduler)
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
    def config(self) -> Any:
        return self.scheduler.config

    @property
    def times(self) -> list[Any]:
        return self.scheduler.timesteps.tolist()

    def at(self, t: int) -> Level:
        """The level of a timestep."""
        T = self.config.num_train_timesteps
        if not 0 <= t < T:
            raise ValueError(
                f"the scheduler asks for timestep {t}, and there are 0..{T - 1}; lower steps_offset or the "
                "number of steps."
            )
        bar = float(self.scheduler.alphas_cumprod[t])
        return Level(t, bar**0.5, (1 - bar) ** 0.5)

    def of_sigmas(self, flow: bool = False) -> list[Level]:
        """The levels of the scheduler's sigmas, the target of the last step included."""
        levels = []
        for time, s in zip([*self.times, -1], self.scheduler.sigmas.double().tolist(), strict=True):
            alpha = 1 - s if flow else (s**2 + 1) ** -0.5
            levels.append(Level(time, alpha, s if flow else s * alpha))
        return levels

    @property
    def limit(self) -> Any:
        """The range of x̂0."""
        if self.config.get("thresholding"):
            return Threshold(self.config.dynamic_thresholding_ratio, self.config.sample_max_value)
        return self.config.clip_sample_range if self.config.get("clip_sample") else None


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
    steps = samplers.ddpm(table.schedule, jumps, clip=table.limit, variance="large" if large else "small")
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
            noise = _learned(table.network, kind, here, there)
            transitions[k] = replace(transitions[k], c=float(here.time > 0), noise=noise)
    return replace(steps, transitions=tuple(transitions))


def _learned(network: Variances, kind: str, here: Level, there: Level) -> Noise:
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
    stride = table.config.num_train_timesteps // table.scheduler.num_inference_steps
    last = DATA if table.config.set_alpha_to_one else replace(table.at(0), time=-1)
    # the target is a stride below, whether that is on the grid or not
    jumps = [(table.at(t), table.at(t - stride) if t >= stride else last) for t in table.times]
    return samplers.ddim(table.schedule, jumps, table.eta, clip=table.limit, use_clipped=table.use_clipped)


def _dpmpp(table: _Table) -> Steps:
    config = table.config
    order = config.solver_order
    for option, value, allowed, nearest in [
        ("algorithm_type", config.algorithm_type, ("dpmsolver++",), "dpmsolver++"),
        ("solver_order", order, (1, 2), 2),
        (
            "solver_type",
            config.solver_type,
            ("midpoint",) if order == 2 else (config.solver_type,),
            "midpoint",
        ),
    ]:
        if value not in allowed:
            raise ValueError(
                f"DPMSolverMultistepScheduler with {option}={value!r} is not supported; "
                f"make it with {option}={nearest!r}."
            )
    jumps = list(pairwise(table.of_sigmas(flow=_is_flow(table.scheduler))))
    if order == 1:
        return replace(samplers.ddim(table.schedule, jumps, clip=table.limit), name="dpmpp_1m")
    last = config.euler_at_final or (config.lower_order_final and len(jumps) < 15)
    return samplers.dpmpp_2m(table.schedule, jumps, clip=table.limit, first_order_last=last)


def _euler(table: _Table) -> Steps:
    """Euler's method in x/α: x' = (σ'/σ)·x + (α' − (σ'/σ)·α)·x̂0 in the variance-preserving state."""
    levels = table.of_sigmas()
    steps = samplers.ddim(table.schedule, list(pairwise(levels)))
    # it starts from init_noise_sigma·z and returns x/α: α is 1 unless final_sigmas_type is sigma_min
    transitions, alpha = list(steps.transitions), levels[-1].alpha
    end = transitions[-1]
    transitions[-1] = replace(end, A=end.A / alpha, B=tuple(b / alpha for b in end.B))
    start = float(table.scheduler.init_noise_sigma) * levels[0].alpha
    return replace(steps, name="euler_discrete", transitions=tuple(transitions), start=start)


def _flow_euler(table: _Table) -> Steps:
    if table.config.get("invert_sigmas"):
        raise ValueError(
            "invert_sigmas=True is not supported; use FlowMatchEulerDiscreteScheduler without it."
        )
    jumps = list(pairwise(table.of_sigmas(flow=True)))
    steps = samplers.euler(table.schedule, jumps)
    if not table.config.get("stochastic_sampling"):
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


def supported(scheduler: Any) -> str:
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
    return "FlowMatch" in type(scheduler).__name__ or bool(scheduler.config.get("use_flow_sigmas"))

"""FLARE: which samples of a diffusion model can you trust?

Names are loaded when they are first used, so that `import flare` and the command line start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        baselines,
        checkpoint,
        curvature,
        distributed,
        evaluation,
        integrations,
        jacobians,
        limits,
        locks,
        noising,
        parameterizations,
        plot,
        posteriors,
        propagation,
        pushing,
        report,
        samplers,
        schedules,
        scores,
        subsets,
        training,
        trajectory,
        zoo,
    )
    from .denoiser import Denoiser
    from .derivatives import Derivative
    from .filtering import keep_below, keep_fraction, strata
    from .integrations.diffusers import from_diffusers
    from .integrations.pipeline import FlarePipeline
    from .integrations.requests import prompt_conditions
    from .linearization import check_linearization
    from .model_check import check_model
    from .results import Result
    from .samplers import Step
    from .sampling import sample, score
    from .schedules import Schedule
    from .shards import Shards

__version__ = "0.2.0"

__all__ = [
    "Denoiser",
    "Derivative",
    "FlarePipeline",
    "Result",
    "Schedule",
    "Shards",
    "Step",
    "baselines",
    "check_linearization",
    "check_model",
    "checkpoint",
    "curvature",
    "distributed",
    "evaluation",
    "from_diffusers",
    "integrations",
    "jacobians",
    "keep_below",
    "keep_fraction",
    "limits",
    "locks",
    "noising",
    "parameterizations",
    "plot",
    "posteriors",
    "prompt_conditions",
    "propagation",
    "pushing",
    "report",
    "sample",
    "samplers",
    "schedules",
    "score",
    "scores",
    "strata",
    "subsets",
    "training",
    "trajectory",
    "zoo",
]

# the names that are not modules, and the modules they live in
_HOMES = {
    "Denoiser": "denoiser",
    "Derivative": "derivatives",
    "FlarePipeline": "integrations.pipeline",
    "Result": "results",
    "Schedule": "schedules",
    "Shards": "shards",
    "Step": "samplers",
    "check_linearization": "linearization",
    "check_model": "model_check",
    "from_diffusers": "integrations.diffusers",
    "keep_below": "filtering",
    "keep_fraction": "filtering",
    "prompt_conditions": "integrations.requests",
    "sample": "sampling",
    "score": "sampling",
    "strata": "filtering",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_HOMES.get(name, name)}", __name__)
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return __all__

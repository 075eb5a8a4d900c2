"""FLARE: which samples of a diffusion model can you trust?

Names are loaded on first use, so `import flare` and the command line start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core import __version__ as __version__

if TYPE_CHECKING:
    from . import bench, posteriors, propagation, report, scores
    from .core import distributed
    from .diagnostics.linearization import check_linearization
    from .diagnostics.model_check import check_model
    from .diffusion import noising, samplers, schedules
    from .integrations.diffusers import from_diffusers
    from .integrations.interception import prompt_conditions
    from .integrations.pipeline import FlarePipeline
    from .model import Model
    from .network import training
    from .network.denoiser import Denoiser
    from .posteriors import subsets
    from .results import plot
    from .results.calibration import calibrate
    from .results.result import Result
    from .results.verdict import Reference
    from .sampling.existing import score
    from .sampling.sample import sample, trajectories
    from .scorer.directory import load
    from .scorer.estimator import TrustEstimator
    from .scorer.fit import fit
    from .scorer.scorer import Scorer
    from .storage.resume import Resume

#: public names, and the modules that define them; a name without a module is a module itself
_HOMES = {
    "Denoiser": "network.denoiser",
    "FlarePipeline": "integrations.pipeline",
    "Model": "model",
    "Reference": "results.verdict",
    "Result": "results.result",
    "Resume": "storage.resume",
    "Scorer": "scorer.scorer",
    "TrustEstimator": "scorer.estimator",
    "calibrate": "results.calibration",
    "check_linearization": "diagnostics.linearization",
    "check_model": "diagnostics.model_check",
    "fit": "scorer.fit",
    "from_diffusers": "integrations.diffusers",
    "load": "scorer.directory",
    "prompt_conditions": "integrations.interception",
    "sample": "sampling.sample",
    "score": "sampling.existing",
    "trajectories": "sampling.sample",
}
#: public modules, and where they are
_MODULES = {
    "bench": "bench",
    "distributed": "core.distributed",
    "noising": "diffusion.noising",
    "plot": "results.plot",
    "posteriors": "posteriors",
    "propagation": "propagation",
    "report": "report",
    "samplers": "diffusion.samplers",
    "schedules": "diffusion.schedules",
    "scores": "scores",
    "subsets": "posteriors.subsets",
    "training": "network.training",
}
__all__ = [
    "Denoiser",
    "FlarePipeline",
    "Model",
    "Reference",
    "Result",
    "Resume",
    "Scorer",
    "TrustEstimator",
    "bench",
    "calibrate",
    "check_linearization",
    "check_model",
    "distributed",
    "fit",
    "from_diffusers",
    "load",
    "noising",
    "plot",
    "posteriors",
    "prompt_conditions",
    "propagation",
    "report",
    "sample",
    "samplers",
    "schedules",
    "score",
    "scores",
    "subsets",
    "training",
    "trajectories",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{_MODULES[name]}", __name__)
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

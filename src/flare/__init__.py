"""FLARE: which samples of a diffusion model can you trust?

Names are loaded when they are first used, so that `import flare` and the command line start at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .core.version import __version__ as __version__

if TYPE_CHECKING:
    from . import autodiff, baselines, evaluation, integrations, posteriors, propagation, report, scores, zoo
    from .core import distributed
    from .diffusion import clipping, noising, parameterizations, samplers, schedules
    from .diffusion.samplers import Step
    from .diffusion.schedules import Schedule
    from .integrations.diffusers import from_diffusers
    from .integrations.pipeline import FlarePipeline
    from .integrations.requests import prompt_conditions
    from .network import training
    from .network.denoiser import Denoiser
    from .network.derivative import Derivative
    from .posteriors import curvature, subsets
    from .propagation import trajectory
    from .report import plot
    from .results.calibration import calibrate
    from .results.filtering import keep_below, keep_fraction, strata
    from .results.reference import Reference
    from .results.result import Result
    from .results.verdict import Verdict
    from .sampling.existing import score
    from .sampling.linearization import check_linearization
    from .sampling.model_check import check_model
    from .sampling.sample import sample, trajectories
    from .scores.neighbors import neighbors
    from .scoring.estimator import TrustEstimator
    from .scoring.files import load
    from .scoring.fit import fit
    from .scoring.scorer import Scorer
    from .storage import checkpoint, locks
    from .storage.resume import Resume

__all__ = [
    "Denoiser",
    "Derivative",
    "FlarePipeline",
    "Reference",
    "Result",
    "Resume",
    "Schedule",
    "Scorer",
    "Step",
    "TrustEstimator",
    "Verdict",
    "autodiff",
    "baselines",
    "calibrate",
    "check_linearization",
    "check_model",
    "checkpoint",
    "clipping",
    "curvature",
    "distributed",
    "evaluation",
    "fit",
    "from_diffusers",
    "integrations",
    "keep_below",
    "keep_fraction",
    "load",
    "locks",
    "neighbors",
    "noising",
    "parameterizations",
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
    "strata",
    "subsets",
    "training",
    "trajectories",
    "trajectory",
    "zoo",
]

# public modules, and the rooms that they live in
_MODULES = {
    "checkpoint": "storage.checkpoint",
    "clipping": "diffusion.clipping",
    "curvature": "posteriors.curvature",
    "distributed": "core.distributed",
    "locks": "storage.locks",
    "noising": "diffusion.noising",
    "parameterizations": "diffusion.parameterizations",
    "plot": "report.plot",
    "samplers": "diffusion.samplers",
    "schedules": "diffusion.schedules",
    "subsets": "posteriors.subsets",
    "training": "network.training",
    "trajectory": "propagation.trajectory",
}
# public functions and classes, and the modules that define them
_HOMES = {
    "Denoiser": "network.denoiser",
    "Derivative": "network.derivative",
    "FlarePipeline": "integrations.pipeline",
    "Reference": "results.reference",
    "Result": "results.result",
    "Resume": "storage.resume",
    "Schedule": "diffusion.schedules",
    "Scorer": "scoring.scorer",
    "Step": "diffusion.samplers",
    "TrustEstimator": "scoring.estimator",
    "Verdict": "results.verdict",
    "calibrate": "results.calibration",
    "check_linearization": "sampling.linearization",
    "check_model": "sampling.model_check",
    "fit": "scoring.fit",
    "from_diffusers": "integrations.diffusers",
    "keep_below": "results.filtering",
    "keep_fraction": "results.filtering",
    "load": "scoring.files",
    "neighbors": "scores.neighbors",
    "prompt_conditions": "integrations.requests",
    "sample": "sampling.sample",
    "score": "sampling.existing",
    "strata": "results.filtering",
    "trajectories": "sampling.sample",
}
# names of earlier versions
_RENAMED = {"Shards": "Resume", "jacobians": "autodiff", "limits": "clipping", "pushing": "autodiff"}


class _PublicModules(MetaPathFinder, Loader):
    """Makes `import flare.schedules` find the module in its room."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        return spec_from_loader(name, self) if package == __name__ and module in _MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f".{_MODULES[spec.name.partition('.')[2]]}", __name__)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importing by the other name has replaced it


sys.meta_path.append(_PublicModules())


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        raise AttributeError(f"flare.{name} is flare.{_RENAMED[name]} now.")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return import_module(f".{_MODULES.get(name, name)}", __name__)


def __dir__() -> list[str]:
    return __all__

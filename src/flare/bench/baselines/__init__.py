"""Published alternatives to FLARE, on the same reverse loop and the same posteriors.

Functions draw samples with scores: `bayesdiff`, `sample_llla`, `generative`, `ensemble` and `hyperdm` need
a posterior or several models, `last_iterates` and `aleatoric` neither. Detectors score existing samples:
`Residual`, `DenoisingError` and `FLIPD` on their own, `MSMA`, `DDPMOOD`, `DiffPath`, `GradientNorms`,
`Realism` and `Density` after `fit(real)`; the last two call no model. `BASELINES` has all of them by name.
"""

from __future__ import annotations

from . import hyperdm
from .bayesdiff import BayesDiff, bayesdiff
from .compared import DDPMOOD, MSMA, DiffPath, GradientNorms
from .contract import BASELINES, Baseline, Detector
from .denoised import FLIPD, DenoisingError, Residual
from .feature_fits import Density, Realism
from .rollouts import ensemble, generative, llla, sample_llla
from .windows import aleatoric, last_iterates

__all__ = [
    "BASELINES",
    "DDPMOOD",
    "FLIPD",
    "MSMA",
    "Baseline",
    "BayesDiff",
    "DenoisingError",
    "Density",
    "Detector",
    "DiffPath",
    "GradientNorms",
    "Realism",
    "Residual",
    "aleatoric",
    "bayesdiff",
    "ensemble",
    "generative",
    "hyperdm",
    "last_iterates",
    "llla",
    "sample_llla",
]

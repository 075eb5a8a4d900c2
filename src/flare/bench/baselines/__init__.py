"""Published alternatives to FLARE, on the same reverse loop and the same posteriors.

Functions draw samples with scores: `bayesdiff`, `sample_llla`, `generative` and `ensemble` need
a posterior or several models, `last_iterates`, `aleatoric` and `rods` neither. Detectors score existing
samples: `Residual`, `DenoisingError`, `FLIPD`, `Sharpness`, `Instability` and `EigenScore` on their own,
`MSMA`, `DDPMOOD`, `DiffPath`, `GradientNorms`, `Scoped`, `Realism` and `Density` after `fit(real)`; the
last two call no model. `BASELINES` has all of them by name.
"""

from __future__ import annotations

from .bayesdiff import BayesDiff, bayesdiff
from .compared import DDPMOOD, MSMA, DiffPath, GradientNorms
from .contract import BASELINES, Baseline, Detector
from .denoised import FLIPD, DenoisingError, Residual
from .derivatives import EigenScore, Instability, Scoped, Sharpness
from .feature_fits import Density, Realism
from .paths import aleatoric, last_iterates, rods
from .rollouts import ensemble, generative, llla, sample_llla

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
    "EigenScore",
    "GradientNorms",
    "Instability",
    "Realism",
    "Residual",
    "Scoped",
    "Sharpness",
    "aleatoric",
    "bayesdiff",
    "ensemble",
    "generative",
    "last_iterates",
    "llla",
    "rods",
    "sample_llla",
]

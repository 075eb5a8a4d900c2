"""Published alternatives to FLARE, on the same reverse loop and the same posteriors.

`llla`, `bayesdiff`, `generative`, `ensemble` and `hyperdm` need a posterior or several models.
`last_iterates`, `residual` and `denoising_error` need neither; the last two also score existing samples.
`BASELINES` has all of them by name, with what each needs.
"""

from __future__ import annotations

from ..core.registry import import_room
from . import hyperdm
from .bayesdiff import BayesDiff, bayesdiff
from .denoising_error import denoising_error
from .ensemble import ensemble
from .generative import generative
from .last_iterates import last_iterates
from .llla import llla
from .registry import BASELINES, Baseline, Inputs
from .residual import residual

__all__ = [
    "BASELINES",
    "Baseline",
    "BayesDiff",
    "Inputs",
    "bayesdiff",
    "denoising_error",
    "ensemble",
    "generative",
    "hyperdm",
    "last_iterates",
    "llla",
    "residual",
]

import_room(__name__, __path__)

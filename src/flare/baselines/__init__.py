"""Published alternatives to FLARE, on the same reverse loop and the same posteriors.

`llla`, `bayesdiff`, `generative`, `ensemble` and `hyperdm` need a posterior or several models.
`last_iterates`, `residual` and `denoising_error` need neither; the last two also score existing samples.
"""

from __future__ import annotations

from . import hyperdm
from .bayesdiff import BayesDiff, bayesdiff
from .denoising_error import denoising_error
from .ensemble import ensemble
from .generative import generative
from .last_iterates import last_iterates
from .llla import llla
from .residual import residual

__all__ = [
    "BayesDiff",
    "bayesdiff",
    "denoising_error",
    "ensemble",
    "generative",
    "hyperdm",
    "last_iterates",
    "llla",
    "residual",
]

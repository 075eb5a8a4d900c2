"""Other ways to score samples, each from its description, on the same loop and posteriors.

With a posterior or several models: `llla`, `bayesdiff`, `generative`, `ensemble`, `hyperdm`.
Without: `last_iterates`, and `residual` and `denoising_error`, which also score samples that exist.
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

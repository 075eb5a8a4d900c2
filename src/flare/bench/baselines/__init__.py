"""Published alternatives to FLARE, on the same reverse loop and the same posteriors.

`llla`, `bayesdiff`, `generative`, `ensemble` and `hyperdm` need a posterior or several models.
`last_iterates` and `aleatoric` need neither. `residual`, `denoising_error` and `flipd` score existing
samples. `msma`, `ddpm_ood`, `diffpath`, `gradient_norms`, `realism` and `density` compare existing samples
with real data; the last two call no model. Their `make_...` functions give the method itself, to fit it to
real data once.
`BASELINES` has all of them by name, with what each needs.
"""

from __future__ import annotations

from ...core.registry import import_room
from . import hyperdm
from .aleatoric import aleatoric
from .bayesdiff import BayesDiff, bayesdiff
from .catalog import BASELINES, Baseline, Inputs
from .comparison import Comparison, Fitted
from .ddpm_ood import ddpm_ood, make_ddpm_ood
from .denoising_error import denoising_error
from .density import density, make_density
from .diffpath import diffpath, make_diffpath
from .ensemble import ensemble
from .flipd import flipd
from .generative import generative
from .gradient_norms import gradient_norms, make_gradient_norms
from .last_iterates import last_iterates
from .llla import llla
from .msma import make_msma, msma
from .realism import make_realism, realism
from .residual import residual

__all__ = [
    "BASELINES",
    "Baseline",
    "BayesDiff",
    "Comparison",
    "Fitted",
    "Inputs",
    "aleatoric",
    "bayesdiff",
    "ddpm_ood",
    "denoising_error",
    "density",
    "diffpath",
    "ensemble",
    "flipd",
    "generative",
    "gradient_norms",
    "hyperdm",
    "last_iterates",
    "llla",
    "make_ddpm_ood",
    "make_density",
    "make_diffpath",
    "make_gradient_norms",
    "make_msma",
    "make_realism",
    "msma",
    "realism",
    "residual",
]

import_room(__name__, __path__)

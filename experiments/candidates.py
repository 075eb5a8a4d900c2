"""The candidates of the study of choice, fixed before anything was measured.

Scores of finished samples: influences that differ from the first in one thing or two, error profiles, and
distances to real data. Combinations add up what the scores say on the scale of real data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

import flare

from . import gradients
from .gradients import FEW, LEVELS

Kind = Literal["random", "sketch", "sensitive", "last"]


@dataclass(frozen=True)
class Influence:
    """One way to compute gᵀΣg.

    Attributes:
        kind: of the uncertain coordinates.
        prior: `calibrated`, the paper's s and δ as `printed`, or `none` for ‖g‖² without Σ.
        levels: noise levels as fractions of T.
        uniform: whether all levels have the same weight, instead of √min-SNR.
        logs: the mean over levels of log gᵀΣg, instead of that of the mean gradient.
        m: coordinates of a smaller subset; None for all.
    """

    kind: Kind = "random"
    prior: Literal["calibrated", "printed", "none"] = "calibrated"
    levels: tuple[float, ...] = FEW
    uniform: bool = False
    logs: bool = False
    m: int | None = None


SMALL = (100, 300)  # coordinates of smaller subsets
INFLUENCES: dict[str, Influence] = {
    "influence": Influence(),
    "influence, 13 levels": Influence(levels=LEVELS),
    "influence, uniform weights": Influence(uniform=True),
    "influence, 13 levels, uniform weights": Influence(levels=LEVELS, uniform=True),
    "influence, mean of logs": Influence(logs=True),
    "influence, 13 levels, mean of logs": Influence(levels=LEVELS, logs=True),
    "influence, paper's s and δ": Influence(prior="printed"),
    "influence, 13 levels, paper's s and δ": Influence(levels=LEVELS, prior="printed"),
    "‖g‖² without Σ": Influence(kind="sketch", prior="none"),
    "influence, sketch": Influence(kind="sketch"),
    "influence, sketch, 13 levels": Influence(kind="sketch", levels=LEVELS),
    "influence, sketch, paper's s and δ": Influence(kind="sketch", prior="printed"),
    "influence, sensitive": Influence(kind="sensitive"),
    "influence, last layer": Influence(kind="last"),
    **{f"influence, m = {m}": Influence(m=m) for m in SMALL},
}
PROFILES = {"error_profile": FEW, "error_profile, 13 levels": LEVELS}
CONTRAST = "error_profile, conditional − unconditional"  # of conditional models
NEIGHBORS, FEATURES = "neighbors", "neighbors, features"
SINGLE = (*INFLUENCES, *PROFILES, CONTRAST, NEIGHBORS, FEATURES)
#: scores that are logarithms, or differences of these
LOGS = (*(name for name, how in INFLUENCES.items() if how.logs), *PROFILES, CONTRAST)
DEFAULT = "influence + neighbors"
Scores = Mapping[str, Tensor]


def sum_of_z(names: tuple[str, ...], z: Scores, real: Scores) -> Tensor:
    """Σ z: the verdict of `flare.Reference`."""
    return torch.stack([z[name] for name in names]).sum(0)


def max_of_z(names: tuple[str, ...], z: Scores, real: Scores) -> Tensor:
    """The largest z."""
    return torch.stack([z[name] for name in names]).max(0).values


def sum_of_squares(names: tuple[str, ...], z: Scores, real: Scores) -> Tensor:
    """Σ max(0, z)²: only what speaks against a sample counts."""
    return torch.stack([z[name] for name in names]).clamp(min=0).square().sum(0)


def sum_of_ranks(names: tuple[str, ...], z: Scores, real: Scores) -> Tensor:
    """Σ of the shares of real samples below: only the order counts."""
    return torch.stack(
        [torch.searchsorted(real[name].sort().values, z[name]) / len(real[name]) for name in names]
    ).sum(0)


_PAIR = ("influence", NEIGHBORS)
_TRIPLE = (*_PAIR, "error_profile")
COMBINATIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    DEFAULT: (sum_of_z, _PAIR),
    "influence + neighbors + error_profile": (sum_of_z, _TRIPLE),
    "error_profile + neighbors": (sum_of_z, ("error_profile", NEIGHBORS)),
    "influence (13 levels) + neighbors": (sum_of_z, ("influence, 13 levels", NEIGHBORS)),
    "influence (sketch) + neighbors": (sum_of_z, ("influence, sketch", NEIGHBORS)),
    "influence (paper's s and δ) + neighbors": (sum_of_z, ("influence, paper's s and δ", NEIGHBORS)),
    "influence + neighbors in features": (sum_of_z, ("influence", FEATURES)),
    "influence + neighbors + neighbors in features": (sum_of_z, (*_PAIR, FEATURES)),
    "max of z, influence and neighbors": (max_of_z, _PAIR),
    "Σ max(0, z)², influence and neighbors": (sum_of_squares, _PAIR),
    "Σ max(0, z)², with error_profile": (sum_of_squares, _TRIPLE),
    "sum of ranks, influence and neighbors": (sum_of_ranks, _PAIR),
    "conditional − unconditional + neighbors": (sum_of_z, (CONTRAST, NEIGHBORS)),
    "influence + neighbors + conditional − unconditional": (sum_of_z, (*_PAIR, CONTRAST)),
}
CANDIDATES = (*SINGLE, *COMBINATIONS)


def combine(scores: Scores, reference: Scores) -> dict[str, Tensor]:
    """All combinations of which all parts were measured, from scores of samples and of real data."""
    names = [name for name in scores if name in reference]
    known = flare.Reference(
        {name: reference[name] for name in names}, log_scores=[name for name in names if name in LOGS]
    )
    z = {name: known.z(name, scores[name]) for name in names}
    real = {name: known.z(name, known.scores[name]) for name in names}
    return {
        label: how(parts, z, real)
        for label, (how, parts) in COMBINATIONS.items()
        if all(part in z for part in parts)
    }


def influences(
    found: Mapping[str, Tensor], weights: Tensor, levels: tuple[float, ...], posteriors: Mapping[str, object]
) -> dict[str, Tensor]:
    """All influences whose levels were measured, (B,) each.

    Args:
        found: gradients per level by kind, (B, L, m).
        weights: √w of the levels, (L,).
        levels: which levels these are.
        posteriors: by kind, prior and size, from `prepare`.
    """
    out = {}
    for name, how in INFLUENCES.items():
        if not set(how.levels) <= set(levels):
            continue
        rows = [levels.index(level) for level in how.levels]
        own, weight = found[how.kind][:, rows], torch.ones(len(rows)) if how.uniform else weights[rows]
        posterior, chosen = posteriors[how.kind, how.prior, how.m]
        own = own if chosen is None else own[..., chosen]
        square = partial(gradients.quadratic, posterior) if posterior else lambda g: g.square().sum(-1)
        value = square(own).log().mean(1) if how.logs else square(gradients.combine(own, weight))
        out[name] = value
    return out


def prepare(fitted: Mapping[str, object], denoiser: flare.Denoiser) -> dict[tuple, tuple]:
    """The posteriors of all influences: (kind, prior, m) -> posterior or None, and its columns or None."""
    out = {}
    for how in INFLUENCES.values():
        key = (how.kind, how.prior, how.m)
        if key in out:
            continue
        posterior, chosen = fitted[how.kind], None
        if how.m is not None and how.m < posterior.size:
            posterior, chosen = gradients.shrink(posterior, denoiser, how.m)
        if how.prior == "calibrated":
            posterior = flare.posteriors.tune(posterior, denoiser, "marglik", "calibrated")
        out[key] = (None if how.prior == "none" else posterior, chosen)
    return out

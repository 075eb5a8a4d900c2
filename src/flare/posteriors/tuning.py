"""Choosing δ and s for a curvature: given numbers, the marginal likelihood, held-out pairs, or calibration.

None of these repeats the pass over the training pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..autodiff.vjp import iterate_rows
from ..core.noise_streams import mix_seed
from ..core.progress import Progress, warn
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from .accumulate import batches
from .base import Posterior, positive
from .curvature import Curvature, P

PriorPrecision = float | Literal["marglik", "validation"]
Scale = float | Literal["calibrated"]


def tune(
    curvature: Curvature[P],
    denoiser: Denoiser,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    validation: Pairs | None = None,
    progress: Progress | bool | None = None,
) -> P:
    """Make the posterior of a curvature, with δ and s as requested.

    >>> curvature = flare.posteriors.dense.compute_curvature(denoiser, subset, pairs)
    >>> flare.posteriors.tune(curvature, denoiser, prior_precision=1e-6, scale=1.0).prior_precision
    1e-06

    Args:
        curvature: H.
        denoiser: the network.
        prior_precision: δ: a number, "marglik" (maximizes the evidence), or "validation" (maximizes the
            predictive likelihood of held-out pairs).
        scale: s: a number, or "calibrated" for N/σ².
        validation: held-out pairs, for prior_precision="validation".
        progress: wraps the steps that estimate the determinant of a matrix-free curvature, for "marglik".
    """
    check_request(prior_precision, scale, validation)
    s = curvature.origin.statistics.calibrated_scale if isinstance(scale, str) else scale
    if prior_precision == "marglik":
        curvature.prepare_determinant(progress)
        delta = _maximize(lambda u: curvature.posterior(u, s).log_marginal_likelihood(), 1e-12, 1e12)
    elif isinstance(prior_precision, str):
        assert validation is not None
        held_out = _HeldOut(curvature.subset, denoiser, validation)
        delta = _maximize(lambda u: held_out.log_likelihood(curvature.posterior(u, s)), 1e-8, 1e8)
    else:
        delta = prior_precision
    return curvature.posterior(delta, s)


def check_request(prior_precision: PriorPrecision, scale: Scale, validation: Pairs | None) -> None:
    """Refuse what `tune` cannot do, before the curvature is computed."""
    if not isinstance(prior_precision, str):
        positive("prior_precision", prior_precision)
    elif prior_precision not in ("marglik", "validation"):
        raise ValueError(
            f"prior_precision must be a number, 'marglik' or 'validation', got {prior_precision!r}."
        )
    elif prior_precision == "validation" and validation is None:
        raise ValueError(
            "prior_precision='validation' needs validation=flare.noising.pairs(held_out, schedule, ...), "
            "and training pairs without these rows: train, held_out = flare.noising.split(data)."
        )
    if not isinstance(scale, str):
        positive("scale", scale)
    elif scale != "calibrated":
        raise ValueError(f"scale must be a number or 'calibrated', got {scale!r}.")


def _maximize(value: Callable[[float], float], low: float, high: float) -> float:
    """Find the maximum over [low, high] on a log scale: a grid, then finer grids around its best point."""
    bottom, top = a, b = math.log(low), math.log(high)
    best = a
    for _ in range(4):
        grid = torch.linspace(a, b, 33, dtype=torch.float64).tolist()
        best = max(grid, key=lambda u: value(math.exp(u)))
        width = (b - a) / 32
        a, b = max(bottom, best - width), min(top, best + width)
    if best in (bottom, top):
        warn(
            f"prior_precision was tuned to {math.exp(best):.0e}, an end of {low:.0e} to {high:.0e}: "
            "the criterion has no maximum inside this range. Give a number instead."
        )
    return math.exp(best)


class _HeldOut:
    """One random coordinate o per held-out pair: f_o ~ N(f̂_o, g Σ gᵀ + σ²/w), where g is row o of J."""

    def __init__(self, subset: Subset, denoiser: Denoiser, pairs: Pairs) -> None:
        denoiser = denoiser.wide()
        gradients, residuals, weights = [], [], []
        for index, batch in enumerate(batches(denoiser, pairs)):
            flat = (denoiser(batch.x, batch.t, batch.cond) - batch.target).flatten(1)
            generator = torch.Generator().manual_seed(mix_seed(mix_seed(pairs.seed, 2), index))
            chosen = torch.randint(flat.shape[1], (len(flat),), generator=generator).to(flat.device)
            u = torch.nn.functional.one_hot(chosen, flat.shape[1]).to(flat).view_as(batch.x).unsqueeze(1)
            rows = iterate_rows(denoiser, subset, batch.x, batch.t, u, batch.cond)
            gradients += [g[:, 0].double().cpu() for _, g in rows]
            residuals.append(flat.gather(1, chosen[:, None])[:, 0].double().cpu())
            weights.append(batch.weight.double().cpu())
        self.gradients, self.residuals = torch.cat(gradients), torch.cat(residuals)
        self.weights = torch.cat(weights)

    def log_likelihood(self, posterior: Posterior) -> float:
        """The mean log-likelihood of the held-out coordinates, up to a constant."""
        g, r = self.gradients, self.residuals
        noise = posterior.origin.statistics.residual_variance / self.weights
        variance: Tensor = (g * posterior.covariance(g)).sum(1) + noise
        return float(-0.5 * (variance.log() + r**2 / variance).mean())

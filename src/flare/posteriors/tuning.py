"""Choosing δ and s of a posterior: given numbers, the marginal likelihood, held-out pairs, or calibration.

None of these repeats the pass over the training pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from ..autodiff.vjp import iterate_rows
from ..core.noise_streams import mix_seed
from ..core.progress import warn
from ..diffusion.noising import Pairs
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from .curvature import batch_source
from .posterior import P, Posterior, positive

PriorPrecision = float | Literal["marglik", "validation"]
Scale = float | Literal["calibrated"]


def tune(
    posterior: P,
    denoiser: Denoiser,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    validation: Pairs | None = None,
) -> P:
    """The posterior with the same H and other δ and s, without another pass over the training pairs.

    >>> printed = flare.posteriors.dense(denoiser, subset, pairs, prior_precision=1e-6, scale=1.0)
    >>> flare.posteriors.tune(printed, denoiser).is_calibrated
    True

    Args:
        posterior: The posterior.
        denoiser: The network.
        prior_precision: δ: a number, "marglik" (maximizes the evidence), or "validation" (maximizes the
            predictive likelihood of held-out pairs).
        scale: s: a number, or "calibrated" for N/σ².
        validation: Held-out pairs, for prior_precision="validation".
    """
    check_request(prior_precision, scale, validation)
    return choose(posterior, denoiser, prior_precision, scale, validation)


def check_request(prior_precision: PriorPrecision, scale: Scale, validation: Pairs | None) -> None:
    """Raise if `choose` could not fulfill a request, before H is computed."""
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


def choose(
    posterior: P,
    denoiser: Denoiser,
    prior_precision: PriorPrecision,
    scale: Scale,
    validation: Pairs | None,
) -> P:
    """`tune` after `check_request`."""
    s = posterior.origin.statistics.calibrated_scale if isinstance(scale, str) else scale
    if prior_precision == "marglik":
        delta = _maximize(lambda u: posterior.refit(u, s).log_marginal_likelihood(), 1e-12, 1e12)
    elif isinstance(prior_precision, str):
        assert validation is not None
        likelihood = _held_out_likelihood(posterior.subset, denoiser, validation)
        delta = _maximize(lambda u: likelihood(posterior.refit(u, s)), 1e-8, 1e8)
    else:
        delta = prior_precision
    return posterior.refit(delta, s)


def _maximize(value: Callable[[float], float], low: float, high: float) -> float:
    """Find the maximum over [low, high] on a log scale: a grid, then Brent's method around its best point."""
    grid = np.linspace(math.log(low), math.log(high), 33)
    values = [value(math.exp(u)) for u in grid]
    best = int(np.argmax(values))
    around = grid[max(0, best - 1)], grid[min(32, best + 1)]
    found = minimize_scalar(
        lambda u: -value(math.exp(u)), bounds=around, method="bounded", options={"xatol": 1e-6}
    )
    if best in (0, 32) and values[best] >= -found.fun:
        warn(
            f"prior_precision was tuned to {math.exp(grid[best]):.0e}, an end of {low:.0e} to {high:.0e}: "
            "the criterion has no maximum inside this range. Give a number instead."
        )
        return math.exp(grid[best])
    return math.exp(found.x)


def _held_out_likelihood(subset: Subset, denoiser: Denoiser, pairs: Pairs) -> Callable[[Posterior], float]:
    """The mean log-likelihood of held-out pairs as a function of the posterior, up to a constant.

    One random coordinate o per pair counts: f_o ~ N(f̂_o, g Σ gᵀ + σ²/w), where g is row o of J.
    """
    denoiser = denoiser.wide()
    draw, gradients, residuals, weights = batch_source(denoiser, pairs), [], [], []
    for index in range(len(pairs)):
        batch = draw(index)
        flat = (denoiser(batch.x, batch.t, batch.cond) - batch.target).flatten(1)
        generator = torch.Generator().manual_seed(mix_seed(mix_seed(pairs.seed, 2), index))
        chosen = torch.randint(flat.shape[1], (len(flat),), generator=generator).to(flat.device)
        u = torch.nn.functional.one_hot(chosen, flat.shape[1]).to(flat).view_as(batch.x).unsqueeze(1)
        rows = iterate_rows(denoiser, subset, batch.x, batch.t, u, batch.cond)
        gradients += [g[:, 0].double().cpu() for *_, g in rows]
        residuals.append(flat.gather(1, chosen[:, None])[:, 0].double().cpu())
        weights.append(batch.weight.double().cpu())
    g, r, w = torch.cat(gradients), torch.cat(residuals), torch.cat(weights)

    def likelihood(posterior: Posterior) -> float:
        variance = (g * posterior.covariance(g)).sum(1) + posterior.origin.statistics.residual_variance / w
        return float(-0.5 * (variance.log() + r**2 / variance).mean())

    return likelihood

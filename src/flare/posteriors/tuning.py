"""Choosing δ and s: a number, the marginal likelihood, a validation split, or calibration.

None of these repeats the pass over the training data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..autodiff.vjp import pull_rows, split_chunks
from ..core.conditions import take_rows
from ..core.noise_streams import mix_seed
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from .accumulate import batches
from .base import Self

Number = float | str


def tune(
    posterior: Self,
    denoiser: Denoiser,
    prior_precision: Number,
    scale: Number,
    validation: Pairs | None = None,
) -> Self:
    """The posterior with δ and s as asked.

    Args:
        posterior: with any δ and s.
        denoiser: the network.
        prior_precision: δ: a number, "marglik" (the δ of the largest evidence), or "validation" (the
            δ of the best predictive likelihood of held-out pairs).
        scale: s: a number, or "calibrated" for N/σ².
        validation: held-out pairs, for prior_precision="validation".
    """
    s = posterior.origin.statistics.calibrated_scale if scale == "calibrated" else scale
    if isinstance(s, str):
        raise ValueError(f"scale must be a number or 'calibrated', got {scale!r}.")
    if prior_precision == "marglik":
        posterior = posterior.refit(scale=s)
        return posterior.refit(
            _best(lambda delta: posterior.refit(delta).log_marginal_likelihood(), 1e-12, 1e12)
        )
    if prior_precision == "validation":
        if validation is None:
            raise ValueError(
                "prior_precision='validation' needs validation=flare.noising.pairs(held_out, schedule, ...)."
            )
        likelihood = _predictive(posterior.refit(scale=s), denoiser, validation)
        return posterior.refit(_best(likelihood, 1e-8, 1e8), s)
    if isinstance(prior_precision, str):
        raise ValueError(
            f"prior_precision must be a number, 'marglik' or 'validation', got {prior_precision!r}."
        )
    return posterior.refit(prior_precision, s)


def _best(value: Callable[[float], float], low: float, high: float) -> float:
    """The maximum over [low, high] on a log scale: a grid, then finer ones around its best."""
    bottom, top = a, b = math.log(low), math.log(high)
    best = a
    for _ in range(4):
        grid = torch.linspace(a, b, 33, dtype=torch.float64).tolist()
        best = max(grid, key=lambda u: value(math.exp(u)))
        width = (b - a) / 32
        a, b = max(bottom, best - width), min(top, best + width)
    if best in (bottom, top):
        warnings.warn(
            f"prior_precision was tuned to {math.exp(best):.0e}, an end of {low:.0e} to {high:.0e}: "
            "the criterion has no maximum inside it. Give a number instead.",
            RuntimeWarning,
            stacklevel=4,
        )
    return math.exp(best)


def _predictive(posterior: Self, denoiser: Denoiser, pairs: Pairs) -> Callable[[float], float]:
    """The mean log-likelihood of held-out targets as a function of δ.

    One random coordinate o of each pair: f_o ~ N(f̂_o, g Σ gᵀ + σ²/w) with g the row o of J.
    """
    denoiser = denoiser.wide()
    gradients, residuals, noise = [], [], []
    for index, batch in enumerate(batches(denoiser, pairs)):
        flat = (denoiser(batch.x, batch.t, batch.cond) - batch.target).flatten(1)
        generator = torch.Generator().manual_seed(mix_seed(mix_seed(pairs.seed, 2), index))
        chosen = torch.randint(flat.shape[1], (len(flat),), generator=generator).to(flat.device)
        u = torch.nn.functional.one_hot(chosen, flat.shape[1]).to(flat).view_as(batch.x).unsqueeze(1)
        for here, _ in split_chunks(denoiser, posterior.subset, len(flat), 1):
            g, _ = pull_rows(
                denoiser, posterior.subset, batch.x[here], batch.t[here], u[here], take_rows(batch.cond, here)
            )
            gradients.append(g[:, 0].double().cpu())
        residuals.append(flat.gather(1, chosen[:, None])[:, 0].double().cpu())
        noise.append(posterior.origin.statistics.residual_variance / batch.weight.double().cpu())
    g, r, sigma2 = torch.cat(gradients), torch.cat(residuals), torch.cat(noise)

    def likelihood(delta: float) -> float:
        variance: Tensor = (g * posterior.refit(delta).covariance(g)).sum(1) + sigma2
        return float(-0.5 * (variance.log() + r**2 / variance).mean())

    return likelihood

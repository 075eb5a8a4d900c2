"""Detectors that differentiate the network along random vectors, by difference quotients.

Sharpness: the Laplacian of the log-density around a sample, which is large between modes.

    σ²·Δ log p_t(x_t) = σ²·tr ∂s/∂x_t = −σ·tr ∂ε̂/∂x_t          at x_t = α·x, averaged over levels

On a mode the log-density is concave in every direction that data does not have, and the Laplacian is about
−D. Between modes it is convex along the line that joins them. The trace uses Hutchinson's estimator and
difference quotients, as in arXiv 2606.00377. The sign, the levels and the step are our choices.

Instability: how far the denoised sample moves when the sample is moved a little.

    E_u ‖α·(∂x̂0/∂x_t)u‖² = ‖α·∂x̂0/∂x_t‖²_F          at x_t = α·x, averaged over levels, u random signs

Where the denoiser projects onto a manifold of dimension d, this is d: instability and the local intrinsic
dimension are two sides of one matrix, whose trace is FLIPD. Sobieski et al. (arXiv 2605.05026) filter by
instabilities of the manifold that the model induces, and trace them back to this dimension. The norm, the
levels and the step are our reading of their description; the published filter may differ.

SCOPED: the curvature of the log-density relative to its slope, compared with real data.

    φ_j(x) = tr ∂s/∂x_t / ‖s‖² = −σ·tr ∂ε̂/∂x_t / ‖ε̂‖²    at x_t = α_j·x + σ_j·ε        score = −log p(φ)

p is a kernel density of φ of real data. For the data that a model was trained on, E[tr ∂s/∂x + ‖s‖²] = 0,
so φ is about −1. The trace uses Hutchinson's estimator and difference quotients. The levels, the noise and
the bandwidth (Scott's rule) are our choices.

EigenScore: how uncertain the clean sample is, given a noised copy, along its most uncertain directions.

    Cov[x_0 | x_t] = σ²/α²·(I − σ·∂ε̂/∂x_t)          score = Σ over levels of the K largest eigenvalues

The eigenvalues come from subspace iteration with difference quotients: K random vectors are multiplied by
the matrix and made orthonormal a few times, with forward calls only, and the last Rayleigh quotients are
summed. The matrix of a network is not exactly symmetric; its symmetric part counts. Levels, K and the
number of iterations are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...core import LEVELS
from ...core.conditions import Cond
from ...core.noise_streams import NoiseSource
from ...core.validation import require_positive_int
from ...diffusion.schedules import Level, Schedule
from ...network.denoiser import Denoiser
from ...sampling.finished import Levels, find_levels
from .contract import Detector, Surprise, estimate_parts, register
from .feature_fits import fit_kde

DIFFERENCE = 0.1  # step of a difference quotient, in units of σ


def push_noise(denoiser: Denoiser, level: Level, x: Tensor, cond: Cond, u: Tensor) -> Tensor:
    """σ·(∂ε̂/∂x)u at states x of one level, (n, *shape), by a central difference: two network calls."""
    step = DIFFERENCE * level.sigma * u
    ahead, behind = (estimate_parts(denoiser, level, x + way * step, cond)[1] for way in (1, -1))
    return (ahead - behind) / (2 * DIFFERENCE)


class Probing(Detector):
    """A detector that multiplies the derivative of the network by random signs, at a few levels.

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, levels: Levels = LEVELS, probes: int = 4
    ) -> None:
        self.denoiser, self.device = denoiser.wide(), denoiser.device
        self.levels, self.probes = find_levels(schedule, levels), require_positive_int("probes", probes)
        self.draws = len(self.levels) * (1 + probes)

    def push(
        self, level: Level, x: Tensor, cond: Cond, noise: NoiseSource
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Random signs u and σ·(∂ε̂/∂x)u at states x, per probe; E[u uᵀ] = I, so uᵀMu is tr M on average."""
        for _ in range(self.probes):
            u = torch.where(noise.next() < 0, -1.0, 1.0).to(x)
            yield u, push_noise(self.denoiser, level, x, cond, u)

    def average(
        self, x: Tensor, cond: Cond, noise: NoiseSource, measure: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The mean over levels and probes of a sum over coordinates, without noise added to x, (B, 1)."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            for u, pushed in self.push(level, level.alpha * x, cond, noise):
                total += measure(u, pushed).flatten(1).sum(1)
        return (total / (len(self.levels) * self.probes))[:, None]


@register
class Sharpness(Probing):
    """The mean over levels of σ²·Δ log p.

    >>> flare.bench.baselines.Sharpness(denoiser, schedule, probes=2).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    name = "sharpness"
    summary = "Laplacian of the log-density at a sample, by difference quotients"

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Two network calls per level and probe."""
        return self.average(x, cond, noise, lambda u, pushed: -(u * pushed))


@register
class Instability(Probing):
    """The mean over levels and probes u of ‖α·(∂x̂0/∂x_t)u‖².

    >>> flare.bench.baselines.Instability(denoiser, schedule, probes=2).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    name = "instability"
    summary = "how far the denoised sample moves when the sample is moved a little"

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Two network calls per level and probe."""
        return self.average(x, cond, noise, lambda u, pushed: (u - pushed).square())  # x̂0 = (x_t − σ·ε̂)/α


@register
class Scoped(Probing):
    """Ratio of curvature to squared slope, compared with real data.

    >>> method = flare.bench.baselines.Scoped(denoiser, schedule, probes=2)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        probes: Random signs per level, with two network calls each.
    """

    name = "scoped"
    summary = "curvature of the log-density relative to its slope, by a density of real data's"
    needed = 2  # for a standard deviation

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """One network call per level, and two per level and probe."""
        ratios = []
        for level in self.levels:
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            slope = estimate_parts(self.denoiser, level, noised, cond)[1].square().flatten(1).sum(1)
            trace = x.new_zeros(len(x))
            for u, pushed in self.push(level, noised, cond, noise):
                trace -= (u * pushed).flatten(1).sum(1)
            ratios.append(trace / self.probes / slope.clamp(min=torch.finfo(x.dtype).tiny))
        return torch.stack(ratios, 1)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit the density."""
        return fit_kde(real)


@register
class EigenScore(Detector):
    """The sum over levels of the leading eigenvalues of Cov[x_0 | x_t].

    >>> flare.bench.baselines.EigenScore(denoiser, schedule, count=1).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        count: K, the number of eigenvalues; at most one per coordinate.
        iterations: How often the vectors are multiplied by the matrix.
    """

    name = "eigenscore"
    summary = "largest eigenvalues of the covariance of the clean sample, given noised copies"

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        *,
        levels: Levels = LEVELS,
        count: int = 2,
        iterations: int = 3,
    ) -> None:
        self.denoiser, self.device = denoiser.wide(), denoiser.device
        self.levels, self.count = find_levels(schedule, levels), require_positive_int("count", count)
        self.iterations = require_positive_int("iterations", iterations)
        self.draws = len(self.levels) * (1 + count)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Two network calls per level, iteration and eigenvalue."""
        total = x.new_zeros(len(x))
        for level in self.levels:
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            some = [noise.next().to(x).flatten(1) for _ in range(min(self.count, x[0].numel()))]
            products = torch.stack(some, 2)  # (B, d, K)
            for _ in range(self.iterations):
                vectors = torch.linalg.qr(products).Q
                pushed = [
                    push_noise(self.denoiser, level, noised, cond, u.reshape(x.shape)).flatten(1)
                    for u in vectors.unbind(2)
                ]
                products = vectors - torch.stack(pushed, 2)
            total += (level.sigma / level.alpha) ** 2 * (vectors * products).sum((1, 2))
        return total[:, None]

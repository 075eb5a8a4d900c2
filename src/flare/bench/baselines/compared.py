"""Detectors that compare statistics of the network at a sample with those at real data.

MSMA (Mahmood, Oliva and Styner) compares the norms of the predicted noise with those of real data:

    φ_j(x) = ‖ε̂(α_j·x, t_j)‖,  j = 1..L                   score = −log p(φ)

The sample is scaled to each level, but no noise is added. p is a Gaussian mixture fitted to φ of real data.
The original takes norms of the score of a variance-exploding model, which differ from these by a factor per
level that standardization removes. It also fits a normalizing flow and takes the distance to a neighbor,
which are left out.

DDPM-OOD (Graham et al.): noise a sample to several levels, denoise it, compare the error with real data.

    e_j(x) = mean over coordinates of (x − x̂_j)²          score = mean over j of (e_j − mean_j)/deviation_j

x̂_j is the sampler's result from α_j·x + σ_j·ε, and real data provides the mean and the deviation of e_j.
The original reconstructs with PLMS and averages the z-scores of the MSE and of LPIPS. Here DDIM takes a few
steps from each level, and LPIPS, which needs a network for images, is left out.

DiffPath (Heng, Thiery and Soh): how the predicted noise changes on the way from a sample to noise.

DDIM is run backwards, from the sample x_1 = x at the lowest of n levels to noise:

    ε_k = ε̂(x_k, t_k)    x_{k+1} = α_{k+1}·x̂0(x_k) + σ_{k+1}·ε_k    δ_k = (ε_{k+1} − ε_k)·T/(t_{k+1} − t_k)

With one statistic, φ = √(Σ_k ‖δ_k‖²), and the score is −log p(φ) by a kernel density of φ of real data. With
six, φ has the sums of ε, ε², ε³, δ, δ² and δ³ over steps and coordinates, and p is a Gaussian mixture. Here
the bandwidth is Scott's, and the mixture has five components. The released code has a fixed bandwidth of 5
and chooses a mixture of 50 or 100 components by cross-validation.

Layer-wise gradient norms (Dauncey et al.): how hard a sample pulls at each layer, compared with real data.

    φ_l(x) = log ‖∇_{θ_l} L(x)‖²,   L(x) = mean over levels and noises ε of ½‖f(α·x + σ·ε, t) − target‖²

θ_l is one parameter tensor, and gradients are averaged over levels and noises before they are squared. The
score is −Σ_l log N(φ_l; mean_l, variance_l) with the mean and the variance of real data, which takes the
layers as independent. The original differentiates the log-likelihood of the model; here it is the training
loss, with equal weights of all levels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from ...autodiff.vjp import pull_rows, split_chunks
from ...core.conditions import Cond, take_rows
from ...core.noise_streams import DIRECTIONS_STREAM, NoiseSource, mix_seed
from ...core.validation import require_positive_int
from ...diffusion.parameterizations import target
from ...diffusion.samplers import Clip, ddim, grid
from ...diffusion.schedules import Schedule
from ...network.denoiser import Denoiser, times
from ...posteriors.subsets import everything
from ...propagation.trajectory import Plain, walk
from ...sampling.finished import Levels, find_levels
from .contract import Detector, Surprise, estimate_parts, register
from .feature_fits import fit_gaussian, fit_kde, fit_mixture, fit_z_score

Dimensions = Literal[1, 6]
DIMENSIONS: tuple[Dimensions, ...] = get_args(Dimensions)
COMPONENTS = 5  # of a mixture
# as fractions of T
MSMA_LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
OOD_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NORM_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


@register
class MSMA(Detector):
    """Norms of the predicted noise, compared with real data.

    >>> method = flare.bench.baselines.MSMA(denoiser, schedule)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        components: The number of Gaussians in the mixture.
    """

    name = "msma"
    summary = "norms of the predicted noise at several levels, by a density fitted to real data"

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        *,
        levels: Levels = MSMA_LEVELS,
        components: int = COMPONENTS,
    ) -> None:
        self.denoiser, self.levels, self.device = denoiser, find_levels(schedule, levels), denoiser.device
        self.components = require_positive_int("components", components)
        self.needed = max(2, components)  # 2 for a standard deviation

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """‖ε̂(α·x, t)‖ at each level; one network call per level."""
        predicted = (estimate_parts(self.denoiser, at, at.alpha * x, cond)[1] for at in self.levels)
        return torch.stack([each.flatten(1).norm(dim=1) for each in predicted], 1)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit the density."""
        return fit_mixture(real, self.components, mix_seed(seed, DIRECTIONS_STREAM))


@register
class DDPMOOD(Detector):
    """The mean z-score of the reconstruction errors from several levels.

    >>> method = flare.bench.baselines.DDPMOOD(denoiser, schedule, levels=(0.2, 0.5), calls=4)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The levels at which reconstructions start, as fractions of T.
        calls: Network calls per reconstruction, at most one per level of a discrete schedule.
        clip: The range of x̂0, as for `samplers.ddim`.
    """

    name = "ddpm_ood"
    summary = "errors of a sample noised to several levels and denoised, relative to real data"
    needed = 2  # for a standard deviation

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        *,
        levels: Levels = OOD_LEVELS,
        calls: int = 10,
        clip: Clip = None,
    ) -> None:
        self.denoiser, self.device = denoiser, denoiser.device
        self.levels = find_levels(schedule, levels)
        fractions = [levels] if isinstance(levels, (int, float)) else levels
        require_positive_int("calls", calls)
        self.tables = [ddim(schedule, descend(schedule, each, calls), clip=clip) for each in fractions]
        self.draws = len(self.tables)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """The mean squared error of the reconstruction from each level."""
        errors = []
        for level, table in zip(self.levels, self.tables, strict=True):
            noised = level.alpha * x + level.sigma * noise.next().to(x)
            rows = table.rows(self.denoiser.prediction)
            *_, last = walk(rows, Plain(self.denoiser), noised, noise, cond)
            errors.append((x - last.x).square().flatten(1).mean(1))
        return torch.stack(errors, 1)

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Take the mean and the deviation of each error."""
        return fit_z_score(real)


def descend(schedule: Schedule, fraction: float, calls: int) -> list[float]:
    """At most `calls` evenly spaced indices t that fall from a fraction of T."""
    if schedule.continuous:
        return [fraction * schedule.T * ((calls - i) / calls) for i in range(calls)]
    top = max(1, round(fraction * schedule.T))
    return sorted({float(max(1, round(top * (calls - i) / calls))) for i in range(calls)}, reverse=True)


@register
class DiffPath(Detector):
    """Statistics of the path to noise, compared with real data.

    >>> method = flare.bench.baselines.DiffPath(denoiser, schedule, dimensions=1, calls=4)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        dimensions: 1 or 6 statistics.
        calls: Network calls per sample, at least 2.
    """

    name = "diffpath"
    summary = "how the predicted noise changes from the sample to noise, by a density fitted to real data"

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, dimensions: Dimensions = 6, calls: int = 10
    ) -> None:
        if dimensions not in DIMENSIONS:
            raise ValueError(f"dimensions must be one of {DIMENSIONS}, got {dimensions!r}.")
        if calls == 1:
            raise ValueError(
                "calls must be at least 2: with 1 level, the noise does not change along the path."
            )
        self.denoiser, self.dimensions, self.device = denoiser, dimensions, denoiser.device
        ts = grid(schedule, calls, "leading")[::-1]  # from the lowest level to the highest
        self.levels, self.fractions = [schedule.at(t) for t in ts], [t / schedule.T for t in ts]
        self.needed = 2 if dimensions == 1 else COMPONENTS

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """Walk to noise, adding up powers of ε and δ."""
        sums = x.new_zeros(6, len(x))
        last: Tensor | None = None
        gaps = [1.0, *(high - low for low, high in pairwise(self.fractions))]
        for k, (level, gap) in enumerate(zip(self.levels, gaps, strict=True)):
            clean, eps = estimate_parts(self.denoiser, level, x, cond)
            sums[:3] += _powers(eps)
            if last is not None:
                sums[3:] += _powers((eps - last) / gap)
            last = eps
            if k + 1 < len(self.levels):
                x = self.levels[k + 1].alpha * clean + self.levels[k + 1].sigma * eps
        return sums.T if self.dimensions == 6 else sums[4].sqrt()[:, None]

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit the density."""
        if self.dimensions == 1:
            return fit_kde(real)
        return fit_mixture(real, COMPONENTS, mix_seed(seed, DIRECTIONS_STREAM))


def _powers(values: Tensor) -> Tensor:
    """Sums of the first three powers over all coordinates, (3, B)."""
    flat = values.flatten(1)
    return torch.stack([flat.pow(power).sum(1) for power in (1, 2, 3)])


@register
class GradientNorms(Detector):
    """Gradient norms of the layers, compared with real data.

    >>> method = flare.bench.baselines.GradientNorms(denoiser, schedule, levels=0.3)
    >>> method.fit(data[:50]).score(result.samples).shape
    torch.Size([20])

    Args:
        denoiser: The network.
        schedule: The noise levels that the network was trained on.
        levels: The noise levels, as fractions of T.
        repeats: Noise draws per level.
    """

    name = "gradient_norms"
    summary = "gradient norms of the loss per layer, by a Gaussian density fitted to real data"
    needed = 2  # for a standard deviation

    def __init__(
        self, denoiser: Denoiser, schedule: Schedule, *, levels: Levels = NORM_LEVELS, repeats: int = 1
    ) -> None:
        self.denoiser = denoiser.wide()  # in half precision, gradients underflow
        self.subset, self.device = everything(self.denoiser), denoiser.device
        require_positive_int("repeats", repeats)
        self.levels = [level for level in find_levels(schedule, levels) for _ in range(repeats)]
        self.draws = len(self.levels)

    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """log ‖∇L‖² per parameter tensor; one backward pass per level and noise, in chunks that fit."""
        noises = torch.stack([noise.next().to(x) for _ in range(self.draws)])
        parts = [
            self._norms(x[here], take_rows(cond, here), noises[:, here])
            for here, _ in split_chunks(self.denoiser, self.subset, len(x), 1)
        ]
        return torch.cat(parts)

    def _norms(self, x: Tensor, cond: Cond, noises: Tensor) -> Tensor:
        """The features of some samples, from their noises (draws, b, *shape)."""
        total = x.new_zeros(len(x), self.subset.size)
        for level, eps in zip(self.levels, noises, strict=True):
            alpha, sigma = (torch.as_tensor(number).to(x) for number in (level.alpha, level.sigma))
            noised, t = alpha * x + sigma * eps, times(level.time, x)
            wanted = target(self.denoiser.prediction, alpha, sigma, x, eps)
            error = self.denoiser(noised, t, cond) - wanted
            total += pull_rows(self.denoiser, self.subset, noised, t, error[:, None], cond)[:, 0]
        sizes = [len(index) for index in self.subset.indices.values()]
        squares = [part.square().sum(1) for part in (total / self.draws).split(sizes, 1)]
        # a tensor that the network does not use has no gradient
        return torch.stack(squares, 1).clamp(min=torch.finfo(x.dtype).tiny).log()

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit one Gaussian per layer."""
        return fit_gaussian(real)

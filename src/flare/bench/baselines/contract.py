"""The two contracts of a baseline, and the list of all baselines.

A baseline that draws samples is a function: `name(denoiser, steps, ..., n, shape, *, its options,
**sampling)` returns a `Result` with its scores, and `sampling` are keyword arguments of `flare.sample`. A
baseline that scores existing samples is a `Detector`: `fit(real)` if it compares with real data, then
`score(x)`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from ...core.conditions import Cond, check_conditions, take_rows, to_device
from ...core.memory import BatchSize, plan_batches, run_batches
from ...core.noise_streams import (
    COMPARED_STREAM,
    REAL_STREAM,
    NoiseSource,
    NoiseStreams,
    mix_seed,
    stream_bytes,
)
from ...core.nonfinite import ADVICE, LostSamples, find_nonfinite, name_samples
from ...core.progress import warn
from ...core.registry import Registry
from ...core.validation import require_samples
from ...diffusion.noising import Pairs
from ...diffusion.parameterizations import coefficients
from ...diffusion.schedules import Level
from ...network.denoiser import Denoiser, times
from ...posteriors import Posterior

Surprise = Callable[[Tensor], Tensor]  # features (n, k) -> scores (n,), float64 on the CPU
#: What a baseline needs besides a model; those that need samples or real data score existing samples.
Need = Literal["nothing", "posterior", "models", "samples", "real data"]
_SAMPLING = ("cond", "first", "progress", "seed")  # keyword arguments of sampling, no options of a baseline


class Detector(ABC):
    """Scores existing samples by features, a few numbers per sample.

    The noise of a sample depends only on the seed and its index, so scores do not depend on batches.

    Attributes:
        name: The name of the method.
        summary: One line for help texts and tables.
        needed: The fewest real samples that it can be fitted to; 0 if it does not compare with real data. Its
            only feature is then the score.
        draws: The number of noises that it draws per sample.
        stream: The tag of this noise.
        device: Where the features are computed; None for the device of the samples.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needed: int = 0
    draws: int = 0
    stream: ClassVar[int] = COMPARED_STREAM
    device: torch.device | None = None
    _surprise: Surprise | None = None
    _shape: tuple[int, ...] | None = None

    @abstractmethod
    def features(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """The features of samples x (B, *shape), (B, k)."""

    def compare(self, real: Tensor, seed: int) -> Surprise:
        """Fit to the features of real data, (m, k) float64; the result scores other features."""
        raise NotImplementedError(f"{self.name} does not compare with real data.")

    def fit(
        self, real: Tensor, cond: Cond | None = None, *, seed: int = 0, batch_size: BatchSize = "auto"
    ) -> Self:
        """Fit the method to real data and return it.

        Args:
            real: Real data, (m, *shape), preferably held out from training.
            cond: The conditions of the real data.
            seed: Random seed for the noise and the fit.
            batch_size: Real samples per network call, or "auto".
        """
        real = require_samples("real", real)
        if len(real) < self.needed:
            raise ValueError(
                f"{self.name} needs at least {self.needed} real samples, got {len(real)}; give more."
            )
        features = self._extract(real, cond, mix_seed(seed, REAL_STREAM), 0, batch_size)
        if (bad := find_nonfinite([features], 2)) is not None:
            rows = name_samples(bad.nonzero().flatten().tolist(), len(real))
            raise ValueError(f"{self.name} has NaN or infinity in {rows} of real data. {ADVICE}")
        self._surprise, self._shape = self.compare(features, seed), tuple(real.shape[1:])
        return self

    def score(
        self,
        x: Tensor,
        cond: Cond | None = None,
        *,
        seed: int = 0,
        first: int = 0,
        batch_size: BatchSize = "auto",
    ) -> Tensor:
        """Score samples x (n, *shape), (n,); a larger score means less trust.

        A score that is not finite becomes NaN, with a warning that names the sample.

        Args:
            x: Finished samples, (n, *shape).
            cond: Keyword arguments of the network; tensors have one row per sample.
            seed: Random seed for the noise.
            first: The index of the first sample, to score samples first..first+n−1 separately.
            batch_size: Samples per network call, or "auto".
        """
        x = require_samples("x", x)
        if self.needed and self._surprise is None:
            raise ValueError(f"{self.name} compares samples with real data; call fit(real) before score(x).")
        if self._shape not in (None, tuple(x.shape[1:])):
            raise ValueError(
                f"x must have samples of the shape of real data, {self._shape}, got {tuple(x.shape[1:])}."
            )
        features = self._extract(x, cond, mix_seed(seed, self.stream), first, batch_size)
        bad = find_nonfinite([features], 2)
        if bad is not None:
            lost = LostSamples(len(x))
            lost.add(bad, first, f"the {self.name} score")
            warn(lost.warning)
            features = features.masked_fill(bad[:, None], 0.0)
        scores = features[:, 0] if self._surprise is None else self._surprise(features)
        scores = scores if bad is None else scores.masked_fill(bad, torch.nan)
        return scores.to(x.device, torch.promote_types(x.dtype, torch.float32))

    @torch.no_grad()
    def _extract(self, x: Tensor, cond: Cond | None, seed: int, first: int, batch_size: BatchSize) -> Tensor:
        """The features of all samples, (n, k) float64 on the CPU."""
        device, cond = self.device or x.device, check_conditions(cond, len(x))

        def run(here: slice) -> Iterator[Tensor]:
            batch = x[here].to(device, torch.promote_types(x.dtype, torch.float32))
            noise = NoiseStreams(seed, first + here.start, len(batch), x.shape[1:], max(1, self.draws))
            found = self.features(batch, to_device(take_rows(cond, here), device), noise)
            yield found.to("cpu", torch.float64)

        def try_batch(count: int) -> None:
            list(run(slice(0, count)))

        size = plan_batches(len(x), batch_size, None, try_batch, device, stream_bytes(x.shape[1:]))
        return torch.cat(list(run_batches(len(x), size, run)))


def estimate_parts(denoiser: Denoiser, level: Level, x: Tensor, cond: Cond) -> tuple[Tensor, Tensor]:
    """x̂0 = p·x + q·f and ε̂ = (x − α·x̂0)/σ of states x at one level, each (n, *shape)."""
    p, q = coefficients(denoiser.prediction, level.alpha, level.sigma)
    f = denoiser(x, times(level.time, x), cond)
    r, s = (1 - level.alpha * p) / level.sigma, -level.alpha * q / level.sigma
    return p * x + q * f, r * x + s * f


@dataclass(frozen=True)
class Baseline:
    """A baseline in the list of all baselines.

    Attributes:
        name: The name of the baseline.
        summary: One line for help texts and tables.
        run: The function that draws samples, or the class of the detector.
        needs: What it needs in addition to a model.
        fit: Fits the posterior of its publication to (denoiser, pairs); None for baselines without one.
        trajectories: The number of trajectories per sample for given options, for progress bars.
    """

    name: str
    summary: str
    run: Callable[..., Any]
    needs: Need = "nothing"
    fit: Callable[[Denoiser, Pairs], Posterior] | None = None
    trajectories: Callable[..., int] = lambda **options: 1

    @property
    def calls_model(self) -> bool:
        """Whether a detector takes a network and its schedule."""
        return "denoiser" in inspect.signature(self.run).parameters

    @property
    def options(self) -> dict[str, Any]:
        """The options of the baseline with their defaults: the keyword-only parameters of its signature."""
        parameters = inspect.signature(self.run).parameters.values()
        return {
            each.name: each.default
            for each in parameters
            if each.kind is each.KEYWORD_ONLY and each.name not in _SAMPLING
        }


#: every baseline by name
BASELINES: Registry[Baseline] = Registry("baseline")
AnyDetector = TypeVar("AnyDetector", bound=type[Detector])


def register(detector: AnyDetector) -> AnyDetector:
    """Add a detector to the list of all baselines; a decorator."""
    needs: Need = "samples" if detector.compare is Detector.compare else "real data"
    BASELINES.register(Baseline(detector.name, detector.summary, detector, needs))
    return detector

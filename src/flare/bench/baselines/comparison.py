"""Comparison with real data: features of a sample, and a fit to the same features of real data.

A method is a pair of both. It is fitted to real data once and then scores any number of samples. The noise
that features draw belongs to a sample by its index, so scores do not depend on batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from ...core.conditions import Cond, check_conditions, take_rows, to_device
from ...core.memory import BatchSize, check_batch_size, choose_batch_size, memory_budget, run_batches
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
from ...core.validation import require_samples
from .feature_fits import FeatureFit, Surprise


class Features(Protocol):
    """A function from samples to a few numbers each."""

    @property
    def draws(self) -> int:
        """How much noise of the shape of a sample it draws per sample."""

    def __call__(self, x: Tensor, cond: Cond, noise: NoiseSource) -> Tensor:
        """The features of samples x (B, *shape), (B, k)."""


class CompareOptions(TypedDict, total=False):
    """The keyword arguments that all comparisons take; see `Comparison.score`."""

    cond: Cond | None
    real_cond: Cond | None
    seed: int
    first: int
    batch_size: BatchSize


@dataclass(frozen=True)
class Comparison:
    """A method that compares samples with real data.

    Attributes:
        name: of the method, for messages.
        features: what is compared.
        how: the fit to the features of real data.
        device: where the features are computed; None for the device of the samples.
    """

    name: str
    features: Features
    how: FeatureFit
    device: torch.device | None = None

    def fit(
        self, real: Tensor, cond: Cond | None = None, seed: int = 0, batch_size: BatchSize = "auto"
    ) -> Fitted:
        """Fit the method to real data, (m, *shape).

        Args:
            real: real data, best held out from the training of the model.
            cond: the conditions of the real data.
            seed: of the noise, and of the fit.
            batch_size: real samples per network call, or "auto".
        """
        real = require_samples("real", real)
        if len(real) < self.how.needed:
            raise ValueError(
                f"{self.name} needs at least {self.how.needed} real samples, got {len(real)}; give more."
            )
        run = _Extraction(self, real, check_conditions(cond, len(real)), mix_seed(seed, REAL_STREAM), 0)
        features = run.all(batch_size)
        if (bad := find_nonfinite([features], 2)) is not None:
            rows = name_samples(bad.nonzero().flatten().tolist(), len(real))
            raise ValueError(f"{self.name} has NaN or infinity in {rows} of real data. {ADVICE}")
        return Fitted(self, tuple(real.shape[1:]), self.how.fit(features, seed))

    def score(self, x: Tensor, real: Tensor, **options: Unpack[CompareOptions]) -> Tensor:
        """Fit to real data and score samples, (n,).

        Args:
            x: finished samples, (n, *shape).
            real: real data, (m, *shape).
            **options: as follows.

                cond: keyword arguments of the network; tensors have one row per sample.
                real_cond: the same for the real data.
                seed: of the noise, and of the fit.
                first: the index of the first sample, to score samples first..first+n−1 by themselves.
                batch_size: samples per network call, or "auto".
        """
        seed, size = options.get("seed", 0), options.get("batch_size", "auto")
        fitted = self.fit(real, options.get("real_cond"), seed, size)
        return fitted.score(x, options.get("cond"), seed, options.get("first", 0), size)


@dataclass(frozen=True)
class Fitted:
    """A method that is fitted to real data.

    Attributes:
        method: the method.
        shape: of one sample.
        surprise: the fit.
    """

    method: Comparison
    shape: tuple[int, ...]
    surprise: Surprise

    def score(
        self,
        x: Tensor,
        cond: Cond | None = None,
        seed: int = 0,
        first: int = 0,
        batch_size: BatchSize = "auto",
    ) -> Tensor:
        """Score samples, (n,); larger is less like real data. See `Comparison.score`.

        A score that is not finite becomes NaN, with a warning that names the sample.
        """
        x = require_samples("x", x)
        if x.shape[1:] != self.shape:
            raise ValueError(
                f"x must have samples of the shape of real data, {self.shape}, got {tuple(x.shape[1:])}."
            )
        cond = check_conditions(cond, len(x))
        features = _Extraction(self.method, x, cond, mix_seed(seed, COMPARED_STREAM), first).all(batch_size)
        bad = find_nonfinite([features], 2)
        if bad is None:
            return self.surprise(features).to(x.device, torch.promote_types(x.dtype, torch.float32))
        lost = LostSamples(len(x))
        lost.add(bad, first, f"the {self.method.name} score")
        warn(lost.warning)
        scores = self.surprise(features.masked_fill(bad[:, None], 0.0)).masked_fill(bad, torch.nan)
        return scores.to(x.device, torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class _Extraction:
    """The features of many samples, batch by batch.

    Attributes:
        method: what computes them, and where.
        x: the samples, (n, *shape).
        cond: their conditions.
        seed: of the noise.
        first: the index of the first sample.
    """

    method: Comparison
    x: Tensor
    cond: Cond
    seed: int
    first: int

    @torch.no_grad()
    def all(self, batch_size: BatchSize) -> Tensor:
        """The features of all samples, (n, k) float64 on the CPU."""
        size = check_batch_size(batch_size)
        if size is None:
            device = self.method.device or self.x.device
            extra = stream_bytes(self.x.shape[1:])
            memory = memory_budget(None, device)
            size = choose_batch_size(len(self.x), memory, self._try_batch, device, extra)
        return torch.cat(list(run_batches(len(self.x), size, self._run)))

    def _run(self, here: slice) -> Iterator[Tensor]:
        x = self.x[here]
        x = x.to(self.method.device or x.device, torch.promote_types(x.dtype, torch.float32))
        cond = to_device(take_rows(self.cond, here), x.device)
        calls = max(1, self.method.features.draws)
        noise = NoiseStreams(self.seed, self.first + here.start, len(x), x.shape[1:], calls)
        yield self.method.features(x, cond, noise).to("cpu", torch.float64)

    def _try_batch(self, count: int) -> None:
        """Memory probe: the features of a few samples."""
        list(self._run(slice(0, count)))

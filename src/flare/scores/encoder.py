"""Features of finished samples: the network's responses to noised copies, in one pass for all scores.

A sample is noised to a few levels with noise that all samples share, always ε together with −ε, so odd
functions of the noise cancel. The network is called once per state. Each score takes its features from these
calls: activations from the forward pass, and gradients from a backward pass each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..autodiff.by_layer import ByLayer, Rows
from ..autodiff.vjp import iterate_states
from ..core.conditions import Cond, take_rows, to_device
from ..core.memory import BatchSize, memory_budget, plan_batches, run_batches
from ..core.noise_streams import SHARED_STREAM, mix_seed
from ..core.progress import warn
from ..diffusion.parameterizations import min_snr_weight, target
from ..diffusion.schedules import Level
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser, times
from .space import Space

MEMORY = 2**27  # bytes of a batch on the CPU, where larger ones are not faster
SIGNS = 2  # states per level and pair of noises: ε and −ε


class SquareRoot(Protocol):
    """A square root of Σ: D with D Dᵀ = Σ, exactly or on average; `flare.posteriors.Root` is one."""

    @property
    def subset(self) -> Subset:
        """The coordinates of Σ."""

    def project(self, v: Tensor, size: int, block: int = 0) -> Tensor:
        """Dᵀv, (..., r) with r at most `size`; blocks may differ."""


class NetworkCall(NamedTuple):
    """One call of the network with states of some samples, all of them of one pair of noises.

    Attributes:
        samples: Which samples of the batch.
        states: Which of their 2L states; state k is of level k // 2.
        run: The call, sample by sample.
        error: √w_t·(f − target) of every row, (R, *shape), w_t the min-SNR weight.
        probe: √w_t·u of every row, (R, *shape), with one random u per state that all samples share.
        pair: The index of the noise pair.
    """

    samples: slice
    states: slice
    run: Rows
    error: Tensor
    probe: Tensor
    pair: int

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.samples.stop - self.samples.start

    @property
    def levels(self) -> list[int]:
        """The level of every state."""
        return [state // SIGNS for state in range(self.states.start, self.states.stop)]


class Reader(ABC):
    """Reads the features of one score from the calls of the network.

    Args:
        encoder: How samples are noised.
        n: The number of samples.
        x: Any tensor of the dtype and on the device of the features.
    """

    def __init__(self, encoder: Encoder, n: int, x: Tensor) -> None:
        self.encoder, self.n, self.like = encoder, n, x

    @staticmethod
    @abstractmethod
    def can_read(encoder: Encoder) -> bool:
        """Whether the encoder has what the score needs."""

    @abstractmethod
    def read(self, call: NetworkCall) -> None:
        """Record what the score needs."""

    @abstractmethod
    def features(self) -> Tensor:
        """The features of all samples after the last call, (n, p), p at most `FEATURES`."""

    @staticmethod
    def scale(encoder: Encoder, features: Tensor) -> Tensor | None:
        """Factors for the features, (p,), given the features of the training data; None for 1."""
        return None


@dataclass(frozen=True, eq=False)
class Encoder:
    """Maps finished samples to the features of several scores.

    Attributes:
        denoiser: The network, in the precision that derivatives need.
        levels: The noise levels.
        readers: The scores by name, with their readers.
        seed: Random seed for the noise, and for the probes u.
        pairs: The number of pairs of noises, ε and −ε, per level.
        layers: The layers whose activations are read, with the number of their outputs after pooling.
        root: A square root of Σ over the uncertain parameters, if gradients are read.
        first: The index of the first pair; a different index gives different noise.
        tried: How the network is differentiated, by the shape of a sample; found out once.
    """

    denoiser: Denoiser
    levels: Sequence[Level]
    readers: Mapping[str, type[Reader]]
    seed: int
    pairs: int = 1
    layers: Mapping[str, int] = field(default_factory=dict)
    root: SquareRoot | None = None
    first: int = 0
    tried: dict[Any, ByLayer] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tried": {}}  # closures, which cannot be pickled, and are found out again

    def __post_init__(self) -> None:
        able = {name: reader for name, reader in self.readers.items() if reader.can_read(self)}
        object.__setattr__(self, "readers", able)

    @property
    def states(self) -> int:
        """Calls of the network per sample."""
        return SIGNS * len(self.levels) * self.pairs

    def with_pairs(self, pairs: int, first: int = 0) -> Encoder:
        """The same encoder with other noise."""
        return replace(self, pairs=pairs, first=first)

    @property
    def subset(self) -> Subset:
        """The parameters that are differentiated by; none without a root."""
        return Subset({}, {}) if self.root is None else self.root.subset

    def __call__(self, x: Tensor, cond: Cond) -> dict[str, Tensor]:
        """The features of samples x (B, *shape) by score, (B, p) float32 on the CPU each."""
        readers = {name: reader(self, len(x), x) for name, reader in self.readers.items()}
        for pair in range(self.first, self.first + self.pairs):
            for call in self._calls(x, cond, pair):
                for reader in readers.values():
                    reader.read(call)
                del call  # with its graph, before the next call
        return {name: reader.features().float().cpu() for name, reader in readers.items()}

    def encode(
        self,
        x: Tensor,
        cond: Cond,
        batch_size: BatchSize = "auto",
        memory: int | None = None,
        learned: dict[Any, Any] | None = None,
        rows: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The same for many samples, or for some rows of them, batch by batch."""

        def run(batch: slice) -> Iterator[dict[str, Tensor]]:
            here = batch if rows is None else rows[batch]
            own = x[here].to(self.denoiser.device, self.denoiser.dtype)
            yield self(own, to_device(take_rows(cond, here), own.device))

        # the memory does not grow with the number of pairs
        work = ("encode", tuple(x.shape[1:]), self.subset.size, tuple(self.readers), tuple(sorted(cond)))
        n = len(x) if rows is None else len(rows)
        budget = memory_budget(memory, self.denoiser.device)
        if memory is None and self.denoiser.device.type == "cpu":
            budget = min(budget, MEMORY)
        size = plan_batches(
            n, batch_size, budget, lambda count: list(run(slice(0, count))), self.denoiser.device,
            learned=learned, work=work,
        )  # fmt: skip
        parts = list(run_batches(n, size, run))
        return {name: torch.cat([part[name] for part in parts]) for name in self.readers}

    def make_spaces(self, encoded: Mapping[str, Tensor]) -> dict[str, Space]:
        """Training samples as points; those with NaN or infinity are left out."""
        spaces = {}
        for name, features in encoded.items():
            finite = features.isfinite().all(1)
            if not finite.any():
                warn(
                    f"all training samples have NaN or infinity in {name}, so samples are scored without it. "
                    "Check that the network gives finite outputs for the data.",
                    UserWarning,
                )
                continue
            if lost := int((~finite).sum()):
                warn(
                    f"{lost} of {len(features)} training samples have NaN or infinity in {name}: they are "
                    "left out.",
                    UserWarning,
                )
            scale = self.readers[name].scale(self, features[finite])
            spaces[name] = Space(features[finite] if scale is None else features[finite] * scale, scale)
        return spaces

    def _calls(self, x: Tensor, cond: Cond, pair: int) -> Iterator[NetworkCall]:
        """Call the network with all states of one pair of noises."""
        shape = x.shape[1:]
        generator = torch.Generator().manual_seed(mix_seed(mix_seed(self.seed, SHARED_STREAM), pair))
        # in float32 on the CPU for every dtype and device, so that a seed means the same noise
        noise, *probes = torch.randn(1 + SIGNS, len(self.levels), *shape, generator=generator).to(x)
        noise = torch.stack([noise, -noise], dim=1).flatten(0, 1)
        probe = torch.stack(probes, dim=1).flatten(0, 1)
        table = torch.tensor([(level.alpha, level.sigma) for level in self.levels], dtype=torch.float64)
        alpha, sigma = table.repeat_interleave(SIGNS, dim=0).T
        column = (len(alpha), *[1] * len(shape))
        weight = min_snr_weight(self.denoiser.prediction, alpha, sigma).sqrt().to(x).view(column)
        a, s = (value.to(x).view(column) for value in (alpha, sigma))
        t = torch.cat([times(level.time, x[:1]) for level in self.levels for _ in range(SIGNS)])
        clean = x.unsqueeze(1)
        y = target(self.denoiser.prediction, a, s, clean, noise).expand(len(x), *noise.shape)
        noised = a * clean + s * noise
        watch = tuple(self.layers)
        every = iterate_states(self.denoiser, self.subset, noised, t, cond, watch, self.tried)
        for samples, states, run in every:
            count = samples.stop - samples.start
            w = weight[states].repeat(count, *[1] * len(shape))
            u = probe[states].repeat(count, *[1] * len(shape))
            yield NetworkCall(
                samples, states, run, w * (run.f - y[samples, states].flatten(0, 1)), w * u, pair
            )
            del run

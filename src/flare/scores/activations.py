"""How far a sample is from the training data in the network's own activations.

Layers count equally: the features of each layer and level are divided by their root mean square over the
training data, and by √(their number).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..network.layers import pool
from .encoder import SIGNS, Encoder, NetworkCall, Reader
from .score import SCORES, Score
from .space import FEATURES, sketch

_ROUNDING = 1e-6  # of the mean: activations that vary less are constant, up to rounding
_SMALLEST = 1e-30  # whose reciprocal is a number of float32


class Activations(Reader):
    """The outputs of layers, pooled, averaged over noises, and sketched to a fixed number of features."""

    @staticmethod
    def can_read(encoder: Encoder) -> bool:
        """Whether layers are known."""
        return bool(encoder.layers)

    def __init__(self, encoder: Encoder, n: int, x: Tensor) -> None:
        super().__init__(encoder, n, x)
        self._sums = [x.new_zeros(n, len(encoder.levels), size) for size in _sizes(encoder)]

    def read(self, call: NetworkCall) -> None:
        """Add the outputs of all layers, level by level."""
        levels = torch.tensor(call.levels, device=self.like.device)
        for place, (name, total) in enumerate(zip(self.encoder.layers, self._sums, strict=True)):
            if name not in call.run.seen:
                raise ValueError(
                    f"layer {name!r} was not called this time, or its output has another shape. Name layers "
                    "that every call of the network uses, with layers=."
                )
            values = pool(self.encoder.denoiser.module.get_submodule(name), call.run.seen[name])
            values = sketch(values, total.shape[2], place).unflatten(0, (call.size, -1)).to(total)
            total[call.samples] += torch.zeros_like(total[call.samples]).index_add_(1, levels, values)

    def features(self) -> Tensor:
        """All layers and levels, block by block."""
        return torch.cat([total.flatten(1) for total in self._sums], dim=1) / (SIGNS * self.encoder.pairs)

    @staticmethod
    def scale(encoder: Encoder, features: Tensor) -> Tensor:
        """1/(root mean square · √size) of each layer and level; 0 where the activations are constant."""
        sizes = [size for size in _sizes(encoder) for _ in encoder.levels]
        values = features.double()
        blocks = zip(values.var(0, correction=0).split(sizes), values.mean(0).split(sizes), strict=True)
        scales = []
        for squares, mean in blocks:
            length = squares.sum().sqrt()
            constant = length <= max(_ROUNDING * float(mean.norm()), _SMALLEST)
            scales.append(torch.zeros_like(squares) if constant else length.reciprocal().expand(len(squares)))
        return torch.cat(scales).float()


def _sizes(encoder: Encoder) -> list[int]:
    """The number of features of each layer at each level."""
    most = max(1, FEATURES // (len(encoder.layers) * len(encoder.levels)))
    return [min(size, most) for size in encoder.layers.values()]


SCORES.register(
    Score(
        "activations",
        "how far the sample is from training samples in the network's own activations; no posterior",
        reader=Activations,
        of_existing=True,
        needs_posterior=False,
        needs_data=True,
    )
)

"""Distance to the nearest real samples: a score that asks the data instead of the model.

It alone sees that a model is wrong where it is sure. A distance that is too small means a copy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.validation import require_positive_int, require_samples
from .score import SCORES, Score
from .space import NEAREST, Neighbors, Space

Features = Callable[[Tensor], Tensor]
FEATURE_BATCH = 256  # samples per call of `features`


@torch.no_grad()
def neighbors(
    samples: Tensor, data: Tensor, k: int = NEAREST, *, features: Features | None = None
) -> Neighbors:
    """Find the k nearest real samples of each sample; `.score` is the mean distance to them.

    >>> real = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> found = flare.scores.neighbors(torch.tensor([[0.0, 0.0]]), real, k=2)
    >>> found.score, found.indices
    (tensor([3.], dtype=torch.float64), tensor([[1, 0]]))

    Args:
        samples: The samples, (n, *shape); rows with NaN or infinity are lost and get NaN.
        data: Real samples (N, *shape), usually the training data.
        k: The number of neighbors.
        features: A function that maps a batch (B, *shape) to features (B, d). Distances are then measured
            between features instead of samples.
    """
    data = require_samples("data", data).detach().cpu()
    samples = torch.as_tensor(samples).detach().cpu()
    if samples.shape[1:] != data.shape[1:] or samples.ndim < 2:
        raise ValueError(
            f"samples must have shape (n, {str(tuple(data.shape[1:]))[1:-1].rstrip(',')}), like the data, "
            f"got {tuple(samples.shape)}."
        )
    if require_positive_int("k", k) > len(data):
        raise ValueError(
            f"k must be at most the number of possible neighbors, {len(data)}, got {k}; give more data or a "
            "smaller k."
        )
    found = samples.isfinite().flatten(1).all(1)
    distances = torch.full((len(samples), k), torch.nan, dtype=torch.float64)
    indices = torch.full((len(samples), k), -1)
    if found.any():
        space = Space(compute_features("data", data, features))
        distances[found], indices[found] = space.find(
            compute_features("samples", samples[found], features), k
        )
    return Neighbors(distances, indices)


def compute_features(what: str, x: Tensor, features: Features | None) -> Tensor:
    """Features of samples, (n, d), or the samples themselves, flattened; at least float32."""
    if features is None:
        return x.flatten(1).to(torch.promote_types(x.dtype, torch.float32))
    found = []
    for batch in x.split(FEATURE_BATCH):
        value = features(batch)
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) != len(batch):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"features must map a batch of {len(batch)} samples to a tensor ({len(batch)}, d), got {got}."
            )
        found.append(value.detach().flatten(1).cpu())
    values = require_samples(f"features({what})", torch.cat(found))
    return values.to(torch.promote_types(values.dtype, torch.float32))


SCORES.register(
    Score(
        "neighbors",
        "how far the sample is from the nearest training samples; no network",
        of_existing=True,
        needs_posterior=False,
        needs_data=True,
    )
)

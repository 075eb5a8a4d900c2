"""The exact search of nearest training samples next to scikit-learn's brute search."""

from __future__ import annotations

import torch
from sklearn.neighbors import NearestNeighbors

from flare.scores.space import NEAREST, Space
from tools.document import table

from .harness import command, compare, judge

TARGET = 1.5  # times scikit-learn
CASES = (
    (2, 20_000, 1000),
    (784, 8000, 200),
    (2048, 5000, 200),
    (12_288, 4000, 64),
)  # dimension, data, samples


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    rows, verdicts = [], []
    for dimension, size, n in CASES:
        generator = torch.Generator().manual_seed(0)
        data = torch.rand(size // 10 if quick else size, dimension, generator=generator)
        x = torch.rand(n, dimension, generator=generator)
        space, peer = Space(data), NearestNeighbors(n_neighbors=NEAREST, algorithm="brute").fit(data.numpy())
        assert (space.find(x).indices.numpy() == peer.kneighbors(x.numpy())[1]).all()
        ratio = compare(lambda: space.find(x), lambda: peer.kneighbors(x.numpy()), 1 if quick else 5)  # noqa: B023
        verdicts.append(judge(f"neighbors in {dimension:,} dimensions", ratio.median, TARGET))
        rows.append([f"{dimension:,}", f"{len(data):,}", f"{n:,}", ratio.short])
    return (
        f"## Neighbors\n\nThe {NEAREST} nearest training samples, found exactly, next to scikit-learn's "
        f"brute search, both with an index that is built once.\n\n"
        + table(("dimension", "training samples", "samples", "FLARE over scikit-learn"), rows)
        + "\n\n"
        + "\n".join(verdicts)
    )


if __name__ == "__main__":
    command("neighbors", __doc__, section)

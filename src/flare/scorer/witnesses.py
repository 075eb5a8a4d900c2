"""What a scorer compares with: features of real samples, and how well scores repeat with other noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from scipy.stats import spearmanr
from torch import Tensor

from ..core.conditions import Cond
from ..core.distributed import share_rows
from ..core.progress import warn
from ..report.sentences import LOW
from ..scores.encoder import Encoder
from ..scores.space import Space, compute_distances
from .choosing import TRAINING_WORK

WITNESSES = ("activations", "epistemic_distance")  # the scores of the verdict, besides `neighbors`
GOAL = 0.9  # Spearman correlation between scores with other noise, up to which noise is added
MOST_PAIRS = 32  # of noises per level: 64 noises
SAMPLE_WORK = 2e7  # multiplications per sample that noises may cost; one pair is always affordable
ENCODED, FEWEST_ENCODED = 5000, 1000  # training samples as features: at most, and however large the network
# samples by which the agreement between noises is measured; fewer if the network is too large to add noise
COMPARED, FEW_COMPARED = 500, 150


class Witnesses(NamedTuple):
    """What is known about real samples.

    Attributes:
        encoder: Maps samples to features.
        spaces: The training samples as points, by score.
        scores: The scores of the reference, (n,) each.
        repeatability: The Spearman correlation between scores of real samples with other noise, by score.
        calls: How often the network was called with one state.
    """

    encoder: Encoder
    spaces: dict[str, Space]
    scores: dict[str, Tensor]
    repeatability: dict[str, float]
    calls: int


def look(
    encoder: Encoder,
    work: float,
    train: tuple[Tensor, Cond, Tensor],
    real: tuple[Tensor, Cond],
    learned: dict[Any, Any],
    memory: int | None,
) -> Witnesses:
    """Encode training samples and the reference, with as many noise draws as it takes for scores to repeat.

    Args:
        encoder: How samples are noised, with one pair of noises per level.
        work: The multiplications of one call of the network.
        train: Data, its conditions, and the rows of training samples. The first ones are used.
        real: The samples of the reference and their conditions.
        learned: What is known of the memory that the work takes.
        memory: Bytes that a batch may use.
    """
    calls = 0

    def encode(own: Encoder, data: Tensor, cond: Cond, rows: Tensor) -> dict[str, Tensor]:
        nonlocal calls
        calls += own.states * len(rows)
        return share_rows(
            lambda some: own.encode(data, cond, memory=memory, learned=learned, rows=some), rows
        )

    most = int(min(MOST_PAIRS, max(1.0, SAMPLE_WORK / (work * encoder.states))))
    compared = COMPARED if most > 1 else FEW_COMPARED
    pairs = 1
    while True:
        own, other = encoder.with_pairs(pairs), encoder.with_pairs(pairs, first=pairs)
        count = int(min(ENCODED, max(FEWEST_ENCODED, TRAINING_WORK / (work * own.states))))
        x, cond, rows = train
        everything = torch.arange(len(real[0]))
        first, second = (
            (encode(own, x, cond, rows[:count]), encode(own, *real, everything)),
            (encode(other, x, cond, rows[:compared]), encode(other, *real, everything[:compared])),
        )
        few = [{name: values[:compared] for name, values in each.items()} for each in first]
        repeatability = _compare(
            compute_distances(own.make_spaces(few[0]), few[1]),
            compute_distances(other.make_spaces(second[0]), second[1]),
        )
        worst = min(repeatability.values(), default=1.0)
        if worst >= GOAL or pairs >= most:
            break
        # the formula of Spearman and Brown: how much longer a test must be to be as reliable as GOAL
        longer = GOAL * (1 - worst) / ((1 - GOAL) * worst) if worst > 0 else math.inf
        pairs = int(min(most, max(pairs + 1, math.ceil(min(longer, MOST_PAIRS) * pairs))))
    shrunk = {name: space.shrink(first[1][name]) for name, space in own.make_spaces(first[0]).items()}
    for name, value in repeatability.items():
        if value < LOW:
            warn(
                f"{name} hardly repeats: with other noise, the order of real samples has a rank "
                f"correlation of only {value:.2f}. Its contribution to the verdict is largely chance.",
                UserWarning,
            )
    spaces = {name: space for name, (space, _) in shrunk.items()}
    scores = {name: values for name, (_, values) in shrunk.items()}
    return Witnesses(own, spaces, scores, repeatability, calls)


def _compare(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, float]:
    """The Spearman correlation between scores of the same samples with other noise, by score."""
    return {name: measure_agreement(first[name], second[name]) for name in first if name in second}


def measure_agreement(a: Tensor, b: Tensor) -> float:
    """The Spearman correlation between two scores of the same samples; 1 for too few or constant ones."""
    known = a.isfinite() & b.isfinite()
    if known.sum() < 3 or a[known].unique().numel() == 1 or b[known].unique().numel() == 1:
        return 1.0
    return float(spearmanr(a[known], b[known]).statistic)

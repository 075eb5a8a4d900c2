"""Discriminators: does a filter make generated data harder to tell from real data?

A judge is a classifier of real against generated samples; at an accuracy of ½ it sees no difference. The gap
closure of a filter is

    gap closure = (|½ − a_u| − |½ − a_f|) / |½ − a_u| · 100,

with the accuracy a_u on unfiltered and a_f on filtered samples: 100 is perfect, 0 is no change, negative is
worse. It is a ratio, which is unstable if the unfiltered accuracy is near ½; its confidence interval shows by
how much.

The definition can be read in two ways, and `measure_filter` has both: the judge of a_f is *retrained* on the
filtered samples, or it is the *fixed* judge that was trained on the unfiltered ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ..core import validation
from .metrics import auroc

Judge = Literal["logistic", "network"]
JUDGES: tuple[Judge, ...] = get_args(Judge)
Reading = Literal["retrained", "fixed"]
READINGS: tuple[Reading, ...] = get_args(Reading)
TEST_FRACTION = 0.3
MIN_SIZE = 20  # samples per class; with fewer, early stopping has nothing to validate on


@dataclass(frozen=True, eq=False)
class Judgment:
    """The test results of one judge on real (label 1) against generated data (label 0), over S seeds.

    Attributes:
        by: The kind of judge.
        size: Samples per class, for training and testing together.
        auc: The probability that a real test sample looks more real than a generated one, (S,).
        correct: Which test samples were classified correctly, (S, 2, m) bool: [:, 0] generated, [:, 1] real.
        rows: The indices of the test samples in the given data, (S, 2, m).
    """

    by: Judge
    size: int
    auc: Tensor
    correct: Tensor
    rows: Tensor

    @property
    def accuracy(self) -> Tensor:
        """The fraction of test samples that were classified correctly, (S,) float64."""
        return self.correct.double().mean(dim=(1, 2))


@dataclass(frozen=True)
class Gap:
    """The effect of a filter on a judge, averaged over seeds.

    Attributes:
        accuracy_unfiltered: a_u.
        accuracy: a_f.
        auc_unfiltered: The ROC-AUC before the filter.
        auc: The ROC-AUC after it.
        gap_closure: The gap closure in percent, at most 100. If a_u is exactly ½, it is −∞, or 0 if a_f is
            ½, too.
        interval: Its 95% confidence interval, from bootstrap percentiles.
        p_value: The fraction of bootstrap gap closures that are at most 0, with the +1 correction.
    """

    accuracy_unfiltered: float
    accuracy: float
    auc_unfiltered: float
    auc: float
    gap_closure: float
    interval: tuple[float, float]
    p_value: float


def judge(
    real: Tensor,
    generated: Tensor,
    *,
    kept: Tensor | None = None,
    by: Judge = "network",
    seeds: Sequence[int] = range(3),
    size: int | None = None,
) -> Judgment:
    """Train a classifier on real (n, *shape) against generated data (m, *shape), once per seed.

    Each seed draws `size` samples per class, tests on 30% of them and trains on the rest. A judge gets better
    with more data: compare two judgments only if they have the same `size`, that of the smaller set. The same
    seed, size and real data give the same real samples.

    With `kept`, the judges are the same, and so are their real test samples, but the generated test samples
    are kept ones that the judge was not trained on. Some of them are test samples without `kept`, too; the
    bootstrap of `gap` ignores this, and its interval is rather too wide.

    >>> judgment = flare.bench.discriminator.judge(data[:200], data[200:400], by="logistic")
    >>> judgment.accuracy.shape  # one per seed
    torch.Size([3])

    Args:
        real: Real samples; the paper uses the training data.
        generated: Generated samples.
        kept: Mask of the generated samples that a filter keeps, (m,) bool, to test on these.
        by: "logistic", a logistic regression, or "network", two hidden layers of 64 with early stopping;
            both on standardized coordinates.
        seeds: Random seeds; each gives one split and one initialization of the network.
        size: Samples per class, by default the size of the smaller class; at most the number of kept samples,
            so that enough are left to test on.
    """
    validation.one_of("judge", by, JUDGES)
    dtype = torch.float32 if by == "network" else torch.float64  # the network trains faster in float32
    x = [
        validation.require_samples(what, data).detach().cpu().to(dtype).flatten(1)
        for what, data in (("generated", generated), ("real", real))
    ]
    if x[0].shape[1:] != x[1].shape[1:]:
        raise ValueError(
            f"real and generated samples must have the same shape, got {tuple(real.shape[1:])} and "
            f"{tuple(generated.shape[1:])}."
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"seeds must be different integers, at least one, got {list(seeds)}; give for instance range(3)."
        )
    testable = torch.ones(len(x[0]), dtype=torch.bool) if kept is None else kept.cpu()
    most = _count_per_class(real, generated, testable)
    size = most if size is None else validation.require_positive_int("size", size)
    if not MIN_SIZE <= size <= most:
        raise ValueError(
            f"size must be at least {MIN_SIZE} and at most the number of samples of each class, got size "
            f"{size} of {len(real)} real and {int(testable.sum())} generated samples. Draw or keep more of "
            "them."
        )
    tests = [_train_and_test(x, testable, by, seed, size) for seed in seeds]
    return Judgment(by, size, *(torch.stack(parts) for parts in zip(*tests, strict=True)))


def gap(unfiltered: Judgment, filtered: Judgment, *, resamples: int = 9_999, seed: int = 0) -> Gap:
    """The gap closure of a filter; one judgment of unfiltered samples can be compared with many filters.

    Both judgments must come from the same judge with the same real data, seeds and size. The bootstrap
    resamples the test samples: the generated ones per judgment, and the real ones, which both judgments
    share, jointly. A sample that is tested under several seeds is resampled as one unit, so more seeds do
    not count as more data. The variation from training the judges on other samples is not included.

    >>> judge = flare.bench.discriminator.judge
    >>> before = judge(data[:200], data[200:400] + 1, by="logistic")
    >>> after = judge(data[:200], data[200:400], by="logistic")
    >>> flare.bench.discriminator.gap(before, after, resamples=99).gap_closure > 0
    True
    """
    if (unfiltered.by, unfiltered.size) != (filtered.by, filtered.size) or not torch.equal(
        unfiltered.rows[:, 1], filtered.rows[:, 1]
    ):
        raise ValueError(
            "the two judgments must be by the same judge with the same real data, seeds and size, got "
            f"{unfiltered.by!r} with {len(unfiltered.rows)} seeds and size {unfiltered.size}, and "
            f"{filtered.by!r} with {len(filtered.rows)} seeds and size {filtered.size}; pass judge() the "
            "smaller size for both."
        )
    validation.require_positive_int("resamples", resamples)
    before, after = unfiltered.accuracy.mean().item(), filtered.accuracy.mean().item()
    rng = np.random.default_rng(seed)
    fake = [
        _bootstrap(v.rows[:, 0], v.correct[None, :, 0], resamples, rng)[0] for v in (unfiltered, filtered)
    ]
    both = torch.stack([unfiltered.correct[:, 1], filtered.correct[:, 1]])
    real = _bootstrap(unfiltered.rows[:, 1], both, resamples, rng)
    closures = _closure((fake[0] + real[0]) / 2, (fake[1] + real[1]) / 2)
    low, high = np.quantile(closures, [0.025, 0.975], method="inverted_cdf")
    return Gap(
        accuracy_unfiltered=before,
        accuracy=after,
        auc_unfiltered=unfiltered.auc.mean().item(),
        auc=filtered.auc.mean().item(),
        gap_closure=float(_closure(np.array(before), np.array(after))),
        interval=(float(low), float(high)),
        p_value=(1 + int((closures <= 0).sum())) / (1 + resamples),
    )


def measure_filter(
    real: Tensor,
    generated: Tensor,
    kept: Tensor,
    *,
    reading: Reading = "retrained",
    by: Judge = "network",
    seeds: Sequence[int] = range(3),
) -> Gap:
    """The gap closure of a filter by one of its two readings, which share the unfiltered accuracy.

    Each judge gets as many samples per class as the smallest of the three sets has.

    >>> generated = torch.cat([data[200:300], data[300:400] + 1])
    >>> kept = torch.arange(200) < 100
    >>> measure_filter = flare.bench.discriminator.measure_filter
    >>> gap = measure_filter(data[:200], generated, kept, by="logistic")
    >>> gap.gap_closure > 0
    True

    Args:
        real: Real samples; the paper uses the training data.
        generated: Generated samples before the filter, (n, *shape).
        kept: Mask of those that the filter keeps, (n,) bool.
        reading: "retrained" for a new judge of the filtered samples, or "fixed" for the judge of the
            unfiltered samples, tested on filtered samples that it was not trained on.
        by: As in `judge`.
        seeds: As in `judge`.
    """
    size = _count_per_class(real, generated, kept)
    before = judge(real, generated, by=by, seeds=seeds, size=size)
    if validation.one_of("reading", reading, READINGS) == "fixed":
        return gap(before, judge(real, generated, kept=kept, by=by, seeds=seeds, size=size))
    return gap(before, judge(real, generated[kept], by=by, seeds=seeds, size=size))


def _count_per_class(real: Tensor, generated: Tensor, kept: Tensor) -> int:
    """The size of the smaller class, of real and of kept samples."""
    if kept.dtype != torch.bool or kept.shape != (len(generated),):
        raise ValueError(
            f"kept must be a mask of shape ({len(generated)},), one entry per generated sample, got "
            f"{tuple(kept.shape)} {kept.dtype}; make one with result.keep(0.5)."
        )
    return min(len(real), int(kept.sum()))


def _train_and_test(
    x: list[Tensor], testable: Tensor, by: Judge, seed: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One split and fit on x = [generated, real]: AUC (), correct (2, m) and rows (2, m) of the test."""
    g = torch.Generator().manual_seed(seed)
    real, generated = (torch.randperm(len(x[label]), generator=g) for label in (1, 0))
    m = round(TEST_FRACTION * size)
    classifier = _make_classifier(by, seed)
    with warnings.catch_warnings():
        # the epochs are a budget; early stopping keeps the best one on the validation part
        warnings.filterwarnings("ignore", message=".*reached.*optimization hasn't converged")
        classifier.fit(*_select(x, torch.stack([generated[m:size], real[m:size]])))
    unseen = torch.cat([generated[:m], generated[size:]])
    rows = torch.stack([unseen[testable[unseen]][:m], real[:m]])  # by label
    features, labels = _select(x, rows)
    looks_real = torch.from_numpy(classifier.predict_proba(features)[:, 1])
    is_real = torch.from_numpy(labels).bool()
    auc = torch.tensor(auroc(looks_real, is_real), dtype=torch.float64)
    return auc, ((looks_real > 0.5) == is_real).view(2, -1), rows


def _select(x: list[Tensor], rows: Tensor) -> tuple[Any, Any]:
    """Features and labels of the chosen rows (2, m) of x = [generated, real]."""
    features = torch.cat([x[label][rows[label]] for label in (0, 1)])
    return features.numpy(), torch.arange(2).repeat_interleave(rows.shape[1]).numpy()


def _make_classifier(by: Judge, seed: int) -> Any:
    if by == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2_000))
    network = MLPClassifier(
        (64, 64), learning_rate_init=5e-3, max_iter=80, early_stopping=True, n_iter_no_change=15,
        random_state=seed,
    )  # fmt: skip
    return make_pipeline(StandardScaler(), network)


def _closure(before: Any, after: Any) -> Any:
    """Gap closure in percent from the accuracies before and after the filter, elementwise."""
    there, left = np.abs(0.5 - before), np.abs(0.5 - after)
    # accuracies are ratios of counts: differences below this are rounding errors
    closed = np.where(np.abs(there - left) < 1e-12, 0.0, there - left)
    return 100 * np.divide(closed, there, out=np.where(closed < 0, -np.inf, 0.0), where=there > 1e-12)


def _bootstrap(rows: Tensor, correct: Tensor, resamples: int, rng: np.random.Generator) -> Any:
    """Bootstrap accuracies of V judges on the same test samples of one class, (V, resamples).

    Samples that were tested and classified correctly equally often are interchangeable. The count of each
    such kind in a resample is multinomial, so no resample is drawn sample by sample.

    Args:
        rows: The indices of the test samples, (S, m).
        correct: Whether they were classified correctly, (V, S, m).
        resamples: The number of bootstrap resamples.
        rng: Random numbers for the bootstrap.
    """
    _, sample = rows.flatten().unique(return_inverse=True)
    tested = sample.bincount().double()
    right = [sample.bincount(weights=judged.flatten().double()) for judged in correct]
    kinds, sizes = torch.stack([tested, *right], dim=1).unique(dim=0, return_counts=True)
    counts = rng.multinomial(len(tested), sizes.double().numpy() / len(tested), size=resamples)
    sums = counts @ kinds.numpy()  # (resamples, 1 + V)
    return (sums[:, 1:] / sums[:, :1]).T

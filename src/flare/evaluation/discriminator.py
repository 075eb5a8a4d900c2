"""Does a filter make generated data look like real data? A classifier that tells them apart is the judge.

At an accuracy of ½ the judge sees no difference. What a filter closes of the gap that was there is

    gap closure = (|½ − a_u| − |½ − a_f|) / |½ − a_u| · 100,

with a_u the accuracy on unfiltered and a_f that on filtered samples: 100 is perfect, 0 is no change, and a
filter that makes things worse is negative. It is a ratio: where the unfiltered accuracy is near ½ there is
hardly a gap to close and the figure is unstable. It is given as it is; the interval says how far to trust it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import validation
from .metrics import auroc

JUDGES = ("logistic", "network")
TEST_SHARE = 0.3
FEWEST = 20  # a class; of fewer, early stopping has nothing left to validate on


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one judge says of real (label 1) against generated data (label 0), over S seeds.

    Attributes:
        by: which judge.
        size: how many samples of each class it was given, for training and testing together.
        auc: the chance that a real test sample looks more real than a generated one, (S,).
        correct: which test samples were judged right, (S, 2, m) bool: [:, 0] generated, [:, 1] real.
        rows: where the test samples stand in the data that was given, (S, 2, m).
    """

    by: str
    size: int
    auc: Tensor
    correct: Tensor
    rows: Tensor

    @property
    def accuracy(self) -> Tensor:
        """The share of test samples that were judged right, (S,) float64."""
        return self.correct.double().mean(dim=(1, 2))


@dataclass(frozen=True)
class Gap:
    """What a filter did to a judge, as means over the seeds.

    Attributes:
        accuracy_unfiltered: a_u.
        accuracy: a_f.
        auc_unfiltered: the ROC-AUC before the filter.
        auc: the ROC-AUC after it.
        gap_closure: in percent, at most 100. If a_u is ½ exactly, it is −∞, or 0 if a_f is too.
        interval: its 95% confidence interval, the percentiles of a bootstrap.
        p_value: the share of bootstrap gap closures that are not above 0, with the +1 correction.
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
    by: str = "network",
    seeds: Sequence[int] = range(3),
    size: int | None = None,
) -> Verdict:
    """Train a classifier on real (n, *shape) against generated data (m, *shape), once a seed.

    A seed draws `size` samples of each class, keeps 30% of each for the test and trains on the rest. A judge
    gets better with more data: compare two verdicts only if they are of the same `size`, that of the smaller
    set. With the same seed, size and real data, the real samples are the same ones.

    Args:
        real: real samples; the paper takes the training data.
        generated: generated samples.
        by: "logistic", a logistic regression, or "network", two hidden layers of 64 with early stopping;
            both on standardised coordinates.
        seeds: one split, and one start of the network, each.
        size: samples of each class; those of the smaller one unless given.
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
    most = min(map(len, x))
    size = most if size is None else validation.require_positive_int("size", size)
    if not FEWEST <= size <= most:
        raise ValueError(
            f"a judge needs {FEWEST} samples of each class or more, and size of them must be there; got "
            f"size {size} of {len(real)} real and {len(generated)} generated samples. Draw more of them."
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different integers, at least one, got {list(seeds)}.")
    tests = [_test(x, by, seed, size) for seed in seeds]
    auc, correct, rows = (torch.stack(parts) for parts in zip(*tests, strict=True))
    return Verdict(by, size, auc, correct, rows)


def gap(unfiltered: Verdict, filtered: Verdict, *, resamples: int = 9_999, seed: int = 0) -> Gap:
    """What a filter closed of the gap; one verdict on unfiltered samples serves many filters.

    Both verdicts must be by the same judge with the same real data, seeds and size. The bootstrap resamples
    the test samples: the generated ones of each verdict, and the real ones, which are the same, for both at
    once. A sample that is tested under several seeds is resampled as one, so more seeds do not count as more
    data. What it leaves out is how the judges would differ had they been trained on other samples.
    """
    if (unfiltered.by, unfiltered.size) != (filtered.by, filtered.size) or not torch.equal(
        unfiltered.rows[:, 1], filtered.rows[:, 1]
    ):
        raise ValueError(
            "the two verdicts must be by the same judge with the same real data, seeds and size, got "
            f"{unfiltered.by!r} with {len(unfiltered.rows)} seeds and size {unfiltered.size}, and "
            f"{filtered.by!r} with {len(filtered.rows)} seeds and size {filtered.size}; pass judge() the "
            "smaller size for both."
        )
    validation.require_positive_int("resamples", resamples)
    before, after = unfiltered.accuracy.mean().item(), filtered.accuracy.mean().item()
    rng = np.random.default_rng(seed)
    fake = [
        _resampled(v.rows[:, 0], v.correct[None, :, 0], resamples, rng)[0] for v in (unfiltered, filtered)
    ]
    both = torch.stack([unfiltered.correct[:, 1], filtered.correct[:, 1]])
    real = _resampled(unfiltered.rows[:, 1], both, resamples, rng)
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


def compare(
    real: Tensor,
    unfiltered: Tensor,
    filtered: Tensor,
    *,
    by: str = "network",
    seeds: Sequence[int] = range(3),
) -> Gap:
    """Judge samples before and after a filter, both on as many as the smallest of the three sets has."""
    size = min(len(real), len(unfiltered), len(filtered))
    return gap(
        judge(real, unfiltered, by=by, seeds=seeds, size=size),
        judge(real, filtered, by=by, seeds=seeds, size=size),
    )


def _test(x: list[Tensor], by: str, seed: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """One split and one fit on x = [generated, real]: AUC (), correct (2, m), rows (2, m)."""
    g = torch.Generator().manual_seed(seed)
    real, generated = (torch.randperm(len(x[label]), generator=g)[:size] for label in (1, 0))
    rows = torch.stack([generated, real])  # by label
    test, train = rows.tensor_split([round(TEST_SHARE * size)], dim=1)

    def pick(chosen: Tensor) -> tuple[Any, Any]:
        features = torch.cat([x[label][chosen[label]] for label in (0, 1)])
        return features.numpy(), torch.arange(2).repeat_interleave(chosen.shape[1]).numpy()

    classifier = _classifier(by, seed)
    with warnings.catch_warnings():
        # the epochs are a budget, and the best of them on the validation part is kept
        warnings.filterwarnings("ignore", message=".*reached.*optimization hasn't converged")
        classifier.fit(*pick(train))
    features, labels = pick(test)
    looks_real = torch.from_numpy(classifier.predict_proba(features)[:, 1])
    is_real = torch.from_numpy(labels).bool()
    correct = (looks_real > 0.5) == is_real
    auc = torch.tensor(auroc(looks_real, is_real), dtype=torch.float64)
    return auc, correct.view(2, -1), test


def _classifier(by: str, seed: int) -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise ImportError("a judge needs scikit-learn: pip install 'flare-uq[evaluation]'") from error
    if by == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2_000))
    network = MLPClassifier(
        (64, 64), learning_rate_init=5e-3, max_iter=80, early_stopping=True, n_iter_no_change=15,
        random_state=seed,
    )  # fmt: skip
    return make_pipeline(StandardScaler(), network)


def _closure(before: Any, after: Any) -> Any:
    """The gap closure of accuracies before and after, in percent, elementwise."""
    there, left = np.abs(0.5 - before), np.abs(0.5 - after)
    # accuracies are ratios of counts: what differs by less than this is equal but for rounding
    closed = np.where(np.abs(there - left) < 1e-12, 0.0, there - left)
    return 100 * np.divide(closed, there, out=np.where(closed < 0, -np.inf, 0.0), where=there > 1e-12)


def _resampled(rows: Tensor, correct: Tensor, resamples: int, rng: np.random.Generator) -> Any:
    """Bootstrap accuracies of V judges on the same test samples of a class, (V, resamples).

    From where these stand (S, m) and whether they were judged right (V, S, m). Samples that were tested and
    judged right equally often are alike; how often each such kind comes in a resample is multinomial, so no
    resample has to be drawn sample by sample.
    """
    _, sample = rows.flatten().unique(return_inverse=True)
    tested = sample.bincount().double()
    right = [sample.bincount(weights=judged.flatten().double()) for judged in correct]
    kinds, often = torch.stack([tested, *right], dim=1).unique(dim=0, return_counts=True)
    drawn = rng.multinomial(len(tested), often.double().numpy() / len(tested), size=resamples)
    sums = drawn @ kinds.numpy()  # (resamples, 1 + V)
    return (sums[:, 1:] / sums[:, :1]).T

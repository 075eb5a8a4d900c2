"""Judges: classifiers of real against generated samples; at an accuracy of ½ they see no difference."""

from __future__ import annotations

import warnings

import torch
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from flare.bench.metrics import auroc

TEST_FRACTION = 0.3


def judge(real: Tensor, generated: Tensor, seed: int, size: int) -> tuple[float, float]:
    """The test accuracy and the AUC of a network with two hidden layers of 64 on standardized coordinates.

    A judge gets better with more data: compare two of them only if they have the same size. The same seed,
    size and real data give the same real samples.

    Args:
        real: Real samples, (n, *shape).
        generated: Generated samples, (m, *shape).
        seed: Random seed of the split and of the network.
        size: Samples per class; 30% of them are tested, the others trained on.
    """
    x = [each.detach().cpu().float().flatten(1) for each in (generated, real)]
    g = torch.Generator().manual_seed(seed)
    rows = {label: torch.randperm(len(x[label]), generator=g)[:size] for label in (1, 0)}
    m = round(TEST_FRACTION * size)
    classifier = make_pipeline(
        StandardScaler(),
        MLPClassifier(
            (64, 64), learning_rate_init=5e-3, max_iter=80, early_stopping=True, n_iter_no_change=15,
            random_state=seed,
        ),
    )  # fmt: skip
    train, test = (torch.cat([x[k][rows[k][part]] for k in (0, 1)]) for part in (slice(m, None), slice(m)))
    labels = torch.arange(2)
    with warnings.catch_warnings():
        # the epochs are a budget; early stopping keeps the best one on the validation part
        warnings.filterwarnings("ignore", message=".*reached.*optimization hasn't converged")
        classifier.fit(train.numpy(), labels.repeat_interleave(size - m).numpy())
    looks_real = torch.from_numpy(classifier.predict_proba(test.numpy())[:, 1])
    is_real = labels.repeat_interleave(m).bool()
    return float(((looks_real > 0.5) == is_real).double().mean()), auroc(looks_real, is_real)

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from flare import zoo
from flare.evaluation import metrics, oracles


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auroc_is_that_of_scikit_learn(pairs):
    score = torch.tensor([float(s) for s, _ in pairs])
    bad = torch.tensor([b for _, b in pairs])
    if bad.all() or not bad.any():
        with pytest.raises(ValueError, match="needs bad and good"):
            metrics.auroc(score, bad)
    else:
        assert metrics.auroc(score, bad) == pytest.approx(roc_auc_score(bad, score))


def test_energy_distance_is_that_of_scipy_up_to_its_bias():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(3000, 1, generator=g), 0.5 + torch.randn(3000, 1, generator=g)
    theirs = stats.energy_distance(x[:, 0].numpy(), y[:, 0].numpy()) ** 2
    assert metrics.energy_distance(x, y) == pytest.approx(theirs, abs=2e-3)
    assert abs(metrics.energy_distance(x, torch.randn(3000, 1, generator=g))) < 2e-3


def test_a_thousandth_of_real_samples_is_hallucinated():
    for name in ("grid", "sines", "chirp"):
        real = zoo.datasets.make(name, 2000, seed=1)
        assert oracles.hallucinated(name, real, real).sum() == 2
        assert oracles.hallucinated(name, real + 0.4, real).all()
    assert metrics.rate(torch.tensor([True, False]), torch.tensor([False, True])) == 0

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from flare import bench
from flare.bench import metrics, oracles


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auroc_is_that_of_scikit_learn(pairs):
    score = torch.tensor([float(s) for s, _ in pairs])
    bad = torch.tensor([b for _, b in pairs])
    if bad.all() or not bad.any():
        with pytest.raises(ValueError, match="needs bad and good"):
            metrics.auroc(score, bad)
    else:
        assert metrics.auroc(score, bad) == pytest.approx(roc_auc_score(bad, score))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_average_precision_is_that_of_scikit_learn(pairs):
    score = torch.tensor([float(s) for s, _ in pairs])
    bad = torch.tensor([b for _, b in pairs])
    if bad.all() or not bad.any():
        with pytest.raises(ValueError, match="needs bad and good"):
            metrics.average_precision(score, bad)
    else:
        assert metrics.average_precision(score, bad) == pytest.approx(average_precision_score(bad, score))


def test_average_precision_by_hand():
    bad = torch.tensor([True, False, True, False])
    assert metrics.average_precision(torch.tensor([4.0, 3.0, 2.0, 1.0]), bad) == pytest.approx(
        (1 + 2 / 3) / 2
    )
    assert metrics.average_precision(torch.ones(4), bad) == 0.5  # knows nothing: the share of bad ones
    with pytest.raises(ValueError, match="1 scores NaN"):
        metrics.average_precision(torch.tensor([0.0, torch.nan, 1.0, 2.0]), bad)
    with pytest.raises(ValueError, match=r"got shapes \(3,\) and \(4,\)"):
        metrics.average_precision(torch.ones(3), bad)


def test_energy_distance_is_that_of_scipy_up_to_its_bias():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(3000, 1, generator=g), 0.5 + torch.randn(3000, 1, generator=g)
    theirs = stats.energy_distance(x[:, 0].numpy(), y[:, 0].numpy()) ** 2
    assert metrics.energy_distance(x, y) == pytest.approx(theirs, abs=2e-3)
    assert abs(metrics.energy_distance(x, torch.randn(3000, 1, generator=g))) < 2e-3


def test_energy_distance_does_not_depend_on_a_common_shift():
    g = torch.Generator().manual_seed(1)
    x, y = ((torch.randn(200, 3, generator=g).double() * 2**20).round() / 2**20 for _ in range(2))
    expected = metrics.energy_distance(x, y + 1)
    assert metrics.energy_distance(x + 2**27, y + 1 + 2**27) == pytest.approx(expected, rel=1e-6)


def test_energy_distance_of_a_single_sample_is_refused():
    one, many = torch.zeros(1, 3), torch.zeros(5, 3)
    for x, y in ((one, many), (many, one)):
        with pytest.raises(ValueError, match=r"at least 2 samples on each side, got shapes \([15], 3\)"):
            metrics.energy_distance(x, y)
    assert metrics.energy_distance(many, many[:2]) == 0


def test_a_thousandth_of_real_samples_is_hallucinated():
    for name in ("grid", "sines", "chirp"):
        real = bench.datasets.make(name, 1000, seed=1)
        assert oracles.find_hallucinations(name, real, real).sum() == 1
        assert oracles.find_hallucinations(name, real + 0.4, real).all()
    assert metrics.rate(torch.tensor([True, False]), torch.tensor([False, True])) == 0


def test_an_auroc_of_nan_is_refused():
    with pytest.raises(ValueError, match="NaN or infinite"):
        metrics.auroc(torch.tensor([1.0, float("nan")]), torch.tensor([False, True]))

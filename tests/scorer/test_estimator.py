"""The estimator passes the checks of scikit-learn, and its predictions are those of the scorer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from points import QUICK, T, ring, trained

import flare
from flare.scorer import choosing

sklearn = pytest.importorskip("sklearn")
checks_of_sklearn = pytest.importorskip("sklearn.utils.estimator_checks")

# checks that do not apply, and why; empty: all of them pass
EXPECTED_TO_FAIL: dict[str, str] = {}
QUICKLY = {"train_steps": 10, "pairs": 20}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few uncertain parameters: the checks fit dozens of times."""
    monkeypatch.setattr(choosing, "SUBSET_SIZE", 50)


def checks():
    return [
        pytest.param(estimator, check, id=getattr(check, "func", check).__name__ + f"-{i}")
        for i, (estimator, check) in enumerate(
            checks_of_sklearn.estimator_checks_generator(
                flare.TrustEstimator(**QUICKLY), expected_failed_checks=EXPECTED_TO_FAIL, mark="skip"
            )
        )
    ]


@pytest.mark.filterwarnings("ignore")  # of references of 6 samples, and of networks that know nothing
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


def judged(n=600):
    """Normal data, and new points: a hundred of the same law and a hundred far away."""
    dice = np.random.default_rng(0)
    angles = dice.uniform(0, 2 * np.pi, 100)
    far = 6 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return dice.normal(size=(n, 2)), np.concatenate([dice.normal(size=(100, 2)), far])


def test_without_a_network_a_small_one_is_trained_and_finds_outliers():
    data, new = judged()
    data, new = 100 * data + 7, 100 * new + 7  # any scale: the data is standardized
    estimator = flare.TrustEstimator(train_steps=300, pairs=300).fit(data)
    labels = estimator.predict(new)
    assert (labels[100:] == -1).all()
    assert (labels[:100] == 1).mean() > 0.85
    assert estimator.scorer_.reference.held_out
    assert estimator.score_samples(new)[:100].min() > estimator.score_samples(new)[100:].max()


def test_predictions_are_those_of_the_p_values():
    scorer = flare.fit(trained(ring(), 100), ring(), flare.schedules.cosine(T), **QUICK)
    new = torch.cat([ring(100, seed=4), ring(50, seed=5) * 1.4])
    for alpha in (0.02, 0.05, 0.1, 0.31):
        estimator = flare.TrustEstimator(scorer, alpha=alpha).fit(ring())
        trusted = scorer.score(new).trusted(alpha)
        assert np.array_equal(estimator.predict(new) == 1, trusted.numpy())
        assert 0 < trusted.sum() < 150
    estimator.score_samples(new)
    assert estimator.scorer_ is scorer
    with pytest.raises(ValueError, match="X must have 2 columns, the flattened samples of shape"):
        flare.TrustEstimator(scorer).fit(np.zeros((20, 3)))


def test_a_network_of_ones_own_is_fitted():
    net, schedule = trained(ring(), 100), flare.schedules.cosine(T)
    with pytest.warns(UserWarning, match="do not trust this scorer yet"):
        estimator = flare.TrustEstimator(net, schedule, pairs=200).fit(ring().numpy())
    assert not estimator.scorer_.reference.held_out
    assert estimator.predict([[2.5, 2.5]]).tolist() == [-1]
    with pytest.raises(TypeError, match="schedule must be the noise levels"):
        flare.TrustEstimator(net).fit(ring().numpy())
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\), got 5"):
        flare.TrustEstimator(net, schedule, alpha=5).fit(ring().numpy())


def test_the_global_generator_is_left_alone():
    data, _ = judged(60)
    before = torch.get_rng_state()
    flare.TrustEstimator(train_steps=5, pairs=20).fit(data)
    assert torch.equal(torch.get_rng_state(), before)

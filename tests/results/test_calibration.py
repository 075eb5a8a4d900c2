from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

import flare
from flare.results.calibration import count_needed


@given(st.integers(0, 5), st.floats(0.01, 0.5), st.floats(0.5, 0.99))
def test_the_number_of_labels_needed_is_the_smallest(bad, risk, confidence):
    needed = count_needed(bad, risk, confidence)
    assert binom.cdf(bad, needed, risk) <= (1 - confidence) * (1 + 1e-9)
    assert binom.cdf(bad, needed - 1, risk) > (1 - confidence) * (1 - 1e-9)


def simulate(seed, n, base, gap, digits=None):
    """Scores N(gap, 1) of bad and N(0, 1) of good samples; rounded scores have ties."""
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < base
    scores = rng.normal(size=n) + gap * labels
    return torch.tensor(scores if digits is None else scores.round(digits)), torch.tensor(labels)


def true_risk(threshold, base, gap, digits=None):
    """Share of bad samples among those with a score of at most the threshold."""
    if digits is not None and math.isfinite(threshold):  # just below the lowest rounded score that is dropped
        threshold = (round(threshold * 10**digits) - 0.5) / 10**digits
    bad, good = base * norm.cdf(threshold - gap), (1 - base) * norm.cdf(threshold)
    return bad / (bad + good)


@pytest.mark.parametrize(
    ("n", "base", "gap", "digits"), [(100, 0.5, 3.0, None), (300, 0.2, 2.0, None), (300, 0.2, 2.5, 1)]
)
@pytest.mark.filterwarnings("ignore:no threshold has the guarantee")
def test_the_risk_is_exceeded_no_more_often_than_promised(n, base, gap, digits):
    sets, confidence = 1000, 0.8
    exceeded, found = 0, 0
    for seed in range(sets):
        result = flare.calibrate(*simulate(seed, n, base, gap, digits), risk=0.1, confidence=confidence)
        found += result.guaranteed
        exceeded += result.guaranteed and true_risk(result.threshold, base, gap, digits) > 0.1
    assert found > 0.6 * sets  # not by refusing
    assert exceeded / sets < 1 - confidence + 3 * (0.2 * 0.8 / sets) ** 0.5


def naive(scores, labels, risk, level):
    """Test all thresholds one by one, each from its definition; return the number of kept samples."""
    n = len(scores)

    def needed(bad):
        return next(m for m in range(bad + 1, 10_000) if binom.cdf(bad, m, risk) <= level)

    if needed(0) > n:
        return 0
    kept = 0
    for rank in range(max(needed(0), min(n // 4, needed(2))), n + 1):
        limit = sorted(scores)[rank] if rank < n else math.inf
        below = [bad for score, bad in zip(scores, labels, strict=True) if score < limit]
        if len(below) < needed(0):  # ties
            continue
        if binom.cdf(sum(below), len(below), risk) > level:
            break
        kept = len(below)
    return kept


@given(st.integers(0, 2**32 - 1), st.integers(30, 120), st.sampled_from([None, 0, 1]), st.floats(0.05, 0.3))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_agrees_with_a_loop_over_all_thresholds(seed, n, digits, risk):
    scores, labels = simulate(seed, n, 0.3, 2.5, digits)
    result = flare.calibrate(scores, labels, risk, 0.8)
    kept = naive(scores.tolist(), labels.tolist(), risk, 1 - 0.8)
    assert result.keep(scores).sum() == kept
    assert (result.kept, result.total, result.labels) == (kept, n, n)
    assert result.guaranteed == (kept > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_scores_below_the_next_one_are_kept(dtype):
    scores = torch.arange(200).to(dtype)
    result = flare.calibrate(scores, torch.arange(200) >= 150)
    kept = int(result.keep(scores).sum())
    assert kept == result.kept > 150
    if dtype.is_floating_point:
        assert (scores <= result.threshold).sum() == kept
    assert kept - 1 < result.threshold < kept
    assert repr(result) == (
        "Calibration: keeps 153 of 200 samples (76.5%): at most 5% of them are bad, with confidence 0.9 "
        "(200 labels, 3 bad among the 153 that count)"
    )


def test_without_bad_samples_all_are_kept():
    result = flare.calibrate(torch.rand(45), torch.zeros(45))
    assert (result.threshold, result.kept) == (math.inf, 45)
    assert result.keep(torch.tensor([3.0, torch.nan])).tolist() == [True, False]


def test_no_guarantee_is_said_and_keeps_nothing():
    with pytest.warns(UserWarning, match="44 labels count, and even without a bad one 45 are needed"):
        result = flare.calibrate(torch.rand(44), torch.arange(44) % 2)
    assert not result.guaranteed
    assert not result.keep(torch.tensor([-1e9, 0.0])).any()
    assert str(result).startswith("keeps nothing: no threshold reaches at most 5% bad with confidence 0.9; ")
    assert "the whole set has at most 60.7% bad" in str(result)
    with pytest.warns(UserWarning, match="no threshold has the guarantee, .* accept a larger risk"):
        result = flare.calibrate(torch.arange(100.0), torch.arange(100) % 3 == 0)
    assert "the best 45% have at most" in str(result)
    with (
        pytest.warns(UserWarning, match="all 100 labels are bad: are they inverted"),
        pytest.warns(UserWarning, match="no threshold"),
    ):
        result = flare.calibrate(torch.rand(100), torch.ones(100))
    assert str(result).endswith("with confidence 0.9 (100 labels, 45 bad among the 45 that count)")
    with pytest.warns(UserWarning, match="accept a larger risk"):  # one score for all
        assert not flare.calibrate(torch.ones(100), torch.arange(100) > 70).guaranteed
    assert flare.calibrate(torch.ones(100), torch.arange(100) > 98).kept == 100


def test_samples_without_a_score_are_left_out():
    scores, labels = simulate(0, 200, 0.2, 3.0)
    expected = flare.calibrate(scores, labels)
    with pytest.warns(UserWarning, match="2 of 202 scores are NaN"):
        found = flare.calibrate(
            torch.cat([scores, torch.full((2,), torch.nan)]), torch.cat([labels, torch.tensor([True, False])])
        )
    assert found == replace(expected, total=202)


def test_labels_of_some_samples_are_enough():
    scores, labels = simulate(1, 300, 0.2, 3.0)
    expected = flare.calibrate(scores[::2], labels[::2])
    some = torch.full((300,), torch.nan)
    some[::2] = labels[::2].float()
    for given_labels in (some, some.numpy(), some.tolist(), {i: bool(labels[i]) for i in range(298, -1, -2)}):
        found = flare.calibrate(scores, given_labels, design="random")
        assert replace(found, kept=expected.kept, total=150, best=expected.best) == expected
        assert found.kept == (scores <= expected.threshold).sum()


def test_results_are_ranked_by_the_verdict_or_the_score():
    scores, labels = simulate(2, 300, 0.2, 3.0)
    plain = flare.Result(torch.zeros(300, 2), scores={"a": scores, "b": -scores})
    found = flare.calibrate(plain, labels)
    assert found == flare.calibrate(scores, labels)
    assert torch.equal(found.keep(plain), found.keep(scores))
    reference = flare.Reference({"a": torch.randn(99).exp()})
    judged = replace(plain, verdict=reference.verdict({"a": scores.exp()}))
    found = flare.calibrate(judged, labels)
    assert found == flare.calibrate(judged.verdict.z, labels)
    assert torch.equal(found.keep(judged), judged.verdict.z <= found.threshold)


@pytest.mark.filterwarnings("ignore:no threshold has the guarantee")
def test_bad_input_is_named():
    scores, labels = torch.rand(60), torch.arange(60) % 2
    for call, message in [
        (lambda: flare.calibrate(scores, labels[:-1]), r"labels must have shape \(60,\), .* got \(59,\)"),
        (
            lambda: flare.calibrate(scores[:, None], labels[:, None]),
            r"must have shape .* got \(60, 1\)",
        ),
        (lambda: flare.calibrate(scores[:0], labels[:0]), "n of at least 1"),
        (lambda: flare.calibrate(scores, {60: True}), r"from 0 to 59, got \[60\]"),
        (lambda: flare.calibrate(scores, {3: "good"}), "True for bad .* False for good ones, got 'good'"),
        (lambda: flare.calibrate(scores, {}), "none of the 60 samples has a label and a score"),
        (lambda: flare.calibrate(scores, labels).keep(scores / 0), "60 of 60 are infinite"),
        (lambda: flare.calibrate(scores, labels + 1), "0 for good and 1 for bad"),
        (lambda: flare.calibrate(scores / 0, labels), "60 of 60 are infinite"),
        (lambda: flare.calibrate(scores * torch.nan, labels), "none of the 60 samples has a label"),
        (lambda: flare.calibrate(scores, labels, risk=5), r"risk must .* got 5; did you mean 0\.05\?"),
        (lambda: flare.calibrate(scores, labels, risk=0.0), r"risk must lie in \(0, 1\), got 0\.0"),
        (lambda: flare.calibrate(scores, labels, risk=1e-9), "risk must be at least 1e-06, got 1e-09"),
        (lambda: flare.calibrate(scores, labels, confidence=1.0), r"confidence must lie in \(0, 1\)"),
        (lambda: flare.calibrate(scores, labels, design="best"), "unknown design 'best'"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

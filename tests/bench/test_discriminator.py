from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flare.bench.discriminator import (
    JUDGES,
    Gap,
    Judgment,
    gap,
    judge,
    measure_filter,
)


def normal(n: int, d: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def made(generated: list[bool], real: list[bool], rows: torch.Tensor | None = None) -> Judgment:
    """A verdict of one seed with these right and wrong test samples."""
    correct = torch.tensor([[generated, real]])
    rows = torch.arange(len(real)).expand(1, 2, -1) if rows is None else rows
    return Judgment("network", 100, torch.tensor([0.5]), correct, rows)


def compare(real, unfiltered, filtered, **options) -> Gap:
    """The gap of two sets of samples that are judged apart, with the size of the smallest."""
    size = min(len(real), len(unfiltered), len(filtered))
    return gap(*(judge(real, x, size=size, **options) for x in (unfiltered, filtered)))


def right(k: int, of: int) -> list[bool]:
    return [True] * k + [False] * (of - k)


@pytest.mark.parametrize("by", JUDGES)
def test_two_gaussians_are_told_apart_as_well_as_can_be(by):
    mu = 2.0
    real, generated = normal(3000), normal(3000, seed=1) + torch.tensor([0.0, mu, 0.0])
    verdict = judge(real, generated, by=by)
    assert verdict.correct.shape == (3, 2, 900)
    # Φ(μ/2) and Φ(μ/√2); three standard errors of 1,800 test samples are 0.026
    assert verdict.accuracy.mean().item() == pytest.approx(stats.norm.cdf(mu / 2), abs=0.026)
    assert verdict.auc.mean().item() == pytest.approx(stats.norm.cdf(mu / sqrt(2)), abs=0.02)


@pytest.mark.parametrize("by", JUDGES)
def test_a_cloud_cannot_be_told_from_itself(by):
    verdict = judge(normal(1500), normal(1500, seed=1), by=by, seeds=range(4))
    # correct answers are binomial: of 900 test samples a seed, 4.5 standard errors
    assert (verdict.accuracy - 0.5).abs().max() < 4.5 * 0.5 / sqrt(900)
    assert (verdict.auc - 0.5).abs().max() < 4.5 * sqrt(901 / (12 * 450 * 450))


def test_only_the_network_sees_a_wider_cloud():
    real, generated = normal(2000, 2), 3 * normal(2000, 2, seed=1)
    radius = sqrt(2 * np.log(9) / (1 - 1 / 9))  # where the two densities are equal
    best = (stats.chi(2).cdf(radius) + stats.chi(2, scale=3).sf(radius)) / 2
    assert judge(real, generated, by="network").accuracy.mean().item() == pytest.approx(best, abs=0.03)
    assert judge(real, generated, by="logistic").accuracy.mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_verdict_is_the_same_again_and_its_test_samples_are_its_own():
    real, generated = normal(60), normal(90, seed=1) + 1
    first, second = (judge(real, generated, by="network", seeds=[3, 5], size=50) for _ in range(2))
    assert torch.equal(first.correct, second.correct)
    assert torch.equal(first.auc, second.auc)
    assert first.rows.shape == (2, 2, 15)
    assert first.rows[:, 1].max() < 60
    assert all(len(rows.unique()) == 15 for rows in first.rows.flatten(0, 1))
    assert not torch.equal(first.rows[0], first.rows[1])
    # the real samples do not depend on how many there are to choose generated ones from
    other = judge(real, generated[:70], by="network", seeds=[3, 5], size=50)
    assert torch.equal(first.rows[:, 1], other.rows[:, 1])


def test_real_samples_look_real():
    real, generated = normal(40, 12).view(40, 3, 4) + 5, normal(40, 12, seed=1).view(40, 3, 4) - 5
    verdict = judge(real, generated, by="logistic", seeds=[0])
    assert verdict.accuracy.tolist() == verdict.auc.tolist() == [1.0]


@pytest.mark.parametrize("by", JUDGES)
def test_a_perfect_filter_closes_the_gap_and_a_random_one_does_not(by):
    real, good = normal(1200), normal(1200, seed=1)
    bad = normal(1200, seed=2) + 4
    unfiltered = torch.cat([good, bad])[torch.randperm(2400, generator=torch.Generator().manual_seed(3))]
    perfect = compare(real, unfiltered, good, by=by)
    assert perfect.accuracy_unfiltered > 0.68  # half of the generated ones give themselves away
    assert perfect.accuracy == pytest.approx(0.5, abs=0.04)
    assert perfect.gap_closure > 80
    assert perfect.p_value < 0.001
    nothing = compare(real, unfiltered, unfiltered[:1200], by=by)
    low, high = nothing.interval
    assert low < 0 < high
    assert nothing.gap_closure == pytest.approx(0, abs=15)
    worse = compare(real, unfiltered, bad, by=by)
    assert worse.accuracy > 0.98
    assert worse.auc > 0.98 > worse.auc_unfiltered
    assert worse.gap_closure < -50
    assert worse.p_value > 0.999


def test_gap_closure_by_hand():
    unfiltered = made(right(90, 100), right(70, 100))  # an accuracy of 0.8
    assert gap(unfiltered, made(right(50, 100), right(50, 100))).gap_closure == pytest.approx(100)
    assert gap(unfiltered, made(right(65, 100), right(65, 100))).gap_closure == pytest.approx(50)
    # below a half is as far from it as above
    assert gap(unfiltered, made(right(35, 100), right(35, 100))).gap_closure == pytest.approx(50)
    assert gap(unfiltered, unfiltered).gap_closure == 0
    worse = gap(unfiltered, made(right(95, 100), right(95, 100)))
    assert worse.gap_closure == pytest.approx(-50)
    assert worse.p_value > 0.95
    assert (worse.accuracy_unfiltered, worse.accuracy) == pytest.approx((0.8, 0.95))


def test_the_p_value_counts_what_is_not_above_zero_and_itself():
    sure = made(right(40, 40), right(40, 40))  # every resample has an accuracy of 1
    assert gap(sure, sure, resamples=99).p_value == 1
    assert gap(sure, sure, resamples=99).interval == (0, 0)
    assert gap(sure, made(right(40, 40), right(0, 40)), resamples=99).p_value == 1 / 100


def test_a_fixed_judge_is_that_of_the_unfiltered_samples_on_kept_ones_it_never_saw():
    """Against a loop over the seeds with scikit-learn alone: the logistic judge has one optimum."""
    from sklearn.linear_model import LogisticRegression

    real, generated = normal(90).double(), normal(120, seed=1).double() + 0.8
    kept = generated[:, 0] <= generated[:, 0].median()  # 60 of them
    before = judge(real, generated, by="logistic", seeds=[4, 7], size=60)
    after = judge(real, generated, kept=kept, by="logistic", seeds=[4, 7])
    assert after.size == 60
    assert torch.equal(after.rows[:, 1], before.rows[:, 1])
    for k, seed in enumerate([4, 7]):
        g = torch.Generator().manual_seed(seed)
        own_real, own = torch.randperm(90, generator=g)[18:60], torch.randperm(120, generator=g)[18:60]
        x = torch.cat([generated[own], real[own_real]])
        mean, sd = x.mean(0), x.std(0, correction=0)
        y = np.repeat([0, 1], 42)
        by_hand = LogisticRegression(max_iter=2_000).fit((x - mean) / sd, y)
        tested = after.rows[k, 0]
        assert kept[tested].all()
        assert not set(tested.tolist()) & set(own.tolist())
        assert len(tested.unique()) == 18
        answers = by_hand.predict((generated[tested] - mean) / sd)
        assert after.correct[k, 0].tolist() == (answers == 0).tolist()


def test_both_readings_of_the_gap_by_name():
    real, generated = normal(60), normal(90, seed=1) + 1
    kept = generated[:, 0] < generated[:, 0].quantile(0.5)
    options = {"by": "logistic", "seeds": [0, 1]}
    retrained, fixed = (
        measure_filter(real, generated, kept, reading=reading, **options)
        for reading in ("retrained", "fixed")
    )
    assert retrained == compare(real, generated, generated[kept], **options)
    size = int(kept.sum())
    before = judge(real, generated, size=size, **options)
    assert fixed == gap(before, judge(real, generated, kept=kept, **options))
    assert fixed.accuracy_unfiltered == retrained.accuracy_unfiltered
    assert fixed.gap_closure != retrained.gap_closure


@pytest.mark.parametrize("by", JUDGES)
def test_a_fixed_judge_takes_bad_samples_for_generated_and_good_ones_for_real(by):
    real, good = normal(1200), normal(1200, seed=1)
    generated = torch.cat([good, normal(1200, seed=2) + 6])
    is_good = torch.arange(2400) < 1200
    bad = measure_filter(real, generated, ~is_good, reading="fixed", by=by)
    # every bad sample is seen through, and the same share of real samples as before
    before, after = (judge(real, generated, kept=kept, by=by, size=1200) for kept in (None, ~is_good))
    assert after.correct[:, 0].double().mean() > 0.99
    assert torch.equal(before.correct[:, 1], after.correct[:, 1])
    assert bad.gap_closure < 0
    # good samples look real: half of all answers are wrong
    perfect = measure_filter(real, generated, is_good, reading="fixed", by=by)
    assert perfect.accuracy == pytest.approx(0.5, abs=0.04)
    assert perfect.gap_closure > 80


def test_without_a_gap_nothing_can_be_closed():
    even = made(right(60, 100), right(40, 100))
    assert gap(even, even).gap_closure == 0
    assert gap(even, made(right(60, 100), right(60, 100))).gap_closure == -inf
    low, high = gap(even, made(right(90, 100), right(90, 100))).interval
    assert low < -1000
    assert not np.isnan(high)


fractions = st.integers(0, 40)


@given(fractions, fractions, fractions, fractions)
def test_laws_of_the_gap(a, b, c, d):
    unfiltered, filtered = made(right(a, 40), right(b, 40)), made(right(c, 40), right(d, 40))
    found = gap(unfiltered, filtered, resamples=200)
    assert found.gap_closure <= 100
    assert found.interval[0] <= found.interval[1] <= 100
    assert 1 / 201 <= found.p_value <= 1
    if a + b != 40:  # there is a gap
        assert (found.gap_closure > 0) == (abs(c + d - 40) < abs(a + b - 40))


def test_the_bootstrap_is_that_of_scipy():
    rng = np.random.default_rng(1)
    fake_u, fake_f = rng.random(150) < 0.85, rng.random(150) < 0.78
    real_u = rng.random(150) < 0.8
    real_f = np.where(rng.random(150) < 0.8, real_u, rng.random(150) < 0.6)  # the same samples: correlated
    ours = gap(
        made(fake_u.tolist(), real_u.tolist()), made(fake_f.tolist(), real_f.tolist()), resamples=50_000
    )
    # scipy resamples several samples apart: code the two answers on a real sample as one number
    pairs = 2 * real_u + real_f

    def closure(u, f, both, axis):
        before = (u.mean(axis) + (both // 2).mean(axis)) / 2
        after = (f.mean(axis) + (both % 2).mean(axis)) / 2
        return 100 * (1 - abs(after - 0.5) / abs(before - 0.5))

    theirs = stats.bootstrap(
        (fake_u, fake_f, pairs), closure, n_resamples=20_000, vectorized=True, method="percentile",
        batch=2_000, rng=np.random.default_rng(2),
    )  # fmt: skip
    # a 2.5% percentile of N draws has the standard error √(0.025·0.975 / N) / φ(1.96) deviations
    error = sqrt(0.025 * 0.975 * (1 / 20_000 + 1 / 50_000)) / stats.norm.pdf(1.96)
    spread = theirs.bootstrap_distribution.std()
    assert ours.gap_closure == pytest.approx(closure(fake_u, fake_f, pairs, 0))
    assert ours.interval == pytest.approx(tuple(theirs.confidence_interval), abs=4.5 * error * spread)
    assert ours.p_value == pytest.approx((theirs.bootstrap_distribution <= 0).mean(), abs=0.01)


def test_more_seeds_on_the_same_samples_are_not_more_data():
    def copies(verdict: Judgment, rows: torch.Tensor) -> Judgment:
        return Judgment("network", 100, torch.full((4,), 0.5), verdict.correct.repeat(4, 1, 1), rows)

    unfiltered, filtered = made(right(160, 200), right(150, 200)), made(right(120, 200), right(130, 200))
    once = gap(unfiltered, filtered)
    same = torch.arange(200).expand(4, 2, -1)
    again = gap(copies(unfiltered, same), copies(filtered, same))
    assert again.interval == pytest.approx(once.interval, abs=4)
    others = torch.arange(800).view(4, 1, 200).expand(-1, 2, -1)
    more = gap(copies(unfiltered, others), copies(filtered, others))
    width = np.subtract(*once.interval)
    assert np.subtract(*more.interval) == pytest.approx(width / 2, rel=0.15)


def test_bad_input_says_what_to_do():
    x = normal(30)
    with pytest.raises(ValueError, match="did you mean 'logistic'"):
        judge(x, x, by="logistics")
    with pytest.raises(ValueError, match=r"the same shape, got \(3,\) and \(2,\)"):
        judge(x, x[:, :2])
    with pytest.raises(ValueError, match="size 10 of 30 real and 10 generated samples"):
        judge(x, x[:10])
    with pytest.raises(ValueError, match="size 31 of 30"):
        judge(x, x, size=31)
    with pytest.raises(ValueError, match="size must be an integer"):
        judge(x, x, size=0)
    with pytest.raises(ValueError, match="generated has NaN or infinity in 1 of 30"):
        judge(x, torch.cat([x[:29], torch.full((1, 3), torch.nan)]))
    for seeds in ([], [1, 1]):
        with pytest.raises(ValueError, match="seeds must be different"):
            judge(x, x, seeds=seeds)
    verdict = judge(x, x, by="logistic", seeds=[0])
    for other in (
        judge(x, x, by="network", seeds=[0]),
        judge(x, x, by="logistic", seeds=[0], size=25),
        judge(x, x, by="logistic", seeds=[1]),
    ):
        with pytest.raises(ValueError, match="the same real data, seeds and size"):
            gap(verdict, other)
    with pytest.raises(ValueError, match="resamples must be an integer"):
        gap(verdict, verdict, resamples=0)
    with pytest.raises(ValueError, match="did you mean 'fixed'"):
        measure_filter(x, x, torch.ones(30, dtype=torch.bool), reading="fix")
    for mask in (torch.ones(30), torch.ones(29, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"mask of shape \(30,\)"):
            measure_filter(x, x, mask, reading="fixed")
    with pytest.raises(ValueError, match="size 26 of 30 real and 25 generated samples"):
        judge(x, x, kept=torch.arange(30) < 25, size=26)

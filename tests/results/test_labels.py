"""The proposed labels, and what `flare.calibrate` makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, hypergeom

import flare
from flare.results.calibration import SHARES, count_needed, design_labels

NOTHING = pytest.mark.filterwarnings("ignore:no threshold has the guarantee", "ignore:all .* labels are bad")


def propose(ranking, **goal):
    ranking = torch.as_tensor(ranking)
    return flare.Result(torch.zeros(len(ranking), 2), scores={"a": ranking}).propose_labels(**goal).tolist()


def naive_kept(ranking):
    """For each candidate, the samples that it keeps, by their random numbers, one by one."""
    generator = np.random.PCG64(0)
    chance = [int(generator.random_raw()) for _ in ranking]
    finite = sorted(value for value in ranking if not math.isnan(value))
    kept = []
    for share in (0.5, 0.75):
        limit = next(v for place, v in enumerate(finite, 1) if place >= share * len(finite))
        own = [i for i, value in enumerate(ranking) if value <= limit]
        kept.append((limit, sorted(own, key=lambda i: chance[i])))
    return chance, kept


def naive_needed(bad, risk, level):
    return next(m for m in range(bad + 1, 10_000) if binom.cdf(bad, m, risk) <= level)


def make_ranking(seed, n, digits):
    rng = np.random.default_rng(seed)
    ranking = rng.normal(size=n).round(digits) + 0.0
    ranking[rng.random(n) < 0.1] = math.nan
    ranking[0] = 0.5
    return ranking


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 150), st.sampled_from([0, 1, 15]), st.sampled_from([0.05, 0.2])
)
def test_the_proposal_is_the_union_of_the_first_samples_of_each_candidate(seed, n, digits, risk):
    ranking = make_ranking(seed, n, digits)
    design = design_labels(torch.from_numpy(ranking), risk, 0.8)
    chance, kept = naive_kept(ranking.tolist())
    assert design.needed == [naive_needed(b, risk, 1 - 0.8 + 1e-12) for b in range(10)]
    assert design.shares == SHARES == (0.5, 0.75)
    assert design.thresholds == [limit for limit, _ in kept]
    expected = [own[: design.needed[0]] for _, own in kept]
    assert [own.tolist() for own in design.members] == expected
    assert design.order.tolist() == sorted({*expected[0], *expected[1]}, key=lambda i: chance[i])
    assert propose(ranking, risk=risk, confidence=0.8) == design.order.tolist()


def test_a_proposal_is_permanent():
    # labels that people have made belong to these samples
    assert propose(torch.arange(1000.0))[:6] == [269, 11, 403, 600, 196, 608]
    assert len(propose(torch.arange(1000.0))) == 58
    more, few = propose(torch.zeros(500), risk=0.01), propose(torch.zeros(400), risk=0.01)
    together = [i for i in more if i < 400]
    assert few[: len(together)] == together


def test_a_sample_without_replacement_is_judged_conservatively():
    for confidence in (0.7, 0.8, 0.9, 0.99):
        for size in (*range(2, 30), 50, 77, 150):
            labels, bad = np.meshgrid(np.arange(1, size + 1), np.arange(size), indexing="ij")
            for risk in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5):
                accepted = labels >= count_needed(bad, risk, confidence)
                too_many = math.floor(risk * size + 1e-9) + 1
                chance = hypergeom.cdf(bad, size, too_many, labels)
                assert (chance[accepted] <= 1 - confidence + 1e-9).all()


def naive_calibrate(ranking, labels, risk, level):
    """The threshold and the size of its sample, from the definitions; labels by index."""
    _, kept = naive_kept(ranking)
    least = naive_needed(0, risk, level)
    complete = min(next((p for p, i in enumerate(own) if i not in labels), len(own)) for _, own in kept)
    count, bad = least, 0
    while (larger := naive_needed(bad + 1, risk, level)) <= complete:
        count, bad = larger, bad + 1
    answer, size = -math.inf, len(kept[0][1][:count])
    for limit, own in kept:
        tested = [labels[i] for i in own[:count]]
        if binom.cdf(sum(tested), len(tested), risk) > level:
            break
        answer, size = limit, len(tested)
    return answer, size


@given(st.integers(0, 2**32 - 1), st.integers(40, 150), st.sampled_from([0.1, 0.2, 0.4]), st.floats(0, 0.3))
@NOTHING
def test_calibration_agrees_with_its_definition(seed, n, risk, share):
    rng = np.random.default_rng(seed)
    ranking = make_ranking(seed, n, 1)
    bad = rng.random(n) < share * (ranking > 0.3)
    level = 1 - 0.8 + 1e-12
    chosen = {*propose(ranking, risk=risk * rng.choice([0.5, 0.7, 1]), confidence=0.8)}
    chosen |= {int(i) for i in rng.integers(0, n, size=10) if not math.isnan(ranking[i])}
    if len(chosen) == np.isfinite(ranking).sum():
        return  # everything is labeled: the other design
    labels = {i: bool(bad[i]) for i in chosen}
    found = flare.calibrate(torch.from_numpy(ranking), labels, risk, 0.8)
    threshold, size = naive_calibrate(ranking.tolist(), labels, risk, level)
    assert (found.threshold, found.counted) == (threshold, size)
    assert found.kept == (ranking <= threshold).sum()
    assert (found.labels, found.total) == (len(labels), n)


def draw_outcomes(population, count, sets, rng):
    """How often each candidate is accepted, from hypergeometric draws for halves and quarters.

    The half contributes j of the samples that test three quarters, and these are the first j of its own.
    """
    half, quarter = (
        population[: len(population) // 2],
        population[len(population) // 2 : len(population) * 3 // 4],
    )
    found = []
    for _ in range(sets):
        first = rng.hypergeometric(sum(half), len(half) - sum(half), count)
        shared = rng.hypergeometric(len(half), len(quarter), count)
        second = rng.hypergeometric(first, count - first, shared)
        second += rng.hypergeometric(sum(quarter), len(quarter) - sum(quarter), count - shared)
        found.append(0 if first else 1 if second else 2)
    return np.bincount(found, minlength=3) / sets


POPULATIONS = {
    "the half at the limit": [17, 0, 50],
    "three quarters at the limit": [0, 25, 50],
    "the risk falls": [20, 2, 0],
    "in between": [3, 10, 60],
}


@pytest.mark.parametrize("name", POPULATIONS)
@NOTHING
def test_outcomes_are_those_of_hypergeometric_draws_and_rarely_wrong(name):
    half, quarter, last = POPULATIONS[name]  # bad samples in each, of 160, 80 and 80
    population = (
        [i < half for i in range(160)] + [i < quarter for i in range(80)] + [i < last for i in range(80)]
    )
    rng, risk, sets = np.random.default_rng(0), 0.1, 600
    outcomes, wrong = np.zeros(3), 0
    for _ in range(sets):
        # bad samples are anywhere in their part
        ranking = np.concatenate([rng.permutation(160), 160 + rng.permutation(80), 240 + rng.permutation(80)])
        order = rng.permutation(320)
        scores, bad = torch.from_numpy(ranking[order]).double(), np.array(population)[order]
        proposed = propose(scores, risk=risk)
        found = flare.calibrate(scores, {i: bool(bad[i]) for i in proposed}, risk)
        kept = found.keep(scores).numpy()
        outcomes[round(4 * found.kept / 320) - 1 if found.guaranteed else 0] += 1
        strictest = bad[scores.numpy() < 160].mean()
        wrong += bool(bad[kept].mean() > risk) if found.guaranteed else bool(strictest > found.bound)
        assert found.counted == 22
    expected = draw_outcomes(population, 22, sets, rng)
    assert np.abs(outcomes / sets - expected).max() < 4 * math.sqrt(2 * 0.25 / sets)
    assert wrong / sets < 0.1 + 3 * math.sqrt(0.09 / sets)


def test_labels_of_a_proposal_for_a_smaller_risk_are_used():
    scores = torch.arange(2000.0)
    few, many = propose(scores), propose(scores, risk=0.02)
    assert {*few} < {*many}
    bad = {many[0], few[-1]}  # the proposal ends in the half
    with pytest.warns(UserWarning, match="accept a larger risk"):
        assert not flare.calibrate(scores, {i: i in bad for i in few}).guaranteed
    found = flare.calibrate(scores, {i: i in bad for i in many})
    assert (found.kept, found.counted, found.labels) == (1500, 105, len(many))
    assert found == flare.calibrate(scores, {i: i in bad for i in [*many, *propose(scores, risk=0.021)]})


def test_labels_of_other_samples_are_ignored():
    scores = torch.arange(1000.0)
    proposed = propose(scores)
    expected = flare.calibrate(scores, dict.fromkeys(proposed, False))
    others = {i: True for i in range(400, 1000) if i not in proposed}
    found = flare.calibrate(scores, others | dict.fromkeys(proposed, False))
    assert (found.threshold, found.counted, found.bad) == (749, 45, 0)
    assert found.labels == expected.labels + len(others)
    assert str(found) == (
        "keeps 750 of 1,000 samples (75%): at most 5% of them are bad, with confidence 0.9 "
        f"({found.labels} labels, 0 bad among the 45 that count)"
    )


def test_without_a_guarantee_the_best_half_has_a_bound():
    scores = torch.arange(1000.0)
    proposed = propose(scores)
    with pytest.warns(UserWarning, match="no threshold has the guarantee"):
        found = flare.calibrate(scores, {i: i == proposed[0] for i in proposed})
    interval = binomtest(1, 45).proportion_ci(0.8, "exact")  # 10% on each side
    assert found.bound == pytest.approx(interval.high)
    assert (found.threshold, found.kept, found.best) == (-math.inf, 0, 0.5)
    assert "the best half has at most 8.4% bad (58 labels, 1 bad among the 45 that count)" in str(found)


def test_proposed_samples_without_a_label_are_named():
    scores = torch.arange(1000.0)
    proposed = propose(scores)
    with pytest.raises(
        ValueError, match=r"missing for 8 of the 58 .*: 269, 11, 403, 600, 196 and 3 more\. Add"
    ):
        flare.calibrate(scores, dict.fromkeys(proposed[8:], False))
    with pytest.raises(ValueError, match=r"for 1 of the 58 .* samples: 269\. .* use design='random' if"):
        flare.calibrate(scores, dict.fromkeys(proposed[1:], False))
    with pytest.raises(ValueError, match="all 3 scores are NaN: there is nothing to label"):
        propose(torch.full((3,), torch.nan))


@NOTHING
def test_labels_of_all_samples_have_one_design():
    scores, bad = torch.arange(300.0), torch.arange(300) >= 200
    assert flare.calibrate(scores, bad) == flare.calibrate(scores, bad, design="random")
    lost = torch.cat([scores, torch.tensor([torch.nan])])
    some = torch.cat([bad.double(), torch.tensor([torch.nan])])
    assert flare.calibrate(lost, some).threshold == flare.calibrate(scores, bad).threshold


@NOTHING
def test_a_half_that_is_too_small_is_labeled_whole_and_has_a_bound():
    scores = torch.arange(80.0)
    proposed = propose(scores)
    assert {*range(40)} < {*proposed}
    found = flare.calibrate(scores, dict.fromkeys(proposed, False))
    assert (found.guaranteed, found.counted) == (False, 40)
    assert found.bound == pytest.approx(1 - 0.1 ** (1 / 40))

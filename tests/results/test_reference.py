from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation
from sklearn.datasets import load_digits

from flare import Reference
from flare.results.filters import keep_best
from flare.results.verdict import combine, overlap
from flare.scores.neighbors import neighbors
from flare.storage import checkpoint

seeds = st.integers(0, 2**32 - 1)


def quiet(scores, **options):
    """A reference without the warnings about small or equal ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = Reference(scores, **options)
        for name in scores:
            reference.z(name, torch.ones(1))
        return reference


def lognormal(seed, n, names=("influence", "neighbors"), correlation=0.5):
    """Correlated positive scores by name."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(n, generator=g)
    return {
        name: (correlation * common + (1 - correlation**2) ** 0.5 * torch.randn(n, generator=g)).exp()
        for name in names
    }


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.lists(st.integers(-1, 7), max_size=10))
def test_p_values_count_the_real_samples_that_are_as_doubtful(real, values):
    reference = quiet({"a": torch.tensor(real).float()})
    expected = [(1 + sum(r >= v for r in real)) / (1 + len(real)) for v in values]
    assert reference.p_value("a", torch.tensor(values).float()).tolist() == pytest.approx(expected)
    both = reference.verdict({"a": torch.tensor(values).float()})
    assert both.p_values["a"].tolist() == pytest.approx(expected)


@given(seeds, st.integers(20, 60))
def test_z_is_the_robust_z_of_the_logs(seed, n):
    g = torch.Generator().manual_seed(seed)
    real = torch.randn(n, generator=g).double().exp()
    values = real.min() + 3 * torch.rand(7, generator=g).double()
    logs = np.log(real.numpy())
    expected = (np.log(values.numpy()) - np.median(logs)) / (1.4826 * median_abs_deviation(logs))
    np.testing.assert_allclose(Reference({"a": real}).z("a", values), expected, rtol=1e-9, atol=1e-9)


def naive_combine(z):
    """The length of what is positive, or the largest if nothing is, and a thousandth of what is negative."""
    main = math.hypot(*[each for each in z if each > 0]) if max(z) > 0 else max(z)
    return main + sum(each for each in z if each < 0) / 1000


def draw_z(seed, k, n):
    """z of n samples by k scores that go together somewhat, (k, n); a fifth is negative in all scores."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(k, n, generator=g).double() + torch.randn(n, generator=g).double()
    return torch.where(torch.rand(n, generator=g) < 0.2, -z.abs(), z)


@given(seeds, st.integers(1, 5))
def test_combine_is_the_length_of_what_is_positive(seed, k):
    z = draw_z(seed, k, 40)
    expected = [naive_combine(own) for own in z.T.tolist()]
    assert combine(z).tolist() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(combine(z.flip(0)), combine(z), rtol=1e-12, atol=0)  # no score is special


@given(seeds, st.integers(1, 5), st.floats(1e-3, 100))
def test_combine_grows_with_every_z(seed, k, step):
    z = draw_z(seed, k, 40)
    before = combine(z)
    for name in range(k):
        more = z.clone()
        more[name] += step
        after = combine(more)
        assert (after > before).all()
    # the bound between "none is positive" and "some are" makes no jump
    level = z.clamp(max=0) - z.clamp(max=0).amax(0)
    torch.testing.assert_close(combine(level + 1e-9), combine(level), rtol=0, atol=1e-8)


@given(seeds, st.integers(1, 5), st.integers(2, 60))
def test_combined_z_of_exchangeable_data_have_no_ties_and_all_ranks(seed, k, n):
    """Whichever of the samples is the fresh one, its rank among the others is uniform."""
    total = combine(draw_z(seed, k, n))
    assert total.unique().numel() == n
    p_values = [(1 + int((total[torch.arange(n) != i] >= total[i]).sum())) / n for i in range(n)]
    assert sorted(p_values) == pytest.approx([(1 + rank) / n for rank in range(n)])


@given(seeds, st.integers(1, 5), st.integers(2, 60))
def test_ranks_of_exchangeable_data_with_ties_are_conservative(seed, k, n):
    total = combine(draw_z(seed, k, n).round())
    p_values = [(1 + int((total[torch.arange(n) != i] >= total[i]).sum())) / n for i in range(n)]
    for rank in range(1, n + 1):
        assert sum(p <= rank / n + 1e-9 for p in p_values) <= rank


def test_combine_keeps_nan_and_infinity():
    z = torch.tensor([[torch.nan, torch.nan, torch.inf, 1.0], [3.0, -1.0, -2.0, torch.inf]]).double()
    assert combine(z).isnan().tolist() == [True, True, False, False]
    assert combine(z)[2:].tolist() == [math.inf, math.inf]


@given(seeds)
def test_the_verdict_combines_z_and_compares_with_real_data(seed):
    real, scores = lognormal(seed, 30), lognormal(seed ^ 1, 12)
    reference = Reference(real)
    found = reference.verdict(scores)
    z = {name: reference.z(name, scores[name]) for name in scores}
    of_real = {name: reference.z(name, real[name]) for name in real}
    totals = [naive_combine([z[name][i].item() for name in z]) for i in range(12)]
    own = [naive_combine([of_real[name][i].item() for name in z]) for i in range(30)]
    assert found.z.tolist() == pytest.approx(totals)
    assert found.p_value.tolist() == pytest.approx([(1 + sum(o >= s for o in own)) / 31 for s in totals])
    assert found.reason == [max(z, key=lambda name, i=i: z[name][i].item()) for i in range(12)]
    assert (found.p_value[found.z.argsort()].diff() <= 0).all()  # a larger z has no larger p-value
    assert torch.equal(found.trusted(0.2), found.p_value > 0.2)
    assert torch.equal(found.doubtful(0.2), ~found.trusted(0.2))
    assert len(found) == 12


def share_at_most(p_values, n):
    """P(p ≤ j/(n + 1)) for j = 1..n + 1, beside j/(n + 1)."""
    steps = torch.arange(1, n + 2) / (n + 1)
    return (torch.stack(p_values)[:, None] <= steps + 1e-9).double().mean(0), steps


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")])
def test_p_values_of_fresh_real_data_are_uniform(names):
    n, splits = 50, 1000
    together, alone = [], []
    for seed in range(splits):
        scores = lognormal(seed, n + 1, names)
        found = Reference({k: v[:n] for k, v in scores.items()}).verdict(
            {k: v[n:] for k, v in scores.items()}
        )
        together.append(found.p_value[0])
        alone.append(found.p_values["a"][0])
    for p_values in (together, alone):
        found, expected = share_at_most(p_values, n)
        assert (found - expected).abs().max() < 1.63 / splits**0.5  # Kolmogorov–Smirnov at 1%


def test_p_values_of_fresh_real_data_are_conservative_if_there_are_ties():
    n, splits = 50, 1000
    p_values = []
    for seed in range(splits):
        scores = {k: v.log2().round().exp2() for k, v in lognormal(seed, n + 1, correlation=0.0).items()}
        reference = quiet({k: v[:n] for k, v in scores.items()})
        p_values.append(reference.verdict({k: v[n:] for k, v in scores.items()}).p_value[0])
    found, expected = share_at_most(p_values, n)
    assert (found - expected).max() < 1.63 / splits**0.5
    assert (found - expected).min() < -0.05  # and not uniform


def test_scores_that_differ_by_rounding_are_ties():
    scores = lognormal(0, 41)
    reference = Reference(scores)
    order = reference.verdict(scores).z.argsort(descending=True)
    for factor in (1.0, 1 + 1e-15):
        found = reference.verdict({name: factor * score.double() for name, score in scores.items()})
        # as many real samples are as doubtful as the rank of the sample, which is one of them, says
        assert found.p_value[order].tolist() == pytest.approx([(2 + rank) / 42 for rank in range(41)])


def test_a_nan_score_is_never_trusted():
    reference = Reference(lognormal(0, 99))
    scores = lognormal(1, 4)
    scores["influence"][1] = torch.nan
    found = reference.verdict(scores)
    assert found.p_value.isnan().tolist() == found.z.isnan().tolist() == found.lost.tolist()
    assert found.lost.tolist() == [False, True, False, False]
    assert found.p_values["influence"][1].isnan()
    assert not found.p_values["neighbors"][1].isnan()
    assert found.reason[1] == "not scored"
    assert not found.trusted(0.05)[1]
    assert not found.doubtful(0.05)[1]


def test_infinite_scores_are_the_most_doubtful():
    reference = Reference(lognormal(0, 99))
    found = reference.verdict({"influence": torch.tensor([torch.inf, 0.0]), "neighbors": torch.ones(2)})
    assert found.p_value[0] == 0.01
    assert found.reason[0] == "influence"
    # a score below all real ones counts as the lowest
    lowest = reference.scores["influence"].min()
    torch.testing.assert_close(
        reference.z("influence", torch.zeros(1)), reference.z("influence", lowest[None])
    )


def test_the_verdict_says_it_in_words():
    real = torch.arange(1.0, 100)
    scores = {"influence": torch.cat([torch.full((87,), 99.5), torch.full((913,), 50.0)])}
    found = Reference({"influence": real}).verdict(scores)
    assert repr(found) == "87 of 1,000 samples look less plausible than 95% of real data"
    scores["influence"][-1] = torch.nan
    copies = torch.arange(1000) < 3
    found = Reference({"influence": real}, held_out=False).verdict(scores)
    found = replace(found, copies=copies)
    assert repr(found) == (
        "87 of 1,000 samples look less plausible than 95% of training data; 1 could not be scored; "
        "3 look like copies of training data"
    )
    assert torch.equal(found.copies, copies)
    assert repr(Reference(lognormal(0, 1234))) == "Reference: influence, neighbors of 1,234 held-out samples"


def test_some_scores_of_the_reference_are_enough():
    reference, scores = Reference(lognormal(0, 50)), lognormal(1, 5)
    found = reference.verdict({"influence": scores["influence"]})
    assert torch.equal(found.p_value, found.p_values["influence"])
    assert set(found.reason) == {"influence"}


def two_modes(seed, n, spread=(0.1, 0.1), share=0.5):
    """Points of two modes, and which mode each belongs to."""
    g = torch.Generator().manual_seed(seed)
    mode = (torch.rand(n, generator=g) < share).long()
    centers = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    return centers[mode] + torch.tensor(spread)[mode, None] * torch.randn(n, 2, generator=g), mode


def judge_two_modes(seed, **options):
    """Verdict by neighbors on 1,000 samples like the real ones and on 200 between the modes."""
    data, _ = two_modes(4 * seed, 1000, **options)
    held_out, _ = two_modes(4 * seed + 1, 500, **options)
    good, mode = two_modes(4 * seed + 2, 1000, **options)
    bad, _ = two_modes(4 * seed + 3, 200)
    score = neighbors(torch.cat([good, 0.3 * bad]), data).score
    reference = Reference({"neighbors": neighbors(held_out, data).score})
    return good, mode, score, reference.verdict({"neighbors": score}).trusted(0.05)


def test_keeping_by_p_value_keeps_modes_that_are_alike_and_their_width():
    shares, widths, widths_by_rank = [], [], []
    for seed in range(10):
        good, mode, score, trusted = judge_two_modes(seed)
        kept, ranked = trusted[:1000], keep_best(score, 0.5)[:1000]
        assert not trusted[1000:].any()
        for label in (0, 1):
            own = mode == label
            shares.append(kept[own].float().mean())
            widths.append((good[own & kept].std(0) / good[own].std(0)).mean())
            widths_by_rank.append((good[own & ranked].std(0) / good[own].std(0)).mean())
    assert torch.stack(widths).mean() > 0.87
    assert torch.stack(widths_by_rank).mean() < 0.8
    assert torch.stack(shares).mean() == pytest.approx(0.95, abs=0.015)
    assert min(shares) > 0.9


def test_keeping_by_p_value_thins_a_rare_and_wide_mode():
    # the guarantee is for all real data together: what `Verdict.trusted` says about such modes
    shares, rare = [], []
    for seed in range(10):
        _, mode, _, trusted = judge_two_modes(seed, spread=(0.05, 0.2), share=0.1)
        shares.append(trusted[:1000].float().mean())
        rare.append(trusted[:1000][mode == 1].float().mean())
    assert torch.stack(shares).mean() == pytest.approx(0.95, abs=0.015)
    assert torch.stack(rare).mean() < 0.7


def test_training_data_is_a_fair_reference_for_neighbors_only_without_itself():
    digits = torch.tensor(load_digits().data)[
        torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    ]
    train, fresh = digits[:900], {"neighbors": neighbors(digits[900:], digits[:900]).score}
    shares = []
    distances = neighbors(train, train, k=6).distances
    for score in (distances[:, :5].mean(1), distances[:, 1:].mean(1)):  # with and without the sample itself
        found = Reference({"neighbors": score}, held_out=False).verdict(fresh)
        shares.append(found.doubtful(0.05).double().mean().item())
    assert shares[0] > 0.2
    assert shares[1] == pytest.approx(0.05, abs=0.03)


def test_a_reference_comes_back_from_its_file(tmp_path):
    reference = Reference(lognormal(0, 40), held_out=False)
    reference.save(tmp_path / "reference.safetensors")
    loaded = Reference.load(tmp_path / "reference.safetensors")
    scores = lognormal(1, 10)
    assert torch.equal(loaded.verdict(scores).p_value, reference.verdict(scores).p_value)
    assert (loaded.held_out, list(loaded.scores)) == (False, ["influence", "neighbors"])


def test_files_that_hold_no_reference_are_refused(tmp_path):
    path = tmp_path / "file.safetensors"
    good = {"format": 1, "kind": "reference", "scores": ["a"], "held_out": True}
    for change, message in [
        ({"kind": "posterior"}, "is not a reference of format 1"),
        ({"format": 2}, "is not a reference of format 1"),
        ({"scores": ["b"]}, "do not match its header"),
        ({"scores": None}, "do not match its header"),
        ({"held_out": "yes"}, "do not match its header"),
    ]:
        checkpoint.save(path, {"score.a": torch.rand(30).double()}, {**good, **change})
        with pytest.raises(ValueError, match=message):
            Reference.load(path)
    with pytest.raises(FileNotFoundError):
        Reference.load(tmp_path / "none.safetensors")


def test_small_references_are_said():
    with pytest.warns(UserWarning, match=r"only 9 samples: the smallest p-value is 1/10\. Give at least 20"):
        reference = Reference({"a": torch.rand(9)})
    found = reference.verdict({"a": torch.full((2,), 5.0)})
    with pytest.warns(UserWarning, match=r"can be doubtful at alpha=0\.05: .* Give at least 19\."):
        assert found.trusted(0.05).all()
    assert not found.trusted(0.1).any()


def test_samples_without_finite_scores_are_dropped_from_the_reference():
    scores = lognormal(0, 40)
    scores["influence"][3], scores["neighbors"][7] = torch.nan, torch.inf
    with pytest.warns(UserWarning, match="2 of 40 reference samples have NaN or infinite scores"):
        reference = Reference(scores)
    rest = torch.tensor([i for i in range(40) if i not in (3, 7)])
    assert len(reference) == 38
    clean = Reference({name: score[rest] for name, score in scores.items()})
    others = lognormal(1, 5)
    assert torch.equal(reference.verdict(others).p_value, clean.verdict(others).p_value)


def test_reference_scores_without_logarithm_or_spread():
    values = torch.tensor([0.5, 2.0])
    mostly = torch.cat([torch.ones(30), torch.arange(2.0, 12.0)])
    reference = Reference({"a": mostly})
    with pytest.warns(UserWarning, match="more than half of the 40 .* mean absolute deviation replaces it"):
        z = reference.z("a", values)
    deviation = (np.pi / 2) ** 0.5 * np.abs(np.log(mostly.double().numpy())).mean()
    assert z.tolist() == pytest.approx([0.0, np.log(2.0) / deviation])
    reference = Reference({"a": torch.ones(30)})
    with pytest.warns(UserWarning, match="all the 30 reference scores of a are equal, .* z is 0"):
        assert reference.z("a", torch.tensor([3.0, torch.nan])).nan_to_num(nan=-1).tolist() == [0, -1]
    reference = Reference({"a": torch.cat([torch.zeros(5), torch.arange(1.0, 31.0)])})
    with pytest.warns(UserWarning, match="5 of 35 .* they count as the lowest positive score, 1"):
        assert reference.z("a", torch.tensor([0.0])) == reference.z("a", torch.tensor([1.0]))
    reference = Reference({"a": torch.linspace(-1, 1, 41)})
    with pytest.warns(UserWarning, match=r"negative scores of a, as low as -1: z is taken without"):
        assert reference.z("a", torch.tensor([0.5])).item() == pytest.approx(0.5 / (1.4826 * 0.5))
    reference = Reference({"a": torch.zeros(30)})
    with pytest.warns(UserWarning, match="30 of 30 .* = 0"), pytest.warns(UserWarning, match="are equal"):
        assert reference.z("a", values).tolist() == [0, 0]


def test_bad_input_is_named():
    reference = Reference(lognormal(0, 30))
    good = lognormal(1, 4)
    for call, message in [
        (lambda: Reference({}), "needs scores by name, .* got none"),
        (lambda: Reference(torch.rand(30)), "needs scores by name, .* got Tensor"),
        (lambda: Reference({"a": torch.rand(0)}), "the reference is empty: none of its 0"),
        (lambda: Reference({"a": torch.full((30,), torch.nan)}), "empty: none of its 30 samples"),
        (lambda: Reference({"a": torch.rand(30, 2)}), r"scores of a must have shape \(n,\), got \(30, 2\)"),
        (lambda: Reference({"a": torch.rand(30), "b": torch.rand(31)}), "got 30 of a, 31 of b"),
        (lambda: reference.verdict({"neighbor": good["neighbors"]}), "did you mean 'neighbors'"),
        (lambda: reference.p_value("trace", torch.rand(3)), "unknown score of the reference 'trace'"),
        (lambda: reference.z("trace", torch.rand(3)), "unknown score of the reference 'trace'"),
        (lambda: reference.verdict({}), "the verdict needs scores by name"),
        (
            lambda: reference.verdict({**good, "influence": torch.rand(3)}),
            "3 of influence, 4 of neighbors",
        ),
        (lambda: reference.verdict(good).trusted(5), r"alpha must lie in \(0, 1\), got 5"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@given(seeds, st.integers(1, 12), st.integers(1, 12))
def test_overlap_finds_equal_rows(seed, n, m):
    g = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randint(0, 2, (n, 1, 3), generator=g).float(),
        torch.randint(0, 2, (m, 1, 3), generator=g).float(),
    )
    expected = [any(torch.equal(row, other) for other in b) for row in a]
    assert overlap(a, b).tolist() == expected
    assert overlap(a, b.double()).tolist() == expected
    assert overlap(torch.tensor([[-0.0, 1.0]]), torch.tensor([[0.0, 1.0]])).tolist() == [True]

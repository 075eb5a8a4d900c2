"""The study of the verdict: its candidates, the rule of choice, bootstrap intervals, and filters."""

from __future__ import annotations

import pytest
import torch

import flare
from experiments import candidates, choice, common, detection, keeping, lab, options, verdict
from experiments.candidates import FOUR, VERDICT, Evidence
from experiments.keeping import Kept
from flare import bench
from flare.bench import metrics


@pytest.fixture
def evidence():
    """Random scores of 20 samples, and of 50 real ones."""
    g = torch.Generator().manual_seed(0)
    names = (*FOUR, candidates.NORM, candidates.CENTERED)
    real, scores = ({name: torch.rand(n, generator=g) + 0.1 for name in names} for n in (50, 20))
    return Evidence(scores, real, {"activations": 0.5})


def run_of(bad, scores, seed=0):
    return choice.Run(0, seed, torch.as_tensor(bad), scores, {})


def test_the_page_has_the_auroc_of_the_library(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "RUNS", tmp_path)
    monkeypatch.setattr(choice, "measured", lambda quick, choosing=False: ("grid",))
    choice.load_runs.cache_clear()
    choice.table_of.cache_clear()
    run = next(run for run in detection.runs_of("grid", True) if run[1] == 5)
    jobs = [detection.draw("grid", *one, True) for one in detection.runs_of("grid", True)]
    for job in [*jobs, verdict.job("grid", *run, True), detection.judge("grid", True)]:
        job.execute()
    try:
        found = choice.table_of(True)
    finally:
        choice.load_runs.cache_clear()
        choice.table_of.cache_clear()
    model = bench.load("grid")
    real = bench.datasets.make("grid", 675, seed=3)
    real = real[torch.randperm(len(real), generator=torch.Generator().manual_seed(0))]
    scorer = flare.fit(
        model, model.data, held_out=real[:250], weighting="min_snr", check=False, seed=5, subset=20, pairs=40
    )
    x = flare.sample(model.denoiser, model.sampler("ddpm", 20), n=16, shape=(2,), seed=5).samples
    result = scorer.score(x)
    far = bench.oracles.distance("grid", x)
    bad = far > bench.oracles.threshold("grid", bench.datasets.make("grid", 4_500, seed=2))
    assert 0 < bad.sum() < len(bad)
    assert found[VERDICT]["grid"] == pytest.approx(metrics.auroc(result.verdict.z, bad))
    for name in FOUR:
        assert found[name]["grid"] == pytest.approx(metrics.auroc(result.scores[name], bad))


def test_every_part_of_a_candidate_is_stored_by_a_run(evidence):
    found = candidates.rank_all(evidence)
    assert list(found) == list(candidates.CANDIDATES)
    assert len(found) == 30
    assert all(score.isfinite().all() for score in found.values())


def test_the_default_candidate_is_the_verdict_of_the_library(evidence):
    scores, real = ({name: part[name] for name in FOUR} for part in (evidence.scores, evidence.real))
    ours = candidates.rank_all(evidence)
    torch.testing.assert_close(ours[VERDICT], flare.Reference(real).verdict(scores).z)
    assert {candidates.DATA_ALONE, candidates.OLD, *map(candidates.without, FOUR)} <= set(ours)


def test_combinations_are_what_they_say(evidence):
    found, z = candidates.rank_all(evidence), evidence.z(FOUR)
    torch.testing.assert_close(found[f"Σ z of {' + '.join(FOUR)}"], z.sum(0))
    torch.testing.assert_close(found["max of z of all four"], z.amax(0))
    weights = torch.tensor([[1.0], [0.5], [1.0], [1.0]]).double()  # by repeatability
    positive = z.amax(0) > 0
    expected = (weights * z.clamp(min=0).square()).sum(0).sqrt()[positive]
    weighed = found["Σ max(0, z)² of all four, weighted by repeatability"]
    torch.testing.assert_close(weighed[positive], expected)
    old = evidence.z((candidates.NORM, "neighbors")).sum(0)
    torch.testing.assert_close(found[candidates.OLD], old)


def test_the_rule_takes_the_highest_mean_of_what_exists_everywhere():
    table = {
        "steady": {"a": 0.8, "b": 0.8},
        "uneven": {"a": 1.0, "b": 0.5},
        "best": {"a": 0.9, "b": 0.75},
        "on one study": {"a": 1.0},
    }
    assert choice.rank(table, ["a", "b"]) == ["best", "steady", "uneven"]


def test_a_score_of_some_runs_is_compared_on_these_runs():
    easy = {VERDICT: torch.tensor([0.0, 1.0]), "influence": torch.tensor([0.0, 1.0])}
    hard = {VERDICT: torch.tensor([1.0, 0.0])}
    runs = [run_of([False, True], easy), run_of([False, True], hard, seed=1)]
    assert choice.mean_auroc(runs, VERDICT) == 0.5
    # equal to the verdict where both were measured, so equal over all
    assert choice.mean_auroc(runs, "influence") == 0.5
    assert choice.mean_auroc(runs, "FLIPD") is None


def test_weights_are_repetitions():
    g = torch.Generator().manual_seed(1)
    score, bad = torch.randint(5, (30,), generator=g).double(), torch.rand(30, generator=g) < 0.4
    weights = torch.randint(3, (4, 30), generator=g)
    found = choice.weighted_auroc(score, bad, weights.double())
    for row, value in zip(weights, found, strict=True):
        again = score.repeat_interleave(row)
        assert value == pytest.approx(metrics.auroc(again, bad.repeat_interleave(row)))


def test_an_interval_is_a_point_if_the_score_is_perfect():
    bad = torch.arange(40) >= 30
    run = run_of(bad, {"influence": bad.double()}, seed=5)
    found = choice.interval([run, run], "influence")
    assert (found.mean, found.low, found.high, found.error) == (1.0, 1.0, 1.0, 0.0)


def draw(g, shift=1.0, n=200):
    bad = torch.rand(n, generator=g) < 0.3
    return torch.randn(n, generator=g) + shift * bad, bad


def test_the_standard_error_of_a_score_is_that_of_many_draws():
    g = torch.Generator().manual_seed(2)
    many = torch.tensor([metrics.auroc(*draw(g)) for _ in range(400)])
    error = choice.resample(*draw(g)).std()
    assert float(error) == pytest.approx(float(many.std()), rel=0.3)


def test_an_interval_contains_the_spread_between_runs():
    g = torch.Generator().manual_seed(4)

    def runs(shifts):
        return [run_of(bad, {"a": score}) for score, bad in (draw(g, shift) for shift in shifts)]

    alike, unlike = (choice.interval(runs(s), "a").error for s in ((1, 1, 1, 1), (0, 0, 3, 3)))
    assert unlike > 3 * alike
    values = [metrics.auroc(run.scores["a"], run.bad) for run in runs((0, 0, 3, 3))]
    assert unlike == pytest.approx(float(torch.tensor(values).std(correction=0)) / 2, rel=0.2)


def test_the_difference_of_equal_scores_is_nothing():
    g = torch.Generator().manual_seed(3)
    score, bad = torch.rand(50, generator=g), torch.rand(50, generator=g) < 0.5
    run = run_of(bad, {"a": score, "b": 2 * score})
    found = choice.interval([run, run], "a", minus="b")
    assert (found.mean, found.error) == (0.0, 0.0)


def test_a_filter_keeps_the_share_of_every_region():
    score = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    regions = torch.tensor([0, 0, 0, 0, 1, 1])
    assert common.keep(score, 0.5).tolist() == [True, True, True, False, False, False]
    assert common.keep(score, 0.5, regions=regions).tolist() == [True, True, False, False, True, False]
    # up to the typical score all are ties, which go by index
    assert common.keep(score.flip(0), 0.5, typical=9.0).tolist() == [True, True, True, False, False, False]


def test_filters_use_the_verdict_and_the_regions_of_a_run():
    z = torch.tensor([4.0, 3.0, 2.0, 1.0])
    found = {"z": z, "p_value": 1 / (2 * z), "regions": torch.tensor([0, 0, 1, 1])}
    run = choice.Run(0, 5, z > 9, {"neighbors": z}, {}, found=found)
    kept = {name: mask.tolist() for name, mask in keeping.masks(run).items()}
    assert kept[keeping.RANK] == [False, False, True, True]
    assert kept[keeping.REGION] == [False, True, False, True]
    # all p-values are above 0.05, so that chance decides, which is the index
    assert kept["p > 0.05, the rest by chance"] == [True, True, False, False]
    assert kept["p > 0.05 by region, the rest by chance"] == [True, False, True, False]
    assert sum(kept[keeping.EVERYTHING]) == 4


def test_regions_are_those_of_real_data():
    real = bench.datasets.make("grid", 90, seed=0)
    regions = common.find_regions(real, 9, like=real)
    modes = bench.oracles.modes("grid", real)
    assert len({(int(a), int(b)) for a, b in zip(regions, modes, strict=True)}) == 9


def test_the_recommended_filter_keeps_modes_and_distance():
    random = Kept(0.2, 1.0, 0.5)
    sets = {
        "a": {"narrow": Kept(0.0, 5.0, 0.9), "fair": Kept(0.1, 1.0, 0.4), "weak": Kept(0.15, 0.5, 0.5)},
        "b": {"narrow": Kept(0.0, 0.0, 0.1), "fair": Kept(0.1, None, 0.5), "weak": Kept(0.15, None, 0.5)},
    }
    found = {study: {**own, keeping.RANDOM: random} for study, own in sets.items()}
    best, good = keeping.recommend(found)
    assert best == "fair"
    assert (good["narrow"], good["fair"]) == (1, 2)


def test_options_run_on_choosing_seeds_at_the_levels_of_the_library():
    assert set(options.SEEDS) <= set(detection.CHOOSING)
    model = bench.load("grid")
    scorer = flare.fit(model, model.data[:100], subset=5, pairs=20, check=False)
    assert list(scorer.encoder.levels) == [model.schedule.at_fraction(level) for level in options.LEVELS]

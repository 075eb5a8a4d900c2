"""The study of choice: influences from gradients per level, the rule of choice, and bootstrap intervals."""

from __future__ import annotations

import copy

import pytest
import torch
from reference import flat_index

import flare
from experiments import candidates, choice, common, gradients, keeping
from experiments.keeping import Kept
from flare import bench
from flare.bench import metrics
from flare.scores import Renoising


@pytest.fixture(scope="module")
def grid():
    """The shipped model of the grid with a small posterior, and some samples."""
    model = bench.load("grid")
    pairs = flare.noising.pairs(model.data, model.schedule, n=200, seed=0)
    subset = flare.subsets.random(model.denoiser, count=30, seed=0)
    posterior = flare.posteriors.dense(model.denoiser, subset, pairs, prior_precision=1e-2, scale=3.0)
    return model, posterior, bench.datasets.make("grid", 9, seed=1)


def renoising(model, levels):
    found = [model.schedule.at_fraction(level) for level in levels]
    return Renoising(model.denoiser.wide(), found, gradients.REPEATS, seed=0)


def naive_gradient(model, at, x, row, chosen):
    """∇ of the √min-SNR weighted mean loss of one sample at the chosen entries: one pass per state."""
    net = copy.deepcopy(model.denoiser.module).requires_grad_()
    noised, total = at.noise(x), 0.0
    for state in range(noised.x.shape[1]):
        level = at.levels[state // at.repeats]
        f = net(noised.x[row, state][None], noised.t[state][None])[0]
        loss = 0.5 * (f - noised.target[row, state]).square().sum()
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
        # of a network that predicts ε: SNR cut off at 5, over SNR
        weight = min(1.0, 5.0 * level.sigma**2 / level.alpha**2)
        total = total + weight**0.5 * flat[chosen].double() / noised.x.shape[1]
    return total


@pytest.mark.parametrize("levels", [gradients.FEW, gradients.LEVELS])
def test_influence_and_profile_from_gradients_per_level_are_their_formulas(grid, levels):
    model, posterior, x = grid
    assert model.denoiser.prediction == "epsilon"
    at = renoising(model, levels)
    found, errors = gradients.level_gradients(at, posterior.subset, x, {})
    own = gradients.quadratic(posterior, gradients.combine(found, gradients.level_weights(at, x)))
    options = {"levels": levels, "repeats": gradients.REPEATS}
    chosen = flat_index(posterior.subset, model.denoiser.module)
    g = torch.stack([naive_gradient(model, at, x, row, chosen) for row in range(len(x))])
    torch.testing.assert_close(own, (g * posterior.covariance(g)).sum(1), rtol=1e-4, atol=0)
    profile = flare.score(model.denoiser, None, model.schedule, x, score="error_profile", **options)
    torch.testing.assert_close(errors.log().mean(1), profile, rtol=1e-4, atol=1e-4)


def test_some_levels_are_rows_of_all(grid):
    model, posterior, x = grid
    at, chosen = renoising(model, gradients.LEVELS), [1, 4]
    whole, errors = gradients.level_gradients(at, posterior.subset, x, {})
    part, some = gradients.level_gradients(at, posterior.subset, x, {}, chosen)
    torch.testing.assert_close(part, whole[:, chosen])
    torch.testing.assert_close(some, errors[:, chosen])


def test_joined_coordinates_are_those_of_the_parts(grid):
    model, posterior, _ = grid
    parts = {"random": posterior.subset, "sketch": flare.subsets.sketch(model.denoiser, 20, seed=1)}
    joined = gradients.Joined(parts)
    values = dict(model.denoiser.params.items())
    found = joined.split(joined.gather(values))
    assert joined.size == 50
    for name, part in parts.items():
        torch.testing.assert_close(found[name], part.gather(values))


def test_a_smaller_posterior_has_a_block_of_the_curvature(grid):
    model, posterior, _ = grid
    small, chosen = gradients.shrink(posterior, model.denoiser, 10)
    H = (posterior.eigenvectors * posterior.eigenvalues) @ posterior.eigenvectors.T
    block = (small.eigenvectors * small.eigenvalues) @ small.eigenvectors.T
    assert int(chosen.sum()) == small.size == 10
    torch.testing.assert_close(block, H[chosen][:, chosen], rtol=1e-6, atol=1e-9)


def test_every_part_of_a_combination_is_a_candidate():
    for how, parts in candidates.COMBINATIONS.values():
        assert callable(how)
        assert set(parts) <= set(candidates.SINGLE)
    assert len(set(candidates.CANDIDATES)) == len(candidates.CANDIDATES)


def test_combinations_are_those_of_z_and_the_squares_are_the_verdict_of_the_library():
    g = torch.Generator().manual_seed(0)
    names = ("influence", candidates.NEIGHBORS)
    real = {name: torch.rand(50, generator=g) + 0.1 for name in names}
    scores = {name: torch.rand(20, generator=g) + 0.1 for name in names}
    found = candidates.combine(scores, real)
    reference = flare.Reference(real)
    total = sum(reference.z(name, scores[name]) for name in names)
    torch.testing.assert_close(found[candidates.DEFAULT], total)
    squares, verdict = found["Σ max(0, z)², influence and neighbors"], reference.verdict(scores).z
    doubtful = squares > 0  # where it is 0, the library goes on with the largest z
    assert 0 < doubtful.sum() < 20
    torch.testing.assert_close(squares[doubtful].sqrt(), verdict[doubtful])
    assert (verdict[~doubtful] <= 0).all()
    assert set(found) == {
        name for name, (_, parts) in candidates.COMBINATIONS.items() if set(parts) <= set(names)
    }


def test_the_highest_mean_over_all_studies_wins():
    table = {
        "steady": {"a": 0.8, "b": 0.8},
        "uneven": {"a": 1.0, "b": 0.5},
        "best": {"a": 0.9, "b": 0.75},
        "on one study": {"a": 1.0},
    }
    assert choice.rank(table, ["a", "b"]) == ["best", "steady", "uneven"]


def run_of(bad, scores, seed=0):
    bad = torch.tensor(bad)
    return choice.Run(0, seed, torch.zeros(len(bad), 2), bad, None, None, scores, {}, {})


def test_a_candidate_of_some_runs_is_compared_on_these_runs():
    easy = {candidates.DEFAULT: torch.tensor([0.0, 1.0]), "influence": torch.tensor([0.0, 1.0])}
    hard = {candidates.DEFAULT: torch.tensor([1.0, 0.0])}
    runs = [run_of([False, True], easy), run_of([False, True], hard, seed=1)]
    assert choice.mean_auroc(runs, candidates.DEFAULT) == 0.5
    # equal to the verdict where both were measured, so equal over all
    assert choice.mean_auroc(runs, "influence") == 0.5
    assert choice.mean_auroc(runs, "error_profile") is None


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
    run = choice.Run(0, 5, torch.zeros(40, 2), bad, None, None, {"influence": bad.double()}, {}, {})
    found = choice.interval([run, run], "influence")
    assert (found.mean, found.low, found.high, found.error) == (1.0, 1.0, 1.0, 0.0)


def test_the_standard_error_of_a_score_is_that_of_many_draws():
    g = torch.Generator().manual_seed(2)

    def draw():
        bad = torch.rand(200, generator=g) < 0.3
        return torch.randn(200, generator=g) + bad, bad

    many = torch.tensor([metrics.auroc(*draw()) for _ in range(400)])
    score, bad = draw()
    error = choice.resample([score], [bad]).std()
    assert float(error) == pytest.approx(float(many.std()), rel=0.3)


def test_the_difference_of_equal_scores_is_nothing():
    g = torch.Generator().manual_seed(3)
    score, bad = torch.rand(50, generator=g), torch.rand(50, generator=g) < 0.5
    run = choice.Run(0, 5, torch.zeros(50, 2), bad, None, None, {"a": score, "b": 2 * score}, {}, {})
    found = choice.interval([run], "a", minus="b")
    assert (found.mean, found.error) == (0.0, 0.0)


def test_a_filter_keeps_the_share_of_every_region():
    score = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    regions = torch.tensor([0, 0, 0, 0, 1, 1])
    assert common.keep(score, 0.5).tolist() == [True, True, True, False, False, False]
    assert common.keep(score, 0.5, regions=regions).tolist() == [True, True, False, False, True, False]
    # up to the typical score all are ties, which go by index
    assert common.keep(score.flip(0), 0.5, typical=9.0).tolist() == [True, True, True, False, False, False]


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

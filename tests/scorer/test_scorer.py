"""A scorer draws and judges samples: p-values are those of real data, whatever the batches."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from points import QUICK, Net, T, ring, trained

import flare
from flare.scorer.inputs import check_existing, open_model

SCHEDULE = flare.schedules.cosine(T)
JUDGES = ["neighbors", "activations", "epistemic_distance"]


@pytest.fixture(scope="module")
def scorer():
    return flare.fit(trained(ring()), ring(), SCHEDULE, held_out=ring(199, seed=5), **QUICK)


@pytest.fixture(scope="module")
def sines():
    """A scorer of the zoo's sines model, and real data that neither the model nor the scorer has seen."""
    model = flare.bench.load("sines")
    real = flare.bench.datasets.make("sines", n=1900, seed=77)
    options = {"subset": 300, "pairs": 2000, "check": False}
    return flare.fit(model.denoiser, model.data, model.schedule, held_out=real[:900], **options), real[900:]


def test_p_values_of_fresh_real_data_are_uniform(sines):
    scorer, fresh = sines
    p = scorer.score(fresh).p_value
    for alpha in (0.05, 0.1, 0.3, 0.5, 0.9):
        # the reference and the fresh samples both vary
        deviation = (alpha * (1 - alpha) * (1 / len(scorer.reference) + 1 / len(fresh))) ** 0.5
        assert abs(float((p <= alpha).double().mean()) - alpha) < 4 * deviation
    assert len(p.unique()) > 400


def test_noise_and_points_between_the_modes_are_doubtful(sines):
    scorer, fresh = sines
    between = (fresh[:100] + -fresh[:100].flip(0)) / 2
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(100, 10, generator=generator)
    assert scorer.score(noise).trusted(0.05).double().mean() < 0.05
    assert scorer.score(between * 0.2).trusted(0.05).double().mean() < 0.5
    assert scorer.score(fresh).trusted(0.05).double().mean() > 0.9


def test_copies_of_training_data_are_found_with_their_rows(scorer):
    rows = [5, 17, 300]
    found = scorer.score(ring()[rows])
    assert found.verdict.copies.all()
    assert found.verdict.nearest.tolist() == rows
    assert "3 look like copies of training data" in repr(found)
    assert not scorer.score(ring(50, seed=8)).verdict.copies.all()


def test_the_scores_are_those_of_the_parts(scorer):
    new = ring(20, seed=3)
    found = scorer.score(new)
    assert list(found.scores) == JUDGES
    for name in JUDGES[1:]:
        alone = flare.score(
            scorer.denoiser, None if name == "activations" else scorer.posterior, SCHEDULE, new, score=name,
            data=ring(), repeats=2 * scorer.encoder.pairs, seed=0,
        )  # fmt: skip
        # the scorer may keep its points in half precision
        torch.testing.assert_close(found.scores[name].float(), alone, rtol=0.02, atol=0)
        space = scorer.training.spaces[name]
        features = scorer.encoder.encode(new, {})[name]
        features = (features if space.scale is None else features * space.scale).double()
        if space.axes is not None:
            centered, axes = features - space.center, space.axes.double()
            beside = centered - (centered @ axes.T) @ axes
            features = torch.cat([centered @ axes.T, beside.square().sum(1, keepdim=True).sqrt()], 1)
        distances = torch.cdist(features, space.points.double()).sort(1).values[:, :5].mean(1)
        torch.testing.assert_close(found.scores[name], distances, rtol=1e-4, atol=0)
    distances = torch.cdist(new.double(), ring().double()).sort(1).values[:, :5].mean(1)
    torch.testing.assert_close(found.scores["neighbors"], distances)
    for name in JUDGES:
        naive = [
            (1 + int((scorer.reference.scores[name] >= s).sum())) / 200 for s in found.scores[name].tolist()
        ]
        assert found.verdict.p_values[name].tolist() == pytest.approx(naive)
    assert found.reference is scorer.reference


def test_samples_are_those_of_flare_sample_with_their_scores(scorer):
    result = scorer.sample(30, seed=4, steps=10)
    plain = flare.sample(scorer.denoiser, scorer.steps(10), n=30, shape=(2,), seed=4)
    assert torch.equal(result.samples, plain.samples)
    assert result.variance is None
    assert list(result.scores) == JUDGES
    again = scorer.score(result.samples)
    assert torch.equal(again.p_value, result.p_value)
    about = result.about
    assert (about["sampler"], about["seed"], about["score_seed"]) == ("ddim", 4, 0)
    assert about["posterior"] == "dense over 194 parameters"
    assert about["flare"] == flare.__version__
    assert about["repeatability"].keys() == set(JUDGES[1:])


@pytest.mark.parametrize("batch_size", [1, 7, 30])
def test_the_batch_size_changes_nothing(scorer, batch_size):
    expected, found = (scorer.sample(30, steps=10, batch_size=size) for size in (30, batch_size))
    for name, score in expected.scores.items():
        torch.testing.assert_close(found.scores[name], score, rtol=1e-3, atol=0)
    assert torch.equal(found.verdict.nearest, expected.verdict.nearest)


def test_plain_sampling_costs_no_more_than_its_steps_and_its_scores(scorer, monkeypatch):
    calls = []
    original = flare.Denoiser.call

    def counting(self, params, x, t, cond=None):
        calls.append(x.shape[0])
        return original(self, params, x, t, cond)

    monkeypatch.setattr(flare.Denoiser, "call", counting)
    scorer.sample(20, steps=10, batch_size=20)
    assert sum(calls[:12]) <= 12 * 20
    assert len(calls) < 10 + 8 + 10  # steps, levels × noises, trial calls


def test_directions_add_the_variance_by_the_tangent_rule(scorer):
    result = scorer.sample(8, steps=10, directions=16)
    plain = flare.sample(
        scorer.denoiser, scorer.steps(10), scorer.posterior, n=8, shape=(2,), directions=16, rule="tangent"
    )
    torch.testing.assert_close(result.variance, plain.variance)
    assert list(result.scores) == [*JUDGES, "expected_residual"]
    assert result.about["rule"] == "tangent"
    assert torch.equal(result.scores["expected_residual"], plain.score)
    more = scorer.sample(4, steps=10, directions=4, score=["trace"], covariance=True)
    assert more.covariance.shape == (4, 2, 2)
    assert list(more.scores) == [*JUDGES, "trace"]


def test_best_of_keeps_the_most_plausible_of_each_group(scorer):
    many = scorer.sample(40, steps=10)
    best = scorer.sample(10, steps=10, best_of=4)
    z = many.verdict.z.view(10, 4)
    assert torch.equal(best.verdict.z, z.min(1).values)
    assert torch.equal(best.samples, many.samples.view(10, 4, 2)[torch.arange(10), z.argmin(1)])
    assert best.about["best_of"] == 4
    with pytest.raises(ValueError, match="best_of must be an integer of at least 1, got 0"):
        scorer.sample(10, best_of=0)


def test_a_lost_candidate_is_replaced_by_another_one(scorer):
    def diverging(self, x, t, cond=None):
        out = original(self, x, t, cond)
        return torch.where((t == t.max())[:, None] & (x[:, :1] > 0), torch.nan, out)

    original = flare.Denoiser.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flare.Denoiser, "__call__", diverging)
        with pytest.warns(RuntimeWarning, match="has NaN or infinity"):
            lost = scorer.sample(8, steps=5).lost
        with pytest.warns(RuntimeWarning, match="has NaN or infinity"):
            best = scorer.sample(2, steps=5, best_of=4)
    assert 0 < lost.sum() < 8
    assert torch.equal(best.lost, lost.view(2, 4).all(1))
    assert "lost" not in best.about


def test_lost_samples_are_never_trusted(scorer):
    new = ring(5, seed=3)
    new[1], new[3, 0] = torch.nan, torch.inf
    with pytest.warns(
        UserWarning, match=r"existing has NaN or infinity in 2 of 5 samples \(first: \[1, 3\]\)"
    ):
        found = scorer.score(new)
    assert found.p_value.isnan().tolist() == [False, True, False, True, False]
    assert not found.trusted(0.05)[[1, 3]].any()
    assert found.reason[1] == "not scored"
    assert found.verdict.nearest[1] == -1
    alone = scorer.score(new[[0, 2, 4]])
    assert torch.equal(found.p_value[[0, 2, 4]], alone.p_value)
    with (
        pytest.warns(UserWarning, match="existing has NaN or infinity in 2 of 2"),
        pytest.warns(RuntimeWarning, match="all 2 samples have NaN or infinity: none of them is scored"),
    ):
        nothing = scorer.score(torch.full((2, 2), torch.nan))
    assert not nothing.trusted(0.05).any()


def test_a_score_that_overflows_is_not_trusted(scorer):
    far = torch.cat([ring(3, seed=3), torch.full((1, 2), 1e30)])
    assert scorer.score(far).trusted(0.05).tolist()[3] is False
    far[3] = 3e38
    with pytest.warns(RuntimeWarning, match=r"activations is not finite for 1 of 4 samples \(first: \[3\]\)"):
        found = scorer.score(far)
    assert found.trusted(0.05).tolist()[3] is False
    assert found.p_value.isnan().tolist() == [False, False, False, True]
    assert found.reason[3] == "not scored"
    assert torch.equal(found.p_value[:3], scorer.score(far[:3]).p_value)


@pytest.mark.parametrize(
    ("existing", "error", "message"),
    [
        (torch.zeros(3, 5), ValueError, r"existing must have shape \(n, 2\).* got \(3, 5\)"),
        (torch.zeros(2), ValueError, r"got \(2,\); for a single sample use existing\[None\]"),
        (torch.zeros(0, 2), ValueError, r"got \(0, 2\)"),
        (torch.zeros(3, 2).byte(), TypeError, r"got torch.uint8; for values of 0 to 255 use x / 127"),
        ([[0.0, 0.0]], TypeError, r"a tensor or an array of shape \(n, \*shape\), got list; convert a list"),
    ],
    ids=["shape", "single", "empty", "bytes", "list"],
)  # fmt: skip
def test_existing_samples_that_cannot_be_scored_are_explained(scorer, existing, error, message):
    with pytest.raises(error, match=message) as caught:
        scorer.score(existing)
    assert ("0 to 255" in str(caught.value)) == ("0 to 255" in message)


def test_samples_on_another_scale_are_warned_of(scorer):
    with pytest.warns(
        UserWarning, match=r"the samples lie in \[.*\], the training data in \[.*scaled as in training"
    ):
        scorer.score(ring(20, seed=3).numpy().astype(np.float64) * 127.5)


def test_images_without_negative_values_are_warned_of():
    x = torch.rand(3, 1, 8, 8)
    model = open_model(Net(), flare.schedules.cosine(T))
    with pytest.warns(UserWarning, match=r"the samples lie in \[.*the training data in \[-1, 1\]"):
        check_existing(model, x, (1, 8, 8), (-1.0, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_existing(model, 2 * x - 1, (1, 8, 8), (-1.0, 1.0))
        check_existing(model, x, (1, 8, 8), (0.0, 1.0))
        check_existing(model, x, (1, 8, 8), (-0.1, 1.0))  # a little noise


def test_options_of_sample_are_checked(scorer):
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        scorer.sample(3, batchsize=2)
    with pytest.raises(TypeError, match=r"steps must be a number of steps or a sampler's table.* got str"):
        scorer.sample(3, steps="ddim")
    for option in ({"rule": "decoupled"}, {"covariance": True}, {"score": "trace"}):
        with pytest.raises(ValueError, match="need directions of the posterior; give directions=16"):
            scorer.sample(3, **option)
    with pytest.raises(ValueError, match="fitted for another schedule"):
        scorer.sample(3, steps=flare.samplers.ddim(flare.schedules.linear(T), 5))


def test_a_table_of_steps_is_taken_as_it_is(scorer):
    steps = flare.samplers.ddpm(SCHEDULE, clip=2.0)
    assert scorer.sample(5, steps=steps).about["sampler"] == "ddpm"
    assert len(scorer.steps(7)) == 7
    assert scorer.steps(7).name == "ddim"


def test_a_flow_is_sampled_by_euler_and_other_levels_need_a_table(scorer):
    flow = flare.schedules.flow(20)
    net = scorer.denoiser
    assert replace(scorer, model=flare.Model(net, flow)).steps(5).name == "euler"
    odd = replace(SCHEDULE, sigma=2 * SCHEDULE.sigma)
    with pytest.raises(ValueError, match="no default sampler for"):
        replace(scorer, model=flare.Model(net, odd)).steps(5)


def test_features_decide_where_distances_are_measured():
    net, data = trained(ring(), 50), ring()
    radius = lambda x: x.norm(dim=1, keepdim=True)  # noqa: E731
    scorer = flare.fit(net, data, SCHEDULE, held_out=ring(60, seed=5), features=radius, **QUICK)
    new = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    found = scorer.score(new).scores["neighbors"]
    naive = (new.norm(dim=1)[:, None] - data.norm(dim=1)).abs().double().sort(1).values[:, :5].mean(1)
    torch.testing.assert_close(found, naive, rtol=1e-4, atol=1e-6)


def test_conditions_go_with_their_samples():
    torch.manual_seed(0)
    net = Net(classes=3)
    data, labels = ring(), torch.arange(600) % 3
    held_out, own = ring(60, seed=5), torch.arange(60) % 3
    options = {"held_out": held_out, "cond": {"label": labels}, **QUICK}
    with pytest.raises(ValueError, match=r"held_out needs them too: give held_out_cond="):
        flare.fit(net, data, SCHEDULE, **options)
    scorer = flare.fit(net, data, SCHEDULE, held_out_cond={"label": own}, **options)
    cond = {"label": torch.tensor([0, 1, 2, 0])}
    result = scorer.sample(4, steps=5, cond=cond)
    alone = scorer.score(result.samples[1:2], cond={"label": torch.tensor([1])})
    torch.testing.assert_close(
        alone.scores["activations"], result.scores["activations"][1:2], rtol=1e-3, atol=0
    )
    other = scorer.score(result.samples[1:2], cond={"label": torch.tensor([2])})
    assert not torch.allclose(alone.scores["activations"], other.scores["activations"], rtol=1e-3)
    for ask in (lambda: scorer.sample(4), lambda: scorer.score(held_out), scorer.check):
        with pytest.raises(ValueError, match=r"fitted with conditions \(label\): give cond= with \d+ rows"):
            ask()
    with pytest.raises(TypeError, match=r"must be a tensor with 4 rows, got 2; .* torch.full\(\(4,\), 2\)"):
        scorer.sample(4, cond={"label": 2})
    best = scorer.sample(2, steps=5, best_of=3, cond={"label": torch.tensor([0, 2])})
    many = scorer.sample(6, steps=5, cond={"label": torch.tensor([0, 0, 0, 2, 2, 2])})
    assert torch.equal(best.verdict.z, many.verdict.z.view(2, 3).min(1).values)
    split = flare.fit(net, data, SCHEDULE, cond={"label": labels}, **QUICK)
    assert len(split.reference) == 60


def test_keep_takes_the_best_of_every_region_of_the_data(scorer):
    result = scorer.score(ring(200, seed=9))
    mask = result.keep(0.5)
    assert mask.sum() == 100
    assert len(result.regions.unique()) == 16
    angle = torch.atan2(result.samples[:, 1], result.samples[:, 0])
    for quarter in range(4):
        own = ((angle / (torch.pi / 2)).floor() + 2).long() == quarter
        assert abs(float(mask[own].double().mean()) - 0.5) < 0.15
    assert result.verdict.z[mask].median() < result.verdict.z[~mask].median()
    for region in result.regions.unique():  # the nearest center decides
        own = result.regions == region
        assert abs(int(mask[own].sum()) - 0.5 * int(own.sum())) < 1
    oracle = torch.cdist(result.samples.double(), scorer.centers).argmin(1)
    assert torch.equal(result.regions, oracle)
    bare = {"training": scorer.training.without_samples(), "reference": scorer.reference.restrict(JUDGES[1:])}
    alone = replace(scorer, centers=None, **bare).score(result.samples)
    assert alone.regions is None
    assert torch.equal(alone.keep(0.3), alone.keep(0.3, by="rank"))


def test_check_judges_the_model_and_the_linearization(scorer):
    found = scorer.check(n=4, draws=4, steps=5)
    assert found.model is not None
    assert len(found.linearization.tangent) == 4
    assert str(found.linearization) in str(found)
    assert isinstance(found.problems, list)


def test_the_report_shows_the_nearest_training_samples(scorer, tmp_path):
    result = scorer.sample(20, steps=5)
    scorer.report(tmp_path / "page.html", result)
    embedded = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"real_of":[' in embedded
    flare.report.write(tmp_path / "bare.html", result)
    assert '"real_of":[' not in (tmp_path / "bare.html").read_text(encoding="utf-8")


def test_the_report_finds_missing_modes_and_duplicates(scorer, tmp_path):
    samples = ring(600, seed=9)
    right = samples[samples[:, 0] > 0]
    result = scorer.score(torch.cat([right, right[:1]]))
    held_out = ring(199, seed=5).double()
    oracle = torch.cdist(held_out, scorer.centers).argmin(1).bincount(minlength=16)
    assert result.about["region_counts"] == oracle.tolist()
    assert result.about["copy_distance"] == scorer.training.copy_distance
    scorer.report(tmp_path / "page.html", result)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    issues = {issue["title"]: issue for issue in data["issues"]}
    assert {0, len(right)} <= set(issues["Near duplicates among the samples"]["samples"])
    named = [int(k) for k in re.findall(r"region (\d+):", issues["Regions with too few samples"]["note"])]
    assert len(named) >= 4
    assert (scorer.centers[named, 0] < 0.2).all()
    assert "region_counts" not in page.partition("How this was made")[2].partition("<dialog")[0]


def test_the_report_is_a_page(scorer, tmp_path):
    scorer.report(tmp_path / "page.html", scorer.sample(20, steps=5), title="Points & <rings>")
    assert "Points &amp; &lt;rings&gt;" in (tmp_path / "page.html").read_text()


def test_the_repr_says_what_was_chosen(scorer):
    text = repr(scorer)
    assert "Scorer of Net, 194 parameters, samples of shape (2,)" in text
    shown = "".join(rf", {name} \({scorer.about['repeatability'][name]:.2f}\)" for name in JUDGES[1:])
    assert re.search(rf"witnesses: neighbors{shown}\n", text)
    assert "compared with 199 held-out samples" in text
    assert "dense over 194 parameters (all), prior precision" in text
    assert len(text.splitlines()) < 12


def test_scores_of_the_verdict_may_be_asked_for_too(scorer):
    options = {"seed": 9, "steps": 4, "directions": 2}
    result = scorer.sample(6, score=["epistemic_distance", "trace"], **options)
    assert list(result.scores) == [*JUDGES, "trace"]
    again = scorer.reference.p_value("epistemic_distance", result.scores["epistemic_distance"])
    assert torch.equal(again, result.verdict.p_values["epistemic_distance"])
    alone = scorer.sample(6, score="neighbors", **options)
    assert list(alone.scores) == [*JUDGES, "expected_residual"]
    with pytest.raises(ValueError, match="unknown score 'influenza'; did you mean 'influence'"):
        scorer.sample(6, score="influenza", **options)
    with pytest.raises(ValueError, match="'influence' needs training data: score the samples afterwards"):
        scorer.sample(6, score="influence", **options)


def test_lost_samples_are_noted_where_they_came_from(scorer):
    x = ring(5, seed=9)
    x[3] = torch.nan
    with pytest.warns(UserWarning, match="existing has NaN or infinity in 1 of 5 samples"):
        result = scorer.score(x)
    assert result.about["lost"] == {"the given samples": [3]}


def test_scarce_memory_is_said(scorer):
    with pytest.warns(UserWarning, match="only 20 parameters are uncertain instead of 1,000"):
        small = flare.fit(scorer.denoiser, ring(120), SCHEDULE, pairs=100, check=False, memory=8 * 4 * 20**2)
    assert small.posterior.size == 20


def test_a_problem_of_the_sampler_concerns_only_the_samples_that_it_draws(scorer):
    problems = ["The network is wrong.", "DDIM is at fault.", "All samples are far."]
    limited = {"DDIM is at fault.": ["ddim", 30], "All samples are far.": []}
    blamed = replace(scorer, about={**scorer.about, "problems": problems, "limited": limited})
    schedule = blamed.schedule
    assert blamed.problems() == problems[:1]
    assert blamed.score(ring()[:3]).about["problems"] == problems[:1]
    assert blamed.problems(flare.samplers.ddim(schedule, 20)) == problems
    assert blamed.problems(flare.samplers.ddim(schedule, 30)) == [problems[0], problems[2]]
    assert blamed.problems(flare.samplers.ddpm(schedule, 20)) == [problems[0], problems[2]]
    assert blamed.sample(3, steps=5).about["problems"] == problems

"""The public iterator over trajectories, and rules and scores that are not ours."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import pytest
import torch
from reference import TinyNet

import flare
from flare.core.noise_streams import NoiseStreams
from flare.propagation import RULES, Rule
from flare.results.result import Spread
from flare.scores import SCORES, Score

SCHEDULE = flare.schedules.cosine(20)
STEPS = flare.samplers.ddim(SCHEDULE, 6, clip=1.0)


@pytest.fixture(scope="module")
def fitted():
    denoiser = flare.Denoiser(TinyNet((3,)))
    pairs = flare.noising.pairs(torch.randn(30, 3), SCHEDULE, n=60)
    return denoiser, flare.posteriors.dense(denoiser, flare.subsets.last_layer(denoiser), pairs)


def test_frames_come_one_per_step_and_batch_and_then_the_result(fitted):
    denoiser, posterior = fitted
    options = {"n": 5, "shape": (3,), "seed": 2, "directions": 3, "batch_size": 2}
    run = flare.trajectories(denoiser, STEPS, posterior, **options)
    assert len(run) == 6 * 3
    with pytest.raises(RuntimeError, match="iterate to the end first"):
        _ = run.result
    frames = list(run)
    assert [(frame.first, frame.index) for frame in frames] == [(b, k) for b in (0, 2, 4) for k in range(6)]
    ends = torch.cat([frame.x for frame in frames if frame.last])
    assert torch.equal(ends, run.result.samples)
    assert run.result == flare.sample(denoiser, STEPS, posterior, **options)
    assert run.result.about == flare.sample(denoiser, STEPS, posterior, **options).about
    assert not frames[0].x.requires_grad


def test_the_signatures_show_every_option_with_its_default():
    drawn, walked, scored = (
        inspect.signature(each).parameters for each in (flare.sample, flare.trajectories, flare.score)
    )
    assert list(drawn) == [*walked, "progress"]
    assert {name: each.default for name, each in drawn.items() if name != "progress"} == {
        name: each.default for name, each in walked.items()
    }
    for shown in (drawn, walked, scored):
        assert not [p for p in shown.values() if p.kind is p.VAR_KEYWORD]
        assert (shown["directions"].default, shown["batch_size"].default) == (16, "auto")


@dataclass(frozen=True)
class Path:
    """The length of the way so far, (B, *shape), and the conditions."""

    length: torch.Tensor
    cond: dict


class Roundabout(Rule):
    """A rule of a user's own: how far each coordinate has moved."""

    def __init__(self, denoiser, spoil=()):
        self.denoiser, self.spoil = denoiser, list(spoil)

    def init(self, x, cond, history, noise):
        return Path(torch.zeros_like(x), cond)

    def step(self, state, row, x, t, z):
        f = self.denoiser(x, t, state.cond)
        way = (row.advance(x, [row.limit(row.clean(x, f))]) - x).abs()
        if row.time < 10:
            way[self.spoil] = torch.nan
        return f, replace(state, length=state.length + way)

    def finish(self, state, x, noise):
        return Spread(x, state.length, None, None, state.cond)

    def map_state(self, state, function):
        return replace(state, length=function(state.length))


def test_a_rule_of_ones_own_rides_along(fitted):
    denoiser, posterior = fitted
    options = {"n": 4, "shape": (3,), "seed": 1, "score": "trace"}
    run = flare.trajectories(denoiser, STEPS, posterior, rule=Roundabout(denoiser), **options)
    path = [frame.x for frame in run]
    start = NoiseStreams(1, 0, 4, (3,), 1).next()
    length = sum((b - a).abs() for a, b in zip([start, *path[:-1]], path, strict=True))
    torch.testing.assert_close(run.result.variance, length, rtol=1e-5, atol=1e-6)
    assert run.result.about["rule"] == "Roundabout"


def test_what_a_rule_carries_is_looked_at_for_nan_at_every_step(fitted):
    denoiser, posterior = fitted
    options = {"n": 4, "shape": (3,), "seed": 1, "score": "trace"}
    whole = flare.sample(denoiser, STEPS, posterior, rule=Roundabout(denoiser), **options)
    with pytest.warns(RuntimeWarning, match=r"step 4 of 6 \(time \d\) has NaN or infinity in 1 of 4"):
        result = flare.sample(denoiser, STEPS, posterior, rule=Roundabout(denoiser, spoil=[2]), **options)
    assert result.lost.tolist() == [False, False, True, False]
    rest = [0, 1, 3]
    assert torch.equal(result.samples[rest], whole.samples[rest])
    assert torch.equal(result.variance[rest], whole.variance[rest])


def test_a_rule_and_a_score_that_register_themselves_are_found_by_name(fitted, monkeypatch):
    denoiser, posterior = fitted

    class Registered(Roundabout):
        name, summary, needs_derivatives = "roundabout", "the way", False

        @classmethod
        def build(cls, given):
            return cls(given.driver)

    monkeypatch.setitem(RULES._entries, "roundabout", Registered)
    monkeypatch.setitem(
        SCORES._entries,
        "longest",
        Score("longest", "of all coordinates", of_spread=lambda spread: spread.variance.amax(1)),
    )
    result = flare.sample(denoiser, STEPS, posterior, n=3, shape=(3,), rule="roundabout", score="longest")
    assert torch.equal(result.scores["longest"], result.variance.amax(1))
    with pytest.raises(ValueError, match="did you mean 'roundabout'"):
        flare.sample(denoiser, STEPS, posterior, n=3, shape=(3,), rule="roundabuot")


def test_every_rule_and_score_has_a_summary():
    assert all(spec.summary for spec in [*RULES.values(), *SCORES.values()])
    assert {spec.calibrated_score for spec in RULES.values()} <= set(SCORES)
    assert list(RULES) == [
        "decoupled",
        "decoupled_appendix",
        "endpoint",
        "monte_carlo",
        "released",
        "tangent",
    ]
    assert [name for name, score in SCORES.items() if score.needs_directions] == [
        "expected_residual",
        "off_manifold",
        "residual_variance",
        "trace",
    ]
    assert [name for name, score in SCORES.items() if score.needs_data] == [
        "activations",
        "epistemic_distance",
        "influence",
        "neighbors",
    ]
    assert set(SCORES) >= {"error_profile"}


class FarIsNaN(TinyNet):
    """Answers with NaN for noise at low t, where no trajectory comes."""

    def forward(self, x, t):
        far = (x.abs().amax(1, keepdim=True) > 0.5) & (t[:, None] < 2)
        return super().forward(x, t).where(~far, torch.nan)


@pytest.mark.parametrize("n", [2, 4])
def test_the_memory_probe_loses_no_samples(n):
    torch.manual_seed(0)
    net = FarIsNaN((3,))
    steps = flare.samplers.ddim(SCHEDULE, 6, clip=0.1)
    denoiser = flare.Denoiser(net)
    pairs = flare.noising.pairs(0.01 * torch.randn(30, 3), SCHEDULE, n=60)
    posterior = flare.posteriors.dense(denoiser, flare.subsets.last_layer(denoiser), pairs, 1.0, 1.0)
    options = {"n": n, "shape": (3,), "score": "expected_residual", "levels": 0.1, "directions": 2}
    result = flare.sample(denoiser, steps, posterior, **options)
    assert not result.lost.any()
    assert result == flare.sample(denoiser, steps, posterior, batch_size=n, **options)


def test_trajectories_are_iterated_once(fitted):
    run = flare.trajectories(fitted[0], STEPS, n=2, shape=(3,))
    list(run)
    with pytest.raises(RuntimeError, match="can be iterated once"):
        next(iter(run))


def test_a_rule_of_ones_own_needs_no_directions(fitted, monkeypatch):
    denoiser, posterior = fitted

    def refuse(*_):
        raise AssertionError("directions were drawn")

    monkeypatch.setattr(type(posterior), "draw", refuse)
    flare.sample(denoiser, STEPS, posterior, n=2, shape=(3,), rule=Roundabout(denoiser), score="trace")
    with pytest.raises(TypeError, match="rule must be a Rule, got object"):
        flare.sample(denoiser, STEPS, posterior, n=2, shape=(3,), rule=object())


def test_a_score_that_is_asked_for_twice_is_computed_once(fitted):
    denoiser, posterior = fitted
    options = {"n": 2, "shape": (3,), "directions": 2}
    twice = flare.sample(denoiser, STEPS, posterior, score=["expected_residual"] * 2, **options)
    assert twice == flare.sample(denoiser, STEPS, posterior, score="expected_residual", **options)


def test_warnings_point_to_the_caller(fitted):
    class Broken(TinyNet):
        def forward(self, x, t):
            return super().forward(x, t).where(torch.arange(len(x))[:, None] > 0, torch.nan)

    options = {"n": 3, "shape": (3,), "batch_size": 3}
    with pytest.warns(RuntimeWarning, match="NaN or infinity") as seen:
        flare.sample(flare.Denoiser(Broken((3,))), STEPS, **options)
    assert [warning.filename for warning in seen] == [__file__]
    run = flare.trajectories(flare.Denoiser(Broken((3,))), STEPS, **options)
    list(run)
    with pytest.warns(RuntimeWarning, match="NaN or infinity") as seen:
        assert run.result.lost.tolist() == [True, False, False]
    assert [warning.filename for warning in seen] == [__file__]

"""Rows do not mix, and a whole scorer is recomputed by loops: features, distances, z, verdict, p-values."""

from __future__ import annotations

import math
import statistics

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TinyNet
from scipy.stats import spearmanr
from torch import nn

import flare
from flare import posteriors, subsets
from flare.autodiff import vjp
from flare.sampling.finished import make_encoder, trace_layers
from flare.scores.space import compute_distances

SCHEDULE = flare.schedules.cosine(20)
LEVELS = (0.1, 0.6)


class Images(nn.Module):
    """Convolutions with a group norm, for images of 6 × 6."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.SiLU(inplace=True),
            nn.Conv2d(4, 1, 3, padding=1),
        )

    def forward(self, x, t):
        return self.net(x) + (t.to(x.dtype) / 20).view(-1, 1, 1, 1)


def encoder_for(net, data, structure="diagonal", pairs=1, levels=LEVELS, seed=2, cond=None):
    denoiser = flare.Denoiser(net)
    model = flare.Model(denoiser, SCHEDULE)
    drawn = flare.noising.pairs(data, SCHEDULE, n=40, cond=cond)
    posterior = getattr(posteriors, structure)(denoiser, subsets.everything(denoiser), drawn, 0.5, 10.0)
    return make_encoder(model, posterior, trace_layers(model, data, cond or {})[0], seed, pairs, levels)


def agree(ours, theirs):
    for name, values in theirs.items():
        typical = float(values.abs().max())
        torch.testing.assert_close(ours[name], values, rtol=0, atol=1e-5 * typical, msg=name)


NETS = {"mlp": (lambda: TinyNet((3,), 5), (3,)), "images": (Images, (1, 6, 6))}


@pytest.fixture(scope="module", params=list(NETS))
def case(request):
    make, shape = NETS[request.param]
    torch.manual_seed(0)
    net, x = make(), torch.randn(8, *shape)
    encoder = encoder_for(net, x, pairs=2)
    return encoder, x, encoder.encode(x, {})


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_batch_does_not_matter(case, size):
    encoder, x, whole = case
    assert set(whole) == {"activations", "epistemic_distance", "influence"}
    agree(encoder.encode(x, {}, batch_size=size), whole)


@settings(max_examples=5)
@given(st.permutations(range(8)))
def test_the_order_does_not_matter(case, order):
    encoder, x, whole = case
    agree(encoder.encode(x[order], {}), {name: values[order] for name, values in whole.items()})


def test_other_samples_do_not_matter(case):
    encoder, x, whole = case
    other = x.clone()
    other[1:] = 100 * torch.randn(x[1:].shape)
    found = encoder.encode(other, {})
    agree({name: values[:1] for name, values in found.items()}, {name: v[:1] for name, v in whole.items()})
    other[3] = torch.nan
    found = encoder.encode(other, {})
    assert all(values[3].isnan().any() and values[0].isfinite().all() for values in found.values())
    agree({name: values[:1] for name, values in found.items()}, {name: v[:1] for name, v in whole.items()})


@pytest.mark.parametrize("numbers", [1, 200, 3000, 20_000])
def test_chunks_of_states_do_not_matter(case, numbers, monkeypatch):
    """With little memory, a call has a few states of one sample, down to one."""
    encoder, x, whole = case
    monkeypatch.setattr(vjp, "MEMORY", 4 * numbers)
    agree(encoder.encode(x, {}, batch_size=4), whole)


def test_a_network_that_vmap_cannot_run():
    torch.manual_seed(0)
    net, x = TinyNet((3,), 5), torch.randn(5, 3)

    class Loop(TinyNet):
        def forward(self, x, t):
            if not all(math.isfinite(value) for value in x.flatten().tolist()):
                raise ValueError("not finite")
            return super().forward(x, t)

    slow = Loop((3,), 5)
    slow.load_state_dict(net.state_dict())
    ours, theirs = (encoder_for(each, x, pairs=2).encode(x, {}) for each in (slow, net))
    agree(ours, theirs)


def test_conditions_belong_to_their_samples():
    torch.manual_seed(0)
    net, x, shift = TinyNet((3,), 5), torch.randn(6, 3), torch.randn(6)
    encoder = encoder_for(net, x, cond={"shift": shift})
    whole = encoder.encode(x, {"shift": shift})
    for row in range(6):
        one = encoder.encode(x[row : row + 1], {"shift": shift[row : row + 1]})
        agree(one, {name: values[row : row + 1] for name, values in whole.items()})
    moved = encoder.encode(x, {"shift": shift.flip(0)})
    assert not torch.allclose(moved["activations"], whole["activations"], atol=1e-3)


def test_noise_is_drawn_pair_by_pair():
    torch.manual_seed(0)
    net, x = TinyNet((3,), 5), torch.randn(4, 3)
    encoder = encoder_for(net, x)
    two = encoder.with_pairs(2)
    one, other = encoder(x, {}), encoder.with_pairs(1, first=1)(x, {})
    both = two(x, {})
    for name in ("activations", "influence"):
        agree({name: both[name]}, {name: (one[name] + other[name]) / 2})
    halves = torch.cat([one["epistemic_distance"], other["epistemic_distance"]], dim=1) / 2**0.5
    agree({"epistemic_distance": both["epistemic_distance"]}, {"epistemic_distance": halves})
    assert (encoder.states, two.states) == (4, 8)
    assert not torch.allclose(one["activations"], other["activations"])


# the whole of fit and score ---------------------------------------------------------------------------------


def reference_z(scores, values):
    """(log s − median)/(1.4826·MAD) of the reference; scores below the lowest count as the lowest."""
    logs = [math.log(s) for s in scores]
    center = statistics.median(logs)
    spread = 1.4826 * statistics.median(abs(value - center) for value in logs)
    return [(math.log(max(v, min(scores))) - center) / spread for v in values]


def combined(z):
    found = []
    for own in zip(*z, strict=True):
        main = math.sqrt(sum(v * v for v in own if v > 0)) if max(own) > 0 else max(own)
        found.append(main + sum(v for v in own if v < 0) / 1000)
    return found


def rank(real, value, slack=0.0):
    return (1 + sum(r >= value - slack for r in real)) / (1 + len(real))


def naive_scores(scorer, net, train, others, seed, prediction, cond=(None, None)):
    """All scores of the verdict on samples, from training samples, with loops."""
    encoder = scorer.encoder
    levels = [scorer.schedule.at_fraction(fraction) for fraction in (0.03, 0.15, 0.4, 0.7)]
    options = {"prediction": prediction, "pairs": encoder.pairs}
    m = scorer.posterior.size
    factor = torch.linalg.cholesky(scorer.posterior.covariance(torch.eye(m, dtype=torch.float64)))
    found = {"neighbors": naive.nearest(others.flatten(1), train.flatten(1))}
    blocks = [
        naive.activations(net, list(encoder.layers), x, levels, seed, cond=own, **options)
        for x, own in ((train, cond[0]), (others, cond[1]))
    ]
    points, own = naive.activation_points(*blocks)
    found["activations"] = naive.nearest(own, points)
    points, own = (
        (naive.answer_gradients(net, x, levels, seed, cond=c, **options).double() @ factor).flatten(1)
        / encoder.states**0.5
        for x, c in ((train, cond[0]), (others, cond[1]))
    )
    found["epistemic_distance"] = naive.nearest(own, points)
    return found


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_a_whole_scorer_by_hand(prediction, monkeypatch):
    """Float64 networks, so that loops and the library agree to the rounding of features in float32."""
    from flare.scorer import witnesses

    monkeypatch.setattr(witnesses, "MOST_PAIRS", 2)
    monkeypatch.setattr(flare.scores.Space, "shrink", lambda self, features: (self, self.score(features)))
    torch.manual_seed(0)
    net = TinyNet((2,), 3, scale=0.2).double()
    data, held_out = torch.randn(24, 2, dtype=torch.float64), torch.randn(21, 2, dtype=torch.float64)
    x = torch.cat([torch.randn(3, 2, dtype=torch.float64), torch.full((1, 2), 4.0, dtype=torch.float64)])
    conditions = [None, None, None]
    if prediction == "v":  # with conditions, too
        conditions = [{"shift": torch.randn(len(each), dtype=torch.float64)} for each in (data, held_out, x)]
    scorer = flare.fit(
        net, data, SCHEDULE, prediction=prediction, held_out=held_out, pairs=60, check=False, seed=7,
        prior_precision=0.5, scale=10.0, cond=conditions[0], held_out_cond=conditions[1],
    )  # fmt: skip
    result = scorer.score(x, cond=conditions[2])
    everyone = torch.cat([held_out, x])
    cond = None
    if conditions[0]:
        cond = {"shift": torch.cat([each["shift"] for each in conditions[1:]])}
    found = naive_scores(scorer, net, data, everyone, 7, prediction, (conditions[0], cond))
    assert set(found) == set(result.scores) == set(scorer.reference.scores)
    n, z_real, z_own = len(held_out), [], []
    for name in scorer.reference.scores:
        real, own = found[name][:n], found[name][n:]
        torch.testing.assert_close(scorer.reference.scores[name], real, rtol=2e-6, atol=0)
        torch.testing.assert_close(result.scores[name].double(), own, rtol=2e-6, atol=0)
        z_real.append(reference_z(real.tolist(), real.tolist()))
        z_own.append(reference_z(real.tolist(), own.tolist()))
        expected = [rank(real.tolist(), value) for value in own.tolist()]
        assert result.verdict.p_values[name].tolist() == pytest.approx(expected, rel=1e-9)
    total, real = combined(z_own), combined(z_real)
    assert result.verdict.z.tolist() == pytest.approx(total, rel=1e-4)
    assert result.p_value.tolist() == pytest.approx([rank(real, value, 1e-6) for value in total], rel=1e-9)
    names = list(scorer.reference.scores)
    worst = [names[max(range(len(names)), key=lambda k, row=row: z_own[k][row])] for row in range(len(x))]
    assert list(result.verdict.reason) == worst
    assert result.trusted(0.05).tolist() == [p > 0.05 for p in result.p_value.tolist()]


def test_repeatability_is_the_rank_correlation_with_other_noise(monkeypatch):
    from flare.scorer import witnesses

    monkeypatch.setattr(witnesses, "MOST_PAIRS", 3)
    torch.manual_seed(0)
    net = TinyNet((2,), 6)
    data, held_out = torch.randn(60, 2), torch.randn(40, 2)
    scorer = flare.fit(net, data, SCHEDULE, held_out=held_out, pairs=60, check=False, seed=1)
    encoder = scorer.encoder
    scores = []
    for own in (encoder, encoder.with_pairs(encoder.pairs, first=encoder.pairs)):
        train, real = own.encode(data, {}), own.encode(held_out, {})
        found = {}
        for name in train:
            points, others = train[name].double(), real[name].double()
            if name == "activations":
                sizes = [size for size in own.layers.values() for _ in own.levels]
                lengths = [float(part.var(0, correction=0).sum()) ** 0.5 for part in points.split(sizes, 1)]
                points, others = (
                    torch.cat([p / s for p, s in zip(each.split(sizes, 1), lengths, strict=True)], 1)
                    for each in (points, others)
                )
            found[name] = naive.nearest(others, points)
        scores.append(found)
    expected = {name: spearmanr(scores[0][name], scores[1][name]).statistic for name in scores[0]}
    assert scorer.about["repeatability"] == pytest.approx(expected, abs=2e-3)
    assert set(expected) == {"activations", "epistemic_distance"}
    result = scorer.score(held_out[:2])
    assert result.about["repeatability"] == scorer.about["repeatability"]


def test_noise_is_added_until_scores_repeat():
    """The first pair of noises is too few for a network whose answer is mostly odd in the noise."""
    from flare.scorer.witnesses import GOAL, MOST_PAIRS

    torch.manual_seed(0)
    net = TinyNet((2,), 6)
    scorer = flare.fit(
        net, torch.randn(60, 2), SCHEDULE, held_out=torch.randn(40, 2), pairs=60, check=False, seed=1
    )
    worst = min(scorer.about["repeatability"].values())
    assert worst >= GOAL or scorer.encoder.pairs == MOST_PAIRS


def test_constant_scores_and_few_samples_count_as_repeating():
    net, x = TinyNet((2,), 3), torch.randn(8, 2)
    encoder = encoder_for(net, x)
    features = encoder.encode(x, {})
    spaces = encoder.make_spaces(features)
    assert set(compute_distances(spaces, {"influence": features["influence"]})) == {"influence"}
    from flare.scorer.witnesses import measure_agreement

    a = torch.tensor([1.0, 2, 3, torch.nan, 5])
    assert measure_agreement(a, torch.tensor([1.0, 4, 9, 2, torch.nan])) == 1.0
    assert measure_agreement(a, torch.tensor([3.0, 2, 1, 0, torch.nan])) == -1.0
    assert measure_agreement(a, torch.ones(5)) == 1.0
    assert measure_agreement(a[:2], torch.tensor([2.0, 1.0])) == 1.0

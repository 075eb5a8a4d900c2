"""The epistemic distance against closed forms, naive loops, and the variance over draws of the parameters."""

from __future__ import annotations

import itertools
import math

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TinyNet, naive_ggn, small_problem
from torch import nn

import flare
from flare import posteriors, subsets
from flare.posteriors import Root
from flare.scores import Encoder
from flare.scores.gradients import AnswerGradients, LossGradients

SEED = 5
FRACTIONS = (0.1, 0.6)
READERS = {"epistemic_distance": AnswerGradients, "influence": LossGradients}


def encoder_of(denoiser, root, schedule, pairs=1, fractions=FRACTIONS, seed=SEED):
    levels = [schedule.at_fraction(fraction) for fraction in fractions]
    return Encoder(denoiser, levels, READERS, seed, pairs, {}, root)


def coordinates(subset):
    """The p × m matrix of the coordinates, column by column, for a subset with entries in any tensors."""

    def matrix(net):
        columns = []
        for unit in torch.eye(subset.size, dtype=torch.float64):
            parts = subset.scatter(unit)
            rows = [parts.get(name, torch.zeros_like(p)) for name, p in net.named_parameters()]
            columns.append(torch.cat([row.flatten() for row in rows]))
        return torch.stack(columns, dim=1)

    return matrix


def squared_distances(g, sigma):
    """Mean over states of (g − g')ᵀΣ(g − g'), (n, n), for g (n, states, m)."""
    n = len(g)
    found = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            found[i, j] = torch.stack([d @ sigma @ d for d in g[i] - g[j]]).mean()
    return found


def covariance_matrix(posterior):
    return posterior.covariance(torch.eye(posterior.size, dtype=torch.float64))


STRUCTURES = ["dense", "diagonal", "low_rank", "kronecker", "matrix_free"]
SUBSETS = {
    "everything": subsets.everything,
    "random": lambda denoiser: subsets.random(denoiser, count=11, seed=1),
    "sketch": lambda denoiser: subsets.sketch(denoiser, 9, seed=1),
    "last layer": subsets.last_layer,
}


# kronecker needs whole tensors
CASES = [
    (structure, kind)
    for structure in STRUCTURES
    for kind in SUBSETS
    if structure != "kronecker" or kind in ("everything", "last layer")
]


@pytest.mark.parametrize(("structure", "kind"), CASES)
def test_a_naive_loop_gives_the_same_distances(structure, kind):
    net, denoiser, pairs = small_problem((3,), width=4)
    subset = SUBSETS[kind](denoiser)
    own = {"matrix_free": {"tolerance": 1e-9}, "low_rank": {"rank": 4}}.get(structure, {})
    posterior = getattr(posteriors, structure)(denoiser, subset, pairs, 0.5, 10.0, **own)
    root = Root.of(posterior, SEED)
    encoder = encoder_of(denoiser, root, pairs.schedule, pairs=2)
    x = torch.randn(4, 3, dtype=torch.float64)
    found = encoder(x, {})
    S = coordinates(subset)(net)
    g = naive.answer_gradients(net, x, encoder.levels, SEED, pairs=2) @ S
    loss = naive.loss_gradients(net, x, encoder.levels, SEED, pairs=2) @ S
    if structure == "matrix_free":  # no exact root: the features are those of its draws
        assert root.exact is None
        draws = root.draws
        assert draws.shape == (posterior.size, 128)
        sigma = draws @ draws.T / 128
        torch.testing.assert_close(
            sigma, covariance_matrix(posterior), rtol=0.6, atol=0.6 * sigma.max().item()
        )
    else:
        sigma = covariance_matrix(posterior)
    expected = squared_distances(g, sigma)
    ours = torch.cdist(*[found["epistemic_distance"].double()] * 2).square()
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6 * expected.max().item())
    expected = squared_distances(loss[:, None], sigma)
    ours = torch.cdist(*[found["influence"].double()] * 2).square()
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6 * expected.max().item())


class Features(nn.Module):
    """A network that is linear in its parameters: W φ(x, t)."""

    def __init__(self, mix=None) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2, bias=False)
        nn.init.normal_(self.out.weight, std=0.1)
        self.mix = mix

    def phi(self, x, t):
        time = t[:, None].to(x.dtype) / 20
        plain = torch.cat([x, x.sin().sum(1, keepdim=True), time], dim=1)
        return plain if self.mix is None else plain @ self.mix.T

    def forward(self, x, t):
        return self.out(self.phi(x, t))


def linear_problem(net, n=60, delta=0.4, scale=7.0):
    schedule = flare.schedules.cosine(20)
    data = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    pairs = flare.noising.pairs(data, schedule, n=n, weighting="min_snr")
    denoiser = flare.Denoiser(net)
    posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, delta, scale, probes=None)
    return denoiser, pairs, posterior


def test_the_closed_form_of_a_linear_network():
    """J = I ⊗ φᵀ, so Var[uᵀW(φ − φ')] = ‖u‖²·(φ − φ')ᵀ A⁻¹ (φ − φ') with A = s·mean wφφᵀ + δ."""
    torch.manual_seed(1)
    net = Features().double()
    denoiser, pairs, posterior = linear_problem(net)
    A, n = torch.zeros(4, 4, dtype=torch.float64), 0
    for batch in pairs.batches("epsilon", torch.float64):
        phi = net.phi(batch.x, batch.t)
        A += torch.einsum("b,bi,bj->ij", batch.weight, phi, phi)
        n += len(phi)
    A = 7.0 * A / n + 0.4 * torch.eye(4, dtype=torch.float64)
    encoder = encoder_of(denoiser, Root.of(posterior, 0), pairs.schedule)
    x = torch.randn(5, 2, dtype=torch.float64)
    features = encoder(x, {})["epistemic_distance"].double()
    for i, j in itertools.combinations(range(5), 2):
        total = 0.0
        both = (naive.states(x[row], encoder.levels, SEED) for row in (i, j))
        for (_, _, level, _, first, u), (_, _, _, _, second, _) in zip(*both, strict=True):
            t, w = torch.tensor([level.time]), naive.min_snr("epsilon", level.alpha, level.sigma)
            difference = (net.phi(first[None], t) - net.phi(second[None], t))[0].detach()
            total += w * float(u.square().sum() * (difference @ torch.linalg.solve(A, difference))) / 4
        assert float((features[i] - features[j]).square().sum()) == pytest.approx(total, rel=1e-4)


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def differences(net, theta, pair, levels):
    """√w·uᵀ(f(x) − f(x')) at parameters θ, (states,)."""
    nn.utils.vector_to_parameters(theta, net.parameters())
    found = torch.zeros(2, 2 * len(levels), dtype=torch.float64)
    with torch.no_grad():
        for row, own in enumerate(pair):
            for place, (_, _, level, _, state, u) in enumerate(naive.states(own, levels, SEED)):
                f = naive.answer(net, "epsilon", state, level.time, {})
                w = naive.min_snr("epsilon", level.alpha, level.sigma)
                found[row, place] = math.sqrt(w) * (f * u).sum()
    return found[0] - found[1]


def test_the_variance_over_draws_of_the_parameters():
    """With a narrow posterior, the distance is the spread of the difference of the answers."""
    net, denoiser, pairs = small_problem((2,), width=3)
    subset = subsets.everything(denoiser)
    posterior = posteriors.dense(denoiser, subset, pairs, 1e4, 1e5, probes=None)
    encoder = encoder_of(denoiser, Root.of(posterior, 0), pairs.schedule)
    x = torch.randn(2, 2, dtype=torch.float64)
    features = encoder(x, {})["epistemic_distance"].double()
    ours = float((features[0] - features[1]).square().sum())
    theta, draws = flat(net), 500
    precision = 1e5 * naive_ggn(net, pairs)[0] + 1e4 * torch.eye(len(theta), dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.linalg.inv(precision))
    steps = torch.randn(draws, len(theta), dtype=torch.float64) @ factor.T
    found = torch.stack([differences(net, theta + step, x, encoder.levels) for step in steps])
    assert float(found.var(0).mean()) == pytest.approx(ours, rel=0.25)
    # linearized draws with exactly the covariance Σ: the variance itself
    basis = factor.T * math.sqrt(len(theta))
    small = 1e-3
    moved = torch.stack(
        [
            (differences(net, theta + small * b, x, encoder.levels)
             - differences(net, theta - small * b, x, encoder.levels)) / (2 * small)
            for b in basis
        ]
    )  # fmt: skip
    nn.utils.vector_to_parameters(theta, net.parameters())
    assert float(moved.square().mean(0).mean()) == pytest.approx(ours, rel=1e-4)


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_coordinates_do_not_matter_without_a_prior(seed):
    """The network x -> W A φ with the trained weights W A⁻¹ is the same network in other coordinates."""
    torch.manual_seed(seed)
    A = torch.eye(4, dtype=torch.float64) + 0.3 * torch.randn(4, 4, dtype=torch.float64)
    plain, mixed = Features().double(), Features(A).double()
    with torch.no_grad():
        mixed.out.weight.copy_(plain.out.weight @ torch.linalg.inv(A))
    x = torch.randn(4, 2, dtype=torch.float64)
    found = []
    for net in (plain, mixed):
        denoiser, pairs, posterior = linear_problem(net, delta=1e-9, scale=1.0)
        features = encoder_of(denoiser, Root.of(posterior, 0), pairs.schedule)(x, {})["epistemic_distance"]
        found.append(torch.cdist(features.double(), features.double()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5 * found[0].max().item())


@settings(max_examples=10)
@given(st.floats(1e-3, 1e3))
def test_a_colder_posterior_divides_squared_distances(c):
    _, denoiser, pairs = small_problem((3,), width=4)
    posterior = posteriors.diagonal(denoiser, subsets.everything(denoiser), pairs, 0.5, 10.0)
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()
    first, second = (
        encoder_of(denoiser, Root.of(each, 0), pairs.schedule)(x, {})["epistemic_distance"]
        for each in (posterior, posterior.refit(0.5 * c, 10.0 * c))
    )
    torch.testing.assert_close(second * c**0.5, first, rtol=1e-5, atol=1e-6 * float(first.abs().max()))


def test_training_samples_have_distance_zero_to_themselves():
    _, denoiser, pairs = small_problem((3,), width=5)
    posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 0.5, 10.0)
    data = torch.randn(9, 3, dtype=torch.float64)
    encoder = encoder_of(denoiser, Root.of(posterior, 0), pairs.schedule)
    train = encoder.encode(data, {})
    again = encoder.encode(data.flip(0), {}, batch_size=2)
    for name in READERS:
        space = flare.scores.Space(train[name])
        near = space.find(again[name], 1)
        assert near.indices.flatten().tolist() == list(range(9))[::-1]
        typical = float(torch.cdist(train[name], train[name]).median())
        assert float(near.distances.max()) <= 1e-5 * typical


def test_more_coordinates_than_columns():
    """Above 2,048 coordinates, and for many blocks, D is made of draws: distances hold on average."""
    net = TinyNet((3,), 320).double()
    denoiser, schedule = flare.Denoiser(net), flare.schedules.cosine(20)
    pairs = flare.noising.pairs(torch.randn(20, 3, dtype=torch.float64), schedule, n=40)
    subset = subsets.everything(denoiser)
    assert subset.size > 2048
    posterior = posteriors.diagonal(denoiser, subset, pairs, 0.5, 10.0)
    root = Root.of(posterior, 0)
    assert root.exact is None
    encoder = encoder_of(denoiser, root, schedule)
    x = torch.randn(3, 3, dtype=torch.float64)
    found = encoder(x, {})
    g = naive.answer_gradients(net, x, encoder.levels, SEED)
    i, j = torch.triu_indices(3, 3, 1)
    sigma = posterior.covariance(torch.ones(posterior.size, dtype=torch.float64))
    expected = ((g[i] - g[j]).square() * sigma).sum(2).mean(1)
    features = found["epistemic_distance"].double()
    assert features.shape == (3, 2048)
    ours = (features[i] - features[j]).square().sum(1)
    torch.testing.assert_close(ours, expected, rtol=0.15, atol=0)
    # the same draws, block by block
    for place in range(4):
        block = slice(place * 512, (place + 1) * 512)
        D = root.draws[:, block] / 512**0.5
        torch.testing.assert_close(features[:, block], g[:, place] @ D / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prediction", ["sample", "v", "flow", "edm"])
def test_every_prediction_and_conditions(prediction):
    torch.manual_seed(0)
    net = TinyNet((2, 2), 4).double()
    name = {"flow": "flow", "edm": "edm"}.get(prediction, "cosine")
    schedule = flare.schedules.edm() if name == "edm" else getattr(flare.schedules, name)(20)
    denoiser = flare.Denoiser(net, prediction)
    x, shift = torch.randn(4, 2, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    pairs = flare.noising.pairs(x, schedule, n=20, cond={"shift": shift})
    posterior = posteriors.diagonal(denoiser, subsets.everything(denoiser), pairs, 0.5, 10.0)
    encoder = encoder_of(denoiser, Root.of(posterior, 0), schedule)
    found = encoder(x, {"shift": shift})
    options = {"prediction": prediction, "cond": {"shift": shift}}
    root = posterior.covariance(torch.ones(posterior.size, dtype=torch.float64)).sqrt()
    g = naive.answer_gradients(net, x, encoder.levels, SEED, **options)
    expected = (g * root / 2).flatten(1).float()
    torch.testing.assert_close(found["epistemic_distance"], expected, rtol=1e-5, atol=1e-6)
    expected = (naive.loss_gradients(net, x, encoder.levels, SEED, **options) * root).float()
    torch.testing.assert_close(found["influence"], expected, rtol=1e-5, atol=1e-6)


def test_the_score_is_the_mean_distance_to_five():
    net, denoiser, pairs = small_problem((3,), width=4)
    posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 0.5, 10.0)
    data, x = torch.randn(12, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    options = {"levels": FRACTIONS, "repeats": 4, "seed": SEED}
    ours = flare.score(
        denoiser, posterior, pairs.schedule, x, score="epistemic_distance", data=data, **options
    )
    levels = [pairs.schedule.at_fraction(fraction) for fraction in FRACTIONS]
    g, other = (naive.answer_gradients(net, each, levels, SEED, pairs=2) for each in (x, data))
    factor = torch.linalg.cholesky(covariance_matrix(posterior)) / 8**0.5  # 8 states
    expected = naive.nearest((g @ factor).flatten(1), (other @ factor).flatten(1))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)

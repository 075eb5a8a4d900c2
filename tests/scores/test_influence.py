"""The influence against naive loops, and against the shift of a posterior that is refitted with a sample."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TinyNet, close, naive_ggn, small_problem
from torch import nn

import flare
from flare import posteriors, subsets

LEVELS, PAIRS, SEED = (0.1, 0.5, 0.9), 2, 3
OPTIONS = {"score": "influence", "levels": LEVELS, "repeats": 2 * PAIRS, "seed": SEED}


def shared_noise(shape):
    """The noises of one level after the other that all samples share, each with its negative."""
    mix, found = flare.core.noise_streams.mix_seed, []
    for pair in range(PAIRS):
        seed = mix(mix(SEED, flare.core.noise_streams.SHARED_STREAM), pair)
        # the others are probes of another score
        both = torch.randn(3, len(LEVELS), *shape, generator=torch.Generator().manual_seed(seed)).double()
        found.append(both[0])
    return [[each for pair in found for each in (pair[i], -pair[i])] for i in range(len(LEVELS))]


def minsnr(prediction, alpha, sigma):
    """Min-SNR weights with γ = 5, from the table of the parameterizations."""
    snr = alpha**2 / sigma**2
    q2 = {"epsilon": 1 / snr, "sample": 1.0, "v": sigma**2, "flow": sigma**2}[prediction]
    return min(snr, 5.0) * q2


def naive_gradient(net, x, schedule, prediction, cond=None):
    """The gradient g of one sample over all parameters, (p,): one backward pass per level and noise."""
    total = torch.zeros(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    for fraction, noises in zip(LEVELS, shared_noise(x.shape), strict=True):
        level = schedule.at_fraction(fraction)
        for epsilon in noises:
            a, s = level.alpha, level.sigma
            y = {"epsilon": epsilon, "sample": x, "v": a * epsilon - s * x, "flow": epsilon - x}[prediction]
            t = torch.tensor([level.time])
            f = net((a * x + s * epsilon)[None], t, **(cond or {}))[0]
            loss = 0.5 * (f - y).square().sum()
            grads = torch.autograd.grad(loss, list(net.parameters()))
            flat = torch.cat([g.flatten() for g in grads])
            total += minsnr(prediction, a, s) ** 0.5 * flat / (len(LEVELS) * len(noises))
    return total


def naive_gradients(net, x, schedule, prediction):
    return torch.stack([naive_gradient(net, one, schedule, prediction) for one in x])


def naive_score(own, train, covariance, k=5):
    """The mean of the k smallest √((g − g')ᵀΣ(g − g')) of each gradient g (m,), pair by pair."""
    found = []
    for g in own:
        squares = [((g - other) @ covariance @ (g - other)).item() for other in train]
        found.append(sum(square**0.5 for square in sorted(squares)[:k]) / min(k, len(train)))
    return torch.tensor(found, dtype=torch.float64)


def naive_covariance(net, pairs, S, delta, scale, structure, prediction="epsilon", rank=None):
    """Σ = (s·SᵀHS + δ·I)⁻¹ from the curvature H over all parameters, without the eigenpairs it leaves out."""
    H = S.T @ naive_ggn(net, pairs, prediction)[0] @ S
    if structure == "diagonal":
        H = H.diagonal().diag()
    if structure == "low_rank":
        values, vectors = torch.linalg.eigh(H)
        values, vectors = values[-rank:], vectors[:, -rank:]
        H = (vectors * values) @ vectors.T
    return torch.linalg.inv(scale * H + delta * torch.eye(len(H), dtype=torch.float64))


def matrix(subset, p):
    """The p × m matrix of a subset or a sketch, column by column."""
    columns = []
    for k in range(subset.size):
        unit = torch.zeros(subset.size, dtype=torch.float64)
        unit[k] = 1
        columns.append(torch.cat([t.flatten() for t in subset.scatter(unit).values()]))
    S = torch.stack(columns, dim=1)
    assert len(S) == p
    return S


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank"])
def test_a_naive_loop_gives_the_same(prediction, structure):
    net, denoiser, pairs = small_problem((3,), width=5, prediction=prediction)
    subset = subsets.sketch(denoiser, 12) if structure == "dense" else subsets.everything(denoiser)
    own = {"low_rank": {"rank": 5}}.get(structure, {})
    posterior = getattr(posteriors, structure)(denoiser, subset, pairs, 0.5, 10.0, probes=None, **own)
    x, data = torch.randn(4, 3, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    S = matrix(subset, sum(p.numel() for p in net.parameters()))
    sigma = naive_covariance(net, pairs, S, 0.5, 10.0, structure, prediction, rank=5)
    g, others = (naive_gradients(net, each, pairs.schedule, prediction) @ S for each in (x, data))
    ours = flare.score(denoiser, posterior, pairs.schedule, x, data=data, **OPTIONS)
    torch.testing.assert_close(ours, naive_score(g, others, sigma), rtol=1e-5, atol=0)


def test_draws_of_a_posterior_without_a_matrix_give_nearly_the_same():
    """With 128 draws, a squared distance has a relative standard deviation of √(2/128) = 0.125."""
    net, denoiser, pairs = small_problem((3,), width=5)
    subset = subsets.everything(denoiser)
    posterior = posteriors.matrix_free(denoiser, subset, pairs, 0.5, 10.0, tolerance=1e-9)
    x, data = torch.randn(20, 3, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    S = torch.eye(subset.size, dtype=torch.float64)
    sigma = naive_covariance(net, pairs, S, 0.5, 10.0, "matrix_free")
    g, others = (naive_gradients(net, each, pairs.schedule, "epsilon") for each in (x, data))
    ours = flare.score(denoiser, posterior, pairs.schedule, x, data=data, **OPTIONS)
    ratio = ours / naive_score(g, others, sigma)
    assert ratio.min() > 0.75
    assert ratio.max() < 1.25
    assert ratio.mean().item() == pytest.approx(1, abs=0.1)


def test_flow_matching_and_conditions():
    torch.manual_seed(0)
    net = TinyNet((2, 2), 5).double()
    denoiser, schedule = flare.Denoiser(net, "flow"), flare.schedules.flow(20)
    data, shift = torch.randn(12, 2, 2, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    pairs = flare.noising.pairs(data, schedule, n=40, cond={"shift": shift})
    subset = subsets.everything(denoiser)
    posterior = posteriors.diagonal(denoiser, subset, pairs, 0.5, 10.0)
    x, own = torch.randn(2, 2, 2, dtype=torch.float64), torch.tensor([0.5, -1.0]).double()
    ours = flare.score(
        denoiser,
        posterior,
        schedule,
        x,
        cond={"shift": own},
        data=data,
        data_cond={"shift": shift},
        **OPTIONS,
    )
    g, others = (
        torch.stack(
            [
                naive_gradient(net, one, schedule, "flow", {"shift": s[None]})
                for one, s in zip(*part, strict=True)
            ]
        )
        for part in ((x, own), (data, shift))
    )
    sigma = posterior.covariance(torch.eye(subset.size, dtype=torch.float64))
    torch.testing.assert_close(ours, naive_score(g, others, sigma), rtol=1e-5, atol=0)


class Features(nn.Module):
    """A network that is linear in its parameters: W φ(x, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x, t):
        time = t[:, None].to(x.dtype) / 20
        return self.out(torch.cat([x, x.sin().sum(1, keepdim=True), time], dim=1))


def weighted_gradient(net, x, schedule):
    """∇_θ of the √min-SNR weighted mean loss of a sample, at the present parameters."""
    return naive_gradient(net, x, schedule, "epsilon")


def flat_parameters(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_refits_of_a_linear_model_differ_by_the_influence():
    """Minimize s·L(θ) + ½δ‖θ − θ̂‖² + ν·ℓ(θ) by a linear solve; the length in Σ⁻¹ of the difference per ν."""
    torch.manual_seed(1)
    net = Features().double()
    schedule = flare.schedules.cosine(20)
    pairs = flare.noising.pairs(torch.randn(30, 2, dtype=torch.float64), schedule, n=50, weighting="min_snr")
    denoiser = flare.Denoiser(net)
    posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 0.4, 7.0, probes=None)
    x, other = torch.randn(3, 2, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)
    H = naive_ggn(net, pairs)[0]
    precision = 7.0 * H + 0.4 * torch.eye(len(H), dtype=torch.float64)
    ours = flare.score(denoiser, posterior, schedule, x, data=other, **OPTIONS)
    theta, nu = flat_parameters(net), 1e-5

    def refit(one):
        # the loss of the sample is quadratic in θ: its Hessian by exact differences of gradients
        g = weighted_gradient(net, one, schedule)
        rows = []
        for k in range(len(theta)):
            moved = theta.clone()
            moved[k] += 1
            nn.utils.vector_to_parameters(moved, net.parameters())
            rows.append(weighted_gradient(net, one, schedule) - g)
        nn.utils.vector_to_parameters(theta, net.parameters())
        return torch.linalg.solve(precision + nu * torch.stack(rows), -nu * g) / nu

    known = refit(other[0])
    for i, one in enumerate(x):
        change = refit(one) - known
        assert ours[i].item() == pytest.approx((change @ precision @ change).item() ** 0.5, rel=1e-3)


def test_refits_of_a_small_network_differ_by_the_influence():
    """The same with the Gauss-Newton objective of a network, refitted by gradient steps in Σ's metric."""
    net, denoiser, pairs = small_problem((2,), width=3)
    posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 2.0, 7.0, probes=None)
    H = naive_ggn(net, pairs)[0]
    precision = 7.0 * H + 2.0 * torch.eye(len(H), dtype=torch.float64)
    x, other = torch.randn(2, 2, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)
    ours = flare.score(denoiser, posterior, pairs.schedule, x, data=other, **OPTIONS)
    theta = flat_parameters(net)

    def refit(one):
        shifts = []
        for nu in (1e-4, -1e-4):
            moved = theta.clone()
            for _ in range(5):  # Newton steps on ½(θ−θ̂)ᵀΣ⁻¹(θ−θ̂) + ν·ℓ(θ)
                nn.utils.vector_to_parameters(moved, net.parameters())
                g = precision @ (moved - theta) + nu * weighted_gradient(net, one, pairs.schedule)
                moved = moved - torch.linalg.solve(precision, g)
            shifts.append((moved - theta) / nu)
        nn.utils.vector_to_parameters(theta, net.parameters())
        return (shifts[0] + shifts[1]) / 2

    known = refit(other[0])
    for i, one in enumerate(x):
        change = refit(one) - known
        assert ours[i].item() == pytest.approx((change @ precision @ change).item() ** 0.5, rel=1e-3)


@pytest.fixture(scope="module")
def fitted():
    _, denoiser, pairs = small_problem((3,), width=5)
    subset = subsets.random(denoiser, count=15, seed=0)
    posterior = posteriors.dense(denoiser, subset, pairs, 0.5, 10.0)
    draw = torch.Generator().manual_seed(0)
    x, data = (torch.randn(n, 3, generator=draw).double() for n in (7, 20))
    return denoiser, pairs, posterior, x, data


@settings(max_examples=10)
@given(st.floats(1e-3, 1e3))
def test_a_colder_posterior_divides_the_score(c):
    _, denoiser, pairs = small_problem((3,), width=4)
    subset = subsets.random(denoiser, count=10, seed=0)
    posterior = posteriors.diagonal(denoiser, subset, pairs, 0.5, 10.0)
    draw = torch.Generator().manual_seed(0)
    x, data = (torch.randn(n, 3, generator=draw).double() for n in (3, 8))
    both = (posterior, posterior.refit(0.5 * c, 10.0 * c))
    first, second = (flare.score(denoiser, each, pairs.schedule, x, data=data, **OPTIONS) for each in both)
    torch.testing.assert_close(second * c**0.5, first, rtol=1e-5, atol=0)


@settings(max_examples=10)
@given(st.integers(0, 100))
def test_coordinates_do_not_matter_without_a_prior(seed):
    """The network x -> W A φ with the trained weights W A⁻¹ is the same network in other coordinates."""
    torch.manual_seed(seed)
    A = torch.eye(4, dtype=torch.float64) + 0.3 * torch.randn(4, 4, dtype=torch.float64)

    class Mapped(Features):
        """Features mixed by a fixed matrix."""

        def forward(self, x, t):
            time = t[:, None].to(x.dtype) / 20
            return self.out(torch.cat([x, x.sin().sum(1, keepdim=True), time], dim=1) @ A.T)

    plain, mixed = Features().double(), Mapped().double()
    with torch.no_grad():
        for value in plain.parameters():
            value.mul_(0.3)  # errors are not much larger than those of predicting zero
        mixed.out.weight.copy_(plain.out.weight @ torch.linalg.inv(A))
        mixed.out.bias.copy_(plain.out.bias)
    schedule = flare.schedules.cosine(20)
    pairs = flare.noising.pairs(torch.randn(40, 2, dtype=torch.float64), schedule, n=100)
    x, data = torch.randn(3, 2, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    found = []
    for net in (plain, mixed):
        denoiser = flare.Denoiser(net)
        posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 1e-9, 1.0, probes=None)
        found.append(flare.score(denoiser, posterior, schedule, x, data=data, **OPTIONS))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=0)


@pytest.mark.parametrize("structure", ["dense", "matrix_free"])
def test_the_batch_does_not_matter(fitted, structure):
    denoiser, pairs, posterior, x, data = fitted
    if structure == "matrix_free":
        posterior = posteriors.matrix_free(denoiser, posterior.subset, pairs, 0.5, 10.0)
    options = {"score": "influence", "data": data}
    scores = [
        flare.score(denoiser, posterior, pairs.schedule, x, batch_size=size, **options)
        for size in (1, 3, 7, "auto")
    ]
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=1e-4, atol=0)
    part = flare.score(denoiser, posterior, pairs.schedule, x[4:], first=4, **options)
    torch.testing.assert_close(part, scores[0][4:], rtol=1e-4, atol=0)


def test_half_precision_is_differentiated_in_single_precision():
    torch.manual_seed(0)
    net = TinyNet((3,), 5).to(torch.bfloat16)
    denoiser, wide = flare.Denoiser(net), flare.Denoiser(TinyNet((3,), 5))
    wide = wide.with_params({name: value.float() for name, value in denoiser.params.items()})
    schedule = flare.schedules.cosine(20)
    pairs = flare.noising.pairs(torch.randn(30, 3), schedule, n=40)
    x, data = torch.randn(4, 3).to(torch.bfloat16), torch.randn(12, 3).to(torch.bfloat16)
    found = []
    for each in (denoiser, wide):
        posterior = posteriors.diagonal(each, subsets.everything(each), pairs, 0.5, 10.0)
        found.append(flare.score(each, posterior, schedule, x, score="influence", data=data))
    assert found[0].dtype == torch.float32
    close(found[0], found[1], 1e-5)


@pytest.mark.parametrize("structure", ["diagonal", "matrix_free"])
def test_a_lost_sample_is_nan_and_the_others_are_unaffected(structure):
    class Fragile(TinyNet):
        """NaN for large samples."""

        def forward(self, x, t):
            return super().forward(x, t) + 0 * (x > 50).any(1, keepdim=True) / (x < 50).all(1, keepdim=True)

    torch.manual_seed(0)
    denoiser, schedule = flare.Denoiser(Fragile((3,), 5).double()), flare.schedules.cosine(20)
    pairs = flare.noising.pairs(torch.randn(30, 3, dtype=torch.float64), schedule, n=40)
    fit = getattr(posteriors, structure)
    posterior = fit(denoiser, subsets.everything(denoiser), pairs, 0.5, 10.0)
    x, data = torch.randn(4, 3, dtype=torch.float64), torch.randn(12, 3, dtype=torch.float64)
    whole = flare.score(denoiser, posterior, schedule, x, data=data, **OPTIONS)
    x[2] = 1e4
    with pytest.warns(RuntimeWarning, match="1 of 4 samples"):
        scores = flare.score(denoiser, posterior, schedule, x, data=data, **OPTIONS)
    assert scores.isnan().tolist() == [False, False, True, False]
    torch.testing.assert_close(scores[[0, 1, 3]], whole[[0, 1, 3]], rtol=1e-4, atol=0)
    lost = torch.cat([data[:6], torch.full((1, 3), 1e4).double(), data[6:]])
    with pytest.warns(UserWarning, match="1 of 13 training samples have NaN or infinity in influence"):
        scores = flare.score(denoiser, posterior, schedule, x[:2], data=lost, **OPTIONS)
    torch.testing.assert_close(scores, whole[:2], rtol=1e-4, atol=0)


def test_what_cannot_be_computed_is_refused(fitted):
    denoiser, pairs, posterior, x, data = fitted
    schedule, steps = pairs.schedule, flare.samplers.ddim(pairs.schedule, 3)
    options = {"score": "influence", "data": data}
    with pytest.raises(ValueError, match="'influence' needs a posterior, got None"):
        flare.score(denoiser, None, schedule, x, **options)
    with pytest.raises(ValueError, match="'influence' needs training data: give data="):
        flare.score(denoiser, posterior, schedule, x, score="influence")
    with pytest.raises(ValueError, match="'influence' needs a posterior"):
        flare.sample(denoiser, steps, n=2, shape=(3,), score="influence")
    with pytest.raises(
        ValueError, match=r"'influence' needs training data: score the samples afterwards, with flare\.score"
    ):
        flare.sample(denoiser, steps, posterior, n=2, shape=(3,), score="influence")
    with pytest.raises(ValueError, match="repeats must be an integer of at least 1"):
        flare.score(denoiser, posterior, schedule, x, repeats=0, **options)
    with pytest.raises(ValueError, match=r"repeats must be even for score='influence': .* got 3"):
        flare.score(denoiser, posterior, schedule, x, repeats=3, **options)
    with pytest.raises(ValueError, match="is for score='error_profile', got influence"):
        flare.score(denoiser, posterior, schedule, x, unconditional={}, **options)
    with pytest.raises(ValueError, match="influence does not depend on a rule"):
        flare.check_linearization(denoiser, steps, posterior, 3, (3,), score="influence")

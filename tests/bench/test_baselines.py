"""Each baseline on a case that is worked out by hand: a linear denoiser f(x, t) = w·x + v."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import Backward
from torch import Tensor, nn

import flare
from flare.autodiff.jvp import Push
from flare.bench import baselines
from flare.core.noise_streams import NoiseStreams


class Affine(nn.Module):
    """f(x, t) = W x + v, as the one and last layer."""

    def __init__(self, W: Tensor, v: Tensor) -> None:
        super().__init__()
        self.out = nn.Linear(*W.shape[::-1], dtype=torch.float64)
        with torch.no_grad():
            self.out.weight.copy_(W)
            self.out.bias.copy_(v)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.out(x)


@pytest.fixture
def affine():
    torch.manual_seed(0)
    W, v = 0.3 * torch.randn(3, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    return flare.Denoiser(Affine(W, v)), W, v


SCHEDULE = flare.schedules.cosine(20)
DDPM, DDIM = flare.samplers.ddpm(SCHEDULE), flare.samplers.ddim(SCHEDULE, 10)


def pairs_of(n=200):
    data = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return flare.noising.pairs(data, SCHEDULE, n=n, seed=0)


def noises(seed: int, n: int, draws: int, tag: int | None = None) -> list[Tensor]:
    stream = NoiseStreams(seed, 0, n, (3,), draws)
    stream = stream if tag is None else stream.beside(tag, draws)
    return [stream.next().double() for _ in range(draws)]


def step_by_hand(row, x, f, z=None):
    """x' = A·x + B·(p·x + q·f) + c·z."""
    out = row.A * x + row.B[0] * (row.p * x + row.q * f)
    return out if z is None else out + row.c * z


# --- without a posterior -----------------------------------------------------------------------------------


def test_residual_of_an_affine_denoiser(affine):
    denoiser, W, v = affine
    x = torch.randn(7, 3, dtype=torch.float64)
    alpha, sigma = SCHEDULE.alpha[2].item(), SCHEDULE.sigma[2].item()
    # x̂0(αx) = x − (σ/α)(αWx + v), so r = σWx + (σ/α)v
    expected = (sigma * x @ W.T + sigma / alpha * v).square().sum(1)
    torch.testing.assert_close(baselines.Residual(denoiser, SCHEDULE, level=0.1).score(x), expected)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
def test_residual_is_zero_where_the_denoiser_believes_in_the_sample(prediction):
    class Fixed(nn.Module):
        """Answers what a perfect denoiser of the one sample (2, −1) would at α·x."""

        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x, t):
            clean, at = torch.tensor([2.0, -1.0]), SCHEDULE.at_fraction(0.1)
            noise = (x - at.alpha * clean) / at.sigma
            return {"epsilon": noise, "sample": clean.expand_as(x), "v": at.alpha * noise - at.sigma * clean}[
                prediction
            ]

    denoiser = flare.Denoiser(Fixed(), prediction)
    x = torch.tensor([[2.0, -1.0], [0.0, 0.0]])
    score = baselines.Residual(denoiser, SCHEDULE).score(x)
    torch.testing.assert_close(score, torch.tensor([0.0, 5.0]), atol=1e-5, rtol=1e-5)


def test_denoising_error_has_the_mean_and_the_noises_of_its_definition(affine):
    denoiser, W, v = affine
    x = torch.randn(4, 3, dtype=torch.float64)
    method = baselines.DenoisingError(denoiser, SCHEDULE, levels=[0.1, 0.5], repeats=4000)
    found = method.score(x, seed=3)
    # E‖ε − W(αx + σε) − v‖² = ‖αWx + v‖² + ‖I − σW‖²
    expected = torch.zeros(4, dtype=torch.float64)
    for share in (0.1, 0.5):
        at = SCHEDULE.at_fraction(share)
        expected += (at.alpha * x @ W.T + v).square().sum(1) / 2
        expected += (torch.eye(3, dtype=torch.float64) - at.sigma * W).square().sum() / 2
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)
    alone = method.score(x[:2], seed=3)
    torch.testing.assert_close(alone, found[:2])  # the noise of a sample is its own
    later = method.score(x[2:], seed=3, first=2)
    torch.testing.assert_close(later, found[2:])


def test_last_iterates_are_the_variance_of_the_last_predictions(affine):
    denoiser, W, v = affine
    result = baselines.last_iterates(denoiser, DDIM, 5, (3,), last=(3, 100), seed=2)
    x = noises(2, 5, 1)[0]
    clean = []
    for row in DDIM.rows("epsilon"):
        f = x @ W.T + v
        clean.append((row.p * x + row.q * f).numpy())
        x = step_by_hand(row, x, f)
    np.testing.assert_allclose(result.samples, x, rtol=1e-9)
    np.testing.assert_allclose(result.scores["last_3"], np.var(clean[-3:], axis=0).sum(1), rtol=1e-9)
    np.testing.assert_allclose(result.scores["last_100"], np.var(clean, axis=0).sum(1), rtol=1e-9)
    np.testing.assert_allclose(result.score, result.variance.sum(1))


def test_last_iterates_do_not_depend_on_the_batches(affine):
    one = baselines.last_iterates(affine[0], DDPM, 5, (3,), seed=2)
    many = baselines.last_iterates(affine[0], DDPM, 5, (3,), seed=2, batch_size=2)
    torch.testing.assert_close(one.scores["last_100"], many.scores["last_100"])


# --- several models ----------------------------------------------------------------------------------------


def test_ensemble_is_the_variance_of_the_ends():
    W = 0.2 * torch.eye(3, dtype=torch.float64)
    shifts = [torch.full((3,), value, dtype=torch.float64) for value in (0.0, 1.0, 3.0)]
    models = [flare.Denoiser(Affine(W, v)) for v in shifts]
    result = baselines.ensemble(models, DDPM, 4, (3,), seed=1)
    # the same noise: the ends differ by v times one number, whatever the sample
    gain = 0.0
    for row in DDPM.rows("epsilon"):
        gain = (row.A + row.B[0] * (row.p + 0.2 * row.q)) * gain + row.B[0] * row.q
    expected = gain**2 * np.var([0.0, 1.0, 3.0], ddof=1)
    np.testing.assert_allclose(result.variance, np.full((4, 3), expected), rtol=1e-9)
    alone = flare.sample(models[0], DDPM, n=4, shape=(3,), seed=1)
    torch.testing.assert_close(result.samples, alone.samples)
    with pytest.raises(ValueError, match="at least 2"):
        baselines.ensemble(models[:1], DDPM, 4, (3,))


def test_generative_uncertainty_is_the_entropy_of_the_samples(affine):
    denoiser, W, v = affine
    posterior = baselines.llla(denoiser, pairs_of(), 1.0, 50.0)
    result = baselines.generative(denoiser, DDIM, posterior, 4, (3,), models=3, seed=5)
    draws = posterior.draw(3, torch.Generator().manual_seed(flare.core.noise_streams.mix_seed(5, -1)))
    ends = []
    for draw in [torch.zeros(12, dtype=torch.float64), *draws]:
        moved = flare.Denoiser(Affine(W + draw[:9].view(3, 3), v + draw[9:]))
        ends.append(flare.sample(moved, DDIM, n=4, shape=(3,), seed=5).samples.numpy())
    variance = np.var(np.stack(ends), axis=0, ddof=1) + 1e-3
    # the differential entropy of a Gaussian, by SciPy
    from scipy.stats import norm

    expected = norm(scale=np.sqrt(variance)).entropy().sum(1)
    np.testing.assert_allclose(result.score, expected, rtol=1e-9)
    np.testing.assert_allclose(result.samples, ends[0], rtol=1e-9)


# --- posteriors --------------------------------------------------------------------------------------------


def test_llla_is_the_last_layer_and_its_gamma_is_in_closed_form(affine):
    denoiser, *_ = affine
    posterior = baselines.llla(denoiser, pairs_of(), prior_precision=0.5, scale=3.0, probes=None)
    assert posterior.structure == "dense"
    assert set(posterior.subset.indices) == {"out.weight", "out.bias"}
    # f_j = Σ W_ji x_i + v_j: H is the same block E[(x, 1)(x, 1)ᵀ] for every output j
    G, weights = torch.zeros(4, 4, dtype=torch.float64), 0.0
    for batch in pairs_of().batches("epsilon", torch.float64):
        phi = torch.cat([batch.x, torch.ones(len(batch.x), 1)], 1)
        G += (batch.weight[:, None] * phi).T @ phi
        weights += len(batch.x)
    block = torch.linalg.inv(3.0 * G / weights + 0.5 * torch.eye(4, dtype=torch.float64))
    x = torch.randn(6, 3, dtype=torch.float64)
    phi = torch.cat([x, torch.ones(6, 1)], 1)
    expected = ((phi @ block) * phi).sum(1)
    D = posterior.exact_directions()
    push = Push(denoiser, posterior.subset, D)
    _, df = push(x, None, torch.zeros(6, dtype=torch.long))
    np.testing.assert_allclose(df.square().sum(0)[:, 0], expected, rtol=1e-6)


class Rows:
    """BayesDiff of f = W x + v by hand: every quantity of one coordinate a step at a time."""

    def __init__(self, W, v, D, total, draws, every):
        self.W, self.v, self.D = W, v, D
        self.total, self.draws, self.every = total, draws, every

    def run(self, rows, start, z, own):
        x, E, V = start, start, torch.zeros_like(start)
        for k, row in enumerate(rows):
            a, b = row.A + row.B[0] * row.p, row.B[0] * row.q
            f = x @ self.W.T + self.v
            if k % self.every == 0:
                dW, dv = self.D[:9].T.reshape(-1, 3, 3), self.D[9:].T
                gamma = ((torch.einsum("kij,bj->kbi", dW, x) + dv[:, None]) ** 2).sum(0)
                f = f + gamma.sqrt() * own.pop(0)
                if self.total:
                    V = V.clamp(min=0)
                    xs = torch.stack([E + V.sqrt() * own.pop(0) for _ in range(self.draws)])
                    fs = xs @ self.W.T + self.v
                    C = (xs * fs).mean(0) - E * fs.mean(0)
                    E, V = a * E + b * fs.mean(0), a**2 * V + 2 * a * b * C + b**2 * gamma + row.c**2
                else:
                    E, V = a * E + b * f, a**2 * V + b**2 * gamma
            else:
                E, V = a * E + b * f, a**2 * V
            x = step_by_hand(row, x, f, z.pop(0) if row.c else None)
        return x, V


@pytest.mark.parametrize("total", [True, False])
@pytest.mark.parametrize("steps", [DDPM, DDIM], ids=["ddpm", "ddim"])
def test_bayesdiff_is_its_recursion(affine, total, steps):
    denoiser, W, v = affine
    posterior = flare.posteriors.diagonal(
        denoiser, flare.subsets.last_layer(denoiser), pairs_of(), 1.0, 200.0, curvature="fisher"
    )
    result = baselines.bayesdiff(
        denoiser, steps, posterior, 4, (3,), draws=6, every=3, total=total, directions=8, seed=9
    )
    D = posterior.directions(8, torch.Generator().manual_seed(flare.core.noise_streams.mix_seed(9, -1)))
    start, *z = noises(9, 4, 1 + len(steps))
    own = noises(9, 4, 200, tag=2)
    x, V = Rows(W, v, D, total, draws=6, every=3).run(steps.rows("epsilon"), start, z, own)
    np.testing.assert_allclose(result.samples, x, rtol=1e-8)
    np.testing.assert_allclose(result.variance, V, rtol=1e-8)
    np.testing.assert_allclose(result.score, V.sum(1), rtol=1e-8)


def released_by_hand(W, v, D, start, z, own, draws, every, total):
    """The published DDPM script for f = W x + v, from ᾱ alone: samples and variance."""
    bar = SCHEDULE.alpha.square()  # ᾱ_0..ᾱ_T
    x, V = start, torch.zeros_like(start)
    for done, t in enumerate(range(SCHEDULE.T, 0, -1)):
        beta = 1 - bar[t] / bar[t - 1]
        f = x @ W.T + v
        V_next = V / (1 - beta).sqrt() + (beta if total else 0)
        if done % every == 0:
            dW, dv = D[:9].T.reshape(-1, 3, 3), D[9:].T
            gamma = ((torch.einsum("kij,bj->kbi", dW, x) + dv[:, None]) ** 2).sum(0)
            f = f + gamma.sqrt() * own.pop(0)
            if total:
                V = V.clamp(min=0)
                xs = torch.stack([start + V.sqrt() * own.pop(0) for _ in range(draws)])  # E never moves
                fs = xs @ W.T + v
                C = (xs * fs).mean(0) - start * fs.mean(0)
                V_next = V / (1 - beta).sqrt() - 2 * beta / ((1 - beta) * (1 - bar[t]).sqrt()) * C + beta
            V_next = V_next + beta**2 / ((1 - beta) * (1 - bar[t])) * gamma
        x, V = (x - beta / (1 - bar[t]).sqrt() * f) / (1 - beta).sqrt(), V_next
        x = x + beta.sqrt() * z.pop(0) if t > 1 else x
    return x, V


@pytest.mark.parametrize("total", [True, False])
def test_bayesdiff_as_released_is_the_recursion_of_the_script(affine, total):
    denoiser, W, v = affine
    posterior = flare.posteriors.diagonal(
        denoiser, flare.subsets.last_layer(denoiser), pairs_of(), 1.0, 200.0, curvature="fisher"
    )
    D = posterior.exact_directions()
    result = baselines.bayesdiff(
        denoiser, flare.samplers.ddpm(SCHEDULE, variance="large"), posterior, 4, (3,), draws=6, every=3,
        total=total, variant="released", directions=D, seed=9,
    )  # fmt: skip
    start, *z = noises(9, 4, 1 + SCHEDULE.T)
    x, V = released_by_hand(W, v, D, start, z, noises(9, 4, 200, tag=2), 6, 3, total)
    np.testing.assert_allclose(result.samples, x, rtol=1e-7)
    np.testing.assert_allclose(result.variance, V, rtol=1e-7)


def test_bayesdiff_as_released_is_that_of_the_paper_without_noise(affine):
    denoiser, *_ = affine
    posterior = baselines.llla(denoiser, pairs_of(), 1.0, 1e4)
    released = baselines.bayesdiff(denoiser, DDIM, posterior, 5, (3,), variant="released")
    assert released == baselines.bayesdiff(denoiser, DDIM, posterior, 5, (3,))
    with pytest.raises(ValueError, match="variant"):
        baselines.bayesdiff(denoiser, DDIM, posterior, 5, (3,), variant="relased")


def test_bayesdiff_total_variance_of_an_affine_denoiser_is_the_true_one():
    """With f = w·x the state is Gaussian: V' = (a + bw)²V + c² + b²γ², which C finds by itself."""
    w = 0.3
    denoiser = flare.Denoiser(Affine(w * torch.eye(3, dtype=torch.float64), torch.zeros(3)))
    posterior = flare.posteriors.diagonal(
        denoiser, flare.subsets.last_layer(denoiser), pairs_of(), 1.0, 1e12, curvature="ggn"
    )
    steps = flare.samplers.ddpm(SCHEDULE, 6)
    result = baselines.bayesdiff(denoiser, steps, posterior, 40, (3,), draws=2000, every=1)
    V = 0.0
    for row in steps.rows("epsilon"):
        a, b = row.A + row.B[0] * row.p, row.B[0] * row.q
        V = (a**2 + 2 * a * b * w) * V + row.c**2  # the rule leaves b²·Var(f) to γ², which is nought here
    assert result.variance.mean().item() == pytest.approx(V, rel=0.1)


def test_bayesdiff_does_not_depend_on_the_batches_and_names_what_it_cannot_do(affine):
    denoiser, *_ = affine
    posterior = baselines.llla(denoiser, pairs_of(), 1.0, 1e4)
    one = baselines.bayesdiff(denoiser, DDPM, posterior, 5, (3,))
    many = baselines.bayesdiff(denoiser, DDPM, posterior, 5, (3,), batch_size=2)
    torch.testing.assert_close(one.variance, many.variance)
    with pytest.raises(ValueError, match="one-step sampler"):
        baselines.bayesdiff(denoiser, flare.samplers.dpmpp_2m(SCHEDULE, 5), posterior, 5, (3,))
    with pytest.raises(ValueError, match="BayesDiff does not"):
        baselines.bayesdiff(denoiser, DDPM, posterior, 5, (3,), score="off_manifold")
    with pytest.raises(ValueError, match="draws"):
        baselines.bayesdiff(denoiser, DDPM, posterior, 5, (3,), draws=0)


def test_moved_denoisers_leave_the_first_alone(affine):
    denoiser, _, v = affine
    x, t = torch.randn(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    before = denoiser(x, t)
    other = denoiser.with_params({"out.bias": v + 1})
    torch.testing.assert_close(other(x, t), before + 1)
    assert torch.equal(denoiser(x, t), before)
    with pytest.raises(ValueError, match="parameter"):
        denoiser.with_params({"nonsense": v})
    assert math.isclose(float(denoiser.params["out.bias"][0]), float(v[0]))


def test_bayesdiff_takes_rows_of_any_kind(affine):
    denoiser, *_ = affine
    posterior = baselines.llla(denoiser, pairs_of(), 1.0, 1e4)

    def variance(steps):
        return baselines.bayesdiff(denoiser, steps, posterior, 5, (3,)).variance

    # what looks at the unclipped clean sample is the same where nothing is clipped
    one, other = (flare.samplers.ddim(SCHEDULE, 10, clip=1e9, use_clipped=use) for use in (True, False))
    torch.testing.assert_close(variance(one), variance(other), rtol=1e-6, atol=0)
    # noise whose scale is a function adds as much as noise with that scale
    learned = replace(
        DDPM,
        transitions=tuple(
            replace(row, c=1.0, noise=lambda x, t, cond, c=row.c: c * torch.ones_like(x)) if row.c else row
            for row in DDPM.transitions
        ),
    )
    torch.testing.assert_close(variance(learned), variance(DDPM), rtol=1e-6, atol=0)


def test_bayesdiff_takes_secants_where_forward_mode_fails():
    class OneWay(Affine):
        def forward(self, x, t):
            return Backward.apply(super().forward(x, t)) / 2

    net = OneWay(0.3 * torch.eye(3, dtype=torch.float64), torch.zeros(3))
    denoiser, plain = flare.Denoiser(net), flare.Denoiser(Affine(net.out.weight.detach(), torch.zeros(3)))
    exact = baselines.bayesdiff(plain, DDIM, baselines.llla(plain, pairs_of(), 1.0, 1e4), 4, (3,))
    posterior = baselines.llla(denoiser, pairs_of(), 1.0, 1e4)
    with pytest.warns(RuntimeWarning, match="takes secants"):
        found = baselines.bayesdiff(denoiser, DDIM, posterior, 4, (3,))
    torch.testing.assert_close(found.variance, exact.variance, rtol=1e-3, atol=0)


def test_existing_samples_are_checked(affine):
    denoiser, *_ = affine
    bad = torch.full((2, 3), float("nan"), dtype=torch.float64)
    for make in (baselines.Residual, baselines.DenoisingError):
        with pytest.raises(ValueError, match="NaN"):
            make(denoiser, SCHEDULE).score(bad)
    with pytest.raises(ValueError, match="at least one level"):
        baselines.DenoisingError(denoiser, SCHEDULE, levels=[])
    with pytest.raises(ValueError, match="at least one number"):
        baselines.last_iterates(denoiser, DDIM, 2, (3,), last=[])

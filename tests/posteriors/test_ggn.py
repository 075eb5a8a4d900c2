from __future__ import annotations

import pytest
import torch
from reference import TinyNet, flat_index, naive_ggn, small_problem

import flare
from flare import subsets
from flare.autodiff.vjp import pull_rows
from flare.posteriors import curvature
from flare.posteriors.products import Products


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 2)])
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
@pytest.mark.parametrize("weighting", ["uniform", "min_snr"])
def test_H_equals_a_naive_loop(shape, prediction, weighting):
    net, denoiser, pairs = small_problem(shape, weighting=weighting, prediction=prediction)
    subset = subsets.random(denoiser, fraction=0.5, seed=1)
    full, sigma2 = naive_ggn(net, pairs, prediction)
    index = flat_index(subset, net)
    H, statistics = curvature.ggn(denoiser, subset, pairs, probes=None)
    torch.testing.assert_close(H, full[index][:, index], rtol=1e-10, atol=1e-12)
    diagonal, _ = curvature.ggn(denoiser, subset, pairs, probes=None, diagonal=True)
    torch.testing.assert_close(diagonal, full.diagonal()[index], rtol=1e-10, atol=1e-12)
    assert statistics.residual_variance == pytest.approx(sigma2, rel=1e-10)
    assert (statistics.pairs, statistics.data_size, statistics.dimension) == (
        40,
        30,
        torch.Size(shape).numel(),
    )
    assert curvature.residual_statistics(denoiser, pairs) == pytest.approx(statistics)


def test_products_equal_those_of_the_matrix():
    net, denoiser, pairs = small_problem((2, 3))
    subset = subsets.random(denoiser, fraction=0.5, seed=1)
    index = flat_index(subset, net)
    H = naive_ggn(net, pairs)[0][index][:, index]
    products = Products(denoiser, subset, pairs)
    v = torch.randn(4, subset.size, dtype=torch.float64)
    torch.testing.assert_close(products(v), v @ H, rtol=1e-10, atol=1e-12)
    draws = products.noise(20_000, torch.Generator().manual_seed(0))
    error = (draws.T @ draws / len(draws) - H).norm() / H.norm()
    assert error < 0.05, "noise has covariance H"


def gram(denoiser, subset, batch, u, scale):
    """Σ scale²·Jᵀu uᵀJ over the pairs and probes of a batch."""
    rows = pull_rows(denoiser, subset, batch.x, batch.t, u) * scale[:, None, None]
    return rows.flatten(0, 1).T @ rows.flatten(0, 1)


def test_random_probes_are_unbiased():
    _, denoiser, pairs = small_problem((6,), n=10)
    subset = subsets.named(denoiser, "second.*")
    exact, _ = curvature.ggn(denoiser, subset, pairs, probes=None)
    for k in (1, 2):
        draws = []
        for seed in range(300):
            # the same pairs with other probes
            total = 0.0
            for i, batch in enumerate(pairs.batches("epsilon")):
                u = curvature.draw_probes(k, pairs, subset.size, batch.x, seed * 97 + i)
                total = total + gram(denoiser, subset, batch, u, batch.weight.sqrt()) / pairs.n
            draws.append(total)
        draws = torch.stack(draws)
        error, spread = (draws.mean(0) - exact), draws.std(0) / len(draws) ** 0.5
        assert (error.abs() <= 5 * spread + 1e-12).all()


def test_auto_chooses_the_number_of_probes_by_the_size_of_the_subset():
    assert curvature.probe_count("auto", n=20_000, m=4_412, d=80) == 2
    assert curvature.probe_count("auto", n=2_000, m=4_412, d=80) == 18
    assert curvature.probe_count("auto", n=100, m=4_412, d=80) is None
    assert curvature.probe_count("auto", n=20_000, m=100, d=80) == 1
    assert curvature.probe_count(None, n=1, m=1, d=80) is None
    assert curvature.probe_count(80, n=1, m=1, d=80) is None


def test_the_empirical_fisher_is_the_naive_one_and_the_ggn_on_average():
    net, denoiser, pairs = small_problem((3,))
    subset = subsets.everything(denoiser)
    total, n = 0.0, 0
    sigma2 = naive_ggn(net, pairs)[1]
    for batch in pairs.batches("epsilon"):
        for i in range(len(batch)):
            net.zero_grad()
            out = net(batch.x[i : i + 1], batch.t[i : i + 1])
            # the log-likelihood of N(target, σ²/w): its gradient is w·Jᵀr/σ²; H is σ² times its square
            (0.5 * batch.weight[i] * (out - batch.target[i]).square().sum() / sigma2).backward()
            g = torch.cat([p.grad.flatten() for p in net.parameters()])
            total = total + sigma2 * torch.outer(g, g)
            n += 1
    fisher, _ = curvature.ggn(denoiser, subset, pairs, kind="fisher")
    torch.testing.assert_close(fisher, total / n, rtol=1e-10, atol=1e-12)

    # With residuals that are N(0, σ²/w), it is the GGN on average: no factor of 2, no factor of d.
    ratio = []
    for seed in range(30):
        own = flare.noising.pairs(pairs.data, pairs.schedule, n=400, seed=seed, weighting="uniform")
        H, _ = curvature.ggn(denoiser, subset, own, probes=None)
        g = torch.Generator().manual_seed(seed)
        F = 0.0
        for batch in own.batches("epsilon"):
            r = torch.randn(batch.x.shape, generator=g, dtype=batch.x.dtype)
            F = F + gram(denoiser, subset, batch, r.unsqueeze(1), batch.weight) / own.n
        ratio.append((F.trace() / H.trace()).item())
    mean, error = torch.tensor(ratio).mean(), torch.tensor(ratio).std() / len(ratio) ** 0.5
    assert abs(mean - 1) < 4 * error


def test_pairs_are_reproducible_and_their_targets_recover_the_data():
    _, _, pairs = small_problem((3,), n=37)
    first, second = (torch.cat([b.x for b in pairs.batches("epsilon")]) for _ in range(2))
    assert torch.equal(first, second)
    assert len(first) == 37
    assert len(pairs) == 3
    # removing the target noise from x_t recovers a row of the data
    for batch in pairs.batches("epsilon"):
        level = (batch.t + 1).long()
        alpha, sigma = pairs.schedule.alpha[level, None], pairs.schedule.sigma[level, None]
        x0 = (batch.x - sigma * batch.target) / alpha
        assert torch.cdist(x0, pairs.data).min(1).values.max() < 1e-6


def test_conditions_follow_their_rows():
    data = torch.arange(20.0).reshape(20, 1)
    own = flare.noising.pairs(data, flare.schedules.cosine(5), n=50, cond={"shift": data[:, 0]})
    for batch in own.batches("sample"):
        assert torch.equal(batch.target[:, 0], batch.cond["shift"])


def test_errors_name_the_bad_input():
    _, denoiser, pairs = small_problem((3,))
    subset = subsets.everything(denoiser)
    schedule = pairs.schedule
    for call, message in [
        (lambda: flare.noising.pairs(torch.zeros(0, 3), schedule), "data is empty"),
        (lambda: flare.noising.pairs(torch.full((2, 3), torch.nan), schedule), "NaN"),
        (lambda: flare.noising.pairs(pairs.data, schedule, n=0), "n must be"),
        (lambda: flare.noising.pairs(pairs.data, schedule, weighting="snr"), "unknown weighting"),
        (
            lambda: flare.noising.pairs(pairs.data, schedule, cond={"y": torch.zeros(3)}),
            "one row per sample, 30",
        ),
        (lambda: curvature.ggn(denoiser, subset, pairs, probes=0), "probes must be"),
        (lambda: curvature.ggn(denoiser, subset, pairs, probes="many"), "'auto'"),
        (lambda: curvature.ggn(denoiser, subset, pairs, kind="hessian"), "unknown curvature"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

    class Poisoned(TinyNet):
        def forward(self, x, t):
            return super().forward(x, t) * torch.where(x > 1, torch.nan, 1.0)

    broken = flare.Denoiser(Poisoned((3,), 6).double())
    with pytest.raises(ValueError, match="Poisoned returns NaN or infinity on its training pairs"):
        curvature.ggn(broken, subsets.everything(broken), pairs)

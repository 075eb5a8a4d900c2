"""The rules against finite differences, closed forms, and each other."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from reference import Backward, TinyNet, flat_index, naive_jacobian, small_problem
from torch import nn

import flare
from flare import posteriors, samplers, schedules, subsets
from flare.core.noise_streams import NoiseStreams, mix_seed
from flare.diagnostics.linearization import spearman
from flare.diffusion.steps import Threshold
from flare.posteriors import curvature
from flare.propagation.trajectory import walk

T = 12
VP, FLOW = schedules.linear(T, 0.02, 0.3), schedules.flow(T)
EDM = schedules.edm(0.05, 5.0)
TABLES = {
    "ddpm": lambda clip: samplers.ddpm(VP, clip=clip),
    "ddim": lambda clip: samplers.ddim(VP, 8, eta=0.3, clip=clip),
    "ddim_raw": lambda clip: samplers.ddim(VP, 8, eta=0.3, clip=clip, use_clipped=False),
    "dpmpp_2m": lambda clip: samplers.dpmpp_2m(VP, 8, clip=clip),
    # from below pure noise, where epsilon says something too
    "euler": lambda clip: samplers.euler(FLOW, [0.9 * T, 0.6 * T, 0.4 * T, 0.2 * T, 0.1 * T], clip=clip),
    "heun": lambda clip: samplers.heun(VP, 4, clip=clip),
    "heun_flow": lambda clip: samplers.heun(FLOW, [0.9 * T, 0.5 * T, 0.2 * T], clip=clip),
    "heun_edm": lambda clip: samplers.heun(EDM, 5, clip=clip),
    "heun_churn": lambda clip: samplers.heun(EDM, 5, clip=clip, churn=samplers.Churn(2, 0.06, 4, 1.01)),
    "euler_churn": lambda clip: samplers.euler(EDM, 6, clip=clip, churn=samplers.Churn(2)),
}


def predictions(sampler):
    """What a network may predict on the schedule of a sampler."""
    schedule = TABLES[sampler](None).schedule
    own = "v" if schedule is VP else "flow" if schedule is FLOW else "edm"
    return ("epsilon", "sample", own)


CASES = [(s, p) for s in TABLES for p in predictions(s)]


def problem(shape=(3,), prediction="epsilon", count=15, delta=1.0):
    net, _, _ = small_problem(shape, prediction="sample" if prediction in ("flow", "edm") else prediction)
    denoiser = flare.Denoiser(net, prediction)
    subset = subsets.random(denoiser, count=count, seed=4)
    # the tables of pairs are variance preserving; the curvature only has to be some curvature here
    H = torch.randn(count, count, dtype=torch.float64)
    statistics = curvature.Statistics(1, 1, 1, 1.0)
    origin = curvature.Origin.of(denoiser, subset, statistics)
    return net, denoiser, posteriors.Dense(origin, delta, 1.0, *torch.linalg.eigh(H @ H.T))


def perturbed(denoiser, subset, direction, h):
    """The denoiser with θ + h·direction."""
    moved = subset.scatter(direction)
    other = copy.deepcopy(denoiser.module)
    for name, p in other.named_parameters():
        if name in moved:
            p.data = p.data + h * moved[name]
    return flare.Denoiser(other, denoiser.prediction)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 2)], ids=str)
@pytest.mark.parametrize("clip", [None, 1.5, Threshold(0.8, 2.5)], ids=str)
@pytest.mark.parametrize(("sampler", "prediction"), CASES)
def test_tangent_is_the_central_difference_of_whole_trajectories(sampler, prediction, clip, shape):
    _, denoiser, posterior = problem(shape, prediction)
    steps = TABLES[sampler](clip)
    D = posterior.directions(2, torch.Generator().manual_seed(0))
    rule = flare.propagation.Tangent(denoiser, posterior.subset, D)
    start = torch.randn(6, *shape, dtype=torch.float64)

    def end(model):
        return flare.sample(model, steps, start=start, seed=3).samples

    rows = steps.rows(prediction)
    noise = NoiseStreams(3, 0, 6, shape, 1 + sum(row.c > 0 for row in rows))
    noise.next()
    *_, last = walk(rows, rule, start, noise, {})
    torch.testing.assert_close(last.x, end(denoiser))
    h = 1e-6
    for k in range(2):
        plus, minus = (end(perturbed(denoiser, posterior.subset, D[:, k], s * h)) for s in (1, -1))
        difference = (plus - minus) / (2 * h)
        assert (difference != 0).float().mean() > 0.1, "not everything is clipped"
        error = (last.spread.deviations[k] - difference).norm() / difference.norm()
        assert error < 1e-5
    torch.testing.assert_close(last.spread.variance, last.spread.deviations.square().sum(0))


@pytest.mark.parametrize("sampler", TABLES)
def test_exact_is_the_tangent_along_a_whole_square_root(sampler):
    prediction = "sample"
    _, denoiser, posterior = problem((2, 2), prediction)
    steps = TABLES[sampler](1.5)
    exact = flare.sample(
        denoiser, steps, posterior, n=5, shape=(2, 2), directions="exact", covariance=True,
        score=["trace", "off_manifold", "residual_variance", "expected_residual"],
    )  # fmt: skip
    rule = flare.propagation.Tangent(denoiser, posterior.subset, posterior.exact_directions())
    rows = steps.rows(prediction)
    noise = NoiseStreams(0, 0, 5, (2, 2), 1 + sum(row.c > 0 for row in rows))
    *_, last = walk(rows, rule, noise.next().double() * steps.start, noise, {})
    torch.testing.assert_close(exact.variance, last.spread.variance)
    flat = last.spread.deviations.flatten(2)
    torch.testing.assert_close(exact.covariance, torch.einsum("kbi,kbj->bij", flat, flat))
    assert exact.profile is None, "it would cost more than the steps"
    drawn = flare.sample(denoiser, steps, posterior, n=5, shape=(2, 2), directions=3, score="trace")
    torch.testing.assert_close(drawn.profile[:, -1], drawn.score)


def test_single_draws_are_unbiased():
    """The mean of the variance over 2,000 single draws is the exact one, within its standard error."""
    _, denoiser, posterior = problem((3,))
    steps = TABLES["ddim"](1.5)
    exact = flare.sample(denoiser, steps, posterior, n=4, shape=(3,), directions="exact").variance
    # 2,000 directions of one call are 2,000 single draws: each term is K times one of them
    many = posterior.directions(2_000, torch.Generator().manual_seed(0))
    rows = steps.rows("epsilon")
    noise = NoiseStreams(0, 0, 4, (3,), 1 + sum(row.c > 0 for row in rows))
    rule = flare.propagation.Tangent(denoiser, posterior.subset, many)
    *_, last = walk(rows, rule, noise.next().double(), noise, {})
    single = 2_000 * last.spread.deviations.square()
    error = single.std(0) / 2_000**0.5
    assert ((single.mean(0) - exact).abs() <= 4 * error).all()


def closed_form(net, denoiser, posterior, steps, start, released):
    """Σ_t (Π a²) b² diag(J Σ Jᵀ), unrolled, with J by plain backward passes along a stored path."""
    sigma = posterior.covariance(torch.eye(posterior.size, dtype=torch.float64))
    index = flat_index(posterior.subset, net)
    frames = list(flare.trajectories(denoiser, steps, start=start, seed=0))
    path = [start, *(frame.x for frame in frames)]
    a, own = [], []
    for frame, x in zip(frames, path, strict=False):
        row = frame.step
        t = torch.full((len(x),), row.time)
        J = naive_jacobian(net, x, t)[..., index]
        own.append((row.B[0] * row.q) ** 2 * torch.einsum("bdm,mn,bdn->bd", J, sigma, J))
        a.append(row.A + row.B[0] * row.p)
    total = torch.zeros_like(start)
    for t, value in enumerate(own):
        others = a[:t] if released else a[t + 1 :]
        total = total + torch.tensor(others, dtype=torch.float64).square().prod() * value
    return total


@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
@pytest.mark.parametrize("rule", ["decoupled", "released"])
def test_decoupled_and_released_are_their_unrolled_sums(rule, prediction):
    net, denoiser, posterior = problem((3,), prediction)
    steps = samplers.ddpm(schedules.linear(T, 1e-2, 0.3))
    start = torch.randn(4, 3, dtype=torch.float64)
    result = flare.sample(denoiser, steps, posterior, start=start, rule=rule, directions="exact")
    expected = closed_form(net, denoiser, posterior, steps, start, rule == "released")
    torch.testing.assert_close(result.variance, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.score, expected.sum(1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sampler", ["dpmpp_2m", "heun", "heun_edm"])
@pytest.mark.parametrize("rule", ["decoupled", "released"])
def test_one_step_rules_refuse_multistep_samplers_with_the_way_out(rule, sampler):
    _, denoiser, posterior = problem((3,))
    with pytest.raises(ValueError, match=f"{rule} needs a one-step sampler; .* Use rule='tangent'"):
        flare.sample(denoiser, TABLES[sampler](None), posterior, n=2, shape=(3,), rule=rule)


def test_monte_carlo_is_a_plain_loop_over_models():
    _, denoiser, posterior = problem((3,), delta=50.0)
    for sampler in ("ddpm", "dpmpp_2m", "heun_churn"):
        steps = TABLES[sampler](1.5)
        result = flare.sample(
            denoiser,
            steps,
            posterior,
            n=4,
            shape=(3,),
            rule="monte_carlo",
            directions=7,
            seed=5,
            covariance=True,
        )
        D = posterior.directions(7, torch.Generator().manual_seed(mix_seed(5, -1)))
        ends = torch.stack(
            [
                flare.sample(
                    perturbed(denoiser, posterior.subset, D[:, k] * 7**0.5, 1.0),
                    steps,
                    n=4,
                    shape=(3,),
                    seed=5,
                ).samples
                for k in range(7)
            ]
        )
        torch.testing.assert_close(result.variance, ends.var(0))
        torch.testing.assert_close(
            result.covariance, torch.stack([torch.cov(ends[:, i].T) for i in range(4)])
        )
        torch.testing.assert_close(
            result.samples, flare.sample(denoiser, steps, n=4, shape=(3,), seed=5).samples
        )


def test_a_small_posterior_makes_monte_carlo_and_tangent_agree():
    _, denoiser, posterior = problem((3,), delta=1e8)
    for sampler in TABLES:
        prediction = "sample" if sampler == "euler" else "epsilon"
        own = flare.Denoiser(denoiser.module, prediction)
        origin = curvature.Origin.of(own, posterior.subset, posterior.origin.statistics)
        posterior = replace(posterior, origin=origin, prior_precision=1e8, scale=1.0)
        check = flare.check_linearization(own, TABLES[sampler](1.5), posterior, n=12, shape=(3,), draws=200)
        assert 0.97 < check.ratio < 1.03
        assert check.correlation > 0.97
        assert "First order is enough" in check.verdict


def test_a_wild_posterior_is_reported_as_such():
    _, denoiser, posterior = problem((3,), delta=1e-2)
    check = flare.check_linearization(denoiser, TABLES["ddpm"](1.5), posterior, n=20, shape=(3,), draws=20)
    assert "First order is enough" not in check.verdict
    assert f"{check.ratio:.3g}" in str(check)


class Linear(nn.Module):
    """f(x) = W x + b: every quantity of the endpoint and of the scores has a closed form."""

    def __init__(self, d=3):
        super().__init__()
        self.w = nn.Parameter(torch.randn(d, d, dtype=torch.float64) * 0.3)
        self.b = nn.Parameter(torch.randn(d, dtype=torch.float64) * 0.3)

    def forward(self, x, t):
        return x @ self.w.T + self.b


def test_endpoint_and_scores_have_their_closed_forms_for_a_linear_network():
    torch.manual_seed(0)
    net = Linear()
    denoiser = flare.Denoiser(net, "sample")
    subset = subsets.everything(denoiser)
    H = torch.randn(12, 12, dtype=torch.float64)
    origin = curvature.Origin.of(denoiser, subset, curvature.Statistics(1, 1, 3, 1.0))
    posterior = posteriors.Dense(origin, 1.0, 1.0, *torch.linalg.eigh(H @ H.T))
    sigma = torch.linalg.inv(H @ H.T + torch.eye(12))
    x0 = torch.randn(5, 3, dtype=torch.float64)
    level = VP.at(round(0.25 * T))

    # endpoint: x̂0 = f, J = [I ⊗ xᵀ, I] at the re-noised x
    eps = NoiseStreams(mix_seed(0, -2), 0, 5, (3,), 1).next().double()
    x = level.alpha * x0 + level.sigma * eps
    eye = torch.eye(3, dtype=torch.float64)

    def J_at(v):
        return torch.cat([torch.kron(eye, v[None]), eye], dim=1)  # (3, 12)

    expected = torch.stack([torch.trace(J_at(v) @ sigma @ J_at(v).T) for v in x])
    ours = flare.score(denoiser, posterior, VP, x0, score="trace", levels=[0.25], directions="exact")
    torch.testing.assert_close(ours, expected)

    # scores: one DDIM step from x to x̂0 = W x + b, so δx_0 = J(x) δθ, and at the reference level
    # x̂0(αx_0) = W α x_0 + b: δx̂0 = α W δx_0 + J(αx_0) δθ
    top = VP.at(T)
    steps = samplers.ddim(VP, [T])
    names = ["trace", "off_manifold", "residual_variance", "expected_residual"]
    result = flare.sample(
        denoiser, steps, posterior, start=x, directions="exact", score=names, levels=0.25, covariance=True
    )
    assert top.sigma > 0
    W = net.w.detach()
    torch.testing.assert_close(result.samples, x @ W.T + net.b.detach())
    for i in range(5):
        S = J_at(x[i])
        end = result.samples[i]
        off = (eye - level.alpha * W) @ S
        r = off - J_at(level.alpha * end)
        residual = end - (level.alpha * W @ end + net.b.detach())
        torch.testing.assert_close(result.covariance[i], S @ sigma @ S.T)
        expected = [torch.trace(M @ sigma @ M.T) for M in (S, off, r)]
        expected.append(expected[-1] + residual.square().sum())
        for name, value in zip(names, expected, strict=True):
            torch.testing.assert_close(result.scores[name][i], value)
    torch.testing.assert_close(result.score, result.scores["trace"])
    torch.testing.assert_close(result.normalized, result.scores["trace"] / 3)


def test_results_do_not_depend_on_the_batch_size():
    _, denoiser, posterior = problem((3,))
    for rule in flare.propagation.RULES:
        whole, parts = (
            flare.sample(
                denoiser,
                TABLES["ddpm"](1.5),
                posterior,
                n=7,
                shape=(3,),
                rule=rule,
                directions=3,
                batch_size=size,
            )
            for size in (7, 2)
        )
        torch.testing.assert_close(whole.variance, parts.variance)
        torch.testing.assert_close(whole.score, parts.score)
        if whole.profile is not None:
            torch.testing.assert_close(whole.profile, parts.profile)
            assert whole.profile.shape == (7, T)
    existing = torch.randn(7, 3, dtype=torch.float64)
    a, b = (flare.score(denoiser, posterior, VP, existing, batch_size=size) for size in (7, 3))
    torch.testing.assert_close(a, b)


def test_samples_are_those_of_plain_sampling():
    _, denoiser, posterior = problem((3,))
    plain = flare.sample(denoiser, TABLES["ddpm"](1.5), n=6, shape=(3,), seed=2).samples
    for rule in flare.propagation.RULES:
        own = flare.sample(denoiser, TABLES["ddpm"](1.5), posterior, n=6, shape=(3,), seed=2, rule=rule)
        torch.testing.assert_close(own.samples, plain)


def test_conditions_reach_the_derivatives():
    _, denoiser, posterior = problem((3,))
    shift = torch.randn(6, dtype=torch.float64)
    steps = TABLES["ddpm"](1.5)
    whole = flare.sample(
        denoiser, steps, posterior, n=6, shape=(3,), cond={"shift": shift}, directions="exact"
    )
    draws = flare.sample(denoiser, steps, posterior, n=6, shape=(3,), cond={"shift": shift}, directions=2000)
    torch.testing.assert_close(draws.score, whole.score, rtol=0.25, atol=0)
    none = flare.sample(denoiser, steps, posterior, n=6, shape=(3,), directions="exact")
    assert not torch.allclose(none.score, whole.score)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_rank_as_float64_does(dtype):
    torch.manual_seed(0)
    net = TinyNet((4,), 12)
    scores = []
    for kind in (torch.float64, dtype):
        denoiser = flare.Denoiser(copy.deepcopy(net).to(kind))
        subset = subsets.everything(denoiser)
        data = torch.randn(50, 4, dtype=kind)
        pairs = flare.noising.pairs(data, VP, n=100)
        posterior = posteriors.diagonal(denoiser, subset, pairs, prior_precision=1.0)
        scores.append(
            flare.sample(
                denoiser, TABLES["ddpm"](1.5), posterior, n=60, shape=(4,), directions=32
            ).score.double()
        )
    assert spearman(*scores) > (0.99 if dtype == torch.float32 else 0.8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "tangents"}, "did you mean 'tangent'"),
        ({"score": "traces"}, "did you mean 'trace'"),
        ({"score": []}, "at least one score"),
        ({"directions": 0}, "directions must be an integer of at least 1"),
        ({"directions": "all"}, "'exact'"),
        ({"rule": "monte_carlo", "directions": 1}, "at least 2 draws"),
        ({"rule": "monte_carlo", "directions": "exact"}, "monte_carlo draws models"),
        (
            {"rule": "decoupled", "score": "off_manifold"},
            "off_manifold needs a rule that keeps its directions",
        ),
        ({"rule": "endpoint", "covariance": True}, "covariance=True needs a rule"),
        ({"rule": "endpoint", "score": "residual_variance"}, "and endpoint does not"),
        ({"levels": 0.0}, "fraction of T"),
    ],
)
def test_bad_input_is_named(arguments, message):
    _, denoiser, posterior = problem((3,))
    with pytest.raises(ValueError, match=message):
        flare.sample(denoiser, TABLES["ddpm"](1.5), posterior, n=2, shape=(3,), **arguments)
    with pytest.raises(ValueError, match="at least one level"):
        flare.score(denoiser, posterior, VP, torch.zeros(2, 3), levels=[])
    with pytest.raises(ValueError, match="needs a posterior"):
        flare.sample(denoiser, TABLES["ddpm"](1.5), n=2, shape=(3,), covariance=True)
    with pytest.raises(ValueError, match="without a posterior"):
        _ = flare.sample(denoiser, TABLES["ddpm"](1.5), n=2, shape=(3,)).score


def test_what_cannot_be_given_is_refused_before_the_first_step():
    _, denoiser, posterior = problem((3,))

    def never(frames):
        raise AssertionError("the walk began")

    with pytest.raises(ValueError, match="keeps its directions"):
        flare.sample(
            denoiser, TABLES["ddpm"](1.5), posterior, n=2, shape=(3,), rule="endpoint", covariance=True,
            progress=never,
        )  # fmt: skip


def test_existing_samples_are_renoised_with_other_noise_than_made_them():
    noise, other = (NoiseStreams(seed, 0, 4, (3,), 1).next() for seed in (0, mix_seed(0, -2)))
    assert not torch.allclose(noise, other)


class Attention(nn.Module):
    """Attention over the length of a series (C, L), with a learnable scalar gate."""

    def __init__(self, channels=4):
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.gate = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, t):
        q, k, v = self.qkv(x.mT).unsqueeze(1).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1)
        return self.out(self.gate * mixed).mT + t.view(-1, 1, 1) / 50


@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank", "matrix_free"])
def test_attention_and_scalar_parameters_are_differentiated(structure):
    torch.manual_seed(0)
    denoiser = flare.Denoiser(Attention())
    subset = subsets.everything(denoiser)
    pairs = flare.noising.pairs(torch.randn(20, 4, 5), VP, n=30)
    options = {"rank": 4} if structure == "low_rank" else {}
    posterior = getattr(posteriors, structure)(denoiser, subset, pairs, 1.0, **options)
    result = flare.sample(denoiser, TABLES["ddpm"](1.5), posterior, n=3, shape=(4, 5), directions=2)
    assert (result.score > 0).all()


class OneWay(TinyNet):
    def forward(self, x, t):
        return Backward.apply(super().forward(x, t))


def test_a_network_without_forward_derivatives_is_named_and_monte_carlo_still_works():
    torch.manual_seed(0)
    denoiser = flare.Denoiser(OneWay((3,)))
    subset = subsets.last_layer(denoiser)
    pairs = flare.noising.pairs(torch.randn(20, 3), VP, n=30)
    posterior = posteriors.dense(denoiser, subset, pairs, 1.0)
    with pytest.raises(
        RuntimeError, match=r"OneWay cannot be differentiated in forward mode: .*rule='monte_carlo'"
    ):
        flare.sample(denoiser, TABLES["ddim"](None), posterior, n=2, shape=(3,), derivative="exact")
    result = flare.sample(denoiser, TABLES["ddim"](None), posterior, n=2, shape=(3,), rule="monte_carlo")
    assert (result.score > 0).all()


def test_nothing_is_tracked_and_inference_mode_and_the_default_dtype_do_not_matter():
    _, denoiser, posterior = problem((3,))
    start = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    arguments = {"posterior": posterior, "directions": 3}
    result = flare.sample(denoiser, TABLES["ddpm"](1.5), start=start, **arguments)
    assert not result.samples.requires_grad
    assert not result.score.requires_grad
    with torch.inference_mode():
        inside = flare.sample(denoiser, TABLES["ddpm"](1.5), start=start.detach(), **arguments)
    torch.testing.assert_close(inside.score, result.score)
    torch.set_default_dtype(torch.float64)
    try:
        wide = flare.sample(denoiser, TABLES["ddpm"](1.5), start=start.detach(), **arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(wide.samples, result.samples)


def test_several_levels_are_averaged():
    _, denoiser, posterior = problem((3,))

    def scores(level):
        return flare.sample(
            denoiser, TABLES["ddpm"](1.5), posterior, n=4, shape=(3,), levels=level,
            score=[name for name, score in flare.scores.SCORES.items() if score.needs_deviations],
        ).scores  # fmt: skip

    both, low, high = scores((0.1, 0.4)), scores(0.1), scores(0.4)
    for name in both:
        torch.testing.assert_close(both[name], (low[name] + high[name]) / 2)


def test_the_expected_residual_of_existing_samples_is_its_definition():
    net, denoiser, posterior = problem((3,))
    x = torch.randn(5, 3, dtype=torch.float64)
    found = flare.score(
        denoiser, posterior, VP, x, score="expected_residual", levels=[0.2], directions="exact", batch_size=2
    )
    level = VP.at_fraction(0.2)
    t = torch.full((5,), level.time)
    clean = x - level.sigma / level.alpha * net(level.alpha * x, t)
    J = naive_jacobian(net, level.alpha * x, t)[:, :, flat_index(posterior.subset, net)]
    Sigma = posterior.covariance(torch.eye(posterior.size, dtype=torch.float64))
    variance = torch.einsum("bim,mn,bin->b", J, Sigma, J) * (level.sigma / level.alpha) ** 2
    torch.testing.assert_close(found, (x - clean).square().sum(1).detach() + variance)
    with pytest.raises(ValueError, match="off_manifold"):
        flare.score(denoiser, posterior, VP, x, score="off_manifold")


def test_the_default_score_follows_the_posterior_and_the_rule():
    _, denoiser, posterior = problem((3,))
    known = posterior.refit(scale=posterior.origin.statistics.calibrated_scale)
    assert known.is_calibrated
    assert not known.refit(scale=3.0).is_calibrated

    def default(posterior, **options):
        return list(flare.sample(denoiser, TABLES["ddpm"](1.5), posterior, n=2, shape=(3,), **options).scores)

    assert default(known) == ["expected_residual"]
    assert default(known.refit(scale=3.0)) == ["trace"]
    assert default(known, rule="decoupled") == default(known, rule="monte_carlo") == ["trace"]


def test_given_noise_leaves_the_start_to_the_seed():
    _, denoiser, _ = problem((3,))
    draw = lambda: torch.zeros(2, 3)  # noqa: E731
    one, two, again = (
        flare.sample(denoiser, TABLES["ddpm"](1.5), n=2, shape=(3,), noise=draw, seed=seed).samples
        for seed in (1, 2, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, two)

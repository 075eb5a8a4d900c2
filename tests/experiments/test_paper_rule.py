"""All weightings of the paper in one pass, against the library's rules, which push every direction."""

import pytest
import torch
from jacobian_oracle import differentiate, differentiate_by_state

import flare
from experiments import lab, paper_rule
from experiments.jacobians import Jacobian, Push
from flare import bench

PRINTED = {"prior_precision": 1e-6, "scale": 1.0}


@pytest.fixture(scope="module")
def model():
    return bench.load("grid")


def fit(model, subset, **options):
    return flare.posteriors.dense(model.denoiser, subset, lab.pairs(model, 300), **PRINTED, **options)


@pytest.mark.parametrize("name", ["grid", "sines"])
def test_the_jacobian_by_layers_is_the_jacobian(name):
    model = bench.load(name)
    x, t = torch.randn(4, *model.shape, generator=torch.Generator().manual_seed(0)), torch.full((4,), 9)
    layers, by_name = Jacobian(model.denoiser), differentiate(model.denoiser, x, t)
    for subset in (
        flare.subsets.everything(model.denoiser),
        flare.subsets.random(model.denoiser, count=40, seed=1),
    ):
        expected = subset.gather(by_name, lead=2)
        torch.testing.assert_close(layers.rows(x, t, subset), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layers.rows(x, t, subset, 1), expected[:, :1], rtol=1e-4, atol=1e-4)
    by_x = differentiate_by_state(model.denoiser, x, t)
    torch.testing.assert_close(layers.look(x, t)[0], by_x, rtol=1e-4, atol=1e-4)


def test_a_push_is_the_product_with_the_jacobian(model):
    denoiser, g = model.denoiser, torch.Generator().manual_seed(0)
    x, t, dx = torch.randn(4, 2, generator=g), torch.full((4,), 9), torch.randn(3, 4, 2, generator=g)
    subset = flare.subsets.random(denoiser, count=40, seed=1)
    D = torch.randn(40, 3, generator=g)
    by_theta = torch.einsum("bdm,mk->kbd", subset.gather(differentiate(denoiser, x, t), lead=2), D)
    by_x = torch.einsum("bde,kbe->kbd", differentiate_by_state(denoiser, x, t), dx)
    pushed = Push(denoiser, subset, D)
    for found, expected in (
        (pushed(x, None, t), by_theta),
        (pushed(x, dx, t), by_theta + by_x),
        (Push(denoiser)(x, dx, t), by_x),
    ):
        torch.testing.assert_close(found[0], denoiser(x, t))
        torch.testing.assert_close(found[1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weighting", paper_rule.WEIGHTINGS)
def test_the_sums_are_those_of_the_rules_with_exact_directions(model, weighting):
    denoiser, steps = model.denoiser, model.sampler("ddpm", 8)
    random = fit(model, flare.subsets.random(denoiser, count=30, seed=0))
    last = fit(model, flare.subsets.last_layer(denoiser), probes=None)
    sources = [
        paper_rule.Rows(denoiser, {"random": (random.subset, random.exact_directions())}),
        paper_rule.Directions(denoiser, {"pushed": (random.subset, random.exact_directions())}),
        paper_rule.LastLayer(denoiser, "last", fit(model, paper_rule.first_row(denoiser), probes=1)),
    ]
    sums = paper_rule.PaperSums(denoiser, steps, sources)
    x, found = paper_rule.traces(model, steps, sums, random, n=5, seed=3, batch_size=2)
    rule = paper_rule.WEIGHTINGS[weighting]
    for posterior, names in ((random, ("random", "pushed")), (last, ("last",))):
        expected = flare.sample(
            denoiser, steps, posterior, 5, model.shape, rule=rule,
            directions="exact", derivative="exact", score="trace", seed=3,
        )  # fmt: skip
        for name in names:
            torch.testing.assert_close(found[f"{name}, {weighting}"], expected.score, rtol=1e-3, atol=0.0)
        torch.testing.assert_close(x, expected.samples)


def test_the_exact_tangent_is_the_tangent_rule_with_exact_directions(model):
    steps = model.sampler("ddpm", 8)  # x̂0 is clipped on the way
    random = fit(model, flare.subsets.random(model.denoiser, count=30, seed=0))
    last = fit(model, flare.subsets.last_layer(model.denoiser))
    roots = {"random": random, "wide": random.refit(1e-2), "last": last}
    rule = paper_rule.ExactTangent(
        model.denoiser, {name: (p.subset, p.exact_directions()) for name, p in roots.items()}
    )
    x, found = paper_rule.traces(model, steps, rule, random, n=5, seed=3, batch_size=2)
    for name, posterior in roots.items():
        expected = flare.sample(
            model.denoiser, steps, posterior, 5, model.shape, directions="exact", derivative="exact",
            score="trace", seed=3,
        )  # fmt: skip
        torch.testing.assert_close(found[f"{name}, tangent"], expected.score, rtol=1e-3, atol=0.0)
        torch.testing.assert_close(x, expected.samples)


def test_a_subset_is_redrawn_at_every_step(model):
    denoiser = model.denoiser
    everything = flare.subsets.everything(denoiser)
    weights = torch.rand(everything.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source = paper_rule.Redrawn(denoiser, "redrawn", weights.diag(), 25, 2.0, 0.5)
    x, t = torch.randn(3, 2, generator=torch.Generator().manual_seed(1)), torch.full((3,), 40)
    by_tensor = differentiate(denoiser, x, t)
    sizes = weights.split([v.numel() for v in denoiser.params.values()])
    own = {n: w.view_as(v) for (n, v), w in zip(denoiser.params.items(), sizes, strict=True)}
    for step in (0, 1):
        subset = flare.subsets.random(denoiser, count=25, seed=step)
        precision = 2.0 * subset.gather(own) + 0.5
        expected = (subset.gather(by_tensor, lead=2).double().square() / precision).sum(-1)
        torch.testing.assert_close(source(step, x, t)["redrawn"].double(), expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(source(0, x, t)["redrawn"], source(1, x, t)["redrawn"])

from __future__ import annotations

import pytest
import torch
from reference import TinyNet

import flare
from flare.core.noise_streams import NoiseStreams
from flare.sampling.plan import draw_directions

SCHEDULE = flare.schedules.cosine(30)
STEPS = {
    "ddpm": flare.samplers.ddpm(SCHEDULE, clip=1.0),
    "ddim": flare.samplers.ddim(SCHEDULE, 10, clip=1.0),
    "dpmpp_2m": flare.samplers.dpmpp_2m(SCHEDULE, 10, clip=1.0),
    "heun": flare.samplers.heun(flare.schedules.edm(), 6, clip=1.0, churn=flare.samplers.Churn(3.0)),
}


def denoiser(shape=(5,), dtype=torch.float32, **options):
    torch.manual_seed(1)
    return flare.Denoiser(TinyNet(shape, **options).to(dtype))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("shape", [(5,), (2, 6), (3, 4, 4)])
def test_samples_do_not_depend_on_the_batch_size(name, shape):
    draws = [
        flare.sample(denoiser(shape), STEPS[name], n=7, shape=shape, seed=4, batch_size=size).samples
        for size in (1, 3, 7, 100)
    ]
    for other in draws[1:]:
        torch.testing.assert_close(other, draws[0], rtol=1e-5, atol=1e-5)
    assert draws[0].shape == (7, *shape)
    more = flare.sample(denoiser(shape), STEPS[name], n=9, shape=shape, seed=4).samples
    torch.testing.assert_close(more[:7], draws[0], rtol=1e-5, atol=1e-5)


def test_a_range_of_indices_is_drawn_by_itself():
    whole = flare.sample(denoiser(), STEPS["ddpm"], n=9, shape=(5,), seed=4).samples
    part = flare.sample(denoiser(), STEPS["ddpm"], n=3, shape=(5,), seed=4, first=5).samples
    torch.testing.assert_close(part, whole[5:8], rtol=1e-5, atol=1e-5)


def test_seeds_matter_and_repeat():
    a, b, c = (flare.sample(denoiser(), STEPS["ddpm"], n=4, shape=(5,), seed=s).samples for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)


@pytest.mark.parametrize(
    ("device", "reason"), [("cuda:99", "torch does not see"), ("gpu", "Expected one of")]
)
def test_a_device_that_is_not_there_is_refused_in_one_sentence(device, reason):
    message = rf"device {device} cannot be used: {reason}.*Choose from: cpu"
    with pytest.raises(ValueError, match=message):
        denoiser().to(device)


def test_start_replaces_x_T_and_leaves_the_noise_alone():
    kwargs = {"seed": 2, "batch_size": 3}
    x_T = NoiseStreams(2, 0, 5, (5,), 1).next().clone()
    plain = flare.sample(denoiser(), STEPS["ddpm"], n=5, shape=(5,), **kwargs).samples
    started = flare.sample(denoiser(), STEPS["ddpm"], start=x_T, **kwargs).samples
    assert torch.equal(plain, started)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_is_kept_and_the_noise_is_the_same(dtype):
    samples = flare.sample(denoiser(dtype=dtype), STEPS["ddpm"], n=6, shape=(5,)).samples
    assert samples.dtype == dtype
    reference = flare.sample(denoiser(), STEPS["ddpm"], n=6, shape=(5,)).samples
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(samples.float(), reference, rtol=tolerance, atol=tolerance)


def test_noise_from_elsewhere_drives_the_steps():
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(4, 5)
    options = {"start": start, "noise": lambda: torch.randn(4, 5, generator=generator)}
    first = flare.sample(denoiser(), STEPS["ddpm"], **options).samples
    generator.manual_seed(3)
    x, net = start, denoiser()
    for row in STEPS["ddpm"].rows("epsilon"):
        f = net(x, torch.full((4,), row.time))
        z = torch.randn(4, 5, generator=generator) if row.c else torch.zeros(4, 5)
        x = row.A * x + row.B[0] * row.clean(x, f).clamp(-1, 1) + row.c * z
    torch.testing.assert_close(first, x, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="one batch; give batch_size=4"):
        flare.sample(denoiser(), STEPS["ddpm"], batch_size=3, **options)


def test_conditions_go_with_their_samples():
    shift = torch.randn(7)
    together = flare.sample(
        denoiser(), STEPS["ddim"], n=7, shape=(5,), cond={"shift": shift}, batch_size=2
    ).samples
    alone = flare.sample(denoiser(), STEPS["ddim"], n=7, shape=(5,), batch_size=7).samples
    assert not torch.allclose(together, alone)
    zero = flare.sample(denoiser(), STEPS["ddim"], n=7, shape=(5,), cond={"shift": torch.zeros(7)}).samples
    torch.testing.assert_close(zero, alone)
    one = flare.sample(
        denoiser(), STEPS["ddim"], start=NoiseStreams(0, 6, 1, (5,), 1).next(), cond={"shift": shift[6:]}
    ).samples
    torch.testing.assert_close(one[0], together[6], rtol=1e-5, atol=1e-5)


def test_frames_can_be_watched():
    seen = []

    def watch(frames):
        assert len(frames) == 30 * 3
        for frame in frames:
            seen.append((frame.first, frame.index, frame.x.shape, frame.last))
            yield frame

    flare.sample(denoiser(), STEPS["ddpm"], n=5, shape=(5,), batch_size=2, progress=watch)
    assert len(seen) == 90
    assert seen[0] == (0, 0, (2, 5), False)
    assert seen[-1] == (4, 29, (1, 5), True)


def test_clipping_bounds_the_samples():
    wild = denoiser(scale=50.0)
    samples = flare.sample(wild, STEPS["ddpm"], n=20, shape=(5,)).samples
    assert samples.abs().max() <= 1.0


def test_a_gaussian_is_sampled_with_its_own_moments():
    """The exact denoiser of N(m, s²) in closed form; DDPM must give back that Gaussian."""
    m, s = 0.7, 0.3
    schedule = flare.schedules.cosine(400)

    class Exact(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.nn.Parameter(torch.tensor(m))

        def forward(self, x, t):
            alpha, sigma = (v[t + 1].float()[:, None] for v in (schedule.alpha, schedule.sigma))
            return sigma * (x - alpha * self.mean) / (alpha**2 * s**2 + sigma**2)

    n = 20_000
    for steps in (flare.samplers.ddpm(schedule), flare.samplers.ddim(schedule, eta=0.5)):
        x = flare.sample(flare.Denoiser(Exact()), steps, n=n, shape=(1,)).samples
        assert x.mean().item() == pytest.approx(m, abs=4 * s / n**0.5 + 1e-3)
        assert x.std().item() == pytest.approx(s, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 5}, "give n and shape"),
        ({"shape": (5,)}, "give n and shape"),
        ({"n": 0, "shape": (5,)}, "n must be an integer of at least 1"),
        ({"n": 5, "shape": (0,)}, "each axis of shape"),
        ({"n": 5, "shape": (5,), "batch_size": 0}, "batch_size"),
        ({"n": 5, "shape": (5,), "cond": {"shift": torch.zeros(4)}}, "one row per sample, 5"),
        ({"start": torch.zeros(3)}, "at least 2 axes"),
        ({"start": torch.zeros(3, 5), "n": 4}, "leave n out"),
        ({"start": torch.zeros(3, 5), "shape": (6,)}, "leave shape out"),
        ({"start": torch.full((3, 5), torch.nan)}, "NaN or infinity in 3 of 3"),
        ({"start": torch.zeros(0, 5)}, "empty"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        flare.sample(denoiser(), STEPS["ddpm"], **arguments)


def test_directions_and_indices_can_be_given_so_that_parts_are_made_apart():
    model = flare.bench.load("sines")
    pairs = flare.noising.pairs(model.data, model.schedule, n=50)
    subset = flare.subsets.random(model.denoiser, count=10, seed=0)
    posterior = flare.posteriors.diagonal(model.denoiser, subset, pairs, 1.0, 1.0)
    D = draw_directions(posterior, 3, seed=5)
    arguments = (model.denoiser, model.sampler("ddim", 4), posterior)
    options = {"shape": model.shape, "seed": 5, "score": "trace"}
    whole = flare.sample(*arguments, n=6, directions=3, **options)
    part = flare.sample(*arguments, n=2, first=4, directions=D, **options)
    torch.testing.assert_close(part.score, whole.score[4:], rtol=1e-3, atol=0)

    given = (model.denoiser, posterior, model.schedule)
    scores = flare.score(*given, whole.samples, directions=3, seed=5)
    apart = flare.score(*given, whole.samples[4:], directions=D, seed=5, first=4)
    torch.testing.assert_close(apart, scores[4:], rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match=r"a matrix of 10 rows, got shape \(3, 10\)"):
        flare.sample(*arguments, n=2, directions=D.T, **options)


@pytest.fixture(scope="module")
def scored():
    """A small network with a calibrated posterior: (denoiser, posterior)."""
    net = denoiser()
    pairs = flare.noising.pairs(torch.randn(30, 5), SCHEDULE, n=60)
    return net, flare.posteriors.dense(net, flare.subsets.last_layer(net), pairs)


def test_the_result_says_how_it_was_made(scored):
    net, posterior = scored
    about = flare.sample(net, STEPS["ddim"], posterior, n=2, shape=(5,), seed=7, directions=3).about
    assert about == {
        "sampler": "ddim", "steps": 10, "seed": 7, "rule": "tangent", "directions": 3, "structure": "dense",
        "parameters": posterior.size, "prior_precision": posterior.prior_precision,
        "scale": posterior.scale, "derivative": "secant",
    }  # fmt: skip
    assert flare.sample(net, STEPS["ddim"], n=2, shape=(5,), seed=7).about == {
        "sampler": "ddim", "steps": 10, "seed": 7,
    }  # fmt: skip


def test_sample_and_score_have_the_same_default_score(scored):
    net, posterior = scored
    result = flare.sample(net, STEPS["ddim"], posterior, n=3, shape=(5,), directions=2)
    assert list(result.scores) == ["expected_residual"]
    given = (net, posterior, SCHEDULE, result.samples)
    assert torch.equal(
        flare.score(*given, directions=2), flare.score(*given, directions=2, score="expected_residual")
    )
    plain = posterior.refit(scale=1.0)  # not calibrated
    assert list(flare.sample(net, STEPS["ddim"], plain, n=3, shape=(5,), directions=2).scores) == ["trace"]
    given = (net, plain, SCHEDULE, result.samples)
    assert torch.equal(flare.score(*given, directions=2), flare.score(*given, directions=2, score="trace"))


def test_scores_share_what_they_need(scored, monkeypatch):
    net, posterior = scored
    calls, call = [], flare.Denoiser.call
    monkeypatch.setattr(flare.Denoiser, "call", lambda *a, **k: calls.append(1) or call(*a, **k))

    def count(scores):
        calls.clear()
        options = {"n": 2, "shape": (5,), "directions": 4, "batch_size": 2}
        flare.sample(net, STEPS["ddim"], posterior, score=scores, **options)
        return len(calls)

    names = [name for name, score in flare.scores.SCORES.items() if score.needs_directions]
    each = {name: count(name) - count("trace") for name in names}
    # three levels, one call and one per direction; residual_variance and expected_residual push the same
    assert each == {"trace": 0, "off_manifold": 15, "residual_variance": 15, "expected_residual": 15}
    assert count(names) - count("trace") == 30


def test_weights_are_hashed_once(scored, monkeypatch):
    net, posterior = scored
    hashes, sha = [], flare.network.denoiser.hashlib.sha256
    monkeypatch.setattr(flare.network.denoiser.hashlib, "sha256", lambda *a: hashes.append(1) or sha(*a))
    for first in range(3):
        flare.sample(net, STEPS["ddim"], posterior, n=1, shape=(5,), first=first, directions=2)
    assert not hashes, "they are those that the posterior was fitted to"


@pytest.mark.parametrize("way", ["in place", "through .data", "turned through .data", "state dict"])
def test_changed_weights_are_hashed_again(way):
    net = TinyNet((5,))
    own = flare.Denoiser(net)
    before = own.fingerprint()
    with torch.no_grad():
        if way == "in place":
            net.first.weight.add_(1e-3)
        elif way == "through .data":
            net.first.weight.data.mul_(1.001)
        elif way == "turned through .data":  # the sum stays
            net.first.weight.data.copy_(net.first.weight.data.flip(0))
        else:
            net.load_state_dict({k: v + 1e-3 for k, v in net.state_dict().items()})
    assert own.fingerprint()["weights"] != before["weights"]
    assert own.fingerprint() == flare.Denoiser(net).fingerprint()


def test_arrays_and_bars_are_taken(scored, capsys):
    net, posterior = scored
    start = torch.randn(3, 5)
    ours = flare.sample(net, STEPS["ddim"], posterior, start=start.numpy(), directions=2, progress=True)
    theirs = flare.sample(net, STEPS["ddim"], posterior, start=start, directions=2)
    assert torch.equal(ours.score, theirs.score)
    assert "flare" in capsys.readouterr().err
    existing = theirs.samples.numpy()
    assert torch.equal(
        flare.score(net, posterior, SCHEDULE, existing), flare.score(net, posterior, SCHEDULE, theirs.samples)
    )
    with pytest.raises(TypeError, match="progress must be True, or a function"):
        flare.sample(net, STEPS["ddim"], n=2, shape=(5,), progress="bar")


def test_what_stands_in_the_wrong_place_is_named(scored):
    net, posterior = scored
    with pytest.raises(TypeError, match=r"must be a Denoiser, got TinyNet; wrap the network: flare.Denoiser"):
        flare.sample(TinyNet((5,)), STEPS["ddim"], n=2, shape=(5,))
    with pytest.raises(TypeError, match=r"steps must be a Steps, got Dense; give a sampler's table"):
        flare.sample(net, posterior, n=2, shape=(5,))
    with pytest.raises(TypeError, match="posterior must be a Posterior, got Schedule"):
        flare.sample(net, STEPS["ddim"], SCHEDULE, n=2, shape=(5,))
    with pytest.raises(TypeError, match="schedule must be a Schedule, got Tensor"):
        flare.score(net, posterior, torch.zeros(3, 5), torch.zeros(3, 5))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'steps'"):
        flare.sample(net, n=2, shape=(5,))
    with pytest.raises(TypeError, match="denoiser must be a Denoiser, got TinyNet; wrap the network"):
        flare.subsets.random(TinyNet((5,)), fraction=0.1)
    with pytest.raises(ValueError, match="score='trace' needs a posterior"):
        flare.sample(net, STEPS["ddim"], n=2, shape=(5,), score="trace")


@pytest.mark.parametrize(
    "options", [{}, {"derivative": "exact"}, {"rule": "monte_carlo", "score": "trace"}], ids=str
)
def test_a_wrong_width_is_told_whatever_the_rule(scored, options):
    net, posterior = scored
    message = r"TinyNet failed on x of shape \(2, 4\).* It must take samples of shape \(4,\)"
    with pytest.raises(ValueError, match=message):
        flare.sample(net, STEPS["ddim"], posterior, n=2, shape=(4,), **options)


def test_a_fit_to_data_of_another_width_or_scale_is_told():
    net = denoiser()
    subset = flare.subsets.last_layer(net)
    with pytest.raises(ValueError, match=r"TinyNet failed on x of shape \(9, 4\)"):
        flare.posteriors.dense(net, subset, flare.noising.pairs(torch.randn(9, 4), SCHEDULE, n=9))
    loud = denoiser(scale=50.0)
    with pytest.warns(RuntimeWarning, match=r"error is .* times that of predicting zero.*flare\.check_model"):
        flare.posteriors.diagonal(loud, subset, flare.noising.pairs(torch.randn(9, 5), SCHEDULE, n=9))


def test_a_network_that_mixes_samples_is_refused():
    class Mix(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x, t):
            return self.layer(x - x.mean(0, keepdim=True))

    mixing, steps = flare.Denoiser(Mix()), flare.samplers.ddim(flare.schedules.cosine(50), 4)
    with pytest.raises(ValueError, match="it mixes or reorders samples"):
        flare.sample(mixing, steps, n=4, shape=(2,))

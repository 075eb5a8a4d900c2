"""Exact derivatives where torch needs workarounds, and secants where there are no derivatives."""

from __future__ import annotations

import shutil

import pytest
import torch
from reference import Backward, TinyNet, close
from torch import nn

import flare
from flare import subsets
from flare.autodiff import finite_difference
from flare.autodiff.jvp import Push, prepare, push_through
from flare.bench.baselines.bayesdiff import bayesdiff
from flare.network.forward_mode import Derivative, ForwardModeError
from flare.scores import SCORES

SCHEDULE = flare.schedules.cosine(20)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.inside = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x, t):
        return self.out(self.inside(self.first(x)))


class Strided(nn.Module):
    """A group norm of the output of attention, whose channels are last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x, t):
        mixed = self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2)
        return self.norm(mixed.reshape(x.shape))


class OneWay(TinyNet):
    """Twice a tiny network, by an operation without a forward-mode derivative."""

    def forward(self, x, t):
        return Backward.apply(super().forward(x, t))


class TwoWays(TinyNet):
    def forward(self, x, t):
        return super().forward(x, t) * 2


NAMES = [name for name, score in SCORES.items() if score.needs_directions]


def moving(denoiser, shape, dtype=torch.float64, scale=0.1):
    subset = subsets.everything(denoiser)
    directions = scale * torch.randn(subset.size, 3, dtype=dtype)
    x, dx = torch.randn(4, *shape, dtype=dtype), scale * torch.randn(3, 4, *shape, dtype=dtype)
    return subset, directions, x, dx, torch.arange(4)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Encoder, (5, 3)), (Strided, (4, 3, 3)),
    ],
    ids=["transformer", "groupnorm"],
)  # fmt: skip
def test_forward_mode_with_workarounds_agrees_with_secants(make, shape):
    denoiser = flare.Denoiser(make().double())
    subset, directions, x, dx, t = moving(denoiser, shape)
    fast = torch.backends.mha.get_fastpath_enabled()
    f, df = Push(denoiser, subset, directions)(x, dx, t)
    g, dg = Push(denoiser.by("secant"), subset, directions)(x, dx, t)
    torch.testing.assert_close(f, g)
    close(dg, df, 1e-3)
    single = flare.Denoiser(denoiser.module.float())
    close(Push(single, subset, directions)(x.float(), dx.float(), t)[1].double(), df, 1e-4)
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.parametrize("moves", ["both", "theta", "x"])
def test_secants_are_derivatives(moves):
    denoiser = flare.Denoiser(TinyNet((5,)).double())
    subset, directions, x, dx, t = moving(denoiser, (5,), scale=1e3)  # the step depends on the size
    directions, dx = directions if moves != "x" else None, dx if moves != "theta" else None
    _, exact = Push(denoiser, subset, directions)(x, dx, t)
    _, secant = Push(denoiser.by("secant"), subset, directions)(x, dx, t)
    close(secant / 1e3, exact / 1e3, 1e-4)


@pytest.mark.parametrize("moves", ["both", "x"])
@pytest.mark.parametrize("factor", [0.0, 30.0, 1e3])
def test_a_secant_depends_on_its_own_sample_alone(moves, factor):
    torch.manual_seed(2)
    denoiser = flare.Denoiser(TinyNet((5,)).double())
    subset, directions, x, dx, t = moving(denoiser, (5,))
    directions = directions if moves == "both" else None
    dx[:, 2] *= factor
    _, exact = Push(denoiser.by("exact"), subset, directions)(x, dx, t)
    push = Push(denoiser.by("secant"), subset, directions)
    _, together = push(x, dx, t)
    for row in range(4):  # however far another sample of the batch moves
        here = slice(row, row + 1)
        _, alone = push(x[here], dx[:, here], t[here])
        size = max(factor, 1.0) if row == 2 else 1.0
        close(alone / size, together[:, here] / size, 1e-6)
        close(together[:, here] / size, exact[:, here] / size, 1e-3)


def test_functions_are_observed_with_one_step_per_sample():
    x, dx = torch.rand(4, 3) + 0.5, torch.randn(2, 4, 3)
    dx[:, 1] *= 1e5
    dx[1, 3] = 0
    changes = push_through(lambda z: z.square().sum(1), x, dx, Derivative.SECANT)
    expected = 2 * (x * dx).sum(2)
    size = dx.norm(dim=2) * x.norm(dim=1)
    assert ((changes - expected).abs() <= 5e-3 * size).all()
    assert changes[1, 3] == 0


def test_a_direction_that_does_not_move_has_no_secant():
    denoiser = flare.Denoiser(TinyNet((5,))).by("secant")
    x, t = torch.randn(4, 5), torch.arange(4)
    _, change = Push(denoiser)(x, torch.zeros(2, 4, 5), t)
    assert not change.any()


@pytest.fixture(scope="module")
def sines():
    model = flare.bench.load("sines")
    pairs = flare.noising.pairs(model.data, model.schedule, n=1000, seed=0, weighting=model.weighting)
    subset = subsets.random(model.denoiser, count=200, seed=0)
    posterior = flare.posteriors.dense(model.denoiser, subset, pairs, "marglik", "calibrated")
    return model, posterior


@pytest.mark.parametrize("score", ["trace", "residual_variance"])
def test_secants_are_exact_derivatives_on_a_real_model(sines, score):
    model, posterior = sines
    steps = flare.samplers.ddim(model.schedule, 15, clip=model.clip)
    exact, secant = (
        flare.sample(
            model.denoiser, steps, posterior, n=40, shape=(10,), directions=4, score=score, derivative=kind
        )
        for kind in ("exact", "secant")
    )
    torch.testing.assert_close(exact.samples, secant.samples, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(exact.score, secant.score, rtol=5e-3, atol=0)
    assert (exact.about["derivative"], secant.about["derivative"]) == ("exact", "secant")


def small(net):
    torch.manual_seed(3)
    denoiser = flare.Denoiser(net((4,)).double())
    data = torch.randn(20, 4, dtype=torch.float64)
    pairs = flare.noising.pairs(data, SCHEDULE, n=30)
    return denoiser, flare.posteriors.dense(denoiser, subsets.last_layer(denoiser), pairs, 1.0), data


@pytest.mark.parametrize("rule", ["tangent", "decoupled", "released", "endpoint"])
def test_auto_takes_secants_where_forward_mode_fails_and_says_so(rule):
    steps = flare.samplers.ddim(SCHEDULE, 6, clip=2.0)
    one, posterior, data = small(OneWay)
    with pytest.warns(
        RuntimeWarning, match=r"OneWay cannot be differentiated in forward mode.* takes secants"
    ):
        found = flare.sample(one, steps, posterior, n=5, shape=(4,), rule=rule)
    assert found.about["derivative"] == "secant"
    two, same, _ = small(TwoWays)
    expected = flare.sample(two, steps, same, n=5, shape=(4,), rule=rule)
    assert expected.about["derivative"] == "exact"
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-3, atol=1e-6)
    with pytest.warns(RuntimeWarning, match="takes secants"):
        scores = flare.score(one, posterior, SCHEDULE, data)
    torch.testing.assert_close(scores, flare.score(two, same, SCHEDULE, data), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["exact", "secant"])
def test_the_denoiser_s_own_setting_holds_wherever_a_call_says_auto(sines, kind):
    model, posterior = sines
    denoiser, steps = model.denoiser.by(kind), flare.samplers.ddim(model.schedule, 2, clip=model.clip)
    options = {"n": 2, "shape": (10,), "directions": 2}
    assert flare.sample(denoiser, steps, posterior, **options).about["derivative"] == kind
    other = "secant" if kind == "exact" else "exact"
    found = flare.sample(denoiser, steps, posterior, **options, derivative=other)
    assert found.about["derivative"] == other, "a call that says so comes first"
    found = bayesdiff(denoiser, steps, posterior, 2, (10,), directions=2)
    assert found.about["derivative"] == kind


class RoundsInside(TinyNet):
    """Its output has the dtype of its input but only the precision of float32."""

    def forward(self, x, t):
        return super().forward(x, t).float().to(x.dtype)


class Single(TinyNet):
    """Its time features are in float32, whatever the dtype of its weights."""

    def forward(self, x, t):
        return self.second(torch.tanh(self.first(torch.cat([x.flatten(1), t.float()[:, None]], 1).float())))


class RoundsTime(TinyNet):
    """Only the time branch, which x does not affect, has low precision."""

    def forward(self, x, t):
        shift = torch.tanh(self.first.bias * t.to(x.dtype)[:, None]).float().to(x.dtype)
        return super().forward(x, t, shift.mean(1))


class Insists(TinyNet):
    def forward(self, x, t):
        assert x.dtype == torch.float32, "float32 only"
        return super().forward(x, t)


@pytest.mark.parametrize("net", [RoundsInside, RoundsTime, Single, Insists])
def test_a_network_without_float64_inside_is_differentiated_exactly(net):
    denoiser = flare.Denoiser(net((4,)))
    subset = subsets.everything(denoiser)
    assert prepare(denoiser, subset, "auto", torch.zeros(1, 4), 3).derivative is Derivative.EXACT
    with pytest.raises(ForwardModeError, match=r"float64.* follow the dtype of its input, or use .*'exact'"):
        prepare(denoiser, subset, "secant", torch.zeros(1, 4), 3)


def test_a_time_that_is_a_number_is_widened_with_the_network():
    class Flow(TinyNet):
        def forward(self, x, t):
            return self.second(torch.tanh(self.first(torch.cat([x, t[:, None]], 1))))

    denoiser = flare.Denoiser(Flow((4,)), "flow")
    taken = prepare(denoiser, subsets.everything(denoiser), "auto", torch.zeros(1, 4), 0.3)
    assert taken.derivative is Derivative.SECANT


def test_observables_honor_the_denoiser_s_setting(sines):
    model, posterior = sines
    steps = flare.samplers.ddim(model.schedule, 2, clip=model.clip)
    options = {"n": 2, "shape": (10,), "directions": 2, "observe": lambda x: x.square().sum(1)}
    about = flare.sample(model.denoiser.by("secant"), steps, posterior, **options).about
    assert (about["derivative"], about["observed by"]) == ("secant", "secant")


class Neither(RoundsInside):
    def forward(self, x, t):
        return Backward.apply(super().forward(x, t))


def test_a_network_without_any_derivative_says_what_is_left():
    denoiser = flare.Denoiser(Neither((4,)))
    message = r"rounds to less than float64 inside; .*forward.* rule='monte_carlo', which needs no derivative"
    with pytest.raises(ForwardModeError, match=message):
        prepare(denoiser, subsets.last_layer(denoiser), "auto", torch.zeros(1, 4), 3)
    pairs = flare.noising.pairs(torch.randn(9, 4), SCHEDULE, n=9)
    with pytest.raises(ForwardModeError, match="or use a dense or diagonal posterior"):
        flare.posteriors.matrix_free(denoiser, subsets.last_layer(denoiser), pairs)
    flare.posteriors.low_rank(denoiser, subsets.last_layer(denoiser), pairs, rank=2)  # H itself


@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank", "matrix_free"])
def test_every_structure_fits_a_network_without_forward_mode(structure):
    pairs = flare.noising.pairs(torch.randn(20, 4), SCHEDULE, n=30)
    options = {"rank": 3} if structure == "low_rank" else {}
    fits = []
    for net in (OneWay, TwoWays):
        torch.manual_seed(3)
        denoiser = flare.Denoiser(net((4,)))
        subset = subsets.last_layer(denoiser)
        fit = getattr(flare.posteriors, structure)
        fits.append(fit(denoiser, subset, pairs, 1.0, 1.0, **options).covariance(torch.eye(subset.size)))
    torch.testing.assert_close(fits[0], fits[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "directions", "taken"),
    [
        (torch.float32, 4, "secant"), (torch.float64, 4, "exact"), (torch.bfloat16, 4, "secant"),
        (torch.float32, "exact", "exact"),
    ],
)  # fmt: skip
def test_auto_takes_secants_where_they_are_true_enough_and_faster(dtype, directions, taken):
    denoiser = flare.Denoiser(TinyNet((4,)).to(dtype))
    pairs = flare.noising.pairs(torch.randn(20, 4), SCHEDULE, n=30)
    posterior = flare.posteriors.dense(denoiser, subsets.last_layer(denoiser), pairs, 1.0)
    steps = flare.samplers.ddim(SCHEDULE, 3)
    found = flare.sample(denoiser, steps, posterior, n=2, shape=(4,), directions=directions)
    assert found.about["derivative"] == taken


@pytest.mark.parametrize(("directions", "taken"), [(3, "secant"), (4, "exact"), (torch.eye(100), "exact")])
def test_auto_pushes_many_directions_through_convolutions_exactly(directions, taken, recwarn):
    model = flare.bench.load("digits")
    subset = subsets.random(model.denoiser, count=100, seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=50, seed=0)
    posterior = flare.posteriors.diagonal(model.denoiser, subset, pairs, 1.0, 100.0)
    options = {"n": 1, "shape": model.shape, "directions": directions, "score": "trace"}
    found, secant = (
        flare.sample(model.denoiser, model.sampler("ddim", 2), posterior, **options, derivative=way)
        for way in ("auto", "secant")
    )
    assert found.about["derivative"] == taken
    torch.testing.assert_close(found.score, secant.score, rtol=1e-4, atol=0)
    assert not recwarn.list


def test_what_a_network_detaches_is_seen_by_secants_whatever_their_number():
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv1d(1, 1, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x, t):
            return (self.one(x[:, None]) + self.two(x.detach()[:, None]))[:, 0]

    denoiser = flare.Denoiser(Detached())
    found = prepare(denoiser, subsets.everything(denoiser), "auto", torch.zeros(1, 4), 3, directions=8)
    assert found.derivative is Derivative.SECANT


def test_without_forward_mode_convolutions_take_secants_silently(recwarn):
    class Convolution(OneWay):
        def __init__(self) -> None:
            super().__init__((4,))
            self.smooth = nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x, t):
            return self.smooth(super().forward(x, t)[:, None])[:, 0]

    denoiser = flare.Denoiser(Convolution())
    found = prepare(denoiser, subsets.everything(denoiser), "auto", torch.zeros(1, 4), 3, directions=8)
    assert found.derivative is Derivative.SECANT
    assert not recwarn.list


@pytest.mark.parametrize(("name", "directions"), [("chirp", 2), ("digits", 2), ("digits", 8)])
def test_scores_by_default_do_not_depend_on_the_batch_size(name, directions):
    # one-sided differences in float32 change those of digits, a trained UNet, by up to a percent
    model = flare.bench.load(name)
    subset = subsets.random(model.denoiser, count=100, seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=50, seed=0)
    posterior = flare.posteriors.diagonal(model.denoiser, subset, pairs, 1.0, 100.0)
    options = {"n": 5, "shape": model.shape, "score": ["trace", "expected_residual"]}
    options["directions"] = directions
    whole, parts = (
        flare.sample(model.denoiser, model.sampler("ddim", 8), posterior, **options, batch_size=size)
        for size in (5, 2)
    )
    for score, values in whole.scores.items():
        torch.testing.assert_close(parts.scores[score], values, rtol=1e-3, atol=0)


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_derivatives_are_the_exact_ones():
    denoiser, posterior, data = small(TinyNet)  # a subset without some of the tensors
    steps = flare.samplers.ddim(SCHEDULE, 6, clip=2.0)
    exact, compiled = (
        flare.sample(denoiser, steps, posterior, n=5, shape=(4,), directions=3, derivative=kind, score=NAMES)
        for kind in ("exact", "compiled")
    )
    torch.testing.assert_close(compiled.variance, exact.variance, rtol=1e-8, atol=1e-12)
    for name in NAMES:
        torch.testing.assert_close(compiled.scores[name], exact.scores[name], rtol=1e-8, atol=1e-12)
    assert compiled.about["derivative"] == "compiled"
    exact, compiled = (  # other shapes, and x does not move
        flare.score(denoiser, posterior, SCHEDULE, data, directions=3, derivative=kind)
        for kind in ("exact", "compiled")
    )
    torch.testing.assert_close(compiled, exact, rtol=1e-8, atol=1e-12)


def test_what_cannot_be_compiled_says_so():
    denoiser, posterior, _ = small(OneWay)
    steps = flare.samplers.ddim(SCHEDULE, 6)
    with pytest.raises(ForwardModeError, match=r"OneWay could not be compiled: .+ Use derivative='exact'"):
        flare.sample(denoiser, steps, posterior, n=5, shape=(4,), directions=3, derivative="compiled")


def test_the_square_root_of_the_posterior_by_secants():
    steps = flare.samplers.ddim(SCHEDULE, 6)
    denoiser, posterior, _ = small(TwoWays)
    exact, secant = (
        flare.sample(
            denoiser, steps, posterior, n=3, shape=(4,), directions="exact", derivative=kind
        ).variance
        for kind in ("exact", "secant")
    )
    torch.testing.assert_close(exact, secant, rtol=1e-3, atol=1e-6)


def test_monte_carlo_needs_no_probe_and_other_errors_stay_what_they_are(recwarn):
    one, posterior, _ = small(OneWay)
    steps = flare.samplers.ddim(SCHEDULE, 6)
    flare.sample(one, steps, posterior, n=3, shape=(4,), rule="monte_carlo")
    assert not recwarn
    with pytest.raises(ValueError, match="did you mean 'secant'"):
        flare.sample(one, steps, posterior, n=3, shape=(4,), derivative="secnt")
    with pytest.raises(
        ValueError, match=r"OneWay failed on x of shape \(2, 7\).* It must take samples of shape"
    ):
        flare.sample(one, steps, posterior, n=3, shape=(7,))


@pytest.mark.parametrize("own", [False, True])
def test_large_networks_move_in_place_and_come_back(own, monkeypatch):
    """A float64 copy moves itself; a float64 network of the user is never written to."""
    net = TinyNet((3,), 8)
    denoiser = flare.Denoiser(net.double() if own else net)
    subset = subsets.random(denoiser, count=9)
    directions = torch.randn(9, 3, dtype=torch.float64)
    x, t = torch.randn(5, 3), torch.arange(5)
    double = denoiser.wide(torch.float64).by("secant")
    expected = Push(double, subset, directions)(x, None, t)
    monkeypatch.setattr(finite_difference, "_LARGE", 0)
    before = {name: value.clone() for name, value in double.params.items()}
    push = Push(double, subset, directions)
    seen = []
    hook = double.module.first.register_forward_hook(lambda module, *_: seen.append(module.weight.clone()))
    found = push(x, None, t)
    hook.remove()
    assert push.movable._in_place is not own
    assert any(not torch.equal(weight, before["first.weight"]) for weight in seen)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    for name, value in double.params.items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("fails", ["the call", "the writing"])
def test_a_network_that_moves_in_place_comes_back_after_an_error(fails, monkeypatch):
    monkeypatch.setattr(finite_difference, "_LARGE", 0)
    double = flare.Denoiser(TinyNet((3,), 8)).wide(torch.float64)
    before = {name: value.clone() for name, value in double.params.items()}
    movable = finite_difference.Movable(
        double, subsets.everything(double), torch.ones(1, double.parameter_count).double()
    )
    if fails == "the writing":
        write = movable._write

        def stop_halfway(values):
            monkeypatch.setattr(movable, "_write", write)
            next(iter(movable._tensors.values())).fill_(7)
            raise KeyboardInterrupt

        monkeypatch.setattr(movable, "_write", stop_halfway)
    with pytest.raises(KeyboardInterrupt), movable.along(0, 0.1):
        raise KeyboardInterrupt
    for name, value in double.params.items():
        assert torch.equal(value, before[name])

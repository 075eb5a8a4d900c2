"""Baselines that compare with real data, and those without a posterior, against explicit loops and SciPy."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TinyNet
from scipy import stats
from torch import Tensor, nn

import flare
from flare.bench import baselines
from flare.bench.baselines.compared import descend
from flare.bench.baselines.feature_fits import fit_mixture
from flare.core.noise_streams import COMPARED_STREAM, REAL_STREAM, NoiseStreams, mix_seed

SCHEDULE = flare.schedules.cosine(20)
PREDICTIONS = ["epsilon", "sample", "v"]


class Linear(nn.Module):
    """f(x, t) = W x + v."""

    def __init__(self, W: Tensor, v: Tensor) -> None:
        super().__init__()
        self.W, self.v = nn.Parameter(W), nn.Parameter(v)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x @ self.W.T + self.v


W = 0.3 * torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
V = torch.tensor([0.4, -0.2, 0.1], dtype=torch.float64)


def points(n: int, seed: int, d: int = 3) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def noises(tag: int, n: int, draws: int, seed: int = 0, first: int = 0) -> list[Tensor]:
    stream = NoiseStreams(mix_seed(seed, tag), first, n, (3,), draws)
    return [stream.next().double() for _ in range(draws)]


def parts(prediction: str, level, x: Tensor) -> tuple[Tensor, Tensor]:
    """x̂0 and ε̂ by solving x = α·x̂0 + σ·ε̂ together with the definition of what is predicted."""
    f, a, s = x @ W.T + V, level.alpha, level.sigma
    if prediction == "epsilon":
        return (x - s * f) / a, f
    if prediction == "sample":
        return f, (x - a * f) / s
    return a * x - s * f, s * x + a * f


# --- the methods on a linear denoiser -----------------------------------------------------------------------


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_msma_has_the_norms_of_the_predicted_noise(prediction):
    denoiser = flare.Denoiser(Linear(W, V), prediction)
    real, x, shares = points(30, 1), points(5, 2), (0.1, 0.5, 0.9)

    def features(data: Tensor) -> Tensor:
        levels = [SCHEDULE.at_fraction(share) for share in shares]
        rows = [[parts(prediction, at, at.alpha * one)[1].norm() for at in levels] for one in data]
        return torch.tensor(rows, dtype=torch.float64)

    found = baselines.MSMA(denoiser, SCHEDULE, levels=shares, components=1).fit(real).score(x)
    expected = fit_mixture(features(real), 1, 0)(features(x))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_ddpm_ood_is_the_mean_z_score_of_the_reconstruction_errors():
    denoiser, real, x = flare.Denoiser(Linear(W, V)), points(12, 1), points(4, 2)
    method = baselines.DDPMOOD(denoiser, SCHEDULE, levels=(0.3, 0.8), calls=3)
    found = method.fit(real, seed=5).score(x, seed=5)
    grids = ([6, 4, 2, 0], [16, 11, 5, 0])

    def errors(data: Tensor, tag: int) -> np.ndarray:
        columns = []
        for levels, noise in zip(grids, noises(tag, len(data), 2, seed=5), strict=True):
            at = SCHEDULE.at(levels[0])
            state = at.alpha * data + at.sigma * noise
            for here, there in pairwise(levels):
                clean, eps = parts("epsilon", SCHEDULE.at(here), state)
                state = SCHEDULE.at(there).alpha * clean + SCHEDULE.at(there).sigma * eps
            columns.append((data - state).square().mean(1).numpy())
        return np.stack(columns, 1)

    known, own = errors(real, REAL_STREAM), errors(x, COMPARED_STREAM)
    expected = ((own - known.mean(0)) / known.std(0, ddof=1)).mean(1)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_ddpm_ood_clips_the_predicted_clean_sample():
    denoiser, real, x = flare.Denoiser(Linear(W, V)), points(12, 1), points(4, 2)
    method = baselines.DDPMOOD(denoiser, SCHEDULE, levels=0.5, calls=1, clip=0.1)
    noise = NoiseStreams(0, 0, 4, (3,), 1)
    at, eps = SCHEDULE.at(10), NoiseStreams(0, 0, 4, (3,), 1).next().double()
    clean = parts("epsilon", at, at.alpha * x + at.sigma * eps)[0].clamp(-0.1, 0.1)
    torch.testing.assert_close(method.features(x, {}, noise)[:, 0], (x - clean).square().mean(1))
    assert method.fit(real).score(x).isfinite().all()


@settings(max_examples=40, derandomize=True, deadline=None)
@given(share=st.floats(0.01, 1), calls=st.integers(1, 60), T=st.integers(1, 50), flow=st.booleans())
def test_the_levels_of_a_reconstruction_fall_from_their_start(share, calls, T, flow):
    schedule = flare.schedules.flow(T) if flow else flare.schedules.cosine(T)
    levels = descend(schedule, share, calls)
    assert levels == sorted(set(levels), reverse=True)
    assert len(levels) <= calls
    assert schedule.at(levels[0]) == schedule.at_fraction(share)
    if not flow:
        assert min(levels) >= 1
        assert len(levels) == min(calls, int(levels[0]))


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_diffpath_has_the_statistics_of_the_path_to_noise(prediction):
    denoiser = flare.Denoiser(Linear(W, V), prediction)
    real, x = points(25, 1), points(5, 2)

    def features(data: Tensor) -> tuple[Tensor, Tensor]:
        state, eps = data, []
        for here, there in ((1, 6), (6, 11), (11, 16), (16, 16)):
            clean, noise = parts(prediction, SCHEDULE.at(here), state)
            eps.append(noise)
            state = SCHEDULE.at(there).alpha * clean + SCHEDULE.at(there).sigma * noise
        path = torch.stack(eps, 1)  # (n, 4, 3)
        change = (path[:, 1:] - path[:, :-1]) / 0.25
        six = [value.pow(k).sum((1, 2)) for value in (path, change) for k in (1, 2, 3)]
        return change.square().sum((1, 2)).sqrt()[:, None], torch.stack(six, 1)

    one, six = (baselines.DiffPath(denoiser, SCHEDULE, dimensions=k, calls=4) for k in (1, 6))
    for method, expected in zip((one, six), features(x), strict=True):
        unused = NoiseStreams(0, 0, 5, (3,), 1)
        torch.testing.assert_close(method.features(x, {}, unused), expected)
    known, own = (features(data)[0][:, 0].numpy() for data in (real, x))
    expected = -stats.gaussian_kde(known).logpdf(own)
    np.testing.assert_allclose(one.fit(real).score(x), expected, rtol=1e-7)
    assert six.fit(real).score(x).isfinite().all()


def test_gradient_norms_are_those_of_a_loop_with_autograd():
    torch.manual_seed(0)
    net = TinyNet((3,)).double()
    real, x, cond = points(10, 1), points(4, 2), {"shift": points(4, 3, 1)}
    denoiser, shares = flare.Denoiser(net, "v"), (0.2, 0.7)
    method = baselines.GradientNorms(denoiser, SCHEDULE, levels=shares, repeats=2)
    found = method.fit(real, {"shift": torch.zeros(10, 1)}).score(x, cond)

    def features(data: Tensor, shift: Tensor, tag: int) -> np.ndarray:
        draws = noises(tag, len(data), 4)
        levels = [SCHEDULE.at_fraction(share) for share in shares for _ in range(2)]
        rows = []
        for i, one in enumerate(data):
            loss = torch.zeros((), dtype=torch.float64)
            for at, eps in zip(levels, draws, strict=True):
                t = torch.tensor([at.time])
                out = net((at.alpha * one + at.sigma * eps[i])[None], t, shift[i : i + 1])[0]
                loss = loss + (out - (at.alpha * eps[i] - at.sigma * one)).square().sum() / 2 / 4
            grads = torch.autograd.grad(loss, list(net.parameters()))
            rows.append([math.log(float(g.square().sum())) for g in grads])
        return np.array(rows)

    known = features(real, torch.zeros(10, 1), REAL_STREAM)
    own = features(x, cond["shift"], COMPARED_STREAM)
    expected = -stats.norm(known.mean(0), known.std(0, ddof=1)).logpdf(own).sum(1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_layer_without_gradient_does_not_count():
    class WithUnused(Linear):
        def __init__(self):
            super().__init__(W, V)
            self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    real, x = points(10, 1), points(4, 2)
    scores = [
        baselines.GradientNorms(flare.Denoiser(net), SCHEDULE).fit(real).score(x)
        for net in (Linear(W, V), WithUnused())
    ]
    torch.testing.assert_close(*scores)


# --- intrinsic dimension -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("derivative", ["exact", "secant"])
def test_flipd_of_a_linear_denoiser(prediction, derivative):
    denoiser = flare.Denoiser(Linear(W, V), prediction).by(derivative)
    x, at = points(5, 2), SCHEDULE.at_fraction(0.3)
    eye, zero = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    # ∂ε̂/∂x_t is the difference of ε̂ along the axes, which is exact for an affine function
    by_x = parts(prediction, at, eye)[1] - parts(prediction, at, zero[None])[1]
    expected = 3 - at.sigma * by_x.trace() + parts(prediction, at, at.alpha * x)[1].square().sum(1)
    found = baselines.FLIPD(denoiser, SCHEDULE, level=0.3).score(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_flipd_finds_the_dimension_of_a_subspace():
    class Subspace(nn.Module):
        """The best denoiser of standard normal data in the first 4 of 12 dimensions."""

        def __init__(self):
            super().__init__()
            self.mask = nn.Parameter((torch.arange(12) < 4).double())

        def forward(self, x, t):
            at = SCHEDULE.at_fraction(0.05)
            return x * self.mask * at.alpha / (at.alpha**2 + at.sigma**2)

    denoiser = flare.Denoiser(Subspace(), "sample")
    x = points(6, 0, 12) * (torch.arange(12) < 4)
    at = SCHEDULE.at_fraction(0.05)
    # tr = 4α²/(α² + σ²) = 4α², and ε̂ = (αx − α·α²x)/σ = ασx: signs are exact for a diagonal Jacobian
    expected = 4 * at.alpha**2 + (at.alpha * at.sigma * x).square().sum(1)
    for probes in (2, 12):
        found = baselines.FLIPD(denoiser, SCHEDULE, probes=probes).score(x)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_hutchinson_is_right_on_average_and_of_a_sample_alone():
    torch.manual_seed(0)
    denoiser, x = flare.Denoiser(TinyNet((20,)).double()), points(4, 1, 20)
    exact = baselines.FLIPD(denoiser, SCHEDULE, probes=20).score(x)
    method = baselines.FLIPD(denoiser, SCHEDULE, probes=8)
    drawn = method.score(x.repeat(300, 1)).view(300, 4)
    spread = drawn.std(0) / 300**0.5
    assert ((drawn.mean(0) - exact).abs() < 5 * spread).all()
    later = method.score(x[2:], first=2, batch_size=1)
    torch.testing.assert_close(later, drawn[0, 2:])


# --- along the trajectory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [None, (2,), (3, 50)])
def test_aleatoric_is_the_variance_over_noised_copies(last):
    denoiser = flare.Denoiser(Linear(W, V))
    steps = flare.samplers.ddpm(SCHEDULE, 5, clip=0.8)
    result = baselines.aleatoric(denoiser, steps, 4, (3,), draws=3, last=last, seed=7)
    plain = flare.sample(denoiser, steps, n=4, shape=(3,), seed=7)
    torch.testing.assert_close(result.samples, plain.samples)
    clean = [frame.x0 for frame in flare.trajectories(denoiser, steps, n=4, shape=(3,), seed=7)]
    measured = range(5 - min(5, max(last or [5])), 5)
    own = iter(noises(COMPARED_STREAM, 4, 3 * len(measured), seed=7))
    found = {"aleatoric": {}, "aleatoric_noise": {}}
    for k in measured:
        at, row = steps.transitions[k].level, steps.transitions[k]
        ends, predicted = [], []
        for _ in range(3):
            noised = at.alpha * clean[k] + at.sigma * next(own)
            again, eps = parts("epsilon", at, noised)
            ends.append((row.A * noised + row.B[0] * again.clamp(-0.8, 0.8)).numpy())
            predicted.append(eps.numpy())
        found["aleatoric"][k] = np.var(ends, axis=0, ddof=1)
        found["aleatoric_noise"][k] = np.var(predicted, axis=0, ddof=1)
    names = [f"{name}_{count}" if last else name for name in found for count in last or [5]]
    assert list(result.scores) == names
    for name, score in result.scores.items():
        kind = "aleatoric_noise" if "noise" in name else "aleatoric"
        count = min(5, int(name.removeprefix(kind).strip("_") or 5))
        expected = np.mean([found[kind][k] for k in range(5 - count, 5)], axis=0)
        np.testing.assert_allclose(score, expected.sum(1), rtol=1e-8)
        if name == names[0]:
            np.testing.assert_allclose(result.variance, expected, rtol=1e-8)


def test_aleatoric_does_not_depend_on_the_batches():
    denoiser, cond = conditional(), {"shift": points(5, 3, 1).float()}
    steps = flare.samplers.ddim(SCHEDULE, 4)
    whole = baselines.aleatoric(denoiser, steps, 5, (3,), draws=2, cond=cond)
    many = baselines.aleatoric(denoiser, steps, 5, (3,), draws=2, cond=cond, batch_size=2)
    later = baselines.aleatoric(denoiser, steps, 2, (3,), draws=2, cond={"shift": cond["shift"][3:]}, first=3)
    for name, score in whole.scores.items():
        torch.testing.assert_close(many.scores[name], score, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(later.scores[name], score[3:], rtol=1e-3, atol=1e-5)


def test_last_iterates_take_windows_of_any_size():
    denoiser = flare.Denoiser(Linear(W, V))
    steps = flare.samplers.ddim(SCHEDULE)
    result = baselines.last_iterates(denoiser, steps, 3, (3,), last=(1, 7, 20, 5000), seed=2)
    clean = np.stack([f.x0.numpy() for f in flare.trajectories(denoiser, steps, n=3, shape=(3,), seed=2)])
    assert list(result.scores) == ["last_1", "last_7", "last_20", "last_5000"]
    for size, score in zip((1, 7, 20, 20), result.scores.values(), strict=True):
        np.testing.assert_allclose(score, clean[-size:].var(0).sum(1), rtol=1e-8, atol=1e-15)


# --- the contract -------------------------------------------------------------------------------------------


def conditional() -> flare.Denoiser:
    torch.manual_seed(0)
    return flare.Denoiser(TinyNet((3,)))


METHODS = {
    "residual": lambda: baselines.Residual(conditional(), SCHEDULE),
    "denoising_error": lambda: baselines.DenoisingError(conditional(), SCHEDULE),
    "flipd": lambda: baselines.FLIPD(conditional(), SCHEDULE, probes=2),
    "msma": lambda: baselines.MSMA(conditional(), SCHEDULE, components=2),
    "ddpm_ood": lambda: baselines.DDPMOOD(conditional(), SCHEDULE, levels=(0.2, 0.6), calls=3),
    "diffpath_1": lambda: baselines.DiffPath(conditional(), SCHEDULE, dimensions=1, calls=5),
    "diffpath_6": lambda: baselines.DiffPath(conditional(), SCHEDULE, calls=5),
    "gradient_norms": lambda: baselines.GradientNorms(conditional(), SCHEDULE),
    "sharpness": lambda: baselines.Sharpness(conditional(), SCHEDULE, probes=2),
    "instability": lambda: baselines.Instability(conditional(), SCHEDULE, probes=2),
    "eigenscore": lambda: baselines.EigenScore(conditional(), SCHEDULE),
    "scoped": lambda: baselines.Scoped(conditional(), SCHEDULE, probes=2),
    "realism": baselines.Realism,
    "density": baselines.Density,
}


def test_every_detector_keeps_the_contract():
    detectors = {
        entry.name for entry in baselines.BASELINES.values() if entry.needs in ("samples", "real data")
    }
    assert {make().name for make in METHODS.values()} == detectors
    assert all(issubclass(baselines.BASELINES[name].run, baselines.Detector) for name in detectors)


@pytest.mark.parametrize("name", METHODS)
def test_a_score_depends_on_its_sample_alone(name):
    method = METHODS[name]()
    real, x, cond = points(40, 1).float(), points(9, 2).float(), {"shift": points(9, 3, 1).float()}
    fitted = method.fit(real, {"shift": torch.zeros(40, 1)}, seed=4) if method.needed else method
    whole = fitted.score(x, cond, seed=4)
    assert whole.shape == (9,)
    assert whole.dtype == torch.float32
    some = {"shift": cond["shift"][5:8]}
    torch.testing.assert_close(fitted.score(x[5:8], some, seed=4, first=5), whole[5:8], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fitted.score(x, cond, seed=4, batch_size=2), whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["msma", "ddpm_ood", "diffpath_6", "realism", "density"])
def test_samples_far_from_real_data_have_larger_scores(name):
    class Shrink(nn.Module):
        """The best denoiser of standard normal data: ε̂ = σx."""

        def __init__(self):
            super().__init__()
            self.sigma = nn.Parameter(SCHEDULE.sigma[1:].float())

        def forward(self, x, t):
            return self.sigma[t][:, None] * x

    method = METHODS[name]()
    if name not in ("realism", "density"):
        entry = baselines.BASELINES[name.removesuffix("_6")]
        method = entry.run(flare.Denoiser(Shrink()), SCHEDULE)
    fitted = method.fit(points(400, 1).float())
    near, far = fitted.score(points(100, 2).float()), fitted.score(4 + points(100, 3).float())
    bad = torch.arange(200) >= 100
    assert flare.bench.metrics.auroc(torch.cat([near, far]), bad) > 0.95


def test_images_and_flow_models_are_scored():
    torch.manual_seed(0)
    denoiser, schedule = flare.Denoiser(TinyNet((1, 2, 3)), "flow"), flare.schedules.flow(20)
    real, x = torch.randn(30, 1, 2, 3), torch.randn(4, 1, 2, 3)
    for make in (baselines.MSMA, baselines.DDPMOOD, baselines.DiffPath, baselines.GradientNorms):
        score = make(denoiser, schedule).fit(real).score(x)
        assert score.shape == (4,)
        assert score.isfinite().all()
    assert baselines.FLIPD(denoiser, schedule, probes=3).score(x).isfinite().all()
    steps = flare.samplers.euler(schedule, 4)
    assert (baselines.aleatoric(denoiser, steps, 3, (1, 2, 3), draws=2).score > 0).all()


def test_a_lost_sample_is_nan_and_the_others_are_unaffected():
    class Fragile(Linear):
        def forward(self, x, t):
            out = super().forward(x, t)
            return torch.where(x[:, :1] > 50, torch.nan, out)

    method = baselines.MSMA(flare.Denoiser(Fragile(W, V)), SCHEDULE, components=2)
    fitted, x = method.fit(points(20, 1)), points(4, 2)
    sound = fitted.score(x)
    x[1, 0] = 1e4
    with pytest.warns(RuntimeWarning, match=r"msma score has NaN or infinity in 1 of 4 .*\[3\]"):
        found = fitted.score(x, first=2)
    assert found.isnan().tolist() == [False, True, False, False]
    torch.testing.assert_close(found[[0, 2, 3]], sound[[0, 2, 3]])
    with pytest.raises(ValueError, match=r"msma has NaN or infinity in 1 of 4 samples .* of real data"):
        method.fit(x)


def test_bad_input_is_refused():
    denoiser, real, x = flare.Denoiser(Linear(W, V)), points(9, 1), points(4, 2)

    def compare(make, *network, x=x, real=real, cond=None, **options):
        return lambda: make(*network, **options).fit(real, cond).score(x)

    net = (denoiser, SCHEDULE)
    cases = [
        (compare(baselines.Realism, real=real[:3]), "realism needs at least 4 real samples, got 3"),
        (compare(baselines.MSMA, *net, real=real[:4]), "msma needs at least 5 real samples"),
        (compare(baselines.Density, x=x[:, :2]), r"shape of real data, \(3,\), got \(2,\)"),
        (compare(baselines.Density, neighbors=0), "neighbors must be an integer of at least 1"),
        (compare(baselines.MSMA, *net, levels=[]), "at least one level"),
        (compare(baselines.DDPMOOD, *net, levels=[]), "at least one level"),
        (compare(baselines.DDPMOOD, *net, levels=[2]), "fraction of T"),
        (compare(baselines.DiffPath, *net, dimensions=3), r"one of \(1, 6\), got 3"),
        (compare(baselines.DiffPath, *net, calls=1), "calls must be at least 2"),
        (compare(baselines.MSMA, *net, cond={"c": torch.zeros(3)}), "one row per sample, 9"),
        (lambda: baselines.Density().score(x), r"density compares .* call fit\(real\) before score\(x\)"),
        (lambda: baselines.FLIPD(denoiser, SCHEDULE, probes=0), "probes must be an integer"),
        (
            lambda: baselines.aleatoric(denoiser, flare.samplers.dpmpp_2m(SCHEDULE, 4), 2, (3,)),
            "aleatoric needs a one-step sampler; dpmpp_2m keeps 2 terms",
        ),
        (
            lambda: baselines.aleatoric(denoiser, flare.samplers.ddim(SCHEDULE, 4), 2, (3,), draws=1),
            "draws must be at least 2",
        ),
        (
            lambda: baselines.aleatoric(denoiser, flare.samplers.ddim(SCHEDULE, 4), 2, (3,), last=[]),
            "at least one number of steps",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()

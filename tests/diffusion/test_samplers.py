"""Every sampler against diffusers' own scheduler, step by step and along whole trajectories."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import GivenNoise, TinyNet, close

from flare import Denoiser, samplers, schedules
from flare.propagation.trajectory import Plain, walk

T = 40
SHAPE = (5,)
SCHEDULES = {
    "squaredcos_cap_v2": schedules.cosine(T),
    "linear": schedules.linear(T, 1e-3, 0.1),
    "scaled_linear": schedules.scaled_linear(T, 1e-3, 0.1),
}
NAMES = {"epsilon": "epsilon", "sample": "sample", "v": "v_prediction", "flow": "flow_prediction"}


def compare(steps, scheduler, prediction, n, **options):
    """Compare every step from the same state, noise and network output: our row, their `step`."""
    scheduler.set_timesteps(n)
    rows = steps.rows(prediction)
    assert [row.time for row in rows] == pytest.approx(scheduler.timesteps.tolist())
    net, x, history = TinyNet(SHAPE), torch.randn(8, *SHAPE), []
    for row, t in zip(rows, scheduler.timesteps, strict=True):
        with torch.no_grad():
            f = net(x, torch.full((len(x),), t.item()))
        seed = torch.Generator().manual_seed(int(t))
        z = torch.randn(x.shape, generator=seed.clone_state())
        if "generator" in options:
            options["generator"] = seed
        x0 = row.clean(x, f) if row.clip is None else row.clean(x, f).clamp(*row.clip)
        history.insert(0, x0)
        ours = row.A * x + row.c * z + sum(b * h for b, h in zip(row.B, history, strict=False))
        x = scheduler.step(f, t, x, **options).prev_sample
        close(ours, x, 1e-5)


@pytest.mark.parametrize("variance", ["small", "large"])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_ddpm_is_that_of_diffusers(name, prediction, clip, variance):
    from diffusers import DDPMScheduler

    for spacing, n in [("leading", T), *itertools.product(samplers.SPACINGS, [1, 7, 10, 25])]:
        if spacing == "trailing" and variance == "large":
            continue  # there diffusers adds noise to the finished sample
        scheduler = DDPMScheduler(
            T,
            beta_start=1e-3,
            beta_end=0.1,
            beta_schedule=name,
            prediction_type=NAMES[prediction],
            clip_sample=clip is not None,
            clip_sample_range=clip or 1.0,
            timestep_spacing=spacing,
            variance_type=f"fixed_{variance}",
        )
        levels = samplers.grid(SCHEDULES[name], n, spacing)
        steps = samplers.ddpm(SCHEDULES[name], levels, clip=clip, variance=variance)
        compare(steps, scheduler, prediction, n, generator=True)


@pytest.mark.parametrize("eta", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_ddim_is_that_of_diffusers(name, prediction, clip, eta):
    from diffusers import DDIMScheduler

    # Grids on which diffusers' DDIM steps from one of its timesteps to the next: its target is
    # always t − T // n, which for other n of `trailing`, and for `linspace`, is not on its own grid.
    for spacing, n in [("leading", T), ("leading", 7), ("leading", 13), ("trailing", 10), ("trailing", 20)]:
        scheduler = DDIMScheduler(
            T,
            beta_start=1e-3,
            beta_end=0.1,
            beta_schedule=name,
            prediction_type=NAMES[prediction],
            clip_sample=clip is not None,
            clip_sample_range=clip or 1.0,
            timestep_spacing=spacing,
        )
        steps = samplers.ddim(SCHEDULES[name], samplers.grid(SCHEDULES[name], n, spacing), eta, clip=clip)
        compare(steps, scheduler, prediction, n, generator=True, eta=eta, use_clipped_model_output=True)


@pytest.mark.parametrize("spacing", ["trailing", "linspace"])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
def test_ddim_single_steps_are_those_of_diffusers_on_every_grid(prediction, spacing):
    from diffusers import DDIMScheduler

    n = 7
    schedule = schedules.linear(T, 1e-3, 0.1)
    scheduler = DDIMScheduler(
        T, 1e-3, 0.1, prediction_type=NAMES[prediction], timestep_spacing=spacing, clip_sample=False
    )
    scheduler.set_timesteps(n)
    assert [t - 1 for t in samplers.grid(schedule, n, spacing)] == scheduler.timesteps.tolist()
    for t in scheduler.timesteps.tolist():
        x, f = torch.randn(2, 8, *SHAPE)
        target = max(0, t + 1 - T // n)
        row = samplers.ddim(schedule, [t + 1, target] if target else [t + 1]).rows(prediction)[0]
        assert row.time == t
        close(row.A * x + row.B[0] * row.clean(x, f), scheduler.step(f, t, x).prev_sample, 1e-5)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_dpmpp_2m_is_that_of_diffusers(name, prediction):
    from diffusers import DPMSolverMultistepScheduler

    for spacing, n in itertools.product(samplers.SPACINGS, [1, 2, 5, 10, 20, 30]):
        scheduler = DPMSolverMultistepScheduler(
            T,
            beta_start=1e-3,
            beta_end=0.1,
            beta_schedule=name,
            prediction_type=NAMES[prediction],
            timestep_spacing=spacing,
            algorithm_type="dpmsolver++",
        )
        more = spacing != "trailing"  # these place one more level and drop the lowest
        levels = samplers.grid(SCHEDULES[name], n + more, spacing)[:n]
        steps = samplers.dpmpp_2m(SCHEDULES[name], levels)
        assert len(steps) == n
        compare(steps, scheduler, prediction, n)


@pytest.mark.parametrize("n", [1, 2, 7, 25, T])
def test_flow_euler_is_that_of_diffusers(n):
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=T)
    # for one step diffusers' linspace gives its upper end, σ = 1
    schedule = schedules.flow(T, time_scale=T)
    steps = samplers.euler(schedule, [T] if n == 1 else samplers.grid(schedule, n, "linspace"))
    compare(steps, scheduler, "flow", n)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
def test_euler_takes_any_parameterization_that_its_schedule_allows(prediction):
    """The same x̂0 in another parameterization gives the same step."""
    schedule = schedules.flow(T)
    steps = samplers.euler(schedule, [T / 2, T / 4])
    if prediction == "v":
        with pytest.raises(ValueError, match="α² \\+ σ² = 1"):
            steps.rows("v")
        return
    x, x0 = torch.randn(2, 8, *SHAPE, dtype=torch.float64)
    row, flow = steps.rows(prediction)[0], steps.rows("flow")[0]
    a = s = 0.5
    noise = (x - a * x0) / s
    f = noise if prediction == "epsilon" else x0
    torch.testing.assert_close(row.clean(x, f), flow.clean(x, noise - x0))
    torch.testing.assert_close(row.clean(x, f), x0)


def test_the_loop_walks_a_whole_trajectory_as_diffusers_does():
    from diffusers import DDPMScheduler, DPMSolverMultistepScheduler

    net, start = TinyNet(SHAPE), torch.randn(8, *SHAPE)
    for make, scheduler in [
        (samplers.ddpm, DDPMScheduler(T, 1e-3, 0.1, clip_sample=True, timestep_spacing="trailing")),
        (samplers.dpmpp_2m, DPMSolverMultistepScheduler(T, 1e-3, 0.1, timestep_spacing="trailing")),
    ]:
        steps = make(schedules.linear(T, 1e-3, 0.1), 20, clip=1.0 if make is samplers.ddpm else None)
        noise = GivenNoise(start.shape, seed=1)
        *_, last = walk(steps.rows("epsilon"), Plain(Denoiser(net)), start, noise, {})
        scheduler.set_timesteps(20)
        x, generator = start, torch.Generator().manual_seed(1)
        for t in scheduler.timesteps:
            with torch.no_grad():
                f = net(x, torch.full((len(x),), t.item()))
            x = scheduler.step(f, t, x, generator=generator).prev_sample
        close(last.x, x, 1e-5)


betas = st.lists(st.floats(1e-4, 0.9), min_size=2, max_size=20)


@given(betas)
def test_ddim_with_eta_1_on_the_full_grid_has_the_moments_of_ddpm(values):
    schedule = schedules.from_betas(values)
    for a, b in zip(
        samplers.ddpm(schedule).rows("epsilon"), samplers.ddim(schedule, eta=1.0).rows("epsilon"), strict=True
    ):
        assert pytest.approx(b.A, rel=1e-6, abs=1e-9) == a.A
        assert a.B[0] == pytest.approx(b.B[0], rel=1e-6, abs=1e-9)
        assert a.c == pytest.approx(b.c, rel=1e-6, abs=1e-9)


@given(st.integers(1, 40), st.integers(1, 80))
def test_flow_euler_is_ddim_on_a_straight_line(levels, n):
    schedule = schedules.flow(levels)
    for a, b in zip(
        samplers.euler(schedule, n).rows("flow"), samplers.ddim(schedule, n).rows("flow"), strict=True
    ):
        assert pytest.approx(b.A, abs=1e-12) == a.A
        assert a.B[0] == pytest.approx(b.B[0], abs=1e-9)


@given(betas, st.integers(1, 20), st.sampled_from(samplers.SPACINGS))
def test_every_sampler_keeps_a_perfect_prediction(values, n, spacing):
    """With x̂0 = x_0 known, a step without noise takes α·x_0 + σ·ε to α'·x_0 + σ'·ε."""
    schedule = schedules.from_betas(values)
    n = min(n, schedule.T)
    levels = samplers.grid(schedule, n, spacing)
    steps = samplers.ddim(schedule, levels)
    x0, eps = 0.7, -1.3
    levels.append(0)
    for k, step in enumerate(steps.transitions):
        here, there = schedule.at(levels[k]), schedule.at(levels[k + 1])
        x = step.A * (here.alpha * x0 + here.sigma * eps) + step.B[0] * x0
        assert x == pytest.approx(there.alpha * x0 + there.sigma * eps, abs=1e-9)


def test_the_paper_a_and_b_follow_from_the_table():
    """x' = a·x − b·ε + noise with a = 1/√α_t and b = β_t/(√α_t·√(1−ᾱ_t))."""
    beta = torch.linspace(0.01, 0.3, 20, dtype=torch.float64)
    schedule = schedules.from_betas(beta)
    for row, t in zip(samplers.ddpm(schedule).rows("epsilon"), range(20, 0, -1), strict=True):
        b, sigma = float(beta[t - 1]), schedule.at(t).sigma
        assert row.A + row.B[0] * row.p == pytest.approx((1 - b) ** -0.5)
        assert -row.B[0] * row.q == pytest.approx(b / (math.sqrt(1 - b) * sigma))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: samplers.ddpm(s, 0), "at least 1"),
        (lambda s: samplers.ddpm(s, T + 1), f"at most {T}"),
        (lambda s: samplers.grid(s, 5, "trailng"), "did you mean 'trailing'"),
        (lambda s: samplers.ddpm(s, [3, 7]), "fall strictly"),
        (lambda s: samplers.ddpm(s, []), "fall strictly"),
        (lambda s: samplers.ddpm(s, [T + 1, 3]), "fall strictly"),
        (lambda s: samplers.ddim(s, 5, eta=2), "eta"),
        (lambda s: samplers.ddpm(s, clip=-1.0), "clip"),
        (lambda s: samplers.ddpm(s, clip=(1.0, 0.0)), "clip"),
        (lambda s: samplers.ddpm(s, variance="tiny"), "variance"),
        (lambda s: samplers.euler(s), "flow schedule"),
        (lambda s: samplers.ddpm(schedules.flow(T)), "variance-preserving"),
        (lambda s: samplers.grid(schedules.flow(4), 6, "leading"), "use 'trailing'"),
        (lambda s: samplers.ddim(schedules.flow(T), 5, eta=0.5), "variance-preserving"),
        (lambda s: samplers.ddim(schedules.flow(T), 5).rows("epsilon"), "pure noise"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(schedules.cosine(T))


NUMBERS = st.floats(-3, 3, allow_nan=False)


@given(*[NUMBERS] * 5, st.one_of(st.none(), st.floats(0.1, 2)), st.integers(0, 2**31))
def test_a_row_of_one_term_moves_changes_by_a_and_b_where_it_clips_too(p, q, A, B, R, clip, seed):
    bounds = None if clip is None else (-clip, clip)
    row = samplers.Step(level=schedules.Level(0, 1.0, 0.5), A=A, B=(B,), clip=bounds, raw=R, p=p, q=q)
    g = torch.Generator().manual_seed(seed)
    x, f, dx, df = torch.randn(4, 6, generator=g, dtype=torch.float64)
    a, b = row.linear_at(row.clean(x, f))

    def after(h):  # the row itself, at a slightly moved state and output
        clean = p * (x + h * dx) + q * (f + h * df)
        kept = clean if clip is None else clean.clamp(-clip, clip)
        return A * (x + h * dx) + B * kept + R * clean

    h = 1e-7
    kinks = torch.zeros(6, dtype=torch.bool)
    if clip is not None:
        kinks = ((p * x + q * f).abs() - clip).abs() < 1e-4
    expected = (after(h) - after(-h)) / (2 * h)
    torch.testing.assert_close((a * dx + b * df)[~kinks], expected[~kinks], rtol=1e-5, atol=1e-5)


def test_samplers_are_registered_by_name_with_a_summary():
    assert list(samplers.SAMPLERS) == ["ddim", "ddpm", "ddpm_mean", "dpmpp_2m", "euler", "heun"]
    for name, sampler in samplers.SAMPLERS.items():
        assert sampler is getattr(samplers, name)
        assert sampler.__doc__
    with pytest.raises(ValueError, match="unknown sampler 'ddmp'; did you mean 'ddpm'"):
        samplers.SAMPLERS.find("ddmp")

"""Whole trajectories against diffusers' own schedulers, from the same noise."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    HeunDiscreteScheduler,
)
from reference import GivenNoise, TinyNet, close
from torch import nn

import flare
from flare.integrations.schedulers import steps_of
from flare.propagation.trajectory import Plain, walk

T = 40
SHAPE = (2, 4)
BETAS = {"num_train_timesteps": T, "beta_start": 1e-3, "beta_end": 0.1}
SPACINGS = ("leading", "trailing", "linspace")
EDM_LEVELS = [{}, {"sigma_min": 0.05, "sigma_max": 10.0, "sigma_data": 1.3, "rho": 5.0}]


class Wide(nn.Module):
    """Answers with twice the channels, as networks that learn the variance do."""

    def __init__(self, positive: bool = False) -> None:
        super().__init__()
        self.mean, self.rest = TinyNet(SHAPE), TinyNet(SHAPE, scale=3.0)
        self.positive = positive

    def both(self, x, t):
        rest = self.rest(x, t)
        return torch.cat([self.mean(x, t), rest.exp() if self.positive else rest], dim=1)

    def forward(self, x, t):
        return self.mean(x, t)


class Learning(flare.Denoiser):
    """The mean of `Wide`, and its variance for the rows."""

    learns_variance = True

    def variance(self, x, t, cond):
        with torch.no_grad():
            return self.module.both(x, t)[:, SHAPE[0] :]


def theirs(scheduler, net, noise, n, options):
    """The states after each step, in the scale of our rows; the last as the scheduler leaves it."""
    scheduler.set_timesteps(n)
    generator = torch.Generator().manual_seed(1)
    if not isinstance(scheduler, HeunDiscreteScheduler):  # it takes no generator
        options = {**options, "generator": generator}
    flow = isinstance(scheduler, FlowMatchEulerDiscreteScheduler)
    x, path = noise if flow else noise * scheduler.init_noise_sigma, []
    for k, t in enumerate(scheduler.timesteps):
        seen = x if flow else scheduler.scale_model_input(x, t)
        with torch.no_grad():
            f = net(seen, t.expand(len(x)))
        x = scheduler.step(f, t, x, **options).prev_sample
        last = k == len(scheduler.timesteps) - 1
        # their state is x/α of a variance-preserving schedule
        exploding = isinstance(scheduler, (EulerDiscreteScheduler, HeunDiscreteScheduler)) and not last
        path.append(x / (scheduler.sigmas[k + 1] ** 2 + 1) ** 0.5 if exploding else x)
    return path


def compare(scheduler, n, net=None, tolerance=2e-5, denoiser=None, **options):
    net = net or TinyNet(SHAPE, scale=2.0)
    model = flare.from_diffusers((net, scheduler))
    denoiser = denoiser or model.denoiser
    z = torch.randn(6, *SHAPE)
    path = theirs(scheduler, getattr(net, "both", net), z, n, options)
    ours = {"use_clipped" if k.startswith("use") else k: v for k, v in options.items()}
    steps = steps_of(scheduler, model.schedule, denoiser, n, **ours)
    rows = steps.rows(model.denoiser.prediction)
    # a preconditioned network takes σ, and computes log(σ)/4
    edm = model.schedule.variance_exploding
    times = [math.log(row.time) / 4 if edm else row.time for row in rows]
    assert times == pytest.approx(scheduler.timesteps.tolist(), rel=1e-5, abs=1e-6)
    noise = GivenNoise(z.shape, seed=1)
    for frame, x in zip(walk(rows, Plain(denoiser), z * steps.start, noise, {}), path, strict=True):
        close(frame.x, x, tolerance)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_ddpm(spacing, prediction):
    for n, limit, variance in itertools.product(
        [1, 7, 25],
        [{}, {"clip_sample": False}, {"clip_sample_range": 0.6},
         THRESHOLD],
        ["fixed_small", "fixed_large", "fixed_small_log"],
    ):  # fmt: skip
        scheduler = DDPMScheduler(
            **BETAS, **limit, prediction_type=prediction, timestep_spacing=spacing, variance_type=variance
        )
        compare(scheduler, n)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_ddim_on_every_grid_with_either_noise_direction(spacing, prediction, clipped):
    for n, limit, one, eta in itertools.product(
        [1, 7, 10, 25],
        [{"clip_sample": False}, {"clip_sample_range": 0.6},
         THRESHOLD],
        [True, False],
        [0.0, 0.7],
    ):  # fmt: skip
        scheduler = DDIMScheduler(
            **BETAS, **limit, prediction_type=prediction, timestep_spacing=spacing, set_alpha_to_one=one
        )
        compare(scheduler, n, eta=eta, use_clipped_model_output=clipped)


@pytest.mark.parametrize("make", [DDPMScheduler, DDIMScheduler, EulerDiscreteScheduler])
def test_an_offset_moves_the_leading_grid(make):
    for n in (7, 10):
        for kind in ({}, {"variance_type": "fixed_large"})[: 1 + (make is DDPMScheduler)]:
            compare(make(**BETAS, timestep_spacing="leading", steps_offset=1, **kind), n)
    compare(DPMSolverMultistepScheduler(**BETAS, timestep_spacing="leading", steps_offset=1), 7)


@pytest.mark.parametrize("schedule", ["linear", "scaled_linear", "squaredcos_cap_v2"])
@pytest.mark.parametrize(
    "make", [DDPMScheduler, DDIMScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler]
)
def test_beta_schedules_and_zero_terminal_snr(make, schedule):
    compare(make(**BETAS, beta_schedule=schedule, timestep_spacing="trailing"), 10, tolerance=1e-4)
    for spacing in ("trailing", "leading"):
        scheduler = make(
            **BETAS,
            beta_schedule=schedule,
            rescale_betas_zero_snr=True,
            prediction_type="v_prediction",
            timestep_spacing=spacing,
        )
        compare(scheduler, 10, tolerance=1e-4)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("make", [EulerDiscreteScheduler, DPMSolverMultistepScheduler])
def test_zero_terminal_snr_where_the_last_level_but_one_is_noisier_than_the_stand_in_for_zero(make, spacing):
    scheduler = make(
        1000, rescale_betas_zero_snr=True, prediction_type="v_prediction", timestep_spacing=spacing
    )
    assert scheduler.alphas_cumprod[-1] > scheduler.alphas_cumprod[-2]
    compare(scheduler, 10, tolerance=1e-4)
    schedule = flare.from_diffusers((TinyNet(SHAPE), scheduler)).schedule
    close(schedule.alpha[1:-1], scheduler.alphas_cumprod[:-1].double().sqrt(), 1e-6)
    assert schedule.alpha[-1] == 0


@pytest.mark.parametrize("final", ["zero", "sigma_min"])
@pytest.mark.parametrize("sigmas", [{}, {"use_karras_sigmas": True}])
@pytest.mark.parametrize("n", [1, 7, 20])
def test_log_linear_sigmas_end_above_zero(n, sigmas, final):
    for spacing in SPACINGS:
        scheduler = EulerDiscreteScheduler(
            **BETAS,
            **sigmas,
            interpolation_type="log_linear",
            final_sigmas_type=final,
            timestep_spacing=spacing,
        )
        compare(scheduler, n, tolerance=1e-4)


THRESHOLD = {"thresholding": True, "dynamic_thresholding_ratio": 0.8, "sample_max_value": 1.5}
CONFIGS = {
    "ddpm": lambda: DDPMScheduler(**BETAS, clip_sample=True),
    "ddpm, small range": lambda: DDPMScheduler(
        **BETAS,
        clip_sample=True,
        clip_sample_range=0.3,
        variance_type="fixed_large",
        prediction_type="v_prediction",
    ),
    "ddpm, threshold": lambda: DDPMScheduler(**BETAS, **THRESHOLD),
    "ddim": lambda: DDIMScheduler(**BETAS, clip_sample=True, clip_sample_range=0.3, set_alpha_to_one=False),
    "dpm": lambda: DPMSolverMultistepScheduler(**BETAS, **THRESHOLD, final_sigmas_type="sigma_min"),
    "euler": lambda: EulerDiscreteScheduler(**BETAS, use_karras_sigmas=True, timestep_spacing="trailing"),
    "flow": lambda: FlowMatchEulerDiscreteScheduler(T, shift=3.0, stochastic_sampling=True),
    "flow by dpm": lambda: DPMSolverMultistepScheduler(
        T, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=2.0
    ),
}
MAKERS = [
    DDPMScheduler,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("source", CONFIGS)
def test_options_of_the_scheduler_that_a_config_came_from_are_ignored(source, make, saved, tmp_path):
    own = CONFIGS[source]()
    own.save_config(tmp_path)
    # a saved config names the defaults, too, and so hands on more of them
    scheduler = make.from_config(make.load_config(tmp_path) if saved else own.config)
    if source == "flow by dpm" and make in (DDPMScheduler, DDIMScheduler, EulerDiscreteScheduler):
        with pytest.raises(ValueError, match="prediction_type given as flow_prediction"):
            theirs(scheduler, TinyNet(SHAPE), torch.randn(2, *SHAPE), 7, {})
        with pytest.raises(ValueError, match=f"unknown prediction_type of {make.__name__} 'flow_pred"):
            flare.from_diffusers((TinyNet(SHAPE), scheduler))
        return
    compare(scheduler, 7, tolerance=1e-4)


def test_samples_are_clipped_to_the_range_of_the_scheduler_in_use():
    ddpm = DDPMScheduler(**BETAS, clip_sample=True, clip_sample_range=0.3)
    threshold = DDPMScheduler(**BETAS, **THRESHOLD)
    clips = {
        make: [
            flare.from_diffusers((TinyNet(SHAPE), make.from_config(own.config))).clip
            for own in (ddpm, threshold)
        ]
        for make in MAKERS
    }
    assert clips == {
        DDPMScheduler: [0.3, 1.0],
        DDIMScheduler: [0.3, 1.0],
        DPMSolverMultistepScheduler: [None, 1.0],
        EulerDiscreteScheduler: [None, None],
        FlowMatchEulerDiscreteScheduler: [None, None],
    }


def test_given_betas():
    betas = torch.linspace(0.002, 0.2, 30).tolist()
    compare(DDPMScheduler(30, trained_betas=betas), 30)


@pytest.mark.parametrize("final", ["zero", "sigma_min"])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_euler_discrete(spacing, prediction, final):
    for n, sigmas in itertools.product(
        [1, 7, 20],
        [{}, {"use_karras_sigmas": True}, {"use_exponential_sigmas": True}],
    ):
        scheduler = EulerDiscreteScheduler(
            **BETAS, **sigmas, prediction_type=prediction, timestep_spacing=spacing, final_sigmas_type=final
        )
        if len(set(scheduler.timesteps.tolist())) == len(scheduler.timesteps):
            compare(scheduler, n, tolerance=1e-4)


@pytest.mark.parametrize("final", ["zero", "sigma_min"])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_dpm_solver_multistep(spacing, prediction, final):
    for n, order, kind in itertools.product(
        [1, 2, 7, 20],
        [1, 2],
        [{}, {"lower_order_final": False}, {"euler_at_final": True}, {"lambda_min_clipped": -1.0},
         {"use_karras_sigmas": True}, {"use_exponential_sigmas": True},
         THRESHOLD],
    ):  # fmt: skip
        if spacing == "trailing" and "lambda_min_clipped" in kind:
            continue  # there diffusers repeats timesteps
        scheduler = DPMSolverMultistepScheduler(
            **BETAS,
            **kind,
            prediction_type=prediction,
            timestep_spacing=spacing,
            final_sigmas_type=final,
            solver_order=order,
        )
        compare(scheduler, n, tolerance=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_heun_discrete(spacing, prediction):
    for n, sigmas, limit in itertools.product(
        [1, 2, 7, 20],
        [{}, {"use_karras_sigmas": True}, {"use_exponential_sigmas": True}],
        [{}, {"clip_sample": True, "clip_sample_range": 0.6}],
    ):
        scheduler = HeunDiscreteScheduler(
            **BETAS, **sigmas, **limit, prediction_type=prediction, timestep_spacing=spacing
        )
        compare(scheduler, n, tolerance=1e-4)


@pytest.mark.parametrize("final", ["zero", "sigma_min"])
@pytest.mark.parametrize("grid", ["karras", "exponential"])
@pytest.mark.parametrize("levels", EDM_LEVELS)
def test_edm_euler(levels, grid, final):
    for n in (1, 2, 7, 20):
        scheduler = EDMEulerScheduler(**levels, sigma_schedule=grid, final_sigmas_type=final)
        compare(scheduler, n, tolerance=1e-4)  # their states of up to 300 are float32


@pytest.mark.parametrize("grid", ["karras", "exponential"])
@pytest.mark.parametrize("levels", EDM_LEVELS)
def test_edm_dpm_solver_multistep(levels, grid):
    for n, order, kind in itertools.product(
        [1, 2, 7, 20], [1, 2], [{}, {"lower_order_final": False}, {"euler_at_final": True}, THRESHOLD]
    ):
        scheduler = EDMDPMSolverMultistepScheduler(**levels, **kind, sigma_schedule=grid, solver_order=order)
        compare(scheduler, n, tolerance=1e-4)


def test_an_edm_scheduler_gives_the_schedule_and_the_preconditioning_of_its_training():
    scheduler = EDMEulerScheduler(sigma_min=0.01, sigma_max=20.0, sigma_data=1.0, rho=3.0)
    model = flare.from_diffusers((TinyNet(SHAPE), scheduler))
    assert model.denoiser.prediction == "edm:1.0"
    assert dict(model.schedule.spec) == dict(flare.schedules.edm(0.01, 20.0, 3.0).spec)
    ours = flare.samplers.euler(model.schedule, 9)
    levels = [t.level.sigma for t in model.steps(9).transitions]
    assert [t.level.sigma for t in ours.transitions] == pytest.approx(levels, rel=1e-5)


@pytest.mark.parametrize(
    "kind", [{}, {"use_karras_sigmas": True}, {"shift": 3.0}, {"stochastic_sampling": True}]
)
@pytest.mark.parametrize("n", [1, 7, 25])
def test_flow_match_euler(n, kind):
    compare(FlowMatchEulerDiscreteScheduler(num_train_timesteps=T, **kind), n)


def test_flow_prediction_with_dpm_solver():
    for shift in (1.0, 3.0):
        scheduler = DPMSolverMultistepScheduler(
            T, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift
        )
        compare(scheduler, 8)


def test_dynamic_shifting_takes_mu():
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=T, use_dynamic_shifting=True)
    model = flare.from_diffusers((TinyNet(SHAPE), scheduler))
    steps = model.steps(5, mu=0.8)
    scheduler.set_timesteps(5, mu=0.8)
    assert [s.level.sigma for s in steps.transitions] == pytest.approx(scheduler.sigmas[:-1].tolist())


@pytest.mark.parametrize("kind", ["learned", "learned_range"])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_learned_variance(spacing, kind):
    for n in (7, 40):
        scheduler = DDPMScheduler(**BETAS, variance_type=kind, timestep_spacing=spacing)
        net = Wide(positive=kind == "learned")
        compare(scheduler, n, net, denoiser=Learning(net))


def test_the_shifted_schedule_is_the_one_that_the_scheduler_trains_on():
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=T, shift=3.0)
    schedule = flare.from_diffusers((TinyNet(SHAPE), scheduler)).schedule
    torch.testing.assert_close(schedule.sigma[1:].flip(0).float(), scheduler.sigmas)
    torch.testing.assert_close(schedule.times[1:].flip(0).float(), scheduler.timesteps)
    again = flare.schedules.build(schedule.spec)
    assert torch.equal(again.sigma, schedule.sigma)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EulerAncestralDiscreteScheduler(T),
            r"EulerAncestralDiscreteScheduler is not supported.* Use DPM",
        ),
        (lambda: FlowMatchHeunDiscreteScheduler(T), r"FlowMatchHeun.* Use FlowMatchEuler"),
        (lambda: DPMSolverMultistepScheduler(T, solver_order=3), "solver_order=3 .* solver_order=2"),
        (lambda: DPMSolverMultistepScheduler(T, solver_type="heun"), "solver_type='midpoint'"),
        (
            lambda: DPMSolverMultistepScheduler(T, algorithm_type="sde-dpmsolver++"),
            "algorithm_type='dpmsolver",
        ),
        (
            lambda: DDPMScheduler(T, variance_type="fixed_large_log"),
            "fixed_large_log' .* use variance_type='fixed_large'",
        ),
        (
            lambda: EDMEulerScheduler(prediction_type="v_prediction"),
            "EDMEuler.* 'v_prediction'.* Choose from: epsilon",
        ),
        (
            lambda: EDMDPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++"),
            "EDMDPM.* use algorithm_type='dpmsolver",
        ),
        (lambda: DDPMScheduler(T, variance_type="learned_range"), "twice as many channels"),
        (lambda: DDPMScheduler(T, prediction_type="epsilo"), "did you mean 'epsilon'"),
        (lambda: DDIMScheduler(T, steps_offset=9, timestep_spacing="leading"), "lower steps_offset"),
        (lambda: FlowMatchEulerDiscreteScheduler(T, invert_sigmas=True), "invert_sigmas"),
        (
            lambda: DDPMScheduler(T, rescale_betas_zero_snr=True, timestep_spacing="trailing"),
            "epsilon' cannot recover x_0",
        ),
        (
            lambda: EulerDiscreteScheduler(T, timestep_type="continuous", prediction_type="v_prediction"),
            "timestep_type='continuous' .* use timestep_type='discrete'",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        flare.from_diffusers((TinyNet(SHAPE), make())).steps(10).rows("epsilon")


def test_another_scheduler_takes_the_place_of_the_own_and_neither_is_changed():
    own, other = DDPMScheduler(**BETAS), DDIMScheduler(**BETAS, clip_sample=False)
    before = other.timesteps.tolist()
    steps = flare.from_diffusers((TinyNet(SHAPE), own), other).steps(5)
    assert steps.name == "ddim"
    assert other.timesteps.tolist() == before
    assert other.num_inference_steps is None


def test_bad_calls_are_named():
    net = TinyNet(SHAPE)
    with pytest.raises(ValueError, match="belong to DDIMScheduler"):
        flare.from_diffusers((net, DDPMScheduler(T))).steps(5, eta=0.5)
    with pytest.raises(TypeError, match="must be a diffusers scheduler"):
        flare.from_diffusers((net, net))
    with pytest.raises(TypeError, match="a pipeline with a unet"):
        flare.from_diffusers(net)
    with pytest.raises(ValueError, match=r"a saved diffusers pipeline, with a model_index\.json"):
        flare.from_diffusers("nowhere")

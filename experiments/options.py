"""What the options of the scores bring: noise levels, noises, and how activations are scaled."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import flare

from .detection import draw, size_of
from .lab import Found, Job
from .subjects import load
from .verdict import fit

STUDIES = ("digits", "digits-early", "air", "power", "chirp", "damped", "grid", "lattice")
QUICK_STUDIES = ("grid",)
SEEDS = (0, 1)  # choosing seeds
LEVELS = (0.03, 0.15, 0.4, 0.7)  # the library's, as fractions of T
PAIRS = (1, 4)  # pairs of noises per level
TRAINING = 1_000  # training samples that distances are measured to
SCALED = "activations"


def options_job(study: str, seed: int, n: int, training: int, quick: bool) -> Found:
    """The scores of samples by each level alone, by all, with more noises, and by other scalings.

    Args:
        study: The data set and model.
        seed: Random seed of the samples and of the scorer; a choosing one.
        n: The number of samples.
        training: Training samples that distances are measured to.
        quick: Whether the study is small.
    """
    subject = load(study, 0, quick, size_of(study, quick).walk)
    x, cond = draw(study, 0, seed, n, quick).found()["samples"], subject.cond(n)
    scorer = fit(subject, seed, **({"subset": 20, "pairs": 40} if quick else {}))
    rows = torch.randperm(len(subject.train), generator=torch.Generator().manual_seed(seed))[:training]
    known, labels = subject.train[rows], {key: value[rows] for key, value in subject.train_cond.items()}
    every = [subject.schedule.at_fraction(level) for level in LEVELS]
    if list(scorer.encoder.levels) != every:
        raise ValueError("the levels of the library have changed; change LEVELS, too.")

    def encode(encoder: flare.scores.Encoder) -> dict[str, tuple[Tensor, Tensor]]:
        """Features of training samples and of samples by score."""
        points, features = encoder.encode(known, labels), encoder.encode(x, cond)
        return {name: (points[name], features[name]) for name in encoder.readers}

    out: Found = {}
    one = scorer.encoder.with_pairs(1)
    for fraction, level in zip(LEVELS, every, strict=True):
        encoder = replace(one, levels=[level])
        for name, found in encode(encoder).items():
            out[f"score.{name}, level {fraction:g}"] = _measure(encoder, name, *found)
    for pairs in PAIRS:
        encoder = one.with_pairs(pairs)
        encoded = encode(encoder)
        for name, found in encoded.items():
            out[f"score.{name}, {describe(pairs)}"] = _measure(encoder, name, *found)
        if pairs == 1:
            out |= {f"score.{key}": value for key, value in _rescale(encoder, *encoded[SCALED]).items()}
    return out


def describe(pairs: int) -> str:
    """All levels and a number of noises, in words."""
    return f"all levels, {2 * pairs} noises each"


def _measure(encoder: flare.scores.Encoder, name: str, points: Tensor, features: Tensor) -> Tensor:
    """The score of samples, scaled as the library does."""
    scale = encoder.readers[name].scale(encoder, points)
    return flare.scores.Space(points if scale is None else points * scale, scale).score(features)


def _rescale(encoder: flare.scores.Encoder, points: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Distances of activations with other scales."""
    deviation = points.double().std(0).float()
    each = deviation.reciprocal().where(deviation > 0, 0.0)
    own = encoder.readers[SCALED].scale(encoder, points)
    assert own is not None
    angles = [torch.nn.functional.normalize(part * own, dim=1) for part in (points, features)]
    return {
        f"{SCALED}, every feature standardized": flare.scores.Space(points * each, each).score(features),
        f"{SCALED}, not scaled": flare.scores.Space(points).score(features),
        f"{SCALED}, cosine distance": flare.scores.Space(angles[0]).score(angles[1]),
    }


def jobs(quick: bool) -> list[Job]:
    """One job per data set and choosing seed."""
    return [
        Job(
            f"options-{study}-{seed}", options_job,
            {"study": study, "seed": seed, "n": size_of(study, quick).choosing,
             "training": 50 if quick else TRAINING, "quick": quick}, stage=3,
        )
        for study in (QUICK_STUDIES if quick else STUDIES)
        for seed in (SEEDS[:1] if quick else SEEDS)
    ]  # fmt: skip

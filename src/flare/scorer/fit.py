"""`flare.fit`: from a trained network and its data to a `Scorer`."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from ..core.conditions import Cond, check_conditions, take_rows, to_device, trial_rows
from ..core.noise_streams import SPLIT_STREAM, mix_seed
from ..core.progress import Progress, announce
from ..core.warn import warn
from ..diagnostics.model_check import STEPS, ModelCheck, check_model
from ..diffusion import noising
from ..diffusion.noising import Pairs, Weighting
from ..diffusion.schedules import Schedule
from ..integrations.networks import Network
from ..network.coordinates import Subset
from ..network.denoiser import times
from ..network.probing import call
from ..posteriors import STRUCTURES, Posterior
from ..posteriors.tuning import PriorPrecision, Scale
from ..results.reference import FEW, overlap
from ..sampling.options import complete, show_options
from ..scores.neighbors import Features, compute_features
from ..storage.resume import Resume
from .choosing import KEPT, NEAREST, Choices, choose, reference_size
from .inputs import OpenModel, check_order, collect_samples, open_model, warn_of_range
from .judge import Judge, TrainingData
from .scorer import Scorer

MISFIT = ".* does not fit these pairs"  # a warning of the fit


class FitOptions(TypedDict, total=False):
    """The keyword arguments of `flare.fit`, which explains them."""

    prediction: str | None
    held_out: Any
    cond: Cond | None
    held_out_cond: Cond | None
    features: Features | None
    subset: Subset | int | None
    structure: str | None
    pairs: int | None
    prior_precision: PriorPrecision
    scale: Scale
    rank: int | None
    resume: Resume | str | os.PathLike[str] | None
    weighting: Weighting
    check: bool
    seed: int
    memory: int | None


@dataclass(frozen=True)
class FitSettings:
    """The options of one call of `flare.fit`, with defaults for those that were not given."""

    prediction: str | None = None
    held_out: Any = None
    cond: Cond | None = None
    held_out_cond: Cond | None = None
    features: Features | None = None
    subset: Subset | int | None = None
    structure: str | None = None
    pairs: int | None = None
    prior_precision: PriorPrecision = "marglik"
    scale: Scale = "calibrated"
    rank: int | None = None
    resume: Resume | str | os.PathLike[str] | None = None
    weighting: Weighting = "uniform"
    check: bool = True
    seed: int = 0
    memory: int | None = None


@show_options(FitSettings)
@torch.no_grad()
def fit(
    net: Any,
    data: Any,
    schedule: Schedule | Any = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[FitOptions],
) -> Scorer:
    """Fit what is needed to say which samples of a diffusion model can be trusted.

    A Laplace posterior is fitted to the network, and real samples are scored for comparison. They are
    `held_out`, if given. Otherwise a part of `data` is set aside, at random: a tenth, and at most 1,000. The
    network has probably seen this part in training, so it counts as training data, and the scorer says so.

    A warning says if the network does not fit the data, or if its samples are far from it.

    >>> model = flare.bench.load("grid")
    >>> scorer = flare.fit(model.denoiser, model.data, model.schedule, subset=100, pairs=500)
    >>> result = scorer.sample(100, steps=20)
    >>> good = result.samples[result.trusted(0.05)]
    >>> good.shape[1:], len(good) > 50
    (torch.Size([2]), True)

    Args:
        net: the trained network: a module called as net(x, t, **cond), a `flare.Denoiser`, a diffusers
            pipeline or its directory, a pair (model, scheduler), or what `flare.from_diffusers` returns.
        data: its training data, scaled as in training: an array or a tensor (N, *shape), a `Dataset` or a
            `DataLoader`. If these yield tuples, the first element is the sample; labels are not used as
            conditions unless they are given as `cond`. For a latent diffusion model, images in [−1, 1].
        schedule: the noise levels that the network was trained on, such as `flare.schedules.cosine(1000)`, or
            a scheduler of diffusers. It comes with a pipeline or a pair.
        progress: True announces what is fitted and its cost, and draws a progress bar; or a function such as
            `tqdm.tqdm`.
        **options: as follows.

            prediction: what a module predicts: "epsilon" by default, "sample", "v", "flow", "edm" or
                "edm_sigma".
            held_out: real data that the network was not trained on, in the same forms as `data`.
            cond: keyword arguments of the network; tensors have one row per sample of `data`, in the same
                order, so a loader that shuffles is refused.
            held_out_cond: the same for `held_out`.
            features: maps a batch (B, *shape) to features (B, d), between which distances to the training
                data are measured; by default they are measured between the samples themselves.
            subset: the uncertain parameters, such as `flare.subsets.sketch(denoiser, 2000)`, or how many to
                draw at random. By default 1,000 at random, or all of a smaller network; fewer if memory is
                scarce.
            structure: of the posterior, one of `flare.posteriors.STRUCTURES`; "dense" by default.
            pairs: training pairs of the curvature; by default 20,000, or 4,000 if the network has over a
                million parameters.
            prior_precision: δ of the posterior: a number, "marglik" for the largest marginal likelihood, or
                "validation" for the largest likelihood of `held_out`, or of the part that is set aside.
            scale: s of the posterior: a number, or "calibrated" for N/σ².
            rank: the number of eigenpairs, for structure="low_rank"; 64 by default.
            resume: a directory for checkpoints of the curvature, or a `flare.Resume`; an identical call
                resumes from them.
            weighting: the loss weights of the training: "uniform" or "min_snr".
            check: whether to check that the network fits the data.
            seed: of everything that is drawn.
            memory: bytes that the posterior may use; half of the free memory by default.
    """
    settings = complete(FitSettings, "fit", options)
    model = open_model(net, schedule, settings.prediction)
    parts, remarks = collect_parts(model, data, settings)
    _try(model, parts, settings)
    chosen = choose(model.denoiser, parts.train[0].numel(), len(parts.real), settings, settings.memory)
    own = _structure_options(chosen, settings)
    announce(f"flare.fit: {chosen}.", progress)
    checked = check_parts(model, parts, settings.seed) if settings.check else None
    if checked is not None and checked.problems:
        warn(f"do not trust this scorer yet: {checked.verdict}", UserWarning)
    with warnings.catch_warnings():
        if checked is not None and checked.problems:  # said already, with the likely cause
            warnings.filterwarnings("ignore", MISFIT)
        posterior = STRUCTURES[chosen.structure].function(
            model.denoiser, chosen.subset, _pairs(model, parts, chosen.pairs, settings),
            settings.prior_precision, settings.scale, resume=settings.resume, progress=progress, **own,
            validation=_validation(model, parts, chosen.pairs, settings),
        )  # fmt: skip
    about = describe(chosen, parts, remarks, checked) | {"seed": settings.seed}
    return make_scorer(model, posterior, parts, settings, about)


def make_scorer(
    model: OpenModel, posterior: Posterior, parts: Parts, settings: FitSettings, about: dict[str, Any]
) -> Scorer:
    """Score the reference, and put the scorer together."""
    judge, reference = Judge(
        model.denoiser, posterior, model.schedule, _keep(parts, settings), settings.seed
    ).make_reference(parts.real, parts.real_cond, parts.held_out)
    clip = float(parts.train.abs().max())
    return Scorer(model, judge, reference, tuple(parts.train.shape[1:]), clip, about)


@dataclass(frozen=True)
class Parts:
    """The data in memory, with what it is for.

    Attributes:
        train: the training data without the reference, (N, *shape).
        rows: the rows of the user's data that these are, (N,).
        cond: their conditions.
        real: the samples of the reference, (n, *shape).
        real_cond: their conditions.
        held_out: whether the network has not seen these in training, as far as we know.
        data: all of the user's data, which the model is checked against, (M, *shape).
        data_cond: its conditions.
    """

    train: Tensor
    rows: Tensor
    cond: dict[str, Any]
    real: Tensor
    real_cond: dict[str, Any]
    held_out: bool
    data: Tensor
    data_cond: dict[str, Any]


def collect_parts(model: OpenModel, data: Any, settings: FitSettings) -> tuple[Parts, list[str]]:
    """Read the data, and divide it into training data and reference."""
    dtype = torch.promote_types(model.denoiser.dtype, torch.float32)
    check_order("data", data, settings.cond, "cond")
    check_order("held_out", settings.held_out, settings.held_out_cond, "held_out_cond")
    samples, remarks = collect_samples("data", data, dtype)
    samples = model.encode(samples)
    cond = check_conditions(settings.cond, len(samples))
    if settings.held_out is None:
        if settings.held_out_cond is not None:
            raise ValueError("held_out_cond= belongs to held_out=, which is missing; leave it out.")
        return split_parts(samples, cond, settings.seed, reference_size(len(samples))), remarks
    if len(samples) < NEAREST:
        raise ValueError(f"data has {len(samples)} samples; give at least {NEAREST}, better thousands.")
    if len(samples) < FEW:
        warn(
            f"data has only {len(samples)} samples: the posterior and the distances to the training data say "
            f"little. Give at least {FEW}, better thousands.",
            UserWarning,
        )
    real, more = collect_samples("held_out", settings.held_out, dtype)
    real = model.encode(real)
    if real.shape[1:] != samples.shape[1:]:
        raise ValueError(
            f"held_out must have samples of shape {tuple(samples.shape[1:])}, like data, got "
            f"{tuple(real.shape[1:])}; prepare both in the same way."
        )
    warn_of_range("held_out lies", real, "data", *(float(v) for v in torch.aminmax(samples)))
    if cond and settings.held_out_cond is None:
        raise ValueError("the data has conditions (cond=), so held_out needs them too: give held_out_cond=.")
    real_cond = check_conditions(settings.held_out_cond, len(real))
    seen = overlap(samples, real)
    if not seen.any():
        rows = torch.arange(len(samples))
        return Parts(samples, rows, cond, real, real_cond, True, samples, cond), remarks + more
    if int((~seen).sum()) <= NEAREST:
        raise ValueError(
            f"held_out has all but {int((~seen).sum())} of the {len(samples)} samples of data: nothing is "
            "left to compare with. Leave held_out out, and a part of data is set aside."
        )
    warn(
        f"{int(seen.sum())} of {len(samples)} samples of data are also in held_out, number for number: the "
        "network was trained on them, so held_out counts as training data, with scores that are too low. "
        "Give data that the network has not seen.",
        UserWarning,
    )
    rows = (~seen).nonzero().flatten()
    train, own = samples[rows], take_rows(cond, rows)
    return Parts(train, rows, own, real, real_cond, False, samples, cond), remarks + more


def split_parts(samples: Tensor, cond: dict[str, Any], seed: int, size: int) -> Parts:
    """Set `size` random samples aside as the reference, the same as `noising.split`."""
    if size < 1 or len(samples) - size <= NEAREST:
        raise ValueError(
            f"data has {len(samples)} samples, of which a part is set aside to compare with; give at least "
            f"{2 * NEAREST + 2}, better thousands, or held_out=."
        )
    generator = torch.Generator().manual_seed(mix_seed(seed, SPLIT_STREAM))
    order = torch.randperm(len(samples), generator=generator)
    real, rows = order[:size].sort().values, order[size:].sort().values
    return Parts(
        samples[rows], rows, take_rows(cond, rows), samples[real], take_rows(cond, real), False, samples, cond
    )


def _try(model: OpenModel, parts: Parts, settings: FitSettings) -> None:
    """Call the network and the features once, before anything expensive; errors say what they cannot take."""
    denoiser = model.denoiser
    rows = trial_rows(parts.cond)
    x = parts.train[rows].to(denoiser.device)
    if isinstance(denoiser, Network):
        denoiser.check_channels(x)
    cond = to_device(take_rows(parts.cond, rows), x.device)
    call(denoiser, x, times(model.schedule.at(model.schedule.T).time, x), cond)
    compute_features("data", parts.train[:2], settings.features, 2)


def _structure_options(chosen: Choices, settings: FitSettings) -> dict[str, Any]:
    """The options that only some structures have, as far as they are given."""
    if settings.rank is None:
        return {}
    if "rank" not in STRUCTURES[chosen.structure].options:
        able = " or ".join(repr(name) for name in STRUCTURES if "rank" in STRUCTURES[name].options)
        raise ValueError(f"rank= is for structure={able}, got structure={chosen.structure!r}; leave it out.")
    return {"rank": settings.rank}


def _validation(model: OpenModel, parts: Parts, n: int, settings: FitSettings) -> Pairs | None:
    """Pairs of the real samples that are not in the training pairs, for prior_precision="validation"."""
    if settings.prior_precision != "validation":
        return None
    real = replace(parts, train=parts.real, cond=parts.real_cond)
    return _pairs(model, real, max(100, n // 20), replace(settings, seed=settings.seed + 1))


def _pairs(model: OpenModel, parts: Parts, n: int, settings: FitSettings) -> Pairs:
    weights: dict[str, Any] = {"weighting": settings.weighting, "cond": parts.cond}
    if model.diffusers is not None and not model.is_latent:  # checks the range of the images, too
        return model.diffusers.pairs(parts.train, n, settings.seed, **weights)
    return noising.pairs(parts.train, model.schedule, n, settings.seed, **weights)


def check_parts(model: OpenModel, parts: Parts, seed: int) -> ModelCheck:
    """Check the model against all of the data, as `flare.check_model` does."""
    steps = None if model.diffusers is None else model.diffusers.steps(min(STEPS, model.schedule.T))
    held_out = parts.real if parts.held_out else None
    return check_model(
        model.denoiser, parts.data, model.schedule,
        steps=steps, cond=parts.data_cond or None, held_out=held_out, seed=seed,
    )  # fmt: skip


def _keep(parts: Parts, settings: FitSettings) -> TrainingData:
    """At most `KEPT` random training samples, for neighbors."""
    samples, rows = parts.train, parts.rows
    if len(samples) > KEPT:
        generator = torch.Generator().manual_seed(mix_seed(settings.seed, SPLIT_STREAM))
        chosen = torch.randperm(len(samples), generator=generator)[:KEPT].sort().values
        samples, rows = samples[chosen], rows[chosen]
    return TrainingData(samples, rows, settings.features)


def describe(chosen: Choices, parts: Parts, remarks: list[str], checked: ModelCheck | None) -> dict[str, Any]:
    """What was chosen and found, as JSON values."""
    low, high = (float(v) for v in torch.aminmax(parts.train))
    return {
        "network_parameters": chosen.parameters,
        "subset": chosen.subset_kind,
        "pairs": chosen.pairs,
        "passes": chosen.passes,
        "training_size": len(parts.train),
        "range": [low, high],
        "conditions": sorted(parts.cond),
        "remarks": remarks,
        "problems": [] if checked is None else list(checked.problems),
        "checked": None if checked is None else _finite(checked),
    }


def _finite(checked: ModelCheck) -> dict[str, Any]:
    facts = checked.facts
    return {"excess": facts["excess"], "samples": facts["samples"]}

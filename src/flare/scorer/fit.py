"""`flare.fit`: from a trained network and its data to a `Scorer`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.conditions import Cond, check_conditions, take_rows
from ..core.distributed import is_main
from ..core.noise_streams import SPLIT_STREAM, mix_seed
from ..core.progress import Progress, announce, show_by_default, warn
from ..core.validation import require_instance
from ..diagnostics.model_check import ModelCheck, inspect_model
from ..diffusion.noising import Pairs, Weighting
from ..diffusion.schedules import Schedule
from ..model import Model
from ..network.coordinates import Subset
from ..posteriors import STRUCTURES, Posterior
from ..posteriors.tuning import PriorPrecision, Scale
from ..results.filters import assign_regions, find_regions
from ..results.verdict import FEW, Reference, overlap
from ..sampling.distances import make_encoder, trace_layers
from ..scores.neighbors import Features, compute_features
from ..scores.space import NEAREST
from ..scores.training_data import NEIGHBORS, TrainingData
from ..storage.resume import Resume
from .choosing import KEPT, Choices, choose, reference_size
from .inputs import check_order, collect_samples, open_model, warn_of_range
from .scorer import Scorer
from .tables import is_scaling, name_sources, open_training
from .witnesses import ENCODED, WITNESSES, look

RANK = 64  # eigenpairs of low_rank
MISFIT = ".* does not fit these pairs"  # a warning of the fit


@torch.no_grad()
def fit(
    net: Any,
    data: Any,
    schedule: Schedule | Any = None,
    *,
    prediction: str | None = None,
    held_out: Any = None,
    cond: Cond | str | None = None,
    held_out_cond: Cond | str | None = None,
    features: Features | None = None,
    layers: Sequence[str] | None = None,
    posterior: Posterior | None = None,
    subset: Subset | int | str | None = None,
    structure: str = "dense",
    pairs: int | None = None,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale | Any = "calibrated",
    rank: int | None = None,
    weighting: Weighting = "uniform",
    check: bool = True,
    seed: int = 0,
    memory: int | None = None,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Scorer:
    """Fit what is needed to say which samples of a diffusion model can be trusted.

    A Laplace posterior is fitted to the network, and real samples are scored for comparison. They are
    `held_out`, if given. Otherwise a part of `data` is set aside, at random: a tenth, and at most 1,000. The
    network has probably seen this part in training, so it counts as training data, and the scorer says so.

    A warning says if the network does not fit the data, or if its samples are far from it.

    >>> model = flare.bench.load("grid")
    >>> scorer = flare.fit(model, model.data, subset=100, pairs=500)
    >>> result = scorer.sample(100, steps=20)
    >>> good = result.samples[result.keep(0.5)]
    >>> good.shape
    torch.Size([50, 2])

    Args:
        net: The trained network: a module called as net(x, t, **cond), a `flare.Denoiser`, a `flare.Model`, a
            diffusers pipeline or its directory, or a pair (model, scheduler).
        data: Its training data, scaled as in training: an array or a tensor (N, *shape), a table with named
            columns (a DataFrame, or the path of a csv or parquet file), a `Dataset` or a `DataLoader`. If
            these yield tuples, the first element is the sample; labels are not used as conditions unless
            `cond` names them. For a latent diffusion model, images in [−1, 1].
        schedule: The noise levels that the network was trained on, such as `flare.schedules.cosine(1000)`, or
            a scheduler of diffusers. It comes with a `Model`, a pipeline or a pair.
        prediction: What a module predicts: "epsilon" by default, "sample", "v", "flow", "edm" or "edm_sigma".
        held_out: Real data that the network was not trained on, in the same forms as `data`.
        cond: Keyword arguments of the network; tensors have one row per sample of `data`, in the same order,
            so a loader that shuffles is refused. Or where `data` has them: cond="class_labels" takes the
            column or the key of this name, or the second element of tuples, and
            cond={"class_labels": "species"} those of another name.
        held_out_cond: The same for `held_out`; names are those of `cond` by default.
        features: Maps a batch (B, *shape) to features (B, d), between which distances to the training data
            are measured; by default they are measured between the samples themselves.
        layers: Names of the layers whose activations are compared, as in `net.named_modules()`; by default
            about 12 convolution and linear layers, evenly spaced in depth.
        posterior: A posterior over the network's parameters, from `flare.posteriors`, instead of fitting one;
            `subset`, `structure` and what follows, up to `weighting`, then have no effect.
        subset: The uncertain parameters, such as `flare.subsets.sketch(denoiser, 2000)`; or how many to draw
            at random; or "everything", "last_layer", or patterns of names such as "out.*". By default 1,000
            at random, or all of a smaller network; fewer if memory is scarce.
        structure: The structure of the posterior, one of `flare.posteriors.STRUCTURES`.
        pairs: The number of training pairs of the curvature; by default 20,000, and fewer for large networks,
            down to 4,000.
        prior_precision: δ of the posterior: a number, "marglik" for the largest marginal likelihood, or
            "validation" for the largest likelihood of `held_out`, or of the part that is set aside.
        scale: s of the posterior: a number, or "calibrated" for N/σ². Or for a table, how its columns were
            standardized for the training: a pair (mean, std), or a fitted scaler of scikit-learn. Tables then
            stay in your units, everywhere.
        rank: The number of eigenpairs, for structure="low_rank"; 64 by default.
        weighting: The loss weights of the training: "uniform" or "min_snr".
        check: Whether to check that the network fits the data.
        seed: Random seed for everything that is drawn.
        memory: Bytes that the posterior may use; half of the free memory by default. It limits the number of
            uncertain parameters that are drawn by default.
        resume: A directory for checkpoints of the curvature, or a `flare.Resume`; an identical call resumes
            from them.
        progress: True announces what is fitted and its cost, and draws a progress bar with the time left; or
            a function such as `tqdm.tqdm`. By default True in a terminal or a notebook; False is silent.
    """
    progress = show_by_default(progress)
    model = open_model(net, schedule, prediction)
    scaling, scale = (scale, "calibrated") if is_scaling(scale) else (None, scale)
    if held_out is not None and held_out_cond is None and name_sources(cond) is not None:
        held_out_cond = cond
    table = open_training("data", data, cond, scaling)
    if held_out is not None:
        held_out, held_out_cond, *_ = open_training("held_out", held_out, held_out_cond, known=table.facts)
    parts, remarks = _collect(model, table.data, held_out, table.cond, held_out_cond, seed)
    model.try_on(parts.train, parts.cond)
    compute_features("data", parts.train[:2], features)
    watched, work = trace_layers(model, parts.train, parts.cond, layers)
    checked = _check(model, parts, seed) if check and is_main() else None
    problems = [] if checked is None else list(checked.problems)
    if checked is not None and problems:
        warn(f"do not trust this scorer yet: {checked.verdict}", UserWarning)
    kind, passes = "given", 0
    if posterior is None:
        chosen = choose(model.denoiser, subset, structure, pairs, seed, memory, work)
        kind, passes = chosen.subset_kind, chosen.count_passes(parts.train[0].numel())
        announce(f"flare.fit: {_describe(model, chosen, len(parts.real), passes)}.", progress)
        with warnings.catch_warnings():
            if problems:  # said already, with the likely cause
                warnings.filterwarnings("ignore", MISFIT)
            posterior = STRUCTURES[chosen.structure].function(
                model.denoiser, chosen.subset, _draw_pairs(model, parts, chosen.pairs, weighting, seed),
                prior_precision, scale, resume=resume, progress=progress,
                validation=_draw_validation(model, parts, chosen.pairs, weighting, seed)
                if prior_precision == "validation" else None,
                **_structure_options(chosen, rank),
            )  # fmt: skip
    else:
        require_instance("posterior", posterior, Posterior, "fit one, as in flare.posteriors.dense")
        posterior.check(model.denoiser, model.schedule)
    order = _choose_rows(len(parts.train), seed)
    kept = order.sort().values
    training = TrainingData.of(parts.train[kept], parts.rows[kept], features)
    near = training.find(parts.real)
    few = order[:ENCODED]
    train = (parts.train[few], take_rows(parts.cond, few))
    encoder = make_encoder(model, posterior, watched, seed, names=WITNESSES)
    found = look(encoder, work, train, (parts.real, parts.real_cond), model.learned, memory)
    training = replace(
        training, spaces={**training.spaces, **found.spaces}, copy_distance=float(near.distances.min())
    )
    low, high = (float(v) for v in torch.aminmax(parts.train))
    about = {
        "network_parameters": model.denoiser.parameter_count,
        "subset": kind,
        "pairs": posterior.origin.statistics.pairs,
        "weighting": weighting,
        "passes": passes + found.calls,
        "training_size": len(parts.train),
        "range": [low, high],
        "conditions": sorted(parts.cond),
        "remarks": table.remarks + remarks,
        "problems": problems,
        "limited": {} if checked is None else checked.limited,
        "checked": None if checked is None else {key: checked.facts[key] for key in ("excess", "samples")},
        "repeatability": found.repeatability,
        "seed": seed,
        **table.facts,
    }
    reference = Reference({NEIGHBORS: near.score, **found.scores}, parts.held_out)
    known, real = training.samples, parts.real
    if known is None:
        known, real = training.spaces[NEIGHBORS].points, training.locate(real)
    centers = find_regions(known)
    about["region_counts"] = assign_regions(real, centers).bincount(minlength=len(centers)).tolist()
    return Scorer(
        model, posterior, found.encoder, reference, training, centers,
        tuple(parts.train.shape[1:]), float(parts.train.abs().max()), seed, about,
    )  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """The data in memory, with what it is for.

    Attributes:
        train: The training data without the reference, (N, *shape).
        rows: Their rows in the user's data, (N,).
        cond: Their conditions.
        real: The samples of the reference, (n, *shape).
        real_cond: Their conditions.
        held_out: Whether the network presumably has not seen these in training.
        data: All of the user's data, which the model is checked against, (M, *shape).
        data_cond: Its conditions.
    """

    train: Tensor
    rows: Tensor
    cond: dict[str, Any]
    real: Tensor
    real_cond: dict[str, Any]
    held_out: bool
    data: Tensor
    data_cond: dict[str, Any]


def _collect(
    model: Model, data: Any, held_out: Any, cond: Any, held_out_cond: Any, seed: int
) -> tuple[Parts, list[str]]:
    """Read the data, and divide it into training data and reference; also returns remarks for the user."""
    dtype = torch.promote_types(model.denoiser.dtype, torch.float32)
    check_order("data", data, cond, "cond")
    check_order("held_out", held_out, held_out_cond, "held_out_cond")
    samples, remarks, found = collect_samples("data", data, dtype, name_sources(cond))
    samples = model.encode(samples)
    own = check_conditions(found or cond, len(samples))
    if held_out is None:
        if held_out_cond is not None:
            raise ValueError("held_out_cond= belongs to held_out=, which is missing; leave it out.")
        return _split(samples, own, seed, reference_size(len(samples))), remarks
    if len(samples) < NEAREST:
        raise ValueError(f"data has {len(samples)} samples; give at least {NEAREST}, better thousands.")
    if len(samples) < FEW:
        warn(
            f"data has only {len(samples)} samples: the posterior and the distances to the training data say "
            f"little. Give at least {FEW}, better thousands.",
            UserWarning,
        )
    real, more, found = collect_samples("held_out", held_out, dtype, name_sources(held_out_cond))
    real = model.encode(real)
    if real.shape[1:] != samples.shape[1:]:
        raise ValueError(
            f"held_out must have samples of shape {tuple(samples.shape[1:])}, like data, got "
            f"{tuple(real.shape[1:])}; prepare both in the same way."
        )
    warn_of_range("held_out lies", real, "data", *(float(v) for v in torch.aminmax(samples)))
    if own and held_out_cond is None:
        raise ValueError("the data has conditions (cond=), so held_out needs them too: give held_out_cond=.")
    real_cond = check_conditions(found or held_out_cond, len(real))
    seen = overlap(samples, real)
    rows = (~seen).nonzero().flatten()
    if seen.any():
        if len(rows) <= NEAREST:
            raise ValueError(
                f"held_out has all but {len(rows)} of the {len(samples)} samples of data: nothing is left to "
                "compare with. Leave held_out out, and a part of data is set aside."
            )
        warn(
            f"{int(seen.sum())} of {len(samples)} samples of data are also in held_out, exactly: the network "
            "was trained on them, so held_out counts as training data, with scores that are too low. Give "
            "data that the network has not seen.",
            UserWarning,
        )
    train = (samples, own) if len(rows) == len(samples) else (samples[rows], take_rows(own, rows))
    return Parts(train[0], rows, train[1], real, real_cond, not seen.any(), samples, own), remarks + more


def _split(samples: Tensor, cond: dict[str, Any], seed: int, size: int) -> Parts:
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


def _check(model: Model, parts: Parts, seed: int) -> ModelCheck:
    """Check the model against all of the data, as `flare.check_model` does."""
    held_out = parts.real if parts.held_out else None
    return inspect_model(model, parts.data, cond=parts.data_cond, held_out=held_out, seed=seed)


def _describe(model: Model, chosen: Choices, reference: int, passes: int) -> str:
    """What is fitted and its cost, in words."""
    return (
        f"a {chosen.structure} posterior over {chosen.subset.size:,} of "
        f"{model.denoiser.parameter_count:,} parameters ({chosen.subset_kind}) from {chosen.pairs:,} "
        f"training pairs, about {passes:,} forward and backward passes, and {reference:,} real samples to "
        "compare with"
    )


def _structure_options(chosen: Choices, rank: int | None) -> dict[str, Any]:
    """The options that only some structures have, if they are given."""
    if rank is None and "rank" in STRUCTURES[chosen.structure].options:
        return {"rank": min(RANK, chosen.subset.size)}
    if rank is None:
        return {}
    if "rank" not in STRUCTURES[chosen.structure].options:
        able = " or ".join(repr(name) for name in STRUCTURES if "rank" in STRUCTURES[name].options)
        raise ValueError(f"rank= is for structure={able}, got structure={chosen.structure!r}; leave it out.")
    return {"rank": rank}


def _draw_pairs(model: Model, parts: Parts, n: int, weighting: Weighting, seed: int) -> Pairs:
    return model.pairs(parts.train, n, seed, weighting=weighting, cond=parts.cond)


def _draw_validation(model: Model, parts: Parts, n: int, weighting: Weighting, seed: int) -> Pairs:
    """Pairs of the real samples that are not in the training pairs, for prior_precision="validation"."""
    count = max(100, n // 20)
    return model.pairs(parts.real, count, seed + 1, weighting=weighting, cond=parts.real_cond)


def _choose_rows(n: int, seed: int) -> Tensor:
    """At most `KEPT` random rows of n, in random order."""
    generator = torch.Generator().manual_seed(mix_seed(seed, SPLIT_STREAM))
    return torch.randperm(n, generator=generator)[:KEPT]

"""`flare.fit`: from a trained network and its data to a `Scorer`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core import SHARED_LEVELS
from ..core.conditions import Cond, take_rows
from ..core.distributed import is_main
from ..core.noise_streams import SPLIT_STREAM, mix_seed
from ..core.precision import no_autocast
from ..core.progress import Progress, announce, show_by_default, warn, watch
from ..core.validation import find_range, require_instance
from ..diagnostics.model_check import ModelCheck, inspect_model
from ..diffusion.noising import Pairs, Weighting
from ..diffusion.schedules import Schedule
from ..model import Model
from ..network.coordinates import Subset
from ..posteriors import STRUCTURES, Posterior
from ..posteriors.tuning import PriorPrecision, Scale
from ..results.filters import assign_regions, find_regions
from ..results.verdict import FEW, Reference, overlap
from ..sampling.finished import make_encoder, trace_layers
from ..scores.encoder import SIGNS
from ..scores.neighbors import NEIGHBORS, Features, TrainingData, compute_features
from ..scores.space import NEAREST
from ..storage.resume import Resume
from .choosing import KEPT, PAIR_CALLS, ROW_CALLS, Choices, choose, reference_size
from .collecting import check_order, collect_samples
from .condition_fit import CONDITION, check_null, compare_conditions
from .inputs import open_model, warn_of_range
from .scorer import Scorer
from .tables import find_floats, is_scaling, name_sources, open_training, widen
from .witnesses import ENCODED, FEW_COMPARED, FEWEST_ENCODED, WITNESSES, look, measure_agreement

RANK = 64  # eigenpairs of low_rank
COPIED = 256  # rows of the data that are copied at once
MISFIT = ".* does not fit these pairs"  # a warning of the fit


@torch.no_grad()
@no_autocast()
def fit(
    net: Any,
    data: Any,
    schedule: Schedule | Any = None,
    *,
    prediction: str | None = None,
    held_out: Any = None,
    cond: Cond | str | None = None,
    held_out_cond: Cond | str | None = None,
    null_cond: Mapping[str, float] | None = None,
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
    """Fit a scorer, which tells you which samples of a diffusion model you can trust.

    The function fits a Laplace posterior to the network and scores real samples for comparison. These are
    the samples of `held_out`. Without `held_out`, a random tenth of `data` is set aside, at most 1,000
    samples. The network has probably seen these in training, so the scorer reports them as training data.

    A warning tells you if the network does not fit the data, or if its samples are far from the data.

    >>> model = flare.bench.load("grid")
    >>> scorer = flare.fit(model, model.data, subset=100, pairs=500)
    >>> result = scorer.sample(100, steps=20)
    >>> good = result.samples[result.keep(0.5)]
    >>> good.shape
    torch.Size([50, 2])

    Args:
        net: The trained network: a module called as net(x, t, **cond), a `flare.Denoiser`, a `flare.Model`, a
            diffusers pipeline or its directory, a pair (model, scheduler), or a GaussianDiffusion of
            denoising-diffusion-pytorch, whose network takes samples in [−1, 1].
        data: The training data, scaled as in training: an array or a tensor (N, *shape), a table with named
            columns (a DataFrame, or the path of a csv or parquet file), a `Dataset` (of torch, or of the
            package datasets), a `DataLoader`, or the path of a folder of images, which are scaled to [−1, 1].
            In a tuple, the first element is the sample. In a dict, it is image, images, pixel_values or
            input. Labels are ignored unless `cond` names them. A latent diffusion model takes images in
            [−1, 1]. If the data needs more than half of the free memory, random rows are read.
        schedule: The noise levels that the network was trained on, such as `flare.schedules.cosine(1000)`, or
            a scheduler of diffusers. A `Model`, a pipeline or a pair already includes it.
        prediction: What a module predicts: "epsilon" by default, "sample", "v", "flow", "edm" or "edm_sigma".
        held_out: Real data that the network was not trained on, in the same forms as `data`.
        cond: Keyword arguments of the network. Tensors have one row per sample of `data`, in the same order,
            so a loader that shuffles raises an error. If `data` contains the conditions, pass their name:
            cond="class_labels" uses this column or key, or the second element of tuples, and
            cond={"class_labels": "species"} uses the column species.
        held_out_cond: Conditions of `held_out`, in the same form; by default the names in `cond`.
        null_cond: The values that mean no condition, such as {"class_labels": 10}, for a network that was
            trained with dropped conditions. The verdict then also asks how much the conditions of a sample
            help to denoise it (`condition_fit`).
        features: A function that maps a batch (B, *shape) to features (B, d). `neighbors` then measures
            distances between features instead of samples.
        layers: Names of the layers whose activations are compared, as in `net.named_modules()`; by default
            about 12 convolution and linear layers, evenly spaced in depth.
        posterior: A fitted posterior from `flare.posteriors`. The arguments from `subset` to `weighting` then
            have no effect.
        subset: The uncertain parameters, such as `flare.subsets.sketch(denoiser, 2000)`; or the number of
            random parameters; or "everything", "last_layer", or name patterns such as "out.*". By default
            1,000 random parameters, or all of a smaller network; fewer if memory is short.
        structure: The structure of the posterior, one of `flare.posteriors.STRUCTURES`.
        pairs: The number of training pairs for the curvature; by default 20,000, and fewer for large
            networks, down to 1,000.
        prior_precision: δ of the posterior: a number, "marglik" to maximize the marginal likelihood, or
            "validation" to maximize the likelihood of the held-out samples.
        scale: s of the posterior: a number, or "calibrated" for N/σ². For a table, the scale of its columns
            in training: a pair (mean, std), or a fitted scaler of scikit-learn. Tables then keep your units.
        rank: The number of eigenpairs, for structure="low_rank"; 64 by default.
        weighting: The loss weights of the training: "uniform" or "min_snr".
        check: Whether to check that the network fits the data.
        seed: Random seed for everything that is drawn.
        memory: Bytes that the posterior may use; half of the free memory by default. It limits the number of
            uncertain parameters that are drawn by default.
        resume: A directory for checkpoints of the curvature, or a `flare.Resume`. An identical call resumes
            from them.
        progress: True for a progress bar and a line on the cost of the fit, or a function such as
            `tqdm.tqdm`; by default True in a terminal or a notebook. False is silent.
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
    model.try_on(parts.data, parts.cond)
    null = check_null(null_cond, parts.cond)
    compute_features("data", parts.data[:2], features)
    few = parts.rows[[0, -1]]
    watched, work = trace_layers(model, parts.data[few], take_rows(parts.cond, few), layers)
    if held_out is None and (size := reference_size(len(parts.data), work)) < len(parts.real):
        parts = _split(parts.data, parts.cond, parts.origin, seed, size)
    checked = _check(model, parts, seed) if check and is_main() else None
    problems = [] if checked is None else list(checked.problems)
    if checked is not None and problems:
        warn(f"do not trust this scorer yet: {checked.verdict}", UserWarning)
    kind, passes = "given", 0
    if posterior is None:
        chosen = choose(model.denoiser, subset, structure, pairs, seed, memory, work)
        kind, passes = chosen.subset_kind, chosen.count_passes(parts.data[0].numel())
        announce(f"flare.fit: {_describe(model, chosen, len(parts.real), passes)}.", progress)
        with warnings.catch_warnings():
            if problems:  # said already, with the likely cause
                warnings.filterwarnings("ignore", MISFIT)
            posterior = STRUCTURES[chosen.structure].function(
                model.denoiser, chosen.subset, _draw_pairs(model, parts, chosen, weighting, seed),
                prior_precision, scale, resume=resume,
                progress=_time(chosen.count_calls(parts.data[0].numel()), parts, progress),
                validation=_draw_validation(model, parts, chosen.pairs, weighting, seed)
                if prior_precision == "validation" else None,
                **_structure_options(chosen, rank),
            )  # fmt: skip
    else:
        require_instance("posterior", posterior, Posterior, "fit one, as in flare.posteriors.dense")
        posterior.check(model.denoiser, model.schedule)
    generator = torch.Generator().manual_seed(mix_seed(seed, SPLIT_STREAM))
    order = torch.randperm(len(parts.rows), generator=generator)[:KEPT]
    training = TrainingData.of(parts.data, parts.rows[order.sort().values], features)
    near = training.find(parts.real)
    encoder = make_encoder(model, posterior, watched, seed, names=WITNESSES)
    train = (parts.data, parts.cond, parts.rows[order[:ENCODED]])
    found = look(encoder, work, train, (parts.real, parts.real_cond), model.learned, memory)
    training = replace(
        training,
        spaces={**training.spaces, **found.spaces},
        rows=parts.origin[training.rows],
        copy_distance=float(near.distances.min()),
    )
    scores = {NEIGHBORS: near.score, **found.scores}
    if null:
        scores[CONDITION], again = (
            compare_conditions(model, parts.real, parts.real_cond, null, own, memory=memory)
            for own in (seed, seed + 1)
        )
        found.repeatability[CONDITION] = measure_agreement(scores[CONDITION], again)
    low, high = parts.find_range()
    about = {
        "network_parameters": model.denoiser.parameter_count,
        "subset": kind,
        "pairs": posterior.origin.statistics.pairs,
        "weighting": weighting,
        "passes": passes + found.calls,
        "training_size": len(parts.rows),
        "range": [low, high],
        "conditions": sorted(parts.cond),
        "null_cond": null,
        "remarks": table.remarks + remarks,
        "problems": problems,
        "limited": {} if checked is None else checked.limited,
        "checked": None if checked is None else {key: checked.facts[key] for key in ("excess", "samples")},
        "repeatability": found.repeatability,
        "seed": seed,
        **table.facts,
    }
    reference = Reference(scores, parts.held_out)
    known, real = training.samples, parts.real
    if known is None:
        known, real = training.spaces[NEIGHBORS].points, training.locate(real)
    centers = find_regions(known)
    about["region_counts"] = assign_regions(real, centers).bincount(minlength=len(centers)).tolist()
    return Scorer(
        model, posterior, found.encoder, reference, training, centers,
        tuple(parts.data.shape[1:]), max(-low, high), seed, about,
    )  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """The data in memory, divided by its purpose.

    Attributes:
        data: The data, which the model is checked against, (M, *shape).
        cond: Its conditions.
        rows: The rows of the training data, which are those that are not in the reference, (N,).
        origin: The row in the user's data of every row of `data`, (M,).
        real: The samples of the reference, (n, *shape).
        real_cond: Their conditions.
        held_out: Whether the network presumably has not seen these in training.
    """

    data: Tensor
    cond: dict[str, Any]
    rows: Tensor
    origin: Tensor
    real: Tensor
    real_cond: dict[str, Any]
    held_out: bool

    def find_range(self) -> tuple[float, float]:
        """The smallest and the largest number of the training data."""
        lows, highs = zip(*(find_range(self.data[some]) for some in self.rows.split(COPIED)), strict=True)
        return min(lows), max(highs)


def _collect(
    model: Model, data: Any, held_out: Any, cond: Any, held_out_cond: Any, seed: int
) -> tuple[Parts, list[str]]:
    """Read the data, and divide it into training data and reference; also returns remarks for the user."""
    dtype = torch.promote_types(model.denoiser.dtype, torch.float32)
    shape = model.known_shape if model.codec is None else None
    check_order("data", data, cond, "cond")
    check_order("held_out", held_out, held_out_cond, "held_out_cond")
    samples, origin, own, remarks = collect_samples("data", data, dtype, cond, seed, shape)
    samples = model.encode(samples)
    if held_out is None:
        if held_out_cond is not None:
            raise ValueError("held_out_cond= belongs to held_out=, which is missing; leave it out.")
        return _split(samples, own, origin, seed, reference_size(len(samples))), remarks
    if len(samples) < NEAREST:
        raise ValueError(f"data has {len(samples)} samples; give at least {NEAREST}, preferably thousands.")
    if len(samples) < FEW:
        warn(
            f"data has only {len(samples)} samples: the posterior and the distances to the training data say "
            f"little. Give at least {FEW}, preferably thousands.",
            UserWarning,
        )
    real, _, real_cond, more = collect_samples("held_out", held_out, dtype, held_out_cond, seed, shape)
    real, real_cond = model.encode(real), widen(real_cond, find_floats(own))
    if real.shape[1:] != samples.shape[1:]:
        raise ValueError(
            f"held_out must have samples of shape {tuple(samples.shape[1:])}, like data, got "
            f"{tuple(real.shape[1:])}; prepare both in the same way."
        )
    warn_of_range("held_out lies", real, "data", *find_range(samples))
    if own and held_out_cond is None:
        raise ValueError("the data has conditions (cond=), so held_out needs them too: give held_out_cond=.")
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
    return Parts(samples, own, rows, origin, real, real_cond, not seen.any()), remarks + more


def _split(samples: Tensor, cond: dict[str, Any], origin: Tensor, seed: int, size: int) -> Parts:
    """Set `size` random samples aside as the reference, the same as `noising.split`."""
    if size < 1 or len(samples) - size <= NEAREST:
        raise ValueError(
            f"data has {len(samples)} samples, and a part of them is set aside as reference; give at least "
            f"{2 * NEAREST + 2}, preferably thousands, or held_out=."
        )
    generator = torch.Generator().manual_seed(mix_seed(seed, SPLIT_STREAM))
    order = torch.randperm(len(samples), generator=generator)
    real, rows = order[:size].sort().values, order[size:].sort().values
    return Parts(samples, cond, rows, origin, samples[real], take_rows(cond, real), False)


def _check(model: Model, parts: Parts, seed: int) -> ModelCheck:
    """Check the model against all of the data, as `flare.check_model` does."""
    held_out = parts.real if parts.held_out else None
    return inspect_model(model, parts.data, cond=parts.cond, held_out=held_out, seed=seed)


def _describe(model: Model, chosen: Choices, reference: int, passes: int) -> str:
    """The choices of the fit and its cost, in words."""
    return (
        f"a {chosen.structure} posterior over {chosen.subset.size:,} of "
        f"{model.denoiser.parameter_count:,} parameters ({chosen.subset_kind}) from {chosen.pairs:,} "
        f"training pairs, about {passes:,} forward and backward passes, and {reference:,} real samples to "
        "compare with"
    )


def _time(posterior: float, parts: Parts, progress: Progress | bool) -> Progress | bool:
    """The same progress; a bar also says how long the fit takes, after its first batch.

    `posterior` is the number of forward calls that take as long as the posterior.
    """
    if progress is not True:
        return progress
    samples = min(FEWEST_ENCODED, len(parts.rows)) + len(parts.real) + 2 * FEW_COMPARED
    share = samples * SIGNS * len(SHARED_LEVELS) * (PAIR_CALLS + ROW_CALLS) / posterior

    def timed(items: Any) -> Iterator[Any]:
        start = time.perf_counter()
        for done, item in enumerate(watch(iter(items), len(items), progress=True)):
            if done == 1:
                seconds = (time.perf_counter() - start) * len(items)
                announce(
                    f"flare.fit: about {seconds:.0f} s, and {seconds * share:.0f} s for features of real "
                    "samples.",
                    progress=True,
                )
            yield item

    return timed


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


def _draw_pairs(model: Model, parts: Parts, chosen: Choices, weighting: Weighting, seed: int) -> Pairs:
    model.check_samples(parts.data)
    return Pairs(
        parts.data, model.schedule, chosen.pairs, seed, weighting, parts.cond, chosen.batch_size, parts.rows
    )


def _draw_validation(model: Model, parts: Parts, n: int, weighting: Weighting, seed: int) -> Pairs:
    """Pairs of the real samples that are not in the training pairs, for prior_precision="validation"."""
    count = max(100, n // 20)
    return model.pairs(parts.real, count, seed + 1, weighting=weighting, cond=parts.real_cond)

"""The scale that people understand: how do the scores of real data compare?

A score has no unit that means anything to a user. `Reference` holds the scores of real data, best held out
from training, and places other samples among them: the p-value of a sample is the share of real samples that
look at least as doubtful.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core.validation import one_of, require_samples
from ..core.warn import warn
from ..storage import checkpoint
from .formats import SCORE
from .verdict import NOT_SCORED, Verdict

FORMAT = 1
FEW = 20  # reference samples below which no p-value reaches 0.05, the default level
_KIND = "reference"
_MAD, _MEAN_DEVIATION = 1.4826, math.sqrt(math.pi / 2)  # ratios to the standard deviation of a normal law
_ROUNDING = 1e-9  # sums of z that differ by less are ties


@dataclass(frozen=True)
class _Scale:
    """How the scores of one name become z: (f(s) − center)/spread, with f the logarithm or the identity."""

    log: bool
    lowest: float  # scores below it count as it
    center: float
    spread: float  # 0 if all scores of the reference are equal

    def z(self, values: Tensor) -> Tensor:
        if not self.spread:
            return torch.where(values.isnan(), values, 0.0)
        return (self.transform(values) - self.center) / self.spread

    def transform(self, values: Tensor) -> Tensor:
        values = values.clamp(min=self.lowest)
        return values.log() if self.log else values


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """Scores of real data, with which the scores of other samples are compared.

    Held-out data is best. Training data has scores that are too low, so that good samples look more doubtful
    than they are when they are compared with it; `held_out=False` records this, and verdicts say so.
    Distances of training data to training data need `flare.neighbors(..., exclude_self=True)`.

    Samples with a NaN or infinite score are dropped with a warning.

    >>> reference = flare.Reference({"score": torch.arange(1.0, 100.0)})
    >>> reference.p_value("score", torch.tensor([50.0, 1000.0]))
    tensor([0.5100, 0.0100], dtype=torch.float64)
    >>> reference.verdict({"score": torch.tensor([50.0, 1000.0])}).trusted(0.05)
    tensor([ True, False])

    Attributes:
        scores: the scores by name, each (n,), of the same n real samples in the same order.
        held_out: whether the samples were held out from training.
        log_scores: names of scores that are logarithms already, such as `error_profile`; their z is taken
            without another logarithm.
    """

    scores: Mapping[str, Tensor]
    held_out: bool = True
    log_scores: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        scores = _check_scores("the reference", self.scores)
        for name in self.log_scores:
            one_of("score of the reference", name, scores)
        finite = torch.stack([score.isfinite() for score in scores.values()]).all(0)
        if not finite.any():
            raise ValueError(
                f"the reference is empty: none of its {len(finite)} samples has finite scores. "
                "Give the scores of real data."
            )
        if dropped := int((~finite).sum()):
            warn(
                f"{dropped} of {len(finite)} reference samples have NaN or infinite scores and are left out.",
                UserWarning,
            )
        object.__setattr__(self, "scores", {name: score[finite] for name, score in scores.items()})
        if len(self) < FEW:
            warn(
                f"the reference has only {len(self)} samples: the smallest p-value is 1/{len(self) + 1}. "
                f"Give at least {FEW}, better hundreds.",
                UserWarning,
            )

    def p_value(self, name: str, values: Tensor) -> Tensor:
        """Share of real samples with a score of at least s, (1 + #{real ≥ s}) / (1 + n), for each s of (m,).

        A fresh real sample has a p-value of at most a with a probability of at most a, for every a. Ties make
        p-values larger. The p-value of NaN is NaN.
        """
        values = _check_values(name, values)
        return _rank(self._find(name), values)

    def z(self, name: str, values: Tensor) -> Tensor:
        """Robust z of scores (m,): (log s − median) / (1.4826·MAD), with the median and MAD of the reference.

        Scores below the lowest of the reference count as the lowest: to be nearer to the data than any real
        sample is no evidence in favor. With a warning,

        - scores of 0 in the reference count as its lowest positive score;
        - with negative scores in the reference, z is taken without the logarithm;
        - if more than half of the reference scores are equal, so that the MAD is 0, the spread is the mean
          absolute deviation times √(π/2), and z is 0 if all of them are equal.
        """
        values = _check_values(name, values)
        self._find(name)
        return self._scales[name].z(values)

    def verdict(self, scores: Mapping[str, Tensor], copies: Tensor | None = None) -> Verdict:
        """Judge samples by the sum of the z of their scores.

        The p-value of the sum compares it with the same sums of the reference samples. Their own median and
        MAD are part of these sums, so p-values of fresh real samples are only nearly uniform: in simulations
        with two and three scores P(p ≤ 0.05) was at most 0.055 with 19 reference samples, 0.053 with 39 and
        0.052 with 59. This is small next to chance: over references of 59 samples, P(p ≤ 0.05) has a standard
        deviation of 0.03.

        Args:
            scores: (m,) each, by names of the reference; those that are missing are left out of the sum.
            copies: which samples look like copies of training data, (m,) bool, to be kept with the verdict.
        """
        found = _check_scores("the verdict", scores)
        z = torch.stack([self.z(name, values) for name, values in found.items()])
        total = z.sum(0)
        real = torch.stack([self.z(name, self.scores[name]) for name in found]).sum(0)
        # equal scores may differ in the last digit of their logarithms: count them as ties
        low = total - _ROUNDING * total.abs().clamp(1, 1e9)
        names = list(found)
        return Verdict(
            p_value=_rank(real, low),
            z=total,
            p_values={name: self.p_value(name, values) for name, values in found.items()},
            reason=[
                NOT_SCORED if lost else names[worst]
                for worst, lost in zip(z.nan_to_num().argmax(0).tolist(), total.isnan().tolist(), strict=True)
            ],
            reference_size=len(self),
            held_out=self.held_out,
            copies=None if copies is None else _check_mask(copies, len(total)),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .safetensors file."""
        header = {
            "format": FORMAT,
            "kind": _KIND,
            "scores": list(self.scores),
            "held_out": self.held_out,
            "log_scores": list(self.log_scores),
        }
        checkpoint.save(path, {SCORE + name: score for name, score in self.scores.items()}, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Reference:
        """Read what `save` wrote."""
        tensors, header = checkpoint.load(path)
        _check_header(path, tensors, header)
        scores = {name: tensors[SCORE + name] for name in header["scores"]}
        return cls(scores, header["held_out"], tuple(header["log_scores"]))

    @cached_property
    def _scales(self) -> dict[str, _Scale]:
        return {name: _fit_scale(name, score, name in self.log_scores) for name, score in self.scores.items()}

    def _find(self, name: str) -> Tensor:
        return self.scores[one_of("score of the reference", name, self.scores)]

    def __len__(self) -> int:
        return len(next(iter(self.scores.values())))

    def __repr__(self) -> str:
        kind = "held-out" if self.held_out else "training"
        return f"Reference: {', '.join(self.scores)} of {len(self):,} {kind} samples"


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Mask of the samples of `a` (n, *shape) that are also in `b` (m, *shape), number for number: (n,) bool.

    Held-out data must not overlap with the training data. Rows are compared by hash, so `b` may be large;
    numbers of different types are equal if they are equal in float64.
    """
    a, b = require_samples("a", a), require_samples("b", b)
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"samples of a and b must have the same shape, got {tuple(a.shape[1:])} and {tuple(b.shape[1:])}."
        )
    known = set(_hash_rows(b))
    return torch.tensor([row in known for row in _hash_rows(a)], device=a.device)


def _hash_rows(x: Tensor) -> Iterator[bytes]:
    """A hash of each row (n, *shape), in float64; 0.0 and −0.0 are equal."""
    for row in x.detach().flatten(1):
        numbers = row.to("cpu", torch.float64) + 0.0
        yield hashlib.blake2b(numbers.numpy().tobytes(), digest_size=16).digest()


def _rank(real: Tensor, values: Tensor) -> Tensor:
    """p-values (1 + #{real ≥ s}) / (1 + n) of values (m,) among real ones (n,); NaN for NaN."""
    larger = len(real) - torch.searchsorted(real.sort().values, values)
    p_value = (1 + larger).double() / (1 + len(real))
    return p_value.masked_fill(values.isnan(), torch.nan)


def _fit_scale(name: str, score: Tensor, is_log: bool) -> _Scale:
    """The scale of the z of a score; warn about scores that have no logarithm or no spread."""
    log, lowest = not is_log, float(score.min())
    if log and lowest < 0:
        log = False
        warn(
            f"the reference has negative scores of {name}, as low as {lowest:.3g}: z is taken without the "
            f"logarithm. If {name} is a logarithm already, say so with log_scores=[{name!r}].",
            UserWarning,
        )
    elif log and lowest == 0:
        zeros = int((score == 0).sum())
        log = zeros < len(score)
        lowest = float(score[score > 0].min()) if log else 0.0
        warn(
            f"{zeros} of {len(score)} reference samples have {name} = 0, which has no logarithm: they count "
            f"as the lowest positive score, {lowest:.3g}.",
            UserWarning,
        )
    values = _Scale(log, lowest, 0.0, 1.0).transform(score)
    center = values.quantile(0.5)
    deviations = (values - center).abs()
    spread = _MAD * deviations.quantile(0.5)
    if spread == 0:
        spread = _MEAN_DEVIATION * deviations.mean()
        equal = "more than half of" if spread else "all"
        rule = "the mean absolute deviation replaces it" if spread else "z is 0 for all samples"
        warn(
            f"{equal} the {len(score)} reference scores of {name} are equal, so that their median absolute "
            f"deviation is 0: {rule}.",
            UserWarning,
        )
    return _Scale(log, lowest, float(center), float(spread))


def _check_scores(what: str, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores by name as float64 on the CPU, if all of them have one shape (n,)."""
    if not isinstance(scores, Mapping) or not scores:
        got = "none" if isinstance(scores, Mapping) else type(scores).__name__
        raise ValueError(f"{what} needs scores by name, such as {{'influence': tensor}}, got {got}.")
    found = {name: _check_values(name, values) for name, values in scores.items()}
    sizes = {name: len(values) for name, values in found.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"the scores of {what} must be of the same samples, got "
            f"{', '.join(f'{size} of {name}' for name, size in sizes.items())}."
        )
    return found


def _check_values(name: str, values: Tensor) -> Tensor:
    values = torch.as_tensor(values).detach().to("cpu", torch.float64)
    if values.ndim != 1:
        raise ValueError(f"scores of {name} must have shape (n,), got {tuple(values.shape)}.")
    return values


def _check_mask(copies: Tensor, n: int) -> Tensor:
    copies = torch.as_tensor(copies).detach().cpu()
    if copies.shape != (n,) or copies.dtype != torch.bool:
        raise ValueError(
            f"copies must be a bool mask of shape ({n},), got {copies.dtype} of shape {tuple(copies.shape)}; "
            "make it with flare.neighbors(...).copies(held_out)."
        )
    return copies


def _check_header(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Raise unless a file holds a reference that this version can read."""
    if header.get("kind") != _KIND:
        raise ValueError(f"{path} is not a reference; write one with Reference.save.")
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {header.get('format')!r}, this version of flare reads format {FORMAT}; "
            "write it again with this version."
        )
    names, logs = header.get("scores"), header.get("log_scores")
    complete = (
        isinstance(names, list)
        and isinstance(logs, list)
        and isinstance(header.get("held_out"), bool)
        and all(isinstance(name, str) for name in (*names, *logs))
        and {SCORE + name for name in names} == set(tensors)
        and all(score.dtype == torch.float64 and score.isfinite().all() for score in tensors.values())
    )
    if not complete:
        raise ValueError(
            f"{path} is damaged: its scores do not match its header, or are not finite float64. "
            "Write it again."
        )

"""`Reference` and `Verdict`: how plausible samples are, compared with real data, and why.

A score has no meaningful unit. A `Reference` holds the scores of real data, preferably held out from
training, and compares other samples with them: the p-value of a sample is the share of real samples that look
at least as doubtful.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.progress import warn
from ..core.validation import one_of
from ..storage import checkpoint
from .filters import Mask, require_share

NOT_SCORED = "not scored"  # the reason of a sample with a NaN score
TRUSTED, DOUBTFUL = "trusted", "doubtful"
SCORE, P_VALUE = "score.", "p_value."  # prefixes of tensors in files
FEW = 20  # reference samples below which no p-value reaches 0.05, the default level
CHANCE = 3.0  # standard errors that chance explains
TELLING = 100  # samples of which a share can be told
FORMAT = 1
DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, RuntimeError)  # of a file's contents
_KIND = "reference"
# ratios of the standard deviation of a normal distribution to its MAD and mean absolute deviation
_MAD, _MEAN_DEVIATION = 1.4826, math.sqrt(math.pi / 2)
_FAINT = 1e-3  # what a z below that of half of the real data counts
_ROUNDING = 1e-9  # combined z that differ by less are ties


@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """How plausible samples are, compared with real data; lost samples are NaN and never trusted.

    >>> real = {"influence": torch.arange(1.0, 100.0), "neighbors": torch.arange(1.0, 100.0)}
    >>> scores = {"influence": torch.tensor([2.0, 5e3]), "neighbors": torch.tensor([2.0, 3.0])}
    >>> verdict = flare.Reference(real).verdict(scores)
    >>> verdict.trusted(0.05), verdict.reason
    (tensor([ True, False]), ['influence', 'influence'])

    Attributes:
        p_value: Share of real samples that look at least as doubtful in all scores together, (n,).
        z: The robust z of the scores, combined as √Σ max(0, z)², (n,); higher means more doubtful.
        p_values: The p-value of each single score, by name, (n,) each.
        reason: The score that contributes most to the z of each sample; "not scored" for lost samples.
        reference_size: Number of real samples that the p-values compare with.
        held_out: Whether these were held out from training.
        copies: Which samples look like copies of training data, (n,) bool, if known. A copy is plausible, so
            it can be trusted by its p-value.
        nearest: The row of the nearest training sample, (n,), and −1 for lost samples, if known.
    """

    p_value: Tensor
    z: Tensor
    p_values: Mapping[str, Tensor]
    reason: Sequence[str]
    reference_size: int
    held_out: bool = True
    copies: Tensor | None = None
    nearest: Tensor | None = None

    def trusted(self, alpha: float = 0.05) -> Tensor:
        """Mask of the samples with a p-value above `alpha`, (n,) bool.

        A share of about 1 − alpha of fresh real samples is trusted. This holds for all real data together: a
        mode whose real samples have higher scores than others loses more than alpha. Use it to audit a model.
        To filter samples, use `Result.keep`, which keeps the same share of every region.
        """
        self._check_level(alpha)
        return (self.p_value > alpha).as_subclass(Mask)

    def doubtful(self, alpha: float = 0.05) -> Tensor:
        """Mask of the samples with a p-value of at most `alpha`, (n,) bool; False for lost samples."""
        self._check_level(alpha)
        return (self.p_value <= alpha).as_subclass(Mask)

    def describe_limit(
        self, repeatability: Mapping[str, float] | None = None, alpha: float = 0.05
    ) -> str | None:
        """A remark if samples are doubtful as often as real data; None if not, or for few samples.

        Args:
            repeatability: Rank correlations of the scores with the same scores under other noise, by name, as
                measured by the fit.
            alpha: The largest p-value of doubtful samples.
        """
        n, count = int((~self.lost).sum()), int(self.doubtful(alpha).sum())
        if n < TELLING or abs(compare_with_chance(count, n, self.reference_size, alpha)) > CHANCE:
            return None
        real = f"{self.reference_size:,} {'held-out' if self.held_out else 'training'} samples"
        repeats = ""
        if repeatability:
            repeats = f" Scores repeat with a rank correlation of {min(repeatability.values()):.2f} or more."
        return (
            f"these scores cannot tell the samples and real data apart: {1 - count / n:.1%} of {n:,} samples "
            f"are trusted, compared with {1 - alpha:.0%} of {real}.{repeats} Some samples may still be bad. "
            "Label about 60 (result.propose_labels(), flare calibrate) to find out how many."
        )

    def labels(self, alpha: float = 0.05) -> list[str]:
        """One word per sample: "trusted", "doubtful" or "not scored"."""
        words = (DOUBTFUL, TRUSTED, NOT_SCORED)
        return [words[code] for code in (self.trusted(alpha) + 2 * self.lost).tolist()]

    def count_reasons(self, alpha: float = 0.05) -> dict[str, int]:
        """Number of doubtful samples per reason, the most frequent first."""
        rows = (self.p_value <= alpha).nonzero().flatten().tolist()
        return dict(Counter(self.reason[row] for row in rows).most_common())

    @property
    def lost(self) -> Tensor:
        """Which samples have no p-value because a score is NaN, (n,) bool."""
        return self.p_value.isnan()

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON values."""
        return {
            "scores": list(self.p_values),
            "reference_size": self.reference_size,
            "held_out": self.held_out,
        }

    def _rows(self) -> dict[str, Tensor]:
        """All tensors with one entry per sample, by their names in files; reasons are numbered."""
        words = {word: number for number, word in enumerate([*self.p_values, NOT_SCORED])}
        rows = {"p_value": self.p_value, "z": self.z}
        rows |= {P_VALUE + name: values for name, values in self.p_values.items()}
        rows["reason"] = torch.tensor([words[reason] for reason in self.reason], dtype=torch.long)
        copies = None if self.copies is None else self.copies.to(torch.uint8)  # npz files hold only numbers
        optional = {"copy": copies, "nearest": self.nearest}
        return rows | {name: value for name, value in optional.items() if value is not None}

    @classmethod
    def _from_rows(cls, rows: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Verdict:
        """The inverse of `_rows` and `facts`."""
        words = [*facts["scores"], NOT_SCORED]  # the reason −1 of lost samples is the last word, too
        return cls(
            p_value=rows["p_value"],
            z=rows["z"],
            p_values={name: rows[P_VALUE + name] for name in facts["scores"]},
            reason=[words[number] for number in rows["reason"].tolist()],
            reference_size=facts["reference_size"],
            held_out=facts["held_out"],
            copies=None if (copies := rows.get("copy")) is None else copies.bool(),
            nearest=rows.get("nearest"),
        )

    def _check_level(self, alpha: float) -> None:
        require_share("alpha", alpha, below_one=True)
        if (smallest := 1 / (self.reference_size + 1)) > alpha:
            warn(
                f"no sample can be doubtful at alpha={alpha:g}: with {self.reference_size} reference "
                f"samples the smallest p-value is {smallest:.2g}. "
                f"Give at least {math.ceil(1 / alpha - 1e-9) - 1}.",
                UserWarning,
            )

    def __len__(self) -> int:
        return len(self.p_value)

    def __repr__(self) -> str:
        doubtful = int((self.p_value <= 0.05).sum())
        real = "real data" if self.held_out else "training data"
        parts = [f"{doubtful:,} of {len(self):,} samples look less plausible than 95% of {real}"]
        if lost := int(self.lost.sum()):
            parts.append(f"{lost:,} could not be scored")
        if self.copies is not None:
            parts.append(f"{int(self.copies.sum()):,} look like copies of training data")
        return "; ".join(parts)


class _Scale(NamedTuple):
    """How the scores of one name become z: (f(s) − center)/spread, with f the logarithm or the identity."""

    log: bool
    lowest: float  # scores below it count as it
    center: float
    spread: float  # 0 if all scores of the reference are equal

    def z(self, values: Tensor) -> Tensor:
        values = values.clamp(min=self.lowest)
        if not self.spread:
            return torch.where(values.isnan(), values, 0.0)
        return ((values.log() if self.log else values) - self.center) / self.spread


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """Scores of real data, with which the scores of other samples are compared.

    Use held-out data if possible. The scores of training data are too low, so good samples look more doubtful
    than they are. Set `held_out=False` to record this, and verdicts report it.

    Samples with a NaN or infinite score are dropped with a warning.

    >>> reference = flare.Reference({"score": torch.arange(1.0, 100.0)})
    >>> reference.p_value("score", torch.tensor([50.0, 1000.0]))
    tensor([0.5100, 0.0100], dtype=torch.float64)
    >>> reference.verdict({"score": torch.tensor([50.0, 1000.0])}).trusted(0.05)
    tensor([ True, False])

    Attributes:
        scores: The scores by name, each (n,), of the same n real samples in the same order.
        held_out: Whether the samples were held out from training.
    """

    scores: Mapping[str, Tensor]
    held_out: bool = True

    def __post_init__(self) -> None:
        scores = _validate("the reference", self.scores)
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
                f"Give at least {FEW}, preferably hundreds.",
                UserWarning,
            )

    def p_value(self, name: str, values: Tensor) -> Tensor:
        """Share of real samples with a score of at least s, (1 + #{real ≥ s}) / (1 + n), for each s of (m,).

        A fresh real sample has a p-value of at most a with a probability of at most a, for every a. Ties make
        p-values larger. The p-value of NaN is NaN.
        """
        found = _validate("p_value", {name: values}, self.scores)
        return _rank(self.scores[name], found[name])

    def z(self, name: str, values: Tensor) -> Tensor:
        """Robust z of scores (m,): (log s − median) / (1.4826·MAD), with the median and MAD of the reference.

        Scores below the lowest score of the reference count as the lowest, because a sample that is closer to
        the data than any real sample is not more plausible. With a warning,

        - scores of 0 in the reference count as its lowest positive score;
        - with negative scores in the reference, z is taken without the logarithm;
        - if more than half of the reference scores are equal, the MAD is 0. The spread is then the mean
          absolute deviation times √(π/2), and z is 0 if all of them are equal.
        """
        found = _validate("z", {name: values}, self.scores)
        return self._scales[name][0].z(found[name])

    def verdict(self, scores: Mapping[str, Tensor]) -> Verdict:
        """Judge samples by the combined z of their scores, √Σ max(0, z)².

        If no z is positive, the largest one is used. The p-value compares the combined z with the reference
        samples. The median and MAD come from the same samples, so p-values of fresh real samples
        are only nearly uniform: in simulations with two and three scores, P(p ≤ 0.05) is at most 0.055 with
        19 reference samples, 0.053 with 39 and 0.052 with 59. Chance matters more: over references of 59
        samples, P(p ≤ 0.05) has a standard deviation of 0.03.

        Args:
            scores: Scores (m,) by names of the reference; missing ones are left out.
        """
        return decide(self, _validate("the verdict", scores, self.scores))

    def restrict(self, names: Iterable[str]) -> Reference:
        """The reference with only some of the scores."""
        chosen = set(names)
        scores = {name: score for name, score in self.scores.items() if name in chosen}
        return Reference(scores, self.held_out)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .safetensors file."""
        header = {"format": FORMAT, "kind": _KIND, **self.facts}
        checkpoint.save(path, {SCORE + name: score for name, score in self.scores.items()}, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Reference:
        """Read what `save` wrote."""
        tensors, header = checkpoint.load(path)
        if (header.get("kind"), header.get("format")) != (_KIND, FORMAT):
            raise ValueError(f"{path} is not a reference of format {FORMAT}; write one with Reference.save.")
        try:
            return restore_reference(tensors, SCORE, header)
        except DAMAGE as error:
            raise ValueError(
                f"{path} is damaged: its scores do not match its header ({error!r}). Write it again."
            ) from error

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON values."""
        return {"scores": list(self.scores), "held_out": self.held_out}

    @cached_property
    def _scales(self) -> dict[str, tuple[_Scale, Tensor]]:
        """The scale of each score, and the z of the reference samples themselves."""
        found = {name: _fit_scale(name, s) for name, s in self.scores.items()}
        return {name: (scale, scale.z(self.scores[name])) for name, scale in found.items()}

    def __len__(self) -> int:
        return len(next(iter(self.scores.values())))

    def __repr__(self) -> str:
        kind = "held-out" if self.held_out else "training"
        return f"Reference: {', '.join(self.scores)} of {len(self):,} {kind} samples"


def compare_with_chance(count: int, n: int, size: int, alpha: float) -> float:
    """How many standard errors a count of doubtful samples lies above the count for real data.

    Both the n samples and the `size` real ones that they are compared with are drawn at random.
    """
    return (count / n - alpha) / math.sqrt(alpha * (1 - alpha) * (1 / n + 1 / size))


def decide(
    reference: Reference,
    scores: Mapping[str, Tensor],
    copies: Tensor | None = None,
    nearest: Tensor | None = None,
) -> Verdict:
    """The verdict on valid scores; `Reference.verdict` validates the scores of users.

    Args:
        reference: Scores of real data.
        scores: Scores (m,) by names of the reference.
        copies: Which samples look like copies of training data, (m,) bool.
        nearest: The row of the nearest training sample, (m,), and −1 for lost samples.
    """
    values = {name: score.detach().to("cpu", torch.float64) for name, score in scores.items()}
    scales = [reference._scales[name] for name in values]
    z = torch.stack([scale.z(score) for (scale, _), score in zip(scales, values.values(), strict=True)])
    total, real = combine(z), combine(torch.stack([real for _, real in scales]))
    words = [*values, NOT_SCORED]
    worst = z.nan_to_num().argmax(0).masked_fill(total.isnan(), len(values))
    return Verdict(
        # equal scores may differ in the last digit of their logarithms: count them as ties
        p_value=_rank(real, total - _ROUNDING * total.abs().clamp(1, 1e9)),
        z=total,
        p_values={name: _rank(reference.scores[name], score) for name, score in values.items()},
        reason=[words[number] for number in worst.tolist()],
        reference_size=len(real),
        held_out=reference.held_out,
        copies=None if copies is None else copies.detach().cpu(),
        nearest=nearest,
    )


def combine(z: Tensor) -> Tensor:
    """One z of several, (k, n) -> (n,): √Σ max(0, z)², or the largest z if none is positive.

    Only what is more doubtful than half of the real data counts, and a large z counts more than several
    small ones. A thousandth of the negative z is added, so the result grows with every z.
    """
    largest = z.amax(0)
    length = z.clamp(min=0).square().sum(0).sqrt()
    return torch.where(largest > 0, length, largest) + _FAINT * z.clamp(max=0).sum(0)


def restore_reference(tensors: Mapping[str, Tensor], prefix: str, facts: Mapping[str, Any]) -> Reference:
    """The reference with these `facts` from tensors with a prefix; raise one of `DAMAGE` on a mismatch."""
    if type(facts["held_out"]) is not bool:
        raise ValueError(f"held_out={facts['held_out']!r}")
    scores = {name: tensors[prefix + name] for name in facts["scores"]}
    for name, score in scores.items():
        if score.dtype != torch.float64 or not score.isfinite().all():
            raise ValueError(f"scores of {name} must be finite float64")
    return Reference(scores, facts["held_out"])


def to_indices(which: Any, n: int) -> Tensor:
    """Convert a mask, a slice, an index or a list of indices to indices (k,) in 0..n−1."""
    if isinstance(which, slice):
        return torch.tensor(range(n)[which], dtype=torch.long)
    try:
        picked = np.asarray(which.cpu() if isinstance(which, Tensor) else which)
        if picked.dtype == np.uint8 and picked.shape == (n,):
            raise TypeError(f"a mask must be of bool, got {n} numbers of uint8; call .bool() on it")
        rows = np.arange(n)[picked if picked.size else []]
    except (IndexError, TypeError, ValueError) as error:
        raise IndexError(
            f"select samples by a bool mask ({n},), integer indices (k,), an index or a slice: {error}."
        ) from error
    if rows.ndim > 1:
        raise IndexError(f"select samples by indices of shape (k,), got {rows.shape}.")
    return torch.from_numpy(rows.reshape(-1))


def take(value: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (k,) of a tensor; the row −1 is a lost sample: NaN, −1, or 0 for flags (uint8)."""
    index = index.to(value.device)
    found = index >= 0
    if found.all():
        return value[index]
    lost = math.nan if value.is_floating_point() else 0 if value.dtype == torch.uint8 else -1
    rows = value.new_full((len(index), *value.shape[1:]), lost)
    rows[found] = value[index[found]]
    return rows


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Mask of the samples of `a` (n, *shape) that also occur exactly in `b` (m, *shape), (n,) bool.

    Held-out data must not overlap with the training data. Rows are compared by hash, so `b` may be large;
    numbers of different types are equal if they are equal in float64.
    """
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


def _fit_scale(name: str, score: Tensor) -> _Scale:
    """The scale of the z of a score; warn about scores that have no logarithm or no spread."""
    log, lowest = True, float(score.min())
    if lowest < 0:
        log = False
        warn(
            f"the reference has negative scores of {name}, as low as {lowest:.3g}: z is taken without the "
            "logarithm.",
            UserWarning,
        )
    elif lowest == 0:
        zeros = int((score == 0).sum())
        log = zeros < len(score)
        lowest = float(score[score > 0].min()) if log else 0.0
        warn(
            f"{zeros} of {len(score)} reference samples have {name} = 0, which has no logarithm: they count "
            f"as the lowest positive score, {lowest:.3g}.",
            UserWarning,
        )
    values = _Scale(log, lowest, 0.0, 1.0).z(score)
    center = values.quantile(0.5)
    deviations = (values - center).abs()
    spread = _MAD * deviations.quantile(0.5)
    if spread == 0:
        spread = _MEAN_DEVIATION * deviations.mean()
        equal = "more than half of" if spread else "all"
        rule = "the mean absolute deviation replaces it" if spread else "z is 0 for all samples"
        warn(
            f"{equal} the {len(score)} reference scores of {name} are equal, so their median absolute "
            f"deviation is 0: {rule}.",
            UserWarning,
        )
    return _Scale(log, lowest, float(center), float(spread))


def _validate(
    what: str, scores: Mapping[str, Tensor], known: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Scores by name as float64 on the CPU, if all of them have one shape (n,) and a known name."""
    if not isinstance(scores, Mapping) or not scores:
        got = "none" if isinstance(scores, Mapping) else type(scores).__name__
        raise ValueError(f"{what} needs scores by name, such as {{'influence': tensor}}, got {got}.")
    found = {}
    for name, values in scores.items():
        if known is not None:
            one_of("score of the reference", name, known)
        found[name] = torch.as_tensor(values).detach().to("cpu", torch.float64)
        if found[name].ndim != 1:
            raise ValueError(f"scores of {name} must have shape (n,), got {tuple(found[name].shape)}.")
    if len({len(values) for values in found.values()}) > 1:
        sizes = ", ".join(f"{len(values)} of {name}" for name, values in found.items())
        raise ValueError(f"the scores of {what} must belong to the same samples, got {sizes}.")
    return found

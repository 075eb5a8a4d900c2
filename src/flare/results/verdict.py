"""`Verdict`: how plausible samples are, compared with real data, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.warn import warn
from .indexing import to_indices

NOT_SCORED = "not scored"  # the reason of a sample with a NaN score
TRUSTED, SUSPICIOUS = "trusted", "suspicious"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """How plausible samples are, compared with real data; lost samples are NaN and never trusted.

    Select samples as with a `Result`: `verdict[3]`, `verdict[:10]`, `verdict[mask]` or `verdict[[1, 4]]`.

    >>> real = {"influence": torch.arange(1.0, 100.0), "neighbors": torch.arange(1.0, 100.0)}
    >>> scores = {"influence": torch.tensor([2.0, 5e3]), "neighbors": torch.tensor([2.0, 3.0])}
    >>> verdict = flare.Reference(real).verdict(scores)
    >>> verdict.trusted(0.05), verdict.reason
    (tensor([ True, False]), ['influence', 'influence'])

    Attributes:
        p_value: share of real samples that look at least as doubtful in all scores together, (n,).
        z: sum of the robust z of the scores, (n,); higher means more doubtful.
        p_values: the p-value of each score alone, by name, (n,) each.
        reason: the score with the largest z of each sample, the one that speaks most against it; "not
            scored" for lost samples.
        reference_size: how many real samples the p-values compare with.
        held_out: whether these were held out from training.
        copies: which samples look like copies of training data, (n,) bool, if that was determined. A copy is
            plausible, so it may be trusted all the same.
        nearest: the row of the nearest training sample, (n,), and −1 for lost samples, if that was
            determined.
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

        Of fresh real samples a share of about 1 − alpha is trusted, whatever their number of modes. This is a
        statement about all real data together. A mode whose real samples score higher than the others loses
        more than alpha, and a generated mode that is too rare, or missing, is not repaired: see
        `flare.keep_fraction` with strata. Samples are not ranked, so those in the middle of a mode are kept
        no more often than the other plausible ones.
        """
        self._check_level(alpha)
        return self.p_value > alpha

    def suspicious(self, alpha: float = 0.05) -> Tensor:
        """Mask of the samples with a p-value of at most `alpha`, (n,) bool; lost samples are not."""
        self._check_level(alpha)
        return self.p_value <= alpha

    def labels(self, alpha: float = 0.05) -> list[str]:
        """One word per sample: "trusted", "suspicious" or "not scored"."""
        pairs = zip(self.trusted(alpha).tolist(), self.lost.tolist(), strict=True)
        return [NOT_SCORED if lost else TRUSTED if trusted else SUSPICIOUS for trusted, lost in pairs]

    def count_reasons(self, alpha: float = 0.05) -> dict[str, int]:
        """How many suspicious samples each score speaks most against, the most frequent first."""
        suspicious = (self.p_value <= alpha).tolist()
        found = Counter(reason for reason, bad in zip(self.reason, suspicious, strict=True) if bad)
        return dict(found.most_common())

    @property
    def lost(self) -> Tensor:
        """Which samples have no p-value because a score is NaN, (n,) bool."""
        return self.p_value.isnan()

    def select(self, which: Any) -> Verdict:
        """The verdict of some samples.

        Args:
            which: a mask (n,), the index of a sample, indices in any order, or a slice.
        """
        index = to_indices(which, len(self))
        return replace(
            self,
            p_value=self.p_value[index],
            z=self.z[index],
            p_values={name: values[index] for name, values in self.p_values.items()},
            reason=[self.reason[row] for row in index.tolist()],
            copies=None if self.copies is None else self.copies[index],
            nearest=None if self.nearest is None else self.nearest[index],
        )

    def blank(self, n: int) -> Verdict:
        """A verdict like this one on n lost samples."""
        nothing = torch.full((n,), torch.nan, dtype=self.p_value.dtype)
        return replace(
            self,
            p_value=nothing,
            z=nothing,
            p_values=dict.fromkeys(self.p_values, nothing),
            reason=[NOT_SCORED] * n,
            copies=None if self.copies is None else torch.zeros(n, dtype=torch.bool),
            nearest=None if self.nearest is None else torch.full((n,), -1),
        )

    def _check_level(self, alpha: float) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must lie in (0, 1), got {alpha}.")
        if (smallest := 1 / (self.reference_size + 1)) > alpha:
            warn(
                f"no sample can be suspicious at alpha={alpha:g}: with {self.reference_size} reference "
                f"samples the smallest p-value is {smallest:.2g}. "
                f"Give at least {math.ceil(1 / alpha - 1e-9) - 1}.",
                UserWarning,
            )

    def __len__(self) -> int:
        return len(self.p_value)

    def __getitem__(self, which: Any) -> Verdict:
        return self.select(which)

    def __repr__(self) -> str:
        doubtful = int((self.p_value <= 0.05).sum())
        real = "real data" if self.held_out else "training data"
        parts = [f"{doubtful:,} of {len(self):,} samples look less plausible than 95% of {real}"]
        if lost := int(self.lost.sum()):
            parts.append(f"{lost:,} could not be scored")
        if self.copies is not None:
            parts.append(f"{int(self.copies.sum()):,} look like copies of training data")
        return "; ".join(parts)


def join_verdicts(parts: Sequence[Verdict]) -> Verdict:
    """Concatenate the verdicts of batches that were compared with the same reference."""
    first = parts[0]
    if len({(tuple(part.p_values), part.reference_size, part.held_out) for part in parts}) > 1:
        raise ValueError("the verdicts are of different references; judge all samples by one reference.")

    def concatenate(values: list[Tensor | None]) -> Tensor | None:
        found = [value for value in values if value is not None]
        return torch.cat(found) if len(found) == len(parts) else None

    return replace(
        first,
        p_value=torch.cat([part.p_value for part in parts]),
        z=torch.cat([part.z for part in parts]),
        p_values={name: torch.cat([part.p_values[name] for part in parts]) for name in first.p_values},
        reason=[reason for part in parts for reason in part.reason],
        copies=concatenate([part.copies for part in parts]),
        nearest=concatenate([part.nearest for part in parts]),
    )

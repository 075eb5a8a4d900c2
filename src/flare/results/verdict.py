"""`Verdict`: how plausible samples are, compared with real data, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.warn import warn

NOT_SCORED = "not scored"  # the reason of a sample with a NaN score


@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """How plausible samples are, compared with real data; lost samples are NaN and never trusted.

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
    """

    p_value: Tensor
    z: Tensor
    p_values: Mapping[str, Tensor]
    reason: Sequence[str]
    reference_size: int
    held_out: bool = True
    copies: Tensor | None = None

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

    @property
    def lost(self) -> Tensor:
        """Which samples have no p-value because a score is NaN, (n,) bool."""
        return self.p_value.isnan()

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

    def __repr__(self) -> str:
        doubtful = int((self.p_value <= 0.05).sum())
        real = "real data" if self.held_out else "training data"
        parts = [f"{doubtful:,} of {len(self):,} samples look less plausible than 95% of {real}"]
        if lost := int(self.lost.sum()):
            parts.append(f"{lost:,} could not be scored")
        if self.copies is not None:
            parts.append(f"{int(self.copies.sum()):,} look like copies of training data")
        return "; ".join(parts)

"""`ScorerCheck`: the findings of `Scorer.check`."""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnostics.linearization import Linearization
from ..diagnostics.model_check import ModelCheck


@dataclass(frozen=True)
class ScorerCheck:
    """What `Scorer.check` found.

    Attributes:
        model: how the network and its samples fit the training data; None if the scorer has no data, or if
            the network needs conditions, which a scorer does not keep.
        linearization: whether first order is enough for the variances of `sample(..., directions=16)`.
    """

    model: ModelCheck | None
    linearization: Linearization

    @property
    def problems(self) -> list[str]:
        """What is wrong, in plain sentences; empty if nothing is."""
        found = [] if self.model is None else list(self.model.problems)
        return found if self.linearization.trusted else [*found, self.linearization.verdict]

    def __str__(self) -> str:
        first = "The model was not checked: the scorer has no training data, or not its conditions."
        return f"{first if self.model is None else self.model}\n{self.linearization}"

"""What commands that read results share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..results.result import Result


VERDICT = "verdict"  # the name of the sum of z by which a verdict ranks samples


def choose_score(result: Result, name: str | None, file: Path) -> tuple[str, Tensor]:
    """Return the score of this name with its name; by default the verdict's z, or the first score."""
    if result.verdict is not None and name in (None, VERDICT):
        return VERDICT, result.verdict.z
    if not result.scores:
        raise ValueError(f"{file} has samples without scores; fit the run (`flare fit`) and sample again.")
    if name is not None and name not in result.scores:
        raise ValueError(f"{file} has no score {name!r}; it has {', '.join(result.scores)}.")
    chosen = next(iter(result.scores)) if name is None else name
    return chosen, result.scores[chosen]

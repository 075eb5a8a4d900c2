"""What commands that read results share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..results.result import Result


def choose_score(result: Result, name: str | None, file: Path) -> tuple[str, Tensor]:
    """Return the score of this name, or the first one in the file, with its name."""
    if not result.scores:
        raise ValueError(
            f"{file} has samples without scores; fit a posterior (`flare fit`) and sample again."
        )
    if name is not None and name not in result.scores:
        raise ValueError(f"{file} has no score {name!r}; it has {', '.join(result.scores)}.")
    chosen = next(iter(result.scores)) if name is None else name
    return chosen, result.scores[chosen]

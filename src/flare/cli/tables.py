"""Tables of verdicts: csv files with the columns name, score, p_value, verdict, reason."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..results.verdict import Verdict

COLUMNS = ("name", "score", "p_value", "verdict", "reason")
_FORMULA = r"(?='*[=+@\t\r-])"  # begins a name that a spreadsheet would compute; a ' before it prevents that


def write_verdicts(path: Path, names: Sequence[str], verdict: Verdict) -> None:
    """Write one row per sample; the score is the sum of z by which the verdict ranks.

    What is trusted has no reason.
    """
    from ..results.verdict import TRUSTED

    numbers = zip(verdict.z.tolist(), verdict.p_value.tolist(), strict=True)
    texts = [[repr(z), repr(p)] for z, p in numbers]
    columns = zip(names, texts, verdict.labels(), verdict.reason, strict=True)
    _write(
        path,
        [[name, *text, label, "" if label == TRUSTED else reason] for name, text, label, reason in columns],
    )


def is_table(path: Path) -> bool:
    """Whether a file is a table of verdicts."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return tuple(next(csv.reader(file), ())) == COLUMNS


def filter_table(path: Path, target: Path, keep: float | None, p_value: float | None) -> dict[str, object]:
    """Write the rows of a table that are kept, in their order; return what the command reports.

    Args:
        path: the table.
        target: the table to write.
        keep: the fraction of the scored rows to keep, those with the lowest scores.
        p_value: or keep all rows with a p-value above this.
    """
    import torch

    from ..results.filtering import keep_fraction

    if target.suffix != ".csv":
        raise ValueError(f"{path} is a table without samples: the kept rows are a .csv file, got {target}.")
    rows = _read(path)
    score, p = (torch.tensor([_number(path, row[i]) for row in rows], dtype=torch.float64) for i in (1, 2))
    mask = p > p_value if p_value is not None else keep_fraction(score, keep or 1.0)
    if not mask.any():
        raise ValueError(
            f"no row of {path} has a p-value above {p_value}; the largest is {p.nan_to_num().max():.3g}."
        )
    _write(target, [row for row, kept in zip(rows, mask.tolist(), strict=True) if kept])
    return {"kept": str(target), "n": int(mask.sum()), "of": len(rows)}


def _read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        try:
            _, *rows = csv.reader(file)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a table: {error}.") from error
    if not rows or any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"{path} must have rows of {len(COLUMNS)} columns: {', '.join(COLUMNS)}.")
    return [[re.sub(rf"\A'{_FORMULA}", "", name), *rest] for name, *rest in rows]


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{path} must have numbers as score and p_value, got {text!r}.") from None


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    from ..storage.checkpoint import atomic

    with atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([re.sub(rf"\A{_FORMULA}", "'", name), *rest] for name, *rest in rows)

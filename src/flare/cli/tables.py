"""Tables of verdicts: csv files with one row per sample, as `flare score --out scores.csv` writes them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..results.result import Result
from ..results.verdict import TRUSTED
from ..storage.checkpoint import atomic

COLUMNS = ("name", "score", "p_value", "verdict", "reason", "region")
_FORMULA = r"(?='*[=+@\t\r-])"  # begins a name that a spreadsheet would compute; a ' before it prevents that


def write_verdicts(path: Path, names: Sequence[str], result: Result) -> None:
    """Write one row per sample; the score is the sum of z by which the verdict ranks.

    Trusted samples have no reason.
    """
    verdict = result.verdict
    assert verdict is not None
    regions = [""] * len(result) if result.regions is None else map(str, result.regions.tolist())
    columns = (names, verdict.z.tolist(), verdict.p_value.tolist(), verdict.labels(), verdict.reason, regions)
    rows = [
        [name, repr(z), repr(p), label, "" if label == TRUSTED else reason, region]
        for name, z, p, label, reason, region in zip(*columns, strict=True)
    ]
    write_rows(path, rows)


def is_table(path: Path) -> bool:
    """Whether a file is a table of verdicts."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return tuple(next(csv.reader(file), ())) == COLUMNS


def read_verdicts(path: Path) -> tuple[list[list[str]], Tensor, Result]:
    """Read a table of verdicts: its rows as text, the p-values (n,), and a result without coordinates."""
    rows = _read_rows(path)
    if not rows or any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"{path} must have rows of {len(COLUMNS)} columns: {', '.join(COLUMNS)}.")
    rows = [[re.sub(rf"\A'{_FORMULA}", "", name), *rest] for name, *rest in rows]
    score, p = (_parse(path, rows, column, float, torch.float64) for column in (1, 2))
    regions = _parse(path, rows, 5, int, torch.int64) if rows[0][5] else None
    return rows, p, Result(torch.empty(len(rows), 0), scores={"score": score}, regions=regions)


def _read_rows(path: Path) -> list[list[str]]:
    """The rows of a csv file below its header."""
    with path.open(encoding="utf-8", newline="") as file:
        try:
            return list(csv.reader(file))[1:]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a table: {error}.") from error


def write_rows(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write rows with the header of a table of verdicts."""
    with atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([re.sub(rf"\A{_FORMULA}", "'", name), *rest] for name, *rest in rows)


def _parse(
    path: Path, rows: list[list[str]], column: int, kind: Callable[[str], Any], dtype: torch.dtype
) -> Tensor:
    try:
        return torch.tensor([kind(row[column]) for row in rows], dtype=dtype)
    except (ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{path} must have numbers as {COLUMNS[column]}: {error}.") from None

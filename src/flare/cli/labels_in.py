"""Labels of samples that commands read and write: csv files that people fill in, often in a spreadsheet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..scorer.tables import read_cells
from ..storage.checkpoint import atomic
from .scored import escape_formula, restore_formula

WORDS = {"good": False, "g": False, "ok": False, "bad": True, "b": True}
NUMBERS = {"1": True, "true": True, "0": False, "false": False}  # under bad; under good they are inverted
COLUMNS = ("label", "bad", "good")


def write_template(path: Path, names: Sequence[str], rows: Sequence[int]) -> None:
    """Write a csv file in which samples are to be labeled; an existing file is never replaced."""
    if path.exists():
        raise FileExistsError(
            f"{path} exists, and may have labels: give it as LABELS to use them, or move it to start over."
        )
    with atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("name", "index", "label"))
        table.writerows((escape_formula(names[row]), row, "") for row in rows)


def read_labels(path: Path, names: Sequence[str], file: Path) -> dict[int, bool]:
    """Read which samples are bad, by their rows.

    The columns are name, index or both, and one of label (good or bad), bad (1 for bad) and good (1 for
    good). Rows without a label are left out, and so are other columns.

    Args:
        path: The csv file.
        names: Names of all samples.
        file: Where the samples are, for messages.
    """
    header, *lines = read_cells(path) or [[]]
    header = [cell.strip().lower() for cell in header]
    columns = [column for column in COLUMNS if column in header]
    if len(columns) != 1 or not {"name", "index"} & set(header):
        raise ValueError(
            f"{path} must have a column index or name, and one column of labels: label (good or bad), bad "
            f"(1 for bad) or good (1 for good); got {', '.join(filter(None, header)) or 'no columns'}."
        )
    places: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        places.setdefault(name, []).append(row)
    found: dict[int, bool] = {}
    for cells in _find_labeled(header, lines, columns[0]):
        row, bad = (
            _find_row(path, cells, places, names, file),
            _read_word(path, cells[columns[0]], columns[0]),
        )
        if row in found:
            before, now = ("bad" if label else "good" for label in (found[row], bad))
            said = f"as {before} and as {now}" if before != now else f"both times as {now}"
            raise ValueError(f"{path} labels sample {row} twice, {said}: remove one of the rows.")
        found[row] = bad
    if not found:
        raise ValueError(f"{path} has no labels yet: write good or bad into its column {columns[0]}.")
    return found


def _find_labeled(header: list[str], lines: list[list[str]], column: str) -> Iterator[dict[str, str]]:
    """The rows with a label, as stripped cells by their columns."""
    for line in lines:
        cells = {name: cell.strip() for name, cell in zip(header, line, strict=False)}
        if cells.get(column):
            yield cells


def _find_row(
    path: Path, cells: dict[str, str], places: dict[str, list[int]], names: Sequence[str], file: Path
) -> int:
    """The row of the sample that is labeled; a name and an index must be of the same sample."""
    index, name = _drop_zeros(cells.get("index", "")), restore_formula(cells.get("name", ""))
    if not index:
        rows = places.get(name) or places.get(_drop_zeros(name)) or []
        if len(rows) != 1:
            count = f"{len(rows)} samples" if rows else "no sample"
            raise ValueError(f"{path} labels the name {name!r}, and {file} has {count} of this name.")
        return rows[0]
    if not index.isdecimal() or int(index) >= len(names):
        raise ValueError(
            f"{path} labels the index {index!r}, but {file} has the samples 0 to {len(names) - 1}."
        )
    own = names[int(index)]
    if name and _drop_zeros(name) != _drop_zeros(own):
        raise ValueError(
            f"{path} labels {name!r} with the index {index}, but in {file} this is {own!r}: are these labels "
            "of other samples?"
        )
    return int(index)


def _read_word(path: Path, word: str, column: str) -> bool:
    """Whether a label means bad."""
    text = _drop_zeros(word.lower())
    if text in WORDS:
        return WORDS[text]
    if text not in NUMBERS:
        raise ValueError(f"{path} has the label {word!r}: write good or bad.")
    if column == "label":
        raise ValueError(
            f"{path} has {word} under label, which could mean good or bad: write good or bad, or rename the "
            "column to bad (1 for bad) or good (1 for good)."
        )
    return NUMBERS[text] == (column == "bad")


def _drop_zeros(text: str) -> str:
    """A whole number without its decimals and leading zeros, as in 1.0; other text is not changed."""
    return re.sub(r"\A0*(\d+)(?:[.,]0*)?\Z", r"\1", text)

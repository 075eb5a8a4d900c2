"""Scored samples that commands read and write: files of results, csv tables of verdicts, and labels."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..results.result import Result
from ..results.result_files import (
    SUFFIXES,
    VERDICT,
    check_suffix,
    is_scored,
    name_verdict,
    save_npy,
    to_verdict_columns,
)
from ..results.verdict import DOUBTFUL, NOT_SCORED, TRUSTED
from ..scorer.tables import read_cells, read_rows
from ..storage.checkpoint import atomic
from .writing import refuse_existing

COLUMNS = ("name", *VERDICT)  # of a table of verdicts; a scored table has its own columns before these
_FORMULA = r"(?='*[=+@\t\r-])"  # begins a name that a spreadsheet would compute; a ' before it prevents that
WORDS = {"good": False, "g": False, "ok": False, "bad": True, "b": True}
NUMBERS = {"1": True, "true": True, "0": False, "false": False}  # under bad; under good they are inverted
LABELS = ("label", "bad", "good")  # columns of labels


@dataclass(frozen=True)
class Scored:
    """A file of scored samples, or a table of verdicts.

    Attributes:
        file: The file.
        result: The samples with their scores; those of a table have no coordinates.
        names: Names of the samples; row numbers if they have none.
        p_value: (n,); None if the samples were not compared with real data.
        rows: The rows of a table, its header first; None for a file with samples.
    """

    file: Path
    result: Result
    names: Sequence[str]
    p_value: Tensor | None
    rows: list[list[str]] | None = None

    @classmethod
    def read(cls, file: Path) -> Scored:
        """Read a file of `flare sample`, `flare score` or `flare filter`."""
        if file.suffix == ".csv" and (table := _read_verdicts(file)) is not None:
            return table
        result = Result.load(file)
        if not result.scores and result.verdict is None:
            raise ValueError(f"{file} has samples without scores; score them with `flare score`.")
        names = result.about.get("names") or [str(row) for row in range(len(result))]
        return cls(file, result, names, None if result.verdict is None else result.p_value)

    def choose_target(self, target: Path | None, overwrite: bool) -> Path:
        """Check the file to write, by default kept.safetensors, or kept.csv for a table."""
        if target is None:
            target = Path("kept.safetensors" if self.rows is None else "kept.csv")
        if self.rows is not None and target.suffix != ".csv":
            raise ValueError(
                f"{self.file} is a table without samples: the kept rows are a .csv file, got {target}."
            )
        if target.suffix != ".npy":
            check_suffix(target)
        refuse_existing(target, overwrite)
        return target

    def find_trusted(self, p_value: float) -> Tensor:
        """Mask of the samples with a larger p-value, (n,) bool; raise if there is none."""
        if self.p_value is None:
            raise ValueError(
                f"{self.file} has no p-values, because its samples were not compared with real data; score "
                "them with `flare score`, or use --keep."
            )
        mask = self.p_value > p_value
        if not mask.any():
            best = float(self.p_value.nan_to_num().max())
            raise ValueError(f"no sample has a p-value above {p_value:g}; the largest is {best:.3g}.")
        return mask

    def save(self, mask: Tensor, target: Path, about: dict[str, Any]) -> None:
        """Write the samples of a mask (n,), or their rows of a table, in their order."""
        chosen = mask.nonzero().flatten().tolist()
        if self.rows is not None:
            _write_rows(target, [self.rows[0], *(self.rows[1 + row] for row in chosen)])
        elif target.suffix == ".npy":
            save_npy(target, self.result.samples[mask].cpu().numpy())
        else:
            if self.result.about.get("names"):
                about = about | {"names": [self.names[row] for row in chosen]}
            self.result.select(mask).save(target, **about)


def describe_file(path: Path) -> dict[str, Any]:
    """The contents of a file of samples or a table of verdicts."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path} must be a .safetensors, .npz or .csv file, a scorer directory or a shipped model."
        )
    if path.suffix == ".csv" and (table := _read_verdicts(path)) is not None:
        assert table.p_value is not None
        doubtful = int((table.p_value <= 0.05).sum())
        return {"kind": "table of verdicts", "n": len(table.result), "doubtful": doubtful}
    result = Result.load(path)
    shape, scores = str(tuple(result.samples.shape[1:])), ", ".join(result.scores)
    facts = {"kind": "samples", "n": len(result), "shape": shape, "scores": scores}
    if result.verdict is not None:
        kind = "held-out" if result.verdict.held_out else "training"
        facts["doubtful"] = int((result.p_value <= 0.05).sum())
        facts["compared_with"] = f"{result.verdict.reference_size:,} {kind} samples"
    if lost := int(result.lost.sum()):
        facts["lost"] = lost
    # the counts of this file come first: `about` still has those from before a filter
    return facts | {k: v for k, v in result.about.items() if k not in (*facts, "lost", "names")}


def save_verdicts(
    path: Path, names: Sequence[str], result: Result, table: Path | None = None, **about: Any
) -> dict[str, Any]:
    """Write samples with their verdicts, or a table of the verdicts; return how many are trusted.

    Args:
        path: The file to write.
        names: Names of the samples.
        result: The samples with their verdicts.
        table: The scored table, if it was one: its cells come before the verdicts.
        **about: JSON values to add.
    """
    verdict = result.verdict
    assert verdict is not None
    if path.suffix == ".csv":
        write_verdicts(path, names, result, table)
    else:
        result.save(path, names=list(names), **about)
    labels = Counter(verdict.labels())
    shown = (TRUSTED, DOUBTFUL, *([NOT_SCORED] if labels[NOT_SCORED] else []))
    return {
        "scored": str(path),
        "n": len(result),
        **{label.replace(" ", "_"): labels[label] for label in shown},
        "near_copies": None if verdict.copies is None else int(verdict.copies.sum()),
        "median_p_value": float(verdict.p_value.nanmedian()),
        **({"note": limit} if (limit := verdict.describe_limit(result.about.get("repeatability"))) else {}),
    }


def write_verdicts(path: Path, names: Sequence[str], result: Result, table: Path | None = None) -> None:
    """Write one row per sample. The score is the combined z of the verdict.

    Trusted samples have no reason. The first column has the names, or the first columns are those of a table.
    """
    rows = zip(*map(list, to_verdict_columns(result)), strict=True)
    header, *cells = [["name"], *([name] for name in names)] if table is None else read_rows(table)
    end = -len(VERDICT) if is_scored(header) else None
    header = [*header[:end], *name_verdict(header[:end])]
    _write_rows(path, [header, *([*own[:end], *row] for own, row in zip(cells, rows, strict=True))])


def _read_verdicts(path: Path) -> Scored | None:
    """Read a table of verdicts, whose result has no samples; None if a csv file is another table."""
    header, *rows = read_cells(path) or [[]]
    if tuple(header) == COLUMNS[:-1]:  # version 0.4 wrote no regions
        header, rows = list(COLUMNS), [[*row, ""] for row in rows]
    if not is_scored(header):
        return None
    if not rows or any(len(row) != len(header) for row in rows):
        raise ValueError(f"{path} must have rows of {len(header)} columns: {', '.join(header)}.")
    names = [str(row) for row in range(len(rows))]
    if tuple(header) == COLUMNS:
        rows = [[restore_formula(name), *rest] for name, *rest in rows]
        names = [row[0] for row in rows]
    try:
        score, p = (torch.tensor([float(row[k]) for row in rows], dtype=torch.float64) for k in (-5, -4))
        regions = torch.tensor([int(row[-1]) for row in rows]) if rows[0][-1] else None
    except (ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"score, p_value and region of {path} must be numbers: {error}.") from None
    result = Result(torch.empty(len(rows), 0), scores={"score": score}, regions=regions)
    return Scored(path, result, names, p, [header, *rows])


def escape_formula(name: str) -> str:
    """A name that a spreadsheet does not read as a formula."""
    return re.sub(rf"\A{_FORMULA}", "'", name)


def restore_formula(name: str) -> str:
    """The original name, before `escape_formula`."""
    return re.sub(rf"\A'{_FORMULA}", "", name)


def _write_rows(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write the rows of a table of verdicts, its header first."""
    named = tuple(rows[0]) == COLUMNS
    with atomic(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([escape_formula(first) if named else first, *rest] for first, *rest in rows)


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
    columns = [column for column in header if column in LABELS]
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
    """The row of the labeled sample; a name and an index must refer to the same sample."""
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
    """A whole number without its decimals and leading zeros, as in 1.0; other text is not changed.

    Three decimals may be thousands instead, as in 1,000.
    """
    return re.sub(r"\A0*(\d+)(?:[.,](?!000\Z)0*)?\Z", r"\1", text)

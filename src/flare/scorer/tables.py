"""Tables with named columns: DataFrames, csv and parquet files, their conditions and their units.

A table is in the user's units. A scorer remembers the names of its columns, and the means and standard
deviations that standardize them for the network.
"""

from __future__ import annotations

import csv
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.conditions import Cond
from ..core.progress import warn
from ..results.result_files import VERDICT, check_index, coordinate_names, is_numeric, is_scored, load_table
from ..scores import SCORES

FILES = (".csv", ".parquet")
MISSING = ("", "na", "n/a", "nan", "none", "null", "<na>")  # cells without a value, in lower case
_INDEX = re.compile(r"__index_level_\d+__")
SHOWN = 200  # characters of a list of columns in a message


class DataTable(NamedTuple):
    """A table.

    Attributes:
        what: Its name, for messages.
        names: The names of its columns.
        columns: Its columns, (n,) each, of numbers or text.
    """

    what: str
    names: list[str]
    columns: list[Any]

    def take(self, sources: Mapping[str, str]) -> tuple[dict[str, Tensor], DataTable]:
        """Split off the columns that are conditions; returns these by keyword, and the other columns."""
        for keyword, name in sources.items():
            if name not in self.names:
                raise ValueError(
                    f"{self.what} has no column {name!r} for the condition {keyword}; its columns are "
                    f"{shorten(self.names)}. Name another as in cond={{{keyword!r}: 'column'}}."
                )
        found = {
            keyword: to_condition(keyword, self._read(self.names.index(name)))
            for keyword, name in sources.items()
        }
        rest = [i for i, name in enumerate(self.names) if name not in sources.values()]
        return found, self._select(rest)

    def to_samples(self, expected: Sequence[str] = (), complete: bool = True) -> tuple[list[str], Tensor]:
        """The names of the columns and their numbers, (n, d) float64.

        Args:
            expected: The columns of the training data, which select the columns of this table. All columns if
                empty.
            complete: Whether missing values are an error; otherwise they become NaN, with a warning.
        """
        frame = self
        if expected:
            frame = self._select(match_columns(self.what, self.names, expected))
        elif len(self.names) > 1 and check_index(self.what, self.names[0], self.columns[0]):
            frame = self._select(range(1, len(self.names)))
        if not frame.names or not len(frame.columns[0]):
            raise ValueError(f"{self.what} has no rows of numbers.")
        x = torch.from_numpy(np.stack([frame._read(i) for i in range(len(frame.names))], axis=1))
        lost = ~x.isfinite()
        if lost.any():
            counts = {name: int(n) for name, n in zip(frame.names, lost.sum(0), strict=True) if n}
            listed = shorten(f"{name} ({n})" for name, n in counts.items())
            said = f"{self.what} lacks values in {int(lost.any(1).sum())} of {len(x)} rows, columns {listed}"
            if complete:
                raise ValueError(f"{said}: remove these rows (df.dropna()), or fill them in as in training.")
            warn(f"{said}: these rows are not scored.", UserWarning)
        return frame.names, x

    def _select(self, which: Iterable[int]) -> DataTable:
        which = list(which)
        return self._replace(names=[self.names[i] for i in which], columns=[self.columns[i] for i in which])

    def _read(self, i: int) -> Any:
        """The numbers of a column, float64, with NaN for missing values."""
        column = np.asarray(self.columns[i])
        if column.dtype.kind in "mM":
            column = column.astype(str)  # as numbers, times would be nanoseconds
        if column.dtype.kind in "fiub":
            return column.astype(np.float64)
        values, numbers = column.tolist(), []
        try:
            for value in values:
                missing = str(value).strip().lower() in MISSING
                numbers.append(np.nan if missing else float(value))
        except (ValueError, TypeError):
            bad = str(values[len(numbers)])[:40]
            raise ValueError(
                f"{self.what}: the column {self.names[i]!r} holds {bad!r}, but a network reads numbers. "
                "Encode categories and dates as in training, for instance with one column per category "
                "(pandas.get_dummies), or leave the column out."
            ) from None
        return np.array(numbers)


def open_table(what: str, data: Any) -> Any:
    """A `DataTable` of a DataFrame (pandas, polars, pyarrow), or of a csv or parquet file.

    Other data is returned unchanged, and a csv file without names as an array.

    Args:
        what: The name of the argument, for messages; a file has its own.
        data: The data.
    """
    if isinstance(data, (str, os.PathLike)) and Path(data).suffix.lower() in FILES:
        return _read_file(Path(data))
    if isinstance(data, DataTable) or not hasattr(data, "columns") or not hasattr(data, "__getitem__"):
        return data
    names = list(getattr(data, "column_names", data.columns))
    if hasattr(data, "iloc"):  # names of pandas may be of any type, and occur twice
        columns = [data.iloc[:, i].to_numpy() for i in range(len(names))]
    else:
        columns = [data[name].to_numpy() for name in names]
    return DataTable(what, [str(name).strip() for name in names], columns)


def read_rows(path: Path) -> list[list[str]]:
    """The cells of a csv or parquet file as text, the names of the columns first."""
    if path.suffix.lower() == ".csv":
        return read_cells(path)
    frame = open_table("", path)
    lists = ([("" if each is None else str(each)) for each in np.asarray(c).tolist()] for c in frame.columns)
    return [frame.names, *map(list, zip(*lists, strict=True))]


def read_cells(path: Path) -> list[list[str]]:
    """The rows of a csv file, its header first; rows without text are left out.

    Spreadsheets write a byte order mark, and in some countries semicolons or tabs as separators.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            header = next(filter(str.strip, file), "")
            separator = max(",;\t", key=re.sub('"[^"]*"', "", header).count)
            file.seek(0)
            return [row for row in csv.reader(file, delimiter=separator) if any(map(str.strip, row))]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a table: {error}.") from error


def match_columns(what: str, names: Sequence[str], expected: Sequence[str]) -> Sequence[int]:
    """The positions of the columns of the training data in a table, by name; warns if their order differs.

    If the names only number the columns, the order is unchanged.

    Args:
        what: The name of the table, for messages.
        names: The names of its columns.
        expected: The columns of the training data.
    """
    numbered = (coordinate_names((len(names),)), [str(i) for i in range(len(names))])
    missing, unknown = Counter(expected) - Counter(names), Counter(names) - Counter(expected)
    if missing and (list(names) in numbered or list(expected) in numbered):
        return range(len(names))
    if missing:
        raise ValueError(
            f"{what} must have the columns of the training data: {shorten(missing)} missing, "
            f"{shorten(unknown) or 'none'} unknown. Rename them, or leave out the header to compare columns "
            "by position."
        )
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i)
    found = [places[name].pop(0) for name in expected]
    if unknown:
        extra = shorten([name or "a column without a name" for name in unknown])
        warn(f"{what} has columns that the training data lacks, which are ignored: {extra}.")
    if (own := [names[i] for i in sorted(found)]) != list(expected):
        warn(
            f"{what} has the columns of the training data in a different order ({shorten(own)}, not "
            f"{shorten(expected)}): they are reordered by name.",
            UserWarning,
        )
    return found


class Scaling(NamedTuple):
    """The standardization of a table: the network has seen (x − mean) / std.

    Attributes:
        mean: Per column.
        std: Per column.
    """

    mean: Sequence[float]
    std: Sequence[float]

    @classmethod
    def parse(cls, scale: Any, names: Sequence[str]) -> Scaling:
        """Read a pair (mean, std) or a fitted scaler of scikit-learn, for these columns."""
        if hasattr(scale, "inverse_transform"):
            order = list(getattr(scale, "feature_names_in_", names))
            rows = np.outer([0.0, 1.0, -3.0], np.ones(getattr(scale, "n_features_in_", len(order))))
            low, high, other = np.asarray(scale.inverse_transform(rows), dtype=float)
            if not np.allclose(other - low, -3 * (high - low)):
                raise ValueError(
                    f"scale must be linear in every column, as StandardScaler and MinMaxScaler are, got "
                    f"{type(scale).__name__}; transform the table before, and give it without scale=."
                )
            mean, std = low, high - low
            if len(mean) == len(order):
                chosen = list(match_columns("the scaler", order, names))
                mean, std = mean[chosen], std[chosen]
        else:
            mean, std = (np.asarray(part, dtype=float) for part in scale)
            mean, std = (np.full(len(names), part) if part.ndim == 0 else part for part in (mean, std))
        for part in (mean, std):
            if part.shape != (len(names),):
                raise ValueError(
                    f"scale must have one mean and one standard deviation per column, {len(names)}, got "
                    f"shape {part.shape}."
                )
        bad = ~(np.isfinite(mean) & np.isfinite(std) & (std > 0))
        if bad.any():
            raise ValueError(
                "scale must have finite means and positive standard deviations, but does not for "
                f"{shorten(np.array(names)[bad].tolist())}; "
                "leave constant columns out, or give them a standard deviation of 1."
            )
        return cls(mean.tolist(), std.tolist())

    def standardize(self, x: Tensor) -> Tensor:
        """A table (n, d) as the network sees it."""
        return (x - x.new_tensor(self.mean)) / x.new_tensor(self.std)


def is_scaling(scale: Any) -> bool:
    """Whether `scale` is a standardization, not a scale of a posterior."""
    return isinstance(scale, (tuple, list)) or hasattr(scale, "inverse_transform")


def remark_columns(what: str, names: Sequence[str], x: Tensor) -> list[str]:
    """Remarks about columns that may need another form; a warning names constant columns."""
    constant = (x == x[0]).all(0)
    if constant.any():
        listed = shorten(name for name, flag in zip(names, constant.tolist(), strict=True) if flag)
        warn(f"{what}: {listed} has one value in all rows; leave it out, and train without it.", UserWarning)
    whole = (x == x.round()).all(0) & ~constant
    listed = shorten(name for name, flag in zip(names, whole.tolist(), strict=True) if flag)
    said = (
        f"{what} has whole numbers in {listed}: if they are codes of categories, encode them as in training"
    )
    return [said] if listed else []


def name_sources(cond: Any) -> dict[str, str] | None:
    """Where the data has its conditions, by keyword of the network; None if `cond` has the values itself."""
    if isinstance(cond, str):
        return {cond: cond}
    if isinstance(cond, Mapping) and cond and all(isinstance(value, str) for value in cond.values()):
        return dict(cond)
    return None


def to_condition(keyword: str, values: Any) -> Tensor:
    """A condition as a tensor: int64 for whole numbers, such as classes, otherwise float32."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError):
        raise TypeError(
            f"the condition {keyword} must be numbers, got {str(values)[:40]}; give the codes of training."
        ) from None
    if not tensor.isfinite().all():
        raise ValueError(f"the condition {keyword} lacks values; remove the rows without one.")
    whole = not tensor.is_floating_point() or bool((tensor == tensor.round()).all())
    return tensor.long() if whole else tensor.float()


def find_floats(cond: Cond) -> list[str]:
    """The conditions that are not whole numbers."""
    return [name for name, each in cond.items() if isinstance(each, Tensor) and each.is_floating_point()]


def widen(cond: Cond, floats: Sequence[str]) -> dict[str, Any]:
    """The same conditions; of few samples, some of `floats` may be whole numbers by chance."""
    whole = [name for name in floats if isinstance(cond.get(name), Tensor) and name not in find_floats(cond)]
    return {**cond, **{name: cond[name].float() for name in whole}}


class TrainingTable(NamedTuple):
    """Training data, with a table as a tensor.

    Attributes:
        data: The table as the network sees it, (n, d); other data as it was given.
        cond: Its conditions; those of other data as they were given.
        facts: What a scorer remembers of the table, as JSON values.
        remarks: What the user should know of its columns.
    """

    data: Any
    cond: Any
    facts: dict[str, Any]
    remarks: list[str]


def open_training(
    what: str, data: Any, cond: Any, scale: Any = None, known: Mapping[str, Any] | None = None
) -> TrainingTable:
    """Read a table that a network was trained on, or held-out data for it.

    Args:
        what: The name of the argument, for messages.
        data: Data of any form.
        cond: Conditions, or the columns that have them.
        scale: How the table was standardized, as in `Scaling.parse`.
        known: The facts of the training data, for held-out data.
    """
    frame = open_table(what, data)
    if not isinstance(frame, DataTable):
        if scale is not None:
            raise TypeError(
                f"scale=(mean, std) is for tables with named columns, got {type(data).__name__}; standardize "
                f"it yourself: {what} = ({what} - mean) / std."
            )
        return TrainingTable(frame, cond, {}, [])
    facts: dict[str, Any] = {}
    sources = name_sources(cond)
    if sources is not None:
        cond, frame = frame.take(sources)
        facts["cond_columns"] = sources
        if floats := find_floats(cond):
            facts["float_conditions"] = floats
    facts["columns"], x = frame.to_samples((known or {}).get("columns", ()))
    scaling = (known or {}).get("scaling")
    remarks = [] if known is not None else remark_columns(frame.what, facts["columns"], x)
    if scale is not None:
        scaling = Scaling.parse(scale, facts["columns"])._asdict()
    if scaling is not None:
        x, facts["scaling"] = Scaling(**scaling).standardize(x), scaling
    return TrainingTable(x, cond, facts, remarks)


def read_existing(frame: DataTable, about: Mapping[str, Any], cond: Any) -> tuple[Tensor, Cond | None]:
    """The samples of a table in the network's units, and their conditions.

    Args:
        frame: The table.
        about: What the scorer remembers of its training data.
        cond: Conditions, or the columns that have them; by default the columns of the training data.
    """
    sources = name_sources(cond if cond is not None else about.get("cond_columns"))
    if sources is not None:
        cond, frame = frame.take(sources)
        cond = widen(cond, about.get("float_conditions", ()))
    _, x = frame.to_samples(about.get("columns") or (), complete=False)
    if scaling := about.get("scaling"):
        x = Scaling(**scaling).standardize(x)
    return x, cond


def shorten(names: Iterable[str]) -> str:
    """A list of names in a message."""
    return textwrap.shorten(", ".join(names), SHOWN, placeholder=" …")


def _read_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ValueError(f"reading {path} needs pyarrow: pip install pyarrow.") from error
        try:
            frame = open_table(str(path), pyarrow.parquet.read_table(path))
        except Exception as error:  # on a broken file the parser may raise anything
            raise ValueError(f"{path} cannot be read as parquet: {error}.") from error
        # pandas writes the index of filtered rows as a column
        return frame._select(i for i, name in enumerate(frame.names) if not _INDEX.fullmatch(name))
    try:
        names, samples, scores = load_table(path)  # leaves out the scores of a result
        if not set(scores) <= set(SCORES):
            raise ValueError(f"{path} is a table with columns like score_math, not a result.")
    except ValueError as error:
        return _read_text(path, error)
    if not names or samples.ndim > 2:
        return samples
    return DataTable(str(path), [name.strip() for name in names], list(samples.T))


def _read_text(path: Path, error: ValueError) -> DataTable:
    """A csv file with text or missing values; raises the error if it is not a table."""
    try:
        names, *rows = read_cells(path)
    except ValueError:
        raise error from None
    if is_numeric(names) or not rows or any(len(row) != len(names) for row in rows):
        raise error
    frame = DataTable(str(path), [name.strip() for name in names], list(zip(*rows, strict=True)))
    return frame._select(range(len(names) - len(VERDICT))) if is_scored(names) else frame

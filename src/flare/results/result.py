"""`Result`: samples with their scores, in memory and on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..core.nonfinite import fill_rows
from . import formats
from .formats import FORMAT, OPTIONAL, SCORE
from .indexing import to_indices

_MAX_COLUMNS = 100  # largest sample whose coordinates are shown in tables by default


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Samples with their epistemic uncertainty; lost samples are NaN in every tensor.

    Select samples with `result[3]`, `result[:10]`, `result[mask]` or `result[[1, 4]]`. Two results are equal
    if their tensors and scores are equal (NaN equals NaN), whatever their `about`.

    >>> result.samples.shape, result.variance.shape, result.score.shape
    (torch.Size([20, 10]), torch.Size([20, 10]), torch.Size([20]))
    >>> result[flare.keep_fraction(result.score, 0.25)].samples.shape
    torch.Size([5, 10])

    Attributes:
        samples: (n, *shape), in the network's dtype and on its device.
        variance: epistemic variance per coordinate of x_0, (n, *shape).
        scores: the requested scores by name, each (n,).
        covariance: (n, d, d), with covariance=True.
        profile: trace of the state's epistemic covariance after each step, (n, steps).
        about: how the samples were made, as JSON values; saved with them.
        observed: φ(x_0) of observe=φ, (n, *out).
        observed_variance: epistemic variance of φ(x_0), (n, *out).
    """

    samples: Tensor
    variance: Tensor | None = None
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    covariance: Tensor | None = None
    profile: Tensor | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    observed: Tensor | None = None
    observed_variance: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """The first requested score, (n,); higher means less trustworthy."""
        if not self.scores:
            raise ValueError("these samples were drawn without a posterior; pass one to flare.sample.")
        return next(iter(self.scores.values()))

    @property
    def normalized(self) -> Tensor:
        """The score per coordinate: score / d, (n,)."""
        return self.score / self.samples[0].numel()

    @property
    def lost(self) -> Tensor:
        """Which samples became NaN or infinite, (n,) bool; `about["lost"]` says where."""
        return ~torch.isfinite(self.samples).flatten(1).all(1)

    def select(self, which: Any) -> Result:
        """The result of some samples.

        Args:
            which: a mask (n,), the index of a sample, indices in any order, or a slice; a tensor, an array
                or a list.
        """
        index = to_indices(which, len(self))
        return self._map(lambda value: value[index.to(value.device)])

    def to_numpy(self) -> dict[str, Any]:
        """Arrays by name, as in an npz file: samples, score_NAME, and variance and others if present."""
        return formats.to_arrays(self._tensors())

    def to_pandas(self, coordinates: bool | None = None) -> Any:
        """A pandas.DataFrame with one row per sample: its coordinates (x0, x1, …) and score_NAME.

        Args:
            coordinates: whether to include the coordinates; by default for samples of at most 100 numbers.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "to_pandas needs pandas: pip install pandas. to_numpy works without it."
            ) from error
        if coordinates is None:
            coordinates = math.prod(self.samples.shape[1:]) <= _MAX_COLUMNS
        index = pandas.RangeIndex(len(self))  # one row per sample even if there are no columns
        return pandas.DataFrame(formats.to_columns(self._tensors(), coordinates), index=index)

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write a .safetensors, .npz or .csv file.

        safetensors and npz hold everything (npz stores bfloat16 as float32). csv holds samples and scores in
        float32 precision and warns about what it leaves out; its columns are x0, x1, … (x_0_0, … for samples
        with several axes) and score_NAME.

        Args:
            path: the file to write.
            **about: JSON values to add to `about`.
        """
        header = {"format": FORMAT, "scores": list(self.scores), "about": {**self.about, **about}}
        formats.save(path, self._tensors(), header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read what `save` wrote; the suffix of the path tells the format."""
        tensors, header = formats.load(path)
        return cls(
            samples=tensors["samples"],
            scores={name: tensors[SCORE + name] for name in header["scores"]},
            about=header.get("about", {}),
            **{name: tensors.get(name) for name in OPTIONAL},
        )

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors by their names in a file."""
        optional = {name: getattr(self, name) for name in OPTIONAL}
        tensors = {"samples": self.samples, **{k: v for k, v in optional.items() if v is not None}}
        return tensors | {SCORE + name: score for name, score in self.scores.items()}

    def _map(self, function: Callable[[Tensor], Tensor]) -> Result:
        """Apply `function` to every tensor."""
        present = {name: value for name in OPTIONAL if (value := getattr(self, name)) is not None}
        changed: dict[str, Any] = {name: function(value) for name, value in present.items()}
        scores = {name: function(score) for name, score in self.scores.items()}
        return replace(self, samples=function(self.samples), scores=scores, **changed)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, which: Any) -> Result:
        return self.select(which)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        mine, others = self._tensors(), other._tensors()
        # order matters: filters use the first score
        return list(mine) == list(others) and all(_equal(value, others[name]) for name, value in mine.items())

    def __hash__(self) -> int:
        return hash((tuple(self.samples.shape), *self.scores))

    def __repr__(self) -> str:
        shape = tuple(self.samples.shape[1:])
        dtype = str(self.samples.dtype).removeprefix("torch.")
        lines = [f"Result: {len(self)} samples of shape {shape}, {dtype} on {self.samples.device}"]
        if len(self) and (lost := int(self.lost.sum())):
            lines.append(f"  lost: {lost} of {len(self)} have NaN or infinity")
        lines += [f"  score {name}: {_format_quantiles(score)}" for name, score in self.scores.items()]
        if present := [name for name in OPTIONAL if getattr(self, name) is not None]:
            lines.append(f"  with {', '.join(present)}")
        made = [f"{k}={_shorten(v)}" for k, v in self.about.items() if k != "lost"]
        if made:
            lines.append(_shorten(f"  made by {', '.join(made)}", 500))
        return "\n".join(lines)


def fill_lost(result: Result, lost: Tensor) -> Result:
    """Set every tensor of a result to NaN in the rows of the lost samples.

    Args:
        result: n samples.
        lost: which of them are lost, (n,) bool.
    """
    return result._map(lambda value: fill_rows(value, lost, math.nan, value.ndim))


def join(parts: Sequence[Result]) -> Result:
    """Concatenate the results of batches.

    A part whose samples are all lost may lack tensors that the others have; these are filled with NaN.
    `about["lost"]` lists the lost samples of all parts.
    """
    like = next((part for part in parts if not part.lost.all()), parts[0])
    parts = [_fill_missing(part, like) if part.lost.all() else part for part in parts]

    def concatenate(values: list[Any]) -> Any:
        return None if values[0] is None else torch.cat(values)

    lost: dict[str, list[int]] = {}
    for part in parts:
        for where, indices in part.about.get("lost", {}).items():
            lost[where] = [*lost.get(where, []), *indices]
    return Result(
        samples=concatenate([part.samples for part in parts]),
        scores={name: concatenate([part.scores[name] for part in parts]) for name in parts[0].scores},
        about={**like.about, **({"lost": lost} if lost else {})},
        **{name: concatenate([getattr(part, name) for part in parts]) for name in OPTIONAL},
    )


def _fill_missing(part: Result, like: Result) -> Result:
    """Give a part without usable samples all the tensors of another result, filled with NaN."""
    empty = like._map(lambda value: value.new_full((len(part), *value.shape[1:]), math.nan))
    return replace(empty, samples=part.samples, about=part.about)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, with NaN equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    b = b.to(a.device)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _format_quantiles(score: Tensor) -> str:
    """Three quantiles of the scores that are not NaN."""
    found = score[~score.isnan()].double().sort().values
    if not len(found):
        return "none" if not len(score) else "all NaN"
    low, middle, high = (float(found[round(fraction * (len(found) - 1))]) for fraction in (0.1, 0.5, 0.9))
    return f"10% {low:.4g}, median {middle:.4g}, 90% {high:.4g}"


def _shorten(value: Any, length: int = 60) -> str:
    text = str(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"

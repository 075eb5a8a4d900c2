"""What sampling returns, in memory and on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.nonfinite import fill_rows
from . import formats
from .formats import FORMAT
from .formats import OPTIONAL as _OPTIONAL

_SMALL = 100  # numbers in a sample, up to which a table shows them


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Samples with their epistemic uncertainty; all of a sample that was lost on the way is NaN.

    Results are equal if their tensors and scores are, NaN to NaN, whatever `about` says of how they were
    made. `result[3]`, `result[:10]`, `result[mask]` and `result[[1, 4]]` are results of those samples.

    Attributes:
        samples: (n, *shape), in the network's dtype and on its device.
        variance: the epistemic variance of each coordinate of x_0, (n, *shape).
        scores: every score that was asked for, by name, (n,) each.
        covariance: (n, d, d), with covariance=True.
        profile: the trace of the state's epistemic covariance after each step, (n, steps): what each
            step adds or takes away.
        about: how they were made, as JSON values; what `save` writes and `load` reads back.
        observed: φ(x_0) of observe=φ, (n, *out).
        observed_variance: its epistemic variance, (n, *out).
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
        """The first score that was asked for, (n,); the larger, the less to be trusted."""
        if not self.scores:
            raise ValueError("these samples were drawn without a posterior; pass one to flare.sample.")
        return next(iter(self.scores.values()))

    @property
    def normalized(self) -> Tensor:
        """The score per coordinate: score / d, (n,)."""
        return self.score / self.samples[0].numel()

    @property
    def lost(self) -> Tensor:
        """Which samples were lost to NaN or infinity, (n,) bool; `about["lost"]` tells where."""
        return ~torch.isfinite(self.samples).flatten(1).all(1)

    def select(self, which: Any) -> Result:
        """The chosen samples, with all that belongs to them.

        Args:
            which: a mask (n,), the index of a sample, indices in any order, or a slice; a tensor, an array
                or a list.
        """
        index = _indices(which, len(self)).to(self.samples.device)

        def rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index.to(value.device)]

        optional: dict[str, Any] = {name: rows(getattr(self, name)) for name in _OPTIONAL}
        scores: Any = {name: rows(score) for name, score in self.scores.items()}
        return replace(self, samples=self.samples[index], scores=scores, **optional)

    def to_numpy(self) -> dict[str, Any]:
        """Arrays by name, as an npz file has them: samples, score_NAME, variance and what else there is."""
        return formats.to_arrays(self._tensors())

    def to_pandas(self, coordinates: bool | None = None) -> Any:
        """A pandas.DataFrame with one row per sample: its coordinates (x0, x1, …) and score_NAME.

        Args:
            coordinates: whether to show the coordinates; by default for samples of at most 100 numbers.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "to_pandas needs pandas: pip install pandas. to_numpy works without it."
            ) from error
        if coordinates is None:
            coordinates = math.prod(self.samples.shape[1:]) <= _SMALL
        index = pandas.RangeIndex(len(self))  # the rows, also of samples without scores
        return pandas.DataFrame(formats.to_columns(self._tensors(), coordinates), index=index)

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors by the names that they have in a file."""
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        tensors = {"samples": self.samples, **{k: v for k, v in optional.items() if v is not None}}
        return tensors | {f"score.{name}": score for name, score in self.scores.items()}

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write a .safetensors, .npz or .csv file; `about` adds JSON values to what is known of the samples.

        safetensors and npz hold everything (npz has bfloat16 as float32). csv holds samples and scores, to
        float32, and warns of what it leaves out; its columns are x0, x1, … (x_0_0, … for samples of more
        axes) and score_NAME.
        """
        header = {"format": FORMAT, "scores": list(self.scores), "about": {**self.about, **about}}
        formats.save(path, self._tensors(), header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read what `save` wrote, by the suffix of the path."""
        tensors, header = formats.load(path)
        if header.get("format") != FORMAT or "samples" not in tensors or "scores" not in header:
            raise ValueError(
                f"{path} is not a file of samples of format {FORMAT}; write it with Result.save."
            )
        names, about = header["scores"], header.get("about", {})
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"{path} must list its scores by name, got {names!r}.")
        if not isinstance(about, dict):
            raise ValueError(f"{path} must say by name how its samples were made, got {about!r}.")
        missing = [name for name in names if f"score.{name}" not in tensors]
        if missing:
            raise ValueError(f"{path} is not whole: it has no score {', '.join(missing)}.")
        result = cls(
            samples=tensors["samples"],
            scores={name: tensors[f"score.{name}"] for name in names},
            about=about,
            **{name: tensors.get(name) for name in _OPTIONAL},
        )
        result._verify(str(path))
        return result

    def _verify(self, path: str) -> None:
        """Raise if what a file held does not belong together."""
        n, shape = len(self.samples) if self.samples.ndim else 0, tuple(self.samples.shape)
        if len(shape) < 2 or self.samples.numel() == 0:
            raise ValueError(f"{path} must hold samples of shape (n, *shape), got {shape}.")
        d = self.samples[0].numel()
        wanted: dict[str, tuple[Any, ...]] = {
            "samples": shape, "variance": shape, "covariance": (n, d, d), "profile": (n, "steps"),
            "observed": (n, ...), "observed_variance": (n, ...),
        }  # fmt: skip
        parts = [(name, getattr(self, name), wanted[name]) for name in ("samples", *_OPTIONAL)]
        parts += [(f"score {name!r}", score, (n,)) for name, score in self.scores.items()]
        for name, value, form in parts:
            if value is None or (value.is_floating_point() and _has_form(tuple(value.shape), form)):
                continue
            raise ValueError(
                f"{path} has {name} as {value.dtype} of shape {tuple(value.shape)}; beside samples of shape "
                f"{shape} it must be floating point of shape ({', '.join(map(str, form))})."
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, which: Any) -> Result:
        return self.select(which)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        mine, others = self._tensors(), other._tensors()
        # in the same order: the first score is the one to filter by
        return list(mine) == list(others) and all(_same(value, others[name]) for name, value in mine.items())

    def __hash__(self) -> int:
        return hash((tuple(self.samples.shape), *self.scores))

    def __repr__(self) -> str:
        shape = tuple(self.samples.shape[1:])
        dtype = str(self.samples.dtype).removeprefix("torch.")
        lines = [f"Result: {len(self)} samples of shape {shape}, {dtype} on {self.samples.device}"]
        if len(self) and (lost := int(self.lost.sum())):
            lines.append(f"  lost: {lost} of {len(self)} have NaN or infinity")
        lines += [f"  score {name}: {_quantiles(score)}" for name, score in self.scores.items()]
        if found := [name for name in _OPTIONAL if getattr(self, name) is not None]:
            lines.append(f"  with {', '.join(found)}")
        made = [f"{k}={_shorten(v)}" for k, v in self.about.items() if k != "lost"]
        if made:
            lines.append(_shorten(f"  made by {', '.join(made)}", 500))
        return "\n".join(lines)


def _indices(which: Any, n: int) -> Tensor:
    """The indices (k,) of n samples that a mask, a slice, an index or a list of them stands for."""
    if isinstance(which, slice):
        return torch.tensor(range(n)[which], dtype=torch.long)
    picked = which if isinstance(which, Tensor) else torch.from_numpy(_as_array(which))
    if picked.dtype == torch.bool:
        if picked.shape != (n,):
            raise ValueError(f"the mask must have shape ({n},), got {tuple(picked.shape)}.")
        return picked.nonzero().flatten()
    if picked.numel() == 0:
        return torch.zeros(0, dtype=torch.long)
    if picked.dtype == torch.uint8 and picked.shape == (n,):
        raise TypeError(f"a mask must be of bool, got {n} numbers of {picked.dtype}; call .bool() on it.")
    if picked.is_floating_point() or picked.is_complex() or picked.ndim > 1:
        raise TypeError(
            f"choose samples by a mask ({n},) of bool, integer indices (k,), an index or a slice, got "
            f"{picked.dtype} of shape {tuple(picked.shape)}."
        )
    picked = picked.long().reshape(-1)
    if picked.min() < -n or picked.max() >= n:
        wrong = picked[(picked < -n) | (picked >= n)][0]
        raise IndexError(f"there is no sample {int(wrong)}: the {n} samples have the indices 0 to {n - 1}.")
    return torch.where(picked < 0, picked + n, picked)


def _as_array(which: Any) -> Any:
    """A fresh array of bool or numbers."""
    try:
        array = np.array(which)
    except (ValueError, TypeError) as error:
        raise TypeError(f"choose samples by a mask, indices or a slice, got {which!r}: {error}.") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"choose samples by a mask, indices or a slice, got {which!r}.")
    return array


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    b = b.to(a.device)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _quantiles(score: Tensor) -> str:
    """Three quantiles of the scores that there are, as text."""
    found = score[~score.isnan()].double().sort().values
    if not len(found):
        return "none" if not len(score) else "all NaN"
    low, middle, high = (float(found[round(share * (len(found) - 1))]) for share in (0.1, 0.5, 0.9))
    return f"10% {low:.4g}, median {middle:.4g}, 90% {high:.4g}"


def _shorten(value: Any, length: int = 60) -> str:
    text = str(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _has_form(shape: tuple[int, ...], form: tuple[Any, ...]) -> bool:
    """Whether a shape has this form: a word stands for any length, a last ... for any further axes."""
    if form[-1] is ...:
        form = form[:-1] + shape[len(form) - 1 :]
    return len(shape) == len(form) and all(
        isinstance(b, str) or a == b for a, b in zip(shape, form, strict=True)
    )


def fill_lost(result: Result, lost: Tensor) -> Result:
    """The same result with NaN in all that belongs to the lost samples, (n,) bool."""

    def rows(value: Tensor | None) -> Any:
        return None if value is None else fill_rows(value, lost, math.nan, value.ndim)

    return replace(
        result,
        samples=rows(result.samples),
        scores={name: rows(score) for name, score in result.scores.items()},
        **{name: rows(getattr(result, name)) for name in _OPTIONAL},
    )


def _fill_missing(part: Result, form: Result) -> Result:
    """A part that is all lost with NaN for all that another part has."""

    def rows(value: Tensor | None) -> Any:
        return None if value is None else value.new_full((len(part), *value.shape[1:]), math.nan)

    return replace(
        part,
        scores={name: rows(score) for name, score in form.scores.items()},
        **{name: rows(getattr(form, name)) for name in _OPTIONAL},
    )


def join(parts: Sequence[Result]) -> Result:
    """One result from those of batches that were drawn alike; what was lost of each is in its `about`.

    A part all of whose samples are lost may have nothing but them.
    """
    form = next((part for part in parts if not part.lost.all()), parts[0])
    parts = [_fill_missing(part, form) if part.lost.all() else part for part in parts]

    def cat(values: list[Any]) -> Any:
        return None if values[0] is None else torch.cat(values)

    lost: dict[str, list[int]] = {}
    for part in parts:
        for where, indices in part.about.get("lost", {}).items():
            lost[where] = [*lost.get(where, []), *indices]
    return Result(
        samples=cat([part.samples for part in parts]),
        scores={name: cat([part.scores[name] for part in parts]) for name in parts[0].scores},
        about={**form.about, **({"lost": lost} if lost else {})},
        **{name: cat([getattr(part, name) for part in parts]) for name in _OPTIONAL},
    )

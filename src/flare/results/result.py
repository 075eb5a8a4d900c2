"""`Result`: samples with their scores, in memory and on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..core.nonfinite import fill_rows
from ..core.validation import one_of
from . import formats, verdict_files
from .display import as_html, as_text
from .filters import keep_best, suggest_share
from .formats import FORMAT, OPTIONAL, REGIONS, SCORE
from .indexing import to_indices
from .reference import Reference
from .verdict import Verdict, join_verdicts

By = Literal["region", "rank"]
_MAX_COLUMNS = 100  # largest sample whose coordinates are shown in tables by default


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Samples with their epistemic uncertainty; lost samples are NaN in every tensor.

    Select samples with `result[3]`, `result[:10]`, `result[mask]` or `result[[1, 4]]`. Two results are equal
    if their tensors, scores and verdicts are equal (NaN equals NaN), whatever their `about`.

    >>> result.samples.shape, result.variance.shape, result.score.shape
    (torch.Size([20, 10]), torch.Size([20, 10]), torch.Size([20]))
    >>> result[result.keep(0.25)].samples.shape
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
        verdict: how plausible the samples are, compared with real data; samples of a `flare.Scorer` have it.
        reference: the scores of the real data that the verdict compares with.
        regions: the region of the data that each sample belongs to, (n,) int64, and −1 for lost samples;
            samples of a `flare.Scorer` have them.
    """

    samples: Tensor
    variance: Tensor | None = None
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    covariance: Tensor | None = None
    profile: Tensor | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    observed: Tensor | None = None
    observed_variance: Tensor | None = None
    verdict: Verdict | None = None
    reference: Reference | None = None
    regions: Tensor | None = None

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
    def p_value(self) -> Tensor:
        """Share of real samples that look at least as doubtful, (n,); NaN for lost samples."""
        return self._require_verdict().p_value

    @property
    def reason(self) -> Sequence[str]:
        """The score that speaks most against each sample; "not scored" for lost samples."""
        return self._require_verdict().reason

    def trusted(self, alpha: float = 0.05) -> Tensor:
        """Mask of the samples with a p-value above `alpha`, (n,) bool; see `Verdict.trusted`."""
        return self._require_verdict().trusted(alpha)

    def keep(self, share: float, by: By = "region") -> Tensor:
        """Mask of the most plausible share of every region, (n,) bool.

        Samples are ranked by the verdict's z, or by the score without a verdict. Exactly round(share·m) of
        the m samples with a score are kept, and at least one. Lost samples are never kept.

        Args:
            share: Share of the samples to keep, in (0, 1].
            by: "region" keeps the share of every region, so that rare kinds of samples do not disappear; a
                result without regions is one region. "rank" ranks across regions.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {share}{suggest_share(share)}")
        one_of("by", by, get_args(By))
        ranking = self.score if self.verdict is None else self.verdict.z
        return keep_best(ranking, share, self.regions if by == "region" else None)

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
        some = self._map(lambda value: value[index.to(value.device)])
        if self.regions is not None:
            some = replace(some, regions=self.regions[index.to(self.regions.device)])
        return some if self.verdict is None else replace(some, verdict=self.verdict[index])

    def to_numpy(self) -> dict[str, Any]:
        """Arrays by name: samples, score_NAME, and variance and others if present.

        A verdict adds p_value, z, p_value_NAME, and in words reason and verdict ("trusted", "suspicious" or
        "not scored" at the level 0.05), copy (bool) and nearest if they are known, and reference_NAME, the
        scores of the real data.
        """
        return formats.to_arrays(self._tensors()) | verdict_files.to_words(self.verdict)

    def to_pandas(self, coordinates: bool | None = None) -> Any:
        """A pandas.DataFrame with one row per sample: its coordinates (x0, x1, …) and score_NAME.

        A verdict adds the columns p_value_NAME, z, reference_size, held_out, p_value, verdict ("trusted",
        "suspicious" or "not scored" at the level 0.05) and reason, and nearest and copy if they are known.

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
        columns = formats.to_columns(self._tensors(), coordinates)
        return pandas.DataFrame(columns | verdict_files.to_columns(self.verdict), index=index)

    def plot(self, what: str = "samples", **options: Any) -> Any:
        """Draw a figure of `flare.plot` and return its matplotlib axes.

        Args:
            what: the name of the function: "samples", "histogram", "variance" or "profile".
            **options: its other arguments.
        """
        plot = import_module(__name__.partition(".")[0]).plot  # the package loads its public names on use
        functions = [name for name, value in vars(plot).items() if _is_figure(name, value, plot)]
        return getattr(plot, one_of("plot", what, functions))(self, **options)

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write a .safetensors, .npz or .csv file.

        safetensors and npz hold everything (npz stores bfloat16 as float32). csv holds samples, scores and
        verdict with all their digits, and warns about what it leaves out; its columns are x0, x1, … (x_0_0, …
        for samples with several axes), score_NAME, and those of the verdict as in `to_pandas`.

        Args:
            path: the file to write.
            **about: JSON values to add to `about`.
        """
        header = {"format": FORMAT, "scores": list(self.scores), "about": {**self.about, **about}}
        header |= verdict_files.pack(self.verdict, self.reference)[1]
        formats.save(path, self._tensors(), header, verdict_files.to_columns(self.verdict))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read what `save` wrote; the suffix of the path tells the format."""
        tensors, header = formats.load(path)
        verdict, reference = verdict_files.unpack(Path(path), tensors, header)
        return cls(
            samples=tensors["samples"],
            scores={name: tensors[SCORE + name] for name in header["scores"]},
            about=header.get("about", {}),
            verdict=verdict,
            reference=reference,
            regions=tensors.get(REGIONS),
            **{name: tensors.get(name) for name in OPTIONAL},
        )

    def _require_verdict(self) -> Verdict:
        if self.verdict is None:
            raise ValueError(
                "these samples have no verdict, because they were not compared with real data; score them "
                "with a flare.Scorer: flare.fit(net, data, schedule=schedule).score(samples)."
            )
        return self.verdict

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors by their names in a file."""
        optional = {name: getattr(self, name) for name in OPTIONAL}
        tensors = {"samples": self.samples, **{k: v for k, v in optional.items() if v is not None}}
        tensors |= {SCORE + name: score for name, score in self.scores.items()}
        if self.regions is not None:
            tensors[REGIONS] = self.regions
        return tensors | verdict_files.pack(self.verdict, self.reference)[0]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Result:
        """Apply `function` to every tensor but the regions and those of the verdict."""
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
        verdicts = [verdict_files.pack(one.verdict, one.reference)[1] for one in (self, other)]
        if verdicts[0] != verdicts[1]:
            return False
        # order matters: filters use the first score
        return list(mine) == list(others) and all(_equal(value, others[name]) for name, value in mine.items())

    def __hash__(self) -> int:
        return hash((tuple(self.samples.shape), *self.scores))

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def fill_lost(result: Result, lost: Tensor) -> Result:
    """Set every tensor of a result to NaN in the rows of the lost samples.

    Args:
        result: n samples.
        lost: which of them are lost, (n,) bool.
    """
    filled = result._map(lambda value: fill_rows(value, lost, math.nan, value.ndim))
    if result.regions is not None:
        filled = replace(filled, regions=result.regions.masked_fill(lost.to(result.regions.device), -1))
    if result.verdict is None or not lost.any():
        return filled
    rows = torch.where(lost.cpu(), len(lost), torch.arange(len(lost)))
    return replace(filled, verdict=join_verdicts([result.verdict, result.verdict.blank(1)])[rows])


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
        verdict=None if like.verdict is None else join_verdicts([part._require_verdict() for part in parts]),
        reference=like.reference,
        regions=concatenate([part.regions for part in parts]),
        **{name: concatenate([getattr(part, name) for part in parts]) for name in OPTIONAL},
    )


def _fill_missing(part: Result, like: Result) -> Result:
    """Give a part without usable samples all the tensors of another result, filled with NaN."""
    empty = like._map(lambda value: value.new_full((len(part), *value.shape[1:]), math.nan))
    verdict = None if like.verdict is None else like.verdict.blank(len(part))
    regions = None if like.regions is None else like.regions.new_full((len(part),), -1)
    return replace(empty, samples=part.samples, about=part.about, verdict=verdict, regions=regions)


def _is_figure(name: str, value: Any, module: ModuleType) -> bool:
    """Whether a name of `flare.plot` is a public function of its own."""
    return isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, with NaN equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    b = b.to(a.device)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())

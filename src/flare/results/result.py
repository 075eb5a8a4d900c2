"""`Result`: samples with their scores, in memory and on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from ..core.conditions import Cond
from ..core.validation import one_of
from . import result_files
from .calibration import design_labels
from .filters import Mask, keep_best, require_share
from .result_files import OPTIONAL
from .verdict import SCORE, Reference, Verdict, take, to_indices

if TYPE_CHECKING:
    from matplotlib.axes import Axes

By = Literal["region", "rank"]
Plot = Literal["fan", "histogram", "kept", "p_values", "samples", "trade_off", "variance"]
_MAX_COLUMNS = 100  # largest sample whose coordinates are shown in tables by default


@dataclass(frozen=True)
class Spread:
    """The epistemic spread of finished samples: the output of a propagation rule, and the input of scores.

    Attributes:
        x: Samples x_0, (B, *shape).
        variance: Epistemic variance per coordinate, (B, *shape).
        deviations: δx_0 along each direction, (K, B, *shape), with Σ_k δx_0² = variance; None if the rule
            keeps no directions.
        directions: δθ of each deviation, (m, K).
        cond: Conditions of the samples.
        models: x_0 of other models, (K, B, *shape), if the rule reruns the sampler with them.
        covariance: Covariance of all coordinates, (B, d, d), if the rule computes it without deviations.
    """

    x: Tensor
    variance: Tensor
    deviations: Tensor | None
    directions: Tensor | None
    cond: Cond
    models: Tensor | None = None
    covariance: Tensor | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Samples with their epistemic uncertainty; lost samples are NaN in every tensor.

    Select samples with `result[3]`, `result[:10]`, `result[mask]` or `result[[1, 4]]`. Two results are equal
    if their tensors, scores and verdicts are equal (NaN equals NaN); `about` is not compared.

    >>> result.samples.shape, result.variance.shape, result.score.shape
    (torch.Size([20, 10]), torch.Size([20, 10]), torch.Size([20]))
    >>> result[result.keep(0.25)].samples.shape
    torch.Size([5, 10])

    Attributes:
        samples: Samples (n, *shape), in the network's dtype and on its device.
        variance: Epistemic variance per coordinate of x_0, (n, *shape).
        scores: The requested scores by name, each (n,).
        covariance: Epistemic covariance of all coordinates, (n, d, d), with covariance=True.
        profile: Trace of the state's epistemic covariance after each step, (n, steps).
        about: How the samples were made, as JSON values; saved with them.
        observed: φ(x_0) of observe=φ, (n, *out).
        observed_variance: Epistemic variance of φ(x_0), (n, *out).
        verdict: How plausible the samples are compared with real data; set by a `flare.Scorer`.
        reference: Scores of the real data that the verdict compares with.
        regions: The region of the data that each sample belongs to, (n,) int64, −1 for lost samples; set by a
            `flare.Scorer`.
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
        """The first requested score, (n,); larger means more doubtful."""
        if not self.scores:
            raise ValueError("these samples were drawn without a posterior; pass one to flare.sample.")
        return next(iter(self.scores.values()))

    @property
    def normalized(self) -> Tensor:
        """The score per coordinate: score / d, (n,)."""
        return self.score / self.samples[0].numel()

    @property
    def ranking(self) -> Tensor:
        """The values that `keep` ranks by, (n,): the z of the verdict, or the score without a verdict."""
        return self.score if self.verdict is None else self.verdict.z

    @property
    def p_value(self) -> Tensor:
        """Share of real samples that look at least as doubtful, (n,); NaN for lost samples."""
        return self._require_verdict().p_value

    @property
    def reason(self) -> Sequence[str]:
        """The score that contributes most to the z of each sample; "not scored" for lost samples."""
        return self._require_verdict().reason

    def trusted(self, alpha: float = 0.05) -> Tensor:
        """Mask of the samples with a p-value above `alpha`, (n,) bool; see `Verdict.trusted`.

        The mask also selects rows of the scored table: `df[result.trusted(0.05)]`.
        """
        return self._require_verdict().trusted(alpha)

    def keep(self, share: float, by: By = "region") -> Tensor:
        """Mask of the most plausible share of every region, (n,) bool.

        Samples are ranked by the verdict's z, or by the score without a verdict. Exactly round(share·m) of
        the m samples with a score are kept, and at least one. Lost samples are never kept.

        Args:
            share: Share of the samples to keep, in (0, 1].
            by: "region" keeps the share of every region, so rare kinds of samples do not disappear,
                except those with fewer than about 1/share samples. Without regions, all samples are one
                region. "rank" ranks across regions.
        """
        require_share("share", share)
        one_of("by", by, get_args(By))
        mask = keep_best(self.ranking, share, self.regions if by == "region" else None)
        return mask.as_subclass(Mask)

    def propose_labels(self, risk: float = 0.05, confidence: float = 0.9) -> Tensor:
        """Indices of the samples to label as good or bad for `flare.calibrate`, in labeling order.

        With the defaults, these are about 60 random samples of the more plausible ones. A larger risk needs
        fewer. You can label them in any order, but label all of them.

        Args:
            risk: The largest accepted share of bad samples among the kept, in (0, 1).
            confidence: The probability of the guarantee, in (0, 1).
        """
        return design_labels(self.ranking, risk, confidence).order

    @property
    def lost(self) -> Tensor:
        """Mask of the samples that became NaN or infinite, (n,) bool; `about["lost"]` lists the steps."""
        return ~torch.isfinite(self.samples).flatten(1).all(1)

    def select(self, which: Any) -> Result:
        """Select some of the samples.

        Args:
            which: A mask (n,), the index of a sample, indices in any order, or a slice; a tensor, an array
                or a list.
        """
        index = to_indices(which, len(self))
        return self._with_rows({name: take(value, index) for name, value in self._rows().items()})

    def plot(self, what: Plot = "samples", **options: Any) -> Axes:
        """Draw the result with matplotlib, and return the axes.

        >>> axes = result.plot()
        >>> axes = result.plot("kept", keep=0.25)

        Args:
            what: A function of `flare.plot`, by name.
            **options: Its options, such as `ax=`.
        """
        from . import plot

        return getattr(plot, one_of("plot", what, get_args(Plot)))(self, **options)

    def to_numpy(self) -> dict[str, Any]:
        """Arrays by name: samples, score_NAME, and variance and others if present.

        A verdict adds p_value, z, p_value_NAME, and in words reason and verdict ("trusted", "doubtful" or
        "not scored" at the level 0.05), copy (bool) and nearest if they are known, and reference_NAME, the
        scores of the real data.
        """
        return result_files.to_arrays(self)

    def to_pandas(self, coordinates: bool | None = None) -> Any:
        """A pandas.DataFrame with one row per sample.

        It has the columns of the table passed to `flare.fit`, in the same units, or the coordinates x0, x1, …
        (x_0_0, … for samples with several axes). Then follow score_NAME. A verdict adds score (the combined
        z), p_value, verdict ("trusted", "doubtful" or "not scored" at the level 0.05), reason and region. A
        name that the table already has gets the prefix flare_.

        Args:
            coordinates: Whether to include the coordinates; by default for samples of at most 100 numbers.
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
        return pandas.DataFrame(result_files.to_columns(self, coordinates), index=index)

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write a .safetensors, .npz or .csv file.

        safetensors and npz hold everything (npz stores bfloat16 as float32). csv is for other programs: it
        holds the columns of `to_pandas`, which `flare filter` also reads.

        Args:
            path: The file to write.
            **about: JSON values to add to `about`.
        """
        result_files.save(path, self, {**self.about, **about})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a .safetensors or .npz file written by `save`."""
        return cls(**result_files.load(path))

    def _require_verdict(self) -> Verdict:
        if self.verdict is None:
            raise ValueError(
                "these samples have no verdict, because they were not compared with real data; score them "
                "with a flare.Scorer: flare.fit(net, data, schedule=schedule).score(samples)."
            )
        return self.verdict

    def _rows(self) -> dict[str, Tensor]:
        """All tensors with one row per sample, by their names in files."""
        rows = {"samples": self.samples}
        rows |= {name: value for name in OPTIONAL if (value := getattr(self, name)) is not None}
        rows |= {SCORE + name: score for name, score in self.scores.items()}
        return rows if self.verdict is None else rows | self.verdict._rows()

    def _with_rows(self, rows: Mapping[str, Tensor]) -> Result:
        """The same result for other samples, from tensors as `_rows` returns them."""
        optional: dict[str, Any] = {name: rows.get(name) for name in OPTIONAL}
        return replace(
            self,
            samples=rows["samples"],
            scores={name: rows[SCORE + name] for name in self.scores},
            verdict=None if self.verdict is None else Verdict._from_rows(rows, self.verdict.facts),
            **optional,
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, which: Any) -> Result:
        return self.select(which)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        (mine, header), (others, other_header) = result_files.pack(self), result_files.pack(other)
        # order matters: filters use the first score
        same = header == other_header and list(mine) == list(others)
        return same and all(_equal(value, others[name]) for name, value in mine.items())

    def __repr__(self) -> str:
        shape, dtype = tuple(self.samples.shape[1:]), str(self.samples.dtype).removeprefix("torch.")
        heading = f"{len(self)} samples of shape {shape}, {dtype} on {self.samples.device}"
        titles = [heading] if self.verdict is None else [repr(self.verdict), heading]
        return "\n  ".join([f"Result: {titles[0]}", *titles[1:], *_describe(self)])


def fill_lost(result: Result, lost: Tensor) -> Result:
    """The result with lost samples: NaN in every tensor, region −1, and not scored.

    Args:
        result: The result of n samples.
        lost: Which of them are lost, (n,) bool.
    """
    index = torch.arange(len(lost)).masked_fill(lost.cpu(), -1)
    return result._with_rows({name: take(value, index) for name, value in result._rows().items()})


def join(parts: Sequence[Result]) -> Result:
    """Concatenate the results of batches.

    A part whose samples are all lost may lack tensors that the others have; these are filled with NaN.
    `about["lost"]` lists the lost samples of all parts.
    """
    if len(parts) == 1:
        return parts[0]
    usable = [not part.lost.all() for part in parts]
    like = parts[usable.index(True)] if any(usable) else parts[0]
    rows = []
    for part, found in zip(parts, usable, strict=True):
        if not found:
            index = torch.full((len(part),), -1)
            empty = {name: take(value, index) for name, value in like._rows().items()}
            rows.append({**empty, "samples": part.samples})
        elif (part.verdict and part.verdict.facts) != (like.verdict and like.verdict.facts):
            raise ValueError("the verdicts use different references; compare all samples with one reference.")
        else:
            rows.append(part._rows())
    names = [name for name in rows[0] if all(name in own for own in rows)]
    where: dict[str, list[int]] = {}
    for part in parts:
        for step, indices in part.about.get("lost", {}).items():
            where[step] = [*where.get(step, []), *indices]
    whole = like._with_rows({name: torch.cat([own[name] for own in rows]) for name in names})
    return replace(whole, about={**like.about, **({"lost": where} if where else {})})


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, with NaN equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    b = b.to(a.device)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _describe(result: Result) -> Iterator[str]:
    """The lines of a repr below its heading."""
    for problem in result.about.get("problems", []):
        yield f"PROBLEM of the model: {problem}"
    if verdict := result.verdict:
        kind = "held-out" if verdict.held_out else "training"
        yield f"compared with: {verdict.reference_size:,} {kind} samples"
        if reasons := verdict.count_reasons():
            listed = ", ".join(f"{name} {count:,}" for name, count in reasons.items())
            yield f"doubtful because of: {listed}"
        if limit := verdict.describe_limit(result.about.get("repeatability")):
            yield f"note: {limit}"
    if len(result) and (lost := int(result.lost.sum())):
        yield f"lost: {lost} of {len(result)} have NaN or infinity"
    for name, score in result.scores.items():
        yield f"score {name}: {_format_quantiles(score)}"
    if present := [name for name in OPTIONAL if getattr(result, name) is not None]:
        yield f"with: {', '.join(present)}"
    if made := [
        f"{name}={_shorten(value)}"
        for name, value in result.about.items()
        if name not in ("lost", "problems", "repeatability", "region_counts", "copy_distance", "scaling")
    ]:
        yield f"made by: {_shorten(', '.join(made), 500)}"


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

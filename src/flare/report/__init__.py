"""Reports: results as one self-contained HTML file that needs no network, fonts or libraries."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import torch
from torch import Tensor

from ..core import __version__
from ..core.validation import require_samples
from ..results.calibration import design_labels
from ..results.drawing import drop_lost, rank_by
from ..results.filters import require_share
from ..results.result import Result
from ..storage.checkpoint import atomic
from .embedding import CONFIDENCE, RISK, Known, embed
from .issues import find_issues, find_twins
from .sentences import describe

SCRIPTS = (
    "decode.js", "ranking.js", "guarantee.js", "labels.js", "chart.js", "points.js", "series.js", "images.js",
    "bands.js", "histogram.js", "rates.js", "tradeoff.js", "table.js", "card.js", "figure.js", "issues.js",
    "decide.js", "page.js",
)  # fmt: skip
# long, or said already
_HIDDEN = ("names", "region_counts", "problems", "repeatability", "columns", "scaling", "lost")
__all__ = ["write"]


def write(
    path: str | os.PathLike[str],
    result: Result | Any,
    *,
    keep: float = 0.5,
    alpha: float = 0.05,
    title: str | None = None,
    settings: Mapping[str, object] | None = None,
    summary: Sequence[tuple[str, object]] = (),
    data: Tensor | None = None,
    rows: Tensor | None = None,
    groups: Tensor | Sequence[object] | None = None,
    bad: Tensor | None = None,
) -> None:
    """Write an HTML page that helps people decide which samples to keep.

    The first screen says what to do about the model, the filter and the labels. A slider sets the share of
    `result.keep` and updates all figures. You can label samples as good or bad to get the guarantee of
    `flare.calibrate`, and save labels and kept samples as CSV.

    >>> flare.report.write("report.html", result, title="Sines")

    Args:
        path: HTML file to write; an existing one is replaced atomically.
        result: Samples with scores, or the output of `flare.FlarePipeline`. Sections that need a verdict, a
            variance or a profile are left out if there is none.
        keep: Share of the samples that is kept when the page opens, in (0, 1].
        alpha: Samples with a p-value of at most `alpha` are doubtful; in (0, 1).
        title: Title of the page.
        settings: Table of how the samples were made; by default `result.about`.
        summary: Pairs (label, value).
        data: Training data (N, *shape), to show the nearest training sample of each sample. `Scorer.report`
            passes the samples that the scorer stores.
        rows: The rows of the training data in `data`, (K,), if `data` has only some of them.
        groups: One label per sample, (n,), such as its class. The page shows the share of each group before
            and after the filter. By default the regions of the result, if there are several.
        bad: Samples that are known to be bad, (n,) bool. The page shows their rate before and after the
            filter.
    """
    source, result = result, as_result(result)
    require_share("keep", keep)
    require_share("alpha", alpha, below_one=True)
    found, places = drop_lost(result)
    require_samples("result.samples", found.samples)
    names, labels, mask = (
        None if values is None else _check_column(name, values, len(result))
        for name, values in (("names", _find_names(result)), ("groups", groups), ("bad", bad))
    )
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"bad must be a bool mask, got {mask.dtype}; pass bad > 0.5, for example.")
    known = Known(torch.arange(len(result)), names, labels, mask).select(places)
    known = known._replace(twins=find_twins(source, places))
    every = np.arange(len(result)).astype(str) if names is None else names
    lost = np.delete(every, places).tolist()
    ranking = rank_by(found)
    issues = find_issues(found, ranking.values, alpha, places, known.twins, lost)
    design = design_labels(result.ranking, RISK, CONFIDENCE)
    content = embed(found, known, keep, alpha, issues, design, data, rows)
    words = describe(found, ranking, alpha, None if known.bad is None else int(known.bad.sum()))
    content["off"], content["labels"]["total"] = words["off"], len(result)
    shown = result.about if settings is None else settings
    script = "\n".join(map(_read_asset, SCRIPTS))
    # The content security policy allows this one script and nothing else.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _load_template().render(
        title=title or "FLARE report",
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=_read_asset("style.css"),
        script=script,
        data=content,
        words=words,
        summary=summary,
        settings={key: value for key, value in shown.items() if key not in _HIDDEN},
        versions={"flare": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
    with atomic(path) as partial:
        partial.write_text(page, encoding="utf-8")


def as_result(source: Any) -> Result:
    """A result with what the page draws: the images of a latent diffusion model, if the result has them.

    Args:
        source: Result, or the output of `flare.FlarePipeline`, with images in [0, 1].
    """
    if isinstance(source, Result):
        decoded = source.observed
        latents = source.samples.ndim == 4 and source.samples.shape[1] not in (1, 3)
        if decoded is None or decoded.ndim != 4 or decoded.shape[1] not in (1, 3) or not latents:
            return source
        return replace(source, samples=decoded, variance=source.observed_variance, covariance=None)
    if not hasattr(source, "uncertainty_maps"):
        raise TypeError(
            "result must be a flare.Result or the output of flare.FlarePipeline, got "
            f"{type(source).__name__}; make one with flare.Result(samples, scores={{'name': ...}})."
        )
    images, score = source.images, source.scores
    if isinstance(images, list):  # PIL images
        images = np.stack([np.atleast_3d(image) for image in images]) / 255
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(images).permute(0, 3, 1, 2)
    images = images.to(score).masked_fill(score.isnan().view(-1, 1, 1, 1), torch.nan)  # lost images are black
    return Result(images, variance=source.uncertainty_maps, scores={"score": score})


def _find_names(result: Result) -> list[str] | None:
    """The names of the samples; those of a selection are not known."""
    names = result.about.get("names", ())
    return [str(name) for name in names] if len(names) == len(result) else None


def _load_template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: f"{value:.6g}" if isinstance(value, float) else value,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.from_string(_read_asset("template.html"))


def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _check_column(name: str, values: Tensor | Sequence[object], n: int) -> np.ndarray[Any, Any]:
    """One value per sample, (n,)."""
    column = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if column.shape != (n,):
        raise ValueError(f"{name} must have one value per sample, shape ({n},), got {column.shape}.")
    return column

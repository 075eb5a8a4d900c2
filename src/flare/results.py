"""What sampling returns, in memory and on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from . import checkpoint
from .losses import filled

FORMAT = 1
_OPTIONAL = ("variance", "covariance", "profile", "observed", "observed_variance")


@dataclass(frozen=True)
class Result:
    """Samples with their epistemic uncertainty; all of a sample that was lost on the way is NaN.

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
        """The score a coordinate: score / d, (n,)."""
        return self.score / self.samples[0].numel()

    @property
    def lost(self) -> Tensor:
        """Which samples were lost to NaN or infinity, (n,) bool; `about["lost"]` tells where."""
        return ~torch.isfinite(self.samples).flatten(1).all(1)

    def select(self, mask: Tensor) -> Result:
        """The samples where the mask (n,) is true, with all that belongs to them."""
        if mask.shape != (len(self),):
            raise ValueError(f"the mask must have shape ({len(self)},), got {tuple(mask.shape)}.")

        def rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[mask]

        optional: dict[str, Any] = {name: rows(getattr(self, name)) for name in _OPTIONAL}
        scores = {name: score[mask] for name, score in self.scores.items()}
        return replace(self, samples=self.samples[mask], scores=scores, **optional)

    def save(self, path: str | os.PathLike[str], **about: Any) -> None:
        """Write everything as safetensors; `about` adds JSON values to what is known of the samples."""
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        tensors = {"samples": self.samples, **{k: v for k, v in optional.items() if v is not None}}
        tensors |= {f"score.{name}": score for name, score in self.scores.items()}
        header = {"format": FORMAT, "scores": list(self.scores), "about": {**self.about, **about}}
        checkpoint.save(path, tensors, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read what `save` wrote."""
        tensors, header = checkpoint.load(path)
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
            if value is None or (value.is_floating_point() and _alike(tuple(value.shape), form)):
                continue
            raise ValueError(
                f"{path} has {name} as {value.dtype} of shape {tuple(value.shape)}; beside samples of shape "
                f"{shape} it must be floating point of shape ({', '.join(map(str, form))})."
            )

    def __len__(self) -> int:
        return len(self.samples)


def _alike(shape: tuple[int, ...], form: tuple[Any, ...]) -> bool:
    """Whether a shape has this form: a word stands for any length, a last ... for any further axes."""
    if form[-1] is ...:
        form = form[:-1] + shape[len(form) - 1 :]
    return len(shape) == len(form) and all(
        isinstance(b, str) or a == b for a, b in zip(shape, form, strict=True)
    )


def spoiled(result: Result, lost: Tensor) -> Result:
    """The same result with NaN in all that belongs to the lost samples, (n,) bool."""

    def rows(value: Tensor | None) -> Any:
        return None if value is None else filled(value, lost, math.nan, value.ndim)

    return replace(
        result,
        samples=rows(result.samples),
        scores={name: rows(score) for name, score in result.scores.items()},
        **{name: rows(getattr(result, name)) for name in _OPTIONAL},
    )


def _filled_up(part: Result, form: Result) -> Result:
    """A part that is all lost with NaN for all that another part has."""

    def rows(value: Tensor | None) -> Any:
        return None if value is None else value.new_full((len(part), *value.shape[1:]), math.nan)

    return replace(
        part,
        scores={name: rows(score) for name, score in form.scores.items()},
        **{name: rows(getattr(form, name)) for name in _OPTIONAL},
    )


def joined(parts: Sequence[Result]) -> Result:
    """One result from those of batches that were drawn alike; what was lost of each is in its `about`.

    A part all of whose samples are lost may have nothing but them.
    """
    form = next((part for part in parts if not part.lost.all()), parts[0])
    parts = [_filled_up(part, form) if part.lost.all() else part for part in parts]

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

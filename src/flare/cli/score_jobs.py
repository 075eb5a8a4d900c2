"""The work of `flare score`, in parts: one score of existing samples, or the verdict on them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .results import VERDICT
from .sample import identify
from .tables import write_verdicts

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.progress import Progress
    from ..posteriors import Posterior
    from ..results.result import Result
    from ..scorer.scorer import Scorer
    from .runs import Run

PART = 1000  # samples per part


@dataclass(frozen=True)
class ScoreJob:
    """Scores of existing samples, made in parts.

    Attributes:
        file: the file to write.
        opened: the run.
        posterior: over the parameters of its network; None if the score needs none.
        existing: the samples, (n, *shape).
        about: the settings, with the keys of the written file.
        keywords: what `flare.score` takes besides.
    """

    file: Path
    opened: Run
    posterior: Posterior | None
    existing: Tensor
    about: dict[str, Any]
    keywords: dict[str, Any]
    part_size: int = PART
    items_per_part: int = 1

    @property
    def name(self) -> str:
        """The name of the score."""
        return str(self.keywords["score"])

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.existing)

    @property
    def title(self) -> str:
        """The title of the progress bar."""
        return f"scoring by {self.opened.name}"

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        from .. import __version__

        return self.keywords | {
            "samples": self.existing,
            "weights": self.opened.denoiser.fingerprint(),
            "schedule": self.opened.schedule,
            "version": __version__,
        }

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Score samples first..first+count−1."""
        from ..results.result import Result

        here = self.existing[first : first + count]
        (values,) = progress(self._score(here, first) for _ in range(self.items_per_part))
        bad = (values.isnan().nonzero().flatten() + first).tolist()
        lost = {"lost": {f"the {self.name} of existing samples": bad}} if bad else {}
        return Result(here, scores={self.name: values.cpu()}, about={**self.about, **lost})

    def make_lost(self, first: int, count: int) -> Result:
        """Make a part whose scores are NaN."""
        import torch

        from ..results.result import Result

        scores = {self.name: torch.full((count,), torch.nan)}
        return Result(self.existing[first : first + count], scores=scores, about=self.about)

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the scored samples; return quantiles of the score and the number of lost samples."""
        import torch

        at = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        quantiles = whole.score.double().nanquantile(at).tolist()
        lost = int(whole.score.isnan().sum())
        whole.save(self.file)
        return {
            "scored": str(self.file),
            "n": self.n,
            "score": self.name,
            **dict(zip(("10%", "median", "90%"), quantiles, strict=True)),
            **({"lost": lost} if lost else {}),
        }

    def _score(self, samples: Tensor, first: int) -> Tensor:
        from .. import score as score_samples

        denoiser, schedule = self.opened.denoiser, self.opened.schedule
        return score_samples(denoiser, self.posterior, schedule, samples, first=first, **self.keywords)


@dataclass(frozen=True)
class VerdictJob(ScoreJob):
    """Verdicts on existing samples, made in parts.

    Attributes:
        scorer: judges them.
        names: of the samples, for a table.
    """

    scorer: Scorer = field(kw_only=True)
    names: Sequence[str] = field(kw_only=True)

    @property
    def name(self) -> str:
        """The name of the score."""
        return VERDICT

    def check_range(self) -> None:
        """Warn once if the samples are scaled unlike the training data."""
        from ..scorer.inputs import check_existing

        check_existing(self.scorer.model, self.existing, self.scorer.shape, self.scorer.about["range"])

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        return super().identity() | identify(self.scorer)

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Judge samples first..first+count−1."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the samples lie in")  # said once, about all of them
            here = self.existing[first : first + count]
            (result,) = progress(self.scorer.score(here) for _ in range(self.items_per_part))
        return replace(result, about={**result.about, **self.about})

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the samples with their verdicts, or a table of the verdicts; return how many are trusted."""
        assert whole.verdict is not None
        if self.file.suffix == ".csv":
            write_verdicts(self.file, self.names, whole.verdict)
        else:
            whole.save(self.file, names=list(self.names))
        from ..results.verdict import NOT_SCORED, SUSPICIOUS, TRUSTED

        labels, copies = Counter(whole.verdict.labels()), whole.verdict.copies
        shown = (TRUSTED, SUSPICIOUS, *([NOT_SCORED] if labels[NOT_SCORED] else []))
        return {
            "scored": str(self.file),
            "n": self.n,
            **{label.replace(" ", "_"): labels[label] for label in shown},
            "near_copies": None if copies is None else int(copies.sum()),
            "median_p_value": float(whole.verdict.p_value.nanmedian()),
        }

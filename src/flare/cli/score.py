"""`flare score`: score existing samples."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.defaults import DIRECTIONS
from . import options
from .app import command, start, tell
from .claims import refuse_existing
from .files import READABLE
from .output import remark, show_facts
from .parts import run_in_parts
from .results import VERDICT
from .sample import identify
from .tables import COLUMNS, write_verdicts

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.progress import Progress
    from ..posteriors import Posterior
    from ..results.result import Result
    from ..scoring.scorer import Scorer
    from .images import Folder
    from .runs import Run

PART = 1000  # samples per part


@command()
def score(
    run: options.Run,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help=f"The samples: a file ({', '.join(READABLE)}) or a folder of images (png, jpg).",
        ),
    ] = None,
    samples: Annotated[Path | None, typer.Option(help="The same as FILE_OR_FOLDER.")] = None,
    posterior: options.Posterior = None,
    score: Annotated[
        str | None,
        typer.Option(help="Instead of the verdict: one of {existing_scores}."),
    ] = None,
    levels: options.Levels = "",
    directions: Annotated[
        str | None,
        typer.Option(
            help=f"For scores of directions: how many posterior draws, {DIRECTIONS} by default, or exact."
        ),
    ] = None,
    repeats: options.Repeats = None,
    file: Annotated[
        Path,
        typer.Option(
            "--out",
            help="A .safetensors or .npz file to write, or a .csv file with the columns "
            f"{', '.join(COLUMNS)}; with --score it has the samples and the score.",
        ),
    ] = Path("scored.safetensors"),
    overwrite: options.Overwrite = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a file of the folder could not be scored.")
    ] = False,
    model: options.Model = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score existing samples, real data included: the same verdict as that of `flare sample`.

    With --score, --levels, --repeats or --directions, or with a posterior of an earlier version, the samples
    get that score alone, by default the same as that of `flare sample --directions`.

    Example: `flare score runs/sines mine.npy --out scores.csv`

    Images: `flare score runs/mine folder --model package.module:function --out scores.csv`
    """
    from ..results.formats import check_suffix
    from .runs import open_run

    start(threads)
    check_suffix(file)
    refuse_existing(file, overwrite)
    if (source is None) == (samples is None):
        raise ValueError("name the samples once: `flare score RUN FILE_OR_FOLDER`.")
    path = source or samples
    assert path is not None
    opened = open_run(run, model, data, device)
    asked = score is not None or bool(levels) or directions is not None or repeats is not None
    about: dict[str, Any] = {"run": run, "samples": str(path), "seed": seed}
    job: ScoreJob
    if not asked and opened.has_scorer(posterior):
        scorer = opened.scorer(posterior)
        folder = _read(path, opened, scorer.about["range"], quiet or json)
        job = VerdictJob(
            file, opened, scorer.posterior, folder.images, about, {}, scorer=scorer, names=folder.names
        )
        job.check_range()
    else:
        folder = _read(path, opened, (float(opened.data.min()), float(opened.data.max())), quiet or json)
        given: dict[str, Any] = {"levels": options.parse_levels(levels), "repeats": repeats, "seed": seed}
        fitted, keywords = _choose_score(opened, posterior, score, directions, given)
        about |= {"score": keywords["score"]}
        if "directions" in keywords:
            about["directions"] = options.parse_directions(directions or str(DIRECTIONS))
        job = ScoreJob(file, opened, fitted, folder.images, about, keywords)
    facts = run_in_parts(job, quiet or json)
    skipped = {"skipped": folder.skipped if json else len(folder.skipped)} if folder.skipped else {}
    show_facts(json, quiet, facts | skipped, last=str(file))
    if strict and folder.skipped:
        raise typer.Exit(1)


def _read(path: Path, opened: Run, limits: Sequence[float], quiet: bool) -> Folder:
    """Read the samples of a file or a folder; say what of a folder was not read, and how it is scaled."""
    from .images import Folder, list_problems, read_folder
    from .runs import read_samples

    if not path.is_dir():
        existing = read_samples(path, opened.shape)
        return Folder([str(row) for row in range(len(existing))], existing, {}, "")
    folder = read_folder(path, opened.shape, limits)
    for problem in list_problems(folder.skipped):
        tell("[yellow]not scored:[/yellow]", problem)
    if not quiet:
        said = f"{len(folder.names):,} images of {path}, scaled to {folder.scaled} as the training data"
        remark("", f"{said}.")
    return folder


def _choose_score(
    opened: Run, posterior: Path | None, score: str | None, directions: str | None, given: dict[str, Any]
) -> tuple[Posterior | None, dict[str, Any]]:
    """The posterior, and the arguments of `flare.score`."""
    from ..sampling.existing import default_score
    from ..scores import SCORES
    from .runs import draw_shared_directions

    spec = SCORES.find(score) if score else None
    fitted = None if spec and not spec.needs_posterior else opened.posterior(posterior)
    spec = spec or SCORES[default_score(fitted)]
    keywords = {"score": spec.name, **given}
    if spec.needs_directions and fitted is not None:
        count = options.parse_directions(directions or str(DIRECTIONS))
        keywords["directions"] = draw_shared_directions(fitted, count, given["seed"])
    return fitted, keywords


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
        from ..scoring.inputs import check_existing

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

        labels = Counter(whole.verdict.labels())
        copies = whole.verdict.copies
        return {
            "scored": str(self.file),
            "n": self.n,
            **{label.replace(" ", "_"): labels[label] for label in (TRUSTED, SUSPICIOUS, NOT_SCORED)},
            "near_copies": None if copies is None else int(copies.sum()),
            "median_p_value": float(whole.verdict.p_value.nanmedian()),
        }

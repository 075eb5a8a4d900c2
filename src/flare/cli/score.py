"""`flare score`: score existing samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core import DIRECTIONS
from . import options
from .app import command, start, tell
from .claims import refuse_existing
from .files import READABLE
from .output import remark, show_facts
from .parts import run_in_parts
from .score_jobs import ScoreJob, VerdictJob
from .tables import COLUMNS

if TYPE_CHECKING:
    from ..posteriors import Posterior
    from .images import Folder
    from .runs import Run


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
        opened.columns = scorer.about.get("columns", opened.columns)
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
        existing = read_samples(path, opened.shape, opened.columns)
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

"""The commands that use a scorer: sample, score and check."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor

from .. import __version__
from ..core.distributed import broadcast, is_main
from ..core.memory import BatchSize
from ..core.progress import Progress
from ..core.validation import require_positive_int
from ..diffusion.samplers import Steps
from ..results.result import Result
from ..results.result_files import check_suffix
from ..results.verdict import NOT_SCORED, SUSPICIOUS, TRUSTED
from ..sampling.plan import draw_directions
from ..scorer.inputs import warn_of_range
from ..scorer.scorer import Scorer
from .app import start, tell, translate
from .claims import refuse_existing
from .flags import parse_batch_size, parse_directions
from .models_in import open_scorer
from .named import make_sampler
from .output import remark, show_facts
from .parts import run_in_parts
from .samples_in import Samples, choose_scale, list_problems, read_folder, read_samples
from .tables import write_verdicts

DRAWN, EXISTING = 500, 1000  # samples per part, of those that are drawn and of existing ones


@dataclass(frozen=True)
class SampleJob:
    """Samples of a scorer, made in parts.

    Attributes:
        file: The file to write.
        title: Title of the progress bar.
        scorer: Draws and judges the samples.
        table: Table of the sampler.
        batch_size: Samples per network call.
        best_of: Candidates per sample.
        about: The settings, with the keys of the written file.
        options: Other arguments of `Scorer.sample`.
        started: When the job started, for the seconds it took.
    """

    file: Path
    title: str
    scorer: Scorer
    table: Steps
    batch_size: BatchSize
    best_of: int
    about: dict[str, Any]
    options: dict[str, Any]
    started: float = field(default_factory=time.perf_counter)

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.about["n"])

    @property
    def part_size(self) -> int:
        """The number of samples per part, whatever the memory: other parts could not be resumed."""
        drawn = DRAWN if self.batch_size == "auto" else self.batch_size
        return max(1, drawn // self.best_of)

    @property
    def items_per_part(self) -> int:
        """One item per step."""
        return len(self.table)

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        own = {"table": self.table, "scorer": self.scorer.identity(), "version": __version__}
        return self.about | self.options | own

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Draw samples first..first+count−1."""
        return self.scorer.sample(
            count, self.about["seed"], steps=self.table, best_of=self.best_of, first=first * self.best_of,
            batch_size=self.batch_size, progress=progress, **self.options,
        )  # fmt: skip

    def make_lost(self, first: int, count: int) -> Result:
        """Make a part of NaN."""
        return Result(torch.full((count, *self.scorer.shape), torch.nan, dtype=self.scorer.denoiser.dtype))

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the samples; return the settings, and how many samples look unlike real data."""
        assert whole.verdict is not None
        about = self.about | {"seconds": round(time.perf_counter() - self.started, 2)}
        about |= {key: value for key, value in whole.about.items() if key not in about}
        whole.save(self.file, **about)
        shown = {key: value for key, value in about.items() if key != "problems"}  # the scorer has said them
        lost = int(whole.lost.sum())
        counts = {"lost": lost} if lost else {}
        return {
            "samples": str(self.file),
            **shown,
            **counts,
            "suspicious": int(whole.verdict.suspicious().sum()),
        }


def run_sample(
    path: Path,
    file: Path,
    *,
    n: int,
    seed: int,
    steps: int,
    sampler: str | None,
    directions: str | None,
    rule: str | None,
    score: str | None,
    best_of: int,
    batch_size: str,
    model: str | None,
    overwrite: bool,
    device: str | None,
    threads: int,
    json: bool,
    quiet: bool,
) -> None:
    """`flare sample`."""
    start(threads, device)
    require_positive_int("-n", n)
    size = parse_batch_size(batch_size)
    check_suffix(file)
    refuse_existing(file, overwrite)
    if directions is None and (rule, score) != (None, None):
        raise ValueError("--rule and --score are for variance: give --directions, too, such as 16.")
    scorer = open_scorer(path, model, device, quiet)
    about: dict[str, Any] = {"scorer": str(path), "n": n, "seed": seed}
    options: dict[str, Any] = {}
    if directions is not None:
        about["directions"] = count = parse_directions(directions)
        # drawn once for all parts and processes: a matrix-free posterior solves for them together
        shared = count if count == "exact" else broadcast(draw_directions(scorer.posterior, count, seed))
        options = {"directions": shared} | ({"rule": rule} if rule else {})
        options |= {"score": score.split(",")} if score else {}
    if best_of > 1:
        about["best_of"] = best_of
    table = _choose_table(scorer, sampler, steps)
    job = SampleJob(file, f"sampling with {path.name}", scorer, table, size, best_of, about, options)
    show_facts(json, quiet, run_in_parts(job, quiet or json), last=str(file))


@dataclass(frozen=True)
class ScoreJob:
    """Verdicts on existing samples, made in parts.

    Attributes:
        file: The file to write.
        title: Title of the progress bar.
        scorer: Judges the samples.
        existing: The samples, (n, *shape).
        names: Names of the samples.
        about: The settings, with the keys of the written file.
        part_size: Samples per part.
        items_per_part: Items that a part passes through its progress bar.
    """

    file: Path
    title: str
    scorer: Scorer
    existing: Tensor
    names: Sequence[str]
    about: dict[str, Any]
    part_size: int = EXISTING
    items_per_part: int = 1

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.existing)

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        return {"samples": self.existing, "scorer": self.scorer.identity(), "version": __version__}

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Judge samples first..first+count−1."""
        here = self.existing[first : first + count]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the samples lie in")  # said once, about all of them
            (result,) = progress(self.scorer.score(part) for part in [here])
        return replace(result, about={**result.about, **self.about})

    def make_lost(self, first: int, count: int) -> Result:
        """Make a part without scores."""
        return Result(self.existing[first : first + count], about=self.about)

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the samples with their verdicts, or a table of the verdicts; return how many are trusted."""
        assert whole.verdict is not None
        if self.file.suffix == ".csv":
            write_verdicts(self.file, self.names, whole)
        else:
            whole.save(self.file, names=list(self.names))
        labels, copies = Counter(whole.verdict.labels()), whole.verdict.copies
        shown = (TRUSTED, SUSPICIOUS, *([NOT_SCORED] if labels[NOT_SCORED] else []))
        return {
            "scored": str(self.file),
            "n": self.n,
            **{label.replace(" ", "_"): labels[label] for label in shown},
            "near_copies": None if copies is None else int(copies.sum()),
            "median_p_value": float(whole.verdict.p_value.nanmedian()),
        }


def run_score(
    path: Path,
    source: Path,
    file: Path,
    *,
    strict: bool,
    model: str | None,
    overwrite: bool,
    device: str | None,
    threads: int,
    json: bool,
    quiet: bool,
) -> None:
    """`flare score`; exit with 1 if --strict is given and a file of the folder was skipped."""
    start(threads, device)
    check_suffix(file)
    refuse_existing(file, overwrite)
    scorer = open_scorer(path, model, device, quiet)
    found = _read(source, scorer, quiet or json)
    about = {"scorer": str(path), "samples": str(source)}
    job = ScoreJob(file, f"scoring with {path.name}", scorer, found.values, found.names, about)
    facts = run_in_parts(job, quiet or json)
    skipped = {"skipped": found.skipped if json else len(found.skipped)} if found.skipped else {}
    show_facts(json, quiet, facts | skipped, last=str(file))
    if strict and found.skipped:
        raise typer.Exit(1)


def run_check(
    path: Path, n: int, draws: int, steps: int, model: str | None, device: str | None, threads: int,
    json: bool, quiet: bool,
) -> None:  # fmt: skip
    """`flare check`; exit with 3 if there are problems."""
    start(threads, device)
    scorer = open_scorer(path, model, device, quiet)
    found = scorer.check(n, draws, steps=steps)
    linear = found.linearization
    numbers: dict[str, float | None] = {"correlation": linear.correlation, "ratio": linear.ratio}
    if json:  # JSON has no NaN
        numbers = {key: None if value != value else value for key, value in numbers.items()}
    facts: dict[str, Any] = {"score": linear.score, "n": n, "draws": draws, **numbers}
    said = translate(str(found))
    facts |= {"problems": [translate(each) for each in found.problems], "checked": said} if json else {}
    show_facts(json, quiet, facts, last=said)
    if found.problems:
        raise typer.Exit(3)


def _read(source: Path, scorer: Scorer, quiet: bool) -> Samples:
    """Read the samples of a file or a folder; warn once if they are not scaled as the training data."""
    limits = scorer.about["range"]
    if not source.is_dir():
        columns = scorer.about.get("columns") or ()
        existing = read_samples(source, None if scorer.model.codec else scorer.shape, columns)
        if is_main() and not scorer.model.codec:
            warn_of_range("the samples lie", existing, "the training data", *limits)
        return Samples(existing, [str(row) for row in range(len(existing))])
    found = read_folder(source, scorer.shape, limits)
    if is_main():
        for problem in list_problems(found.skipped):
            tell("[yellow]not scored:[/yellow]", problem)
    if is_main() and not quiet:
        said = f"{len(found.names):,} images of {source}, scaled to {choose_scale(limits)[2]}"
        remark("", f"{said} as the training data.")
    return found


def _choose_table(scorer: Scorer, sampler: str | None, steps: int) -> Steps:
    """The sampler that the flags name, or the default of `Scorer.sample`."""
    if sampler is None:
        return scorer.steps(steps)
    return make_sampler(sampler, scorer.model.schedule, steps, scorer.clip)

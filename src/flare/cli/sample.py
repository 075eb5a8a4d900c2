"""`flare sample`: draw samples of a trained model, each with its scores and verdict, into a file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core import DIRECTIONS
from ..core.progress import warn
from . import options
from .app import command, start
from .claims import refuse_existing
from .output import show_facts
from .parts import PART, SamplingJob, run_in_parts
from .requests import Request

if TYPE_CHECKING:
    from ..core.progress import Progress
    from ..diffusion.samplers import Steps
    from ..posteriors import Posterior
    from ..results.result import Result
    from ..scorer.scorer import Scorer
    from .runs import Run


@command()
def sample(
    run: options.Run,
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 1000,
    best_of: Annotated[
        int, typer.Option(min=1, help="Draw this many candidates per sample and keep the most plausible.")
    ] = 1,
    rule: Annotated[
        str,
        typer.Option(
            help="How variance is propagated, one of {rules}; none for plain samples; auto: tangent if "
            "--directions is given."
        ),
    ] = "auto",
    coefficients: Annotated[
        str,
        typer.Option(help="Of --rule decoupled: {coefficients}, as printed in the paper."),
    ] = "main",
    directions: Annotated[
        str | None,
        typer.Option(
            help="Also compute variance, from this many posterior draws, or exact for a square root of Σ; "
            f"{DIRECTIONS} if --rule or --score needs them."
        ),
    ] = None,
    derivative: Annotated[
        str,
        typer.Option(help="How directions go through the network: {derivatives}; compiled is for long runs."),
    ] = "auto",
    score: Annotated[
        str,
        typer.Option(help="Instead of the verdict: one or several of {scores}, separated by commas."),
    ] = "",
    levels: options.Levels = "",
    repeats: options.Repeats = None,
    posterior: options.Posterior = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="One of {samplers}, with options as in ddim:eta=1 or heun:churn=40/0.05/50/1.003 (S_churn, "
            "S_tmin, S_tmax, S_noise); for a verdict by default ddim (euler for a flow) with 50 steps, "
            "otherwise ddpm."
        ),
    ] = None,
    steps: options.Steps = None,
    clip: options.Clip = "",
    file: options.ResultFile = Path("samples.safetensors"),
    overwrite: options.Overwrite = False,
    batch_size: Annotated[
        str, typer.Option(help="Samples per network call; auto for as many as fit in memory.")
    ] = str(PART),
    model: options.Model = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Sample from a trained model; after `flare fit`, every sample comes with scores, a p-value and a reason.

    This costs little more than plain sampling. With --directions or --rule every sample also has its
    epistemic variance. With --score the samples have those scores alone, as do samples of a posterior that
    was fitted by an earlier version. Finished batches are kept beside the file: the same command resumes an
    interrupted run.

    Example: `flare sample runs/sines -n 1000 --out samples.safetensors`

    With variance: `flare sample runs/sines -n 1000 --directions 16`
    """
    from ..core.validation import require_positive_int
    from ..results.formats import check_suffix
    from .runs import open_run

    start(threads)
    require_positive_int("-n", n)
    size = options.parse_batch_size(batch_size)
    check_suffix(file)
    refuse_existing(file, overwrite)
    opened = open_run(run, model, data, device)
    opened.clip = options.parse_clip(clip, opened.clip)
    request = Request(
        rule, coefficients, directions, derivative, score, options.parse_levels(levels), repeats, seed
    )
    judged = request.wants_verdict and opened.has_scorer(posterior)
    if best_of > 1 and not judged:
        raise ValueError(
            "--best-of needs the verdict: fit the run again (`flare fit`), and leave out --score, --levels, "
            "--repeats and --rule none."
        )
    table = _choose_table(opened, sampler, steps, judged)
    about: dict[str, Any] = {"run": run, "n": n, "seed": seed}
    about |= {"clip": clip} if clip else {}
    given: dict[str, Any] = {"file": file, "shape": opened.shape, "dtype": opened.denoiser.dtype}
    given |= {"batch_size": size, "opened": opened, "table": table}
    if judged:
        scorer = opened.scorer(posterior)
        keywords = request.trajectory(scorer.posterior) if request.wants_variance else {}
        about |= request.describe(keywords) | ({"best_of": best_of} if best_of > 1 else {})
        job = SampleJob(about=about, scorer=scorer, best_of=best_of, keywords=keywords, **given)
    else:
        fitted, keywords, more = request.scores(opened, posterior, run)
        if fitted is None and not request.score and rule != "none":
            _warn_of_no_scores(opened, run, model)
        job = SampleJob(about=about | more, posterior=fitted, keywords=keywords, **given)
    facts = run_in_parts(job, quiet or json)
    show_facts(json, quiet, facts, last=str(file))


def _warn_of_no_scores(opened: Run, run: str, model: str | None) -> None:
    """Say that these samples will have no scores, and what gives them."""
    from ..core.distributed import is_main
    from .runs import POSTERIOR_FILE

    own, then = f" --model {model}" if model else "", ""
    if opened.directory is None:
        own, then = f" --out {POSTERIOR_FILE}", f", and sample with --posterior {POSTERIOR_FILE}"
    if is_main():
        warn(
            f"these samples have no scores, because {run} is not fitted; run `flare fit {run}{own}` "
            f"first{then}. Plain samples without this warning: --rule none.",
            UserWarning,
        )


@dataclass(frozen=True, kw_only=True)
class SampleJob(SamplingJob):
    """Samples of a run, made in parts.

    Attributes:
        opened: the run.
        table: the sampler's table.
        posterior: of scores without a verdict; None for plain samples.
        scorer: of the verdict.
        best_of: candidates per sample.
        keywords: what `flare.sample` or `Scorer.sample` takes besides.
    """

    opened: Run
    table: Steps
    posterior: Posterior | None = None
    scorer: Scorer | None = None
    best_of: int = 1
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def part_size(self) -> int:
        """The number of samples per part; their candidates go through the network together."""
        return max(1, super().part_size // self.best_of)

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.about["n"])

    @property
    def title(self) -> str:
        """The title of the progress bar."""
        return f"sampling {self.opened.name}"

    @property
    def items_per_part(self) -> int:
        """One item per step."""
        return len(self.table)

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        from .. import __version__

        weights = self.opened.denoiser.fingerprint()
        identity = self.about | self.keywords | {"table": self.table, "weights": weights}
        if self.scorer is not None:
            identity |= identify(self.scorer)
        return identity | {"version": __version__}

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the samples; return the settings, and how many samples look unlike real data."""
        facts = super().write(whole)
        if whole.verdict is not None:
            facts["suspicious"] = int(whole.verdict.suspicious().sum())
        return facts

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Draw samples first..first+count−1."""
        from .. import sample as draw

        given: dict[str, Any] = {"seed": self.about["seed"], "batch_size": self.batch_size}
        given |= {"progress": progress, **self.keywords}
        if self.scorer is None:
            return draw(
                self.opened.denoiser, self.table, self.posterior, n=count, shape=self.shape, first=first,
                **given,
            )  # fmt: skip
        k = self.best_of
        result = self.scorer.sample(count, steps=self.table, best_of=k, first=first * k, **given)
        return result if k == 1 else _rename_lost(result, first, k)


def identify(scorer: Scorer) -> dict[str, Any]:
    """What the verdicts of a scorer depend on, besides the weights."""
    training = scorer.judge.training
    return {
        "reference": dict(scorer.reference.scores),
        "held_out": scorer.reference.held_out,
        "prior": [scorer.posterior.prior_precision, scorer.posterior.scale],
        "training": None if training is None else [training.samples, training.copy_distance],
        "score_seed": scorer.judge.seed,
    }


def _rename_lost(result: Result, first: int, k: int) -> Result:
    """The result of the best of k, with the lost samples instead of the lost candidates."""
    about = {key: value for key, value in result.about.items() if key != "lost"}
    if lost := (result.lost.nonzero().flatten() + first).tolist():
        about["lost"] = {f"all {k} candidates": lost}
    return replace(result, about=about)


def _choose_table(opened: Run, sampler: str | None, steps: int | None, judged: bool) -> Steps:
    """The sampler that the flags name, or the default: for a verdict that of `flare.Scorer.sample`."""
    from ..scorer.choosing import STEPS

    if sampler is None and judged:
        count = min(STEPS, opened.schedule.T) if steps is None else steps
        return opened.sampler("euler" if opened.schedule.continuous else "ddim", count)
    return opened.sampler(sampler or "ddpm", steps)

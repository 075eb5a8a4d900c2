"""`flare sample`: draw samples of a trained model, each with its scores, into a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.defaults import DIRECTIONS
from . import options
from .app import command, start
from .output import show_facts
from .parts import PART, SamplingJob, run_in_parts

if TYPE_CHECKING:
    from ..core.progress import Progress
    from ..diffusion.samplers import Steps
    from ..posteriors import Posterior
    from ..results.result import Result
    from .runs import Run


@command()
def sample(
    run: options.Run,
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 1000,
    rule: Annotated[
        str,
        typer.Option(help="One of {rules}; none for plain samples; auto: tangent if there is a posterior."),
    ] = "auto",
    coefficients: Annotated[
        str,
        typer.Option(help="Of --rule decoupled: {coefficients}, as printed in the paper."),
    ] = "main",
    directions: options.Directions = str(DIRECTIONS),
    derivative: Annotated[
        str,
        typer.Option(help="How directions go through the network: {derivatives}; compiled is for long runs."),
    ] = "auto",
    score: Annotated[str, typer.Option(help="One or several of {scores}, separated by commas.")] = "",
    levels: options.Levels = "",
    repeats: options.Repeats = None,
    posterior: options.Posterior = None,
    sampler: options.Sampler = "ddpm",
    steps: options.Steps = None,
    clip: options.Clip = "",
    file: options.ResultFile = Path("samples.safetensors"),
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
    """Sample from a trained model; with a posterior, every sample comes with its epistemic variance.

    Finished batches are kept beside the file: the same command resumes an interrupted run.

    Example: `flare sample runs/sines -n 1000 --rule tangent --directions 16 --out samples.safetensors`
    """
    from ..core.validation import require_positive_int
    from ..results.formats import check_suffix
    from ..scores import SCORES, check_names
    from .runs import draw_shared_directions, open_run

    start(threads)
    require_positive_int("-n", n)
    size = options.parse_batch_size(batch_size)
    check_suffix(file)
    opened = open_run(run, model, data, device)
    opened.clip = options.parse_clip(clip, opened.clip)
    table = opened.sampler(sampler, steps)
    rule = _choose_rule(rule, opened, posterior)
    about: dict[str, Any] = {"run": run, "n": n, "seed": seed, "rule": rule}
    about |= {"clip": clip} if clip else {}
    fitted: Posterior | None = None
    names = check_names(score.split(",")) if score else None
    keywords: dict[str, Any] = {} if names is None else {"score": names}
    if rule == "none":
        _refuse_without_posterior(run, names, levels)
    else:
        fitted = opened.posterior(posterior)
        about |= {"scores": names}
        keywords = {"rule": rule, "coefficients": coefficients, "score": names, "derivative": derivative}
        if names is None or any(SCORES[name].needs_directions for name in names):
            about["directions"] = count = options.parse_directions(directions)
            keywords["directions"] = draw_shared_directions(fitted, count, seed)
        else:
            about["rule"] = "none"  # nothing is propagated
    if (fractions := options.parse_levels(levels)) is not None:
        keywords["levels"] = about["levels"] = fractions
    if repeats is not None:
        keywords["repeats"] = about["repeats"] = repeats
    job = SampleJob(
        file=file, about=about, shape=opened.shape, dtype=opened.denoiser.dtype, batch_size=size,
        opened=opened, table=table, posterior=fitted, keywords=keywords,
    )  # fmt: skip
    facts = run_in_parts(job, quiet or json)
    show_facts(json, quiet, facts, last=str(file))


@dataclass(frozen=True, kw_only=True)
class SampleJob(SamplingJob):
    """Samples of a run, made in parts.

    Attributes:
        opened: the run.
        table: the sampler's table.
        posterior: None for plain samples.
        keywords: what `flare.sample` takes besides.
    """

    opened: Run
    table: Steps
    posterior: Posterior | None = None
    keywords: dict[str, Any] = field(default_factory=dict)

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
        return self.about | self.keywords | {"table": self.table, "weights": weights, "version": __version__}

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Draw samples first..first+count−1."""
        from .. import sample as draw

        return draw(
            self.opened.denoiser, self.table, self.posterior, n=count, shape=self.shape,
            seed=self.about["seed"], first=first, batch_size=self.batch_size, progress=progress,
            **self.keywords,
        )  # fmt: skip


def _choose_rule(rule: str, opened: Run, posterior: Path | None) -> str:
    """The rule itself, or for auto what the posterior allows: tangent if there is one, otherwise none."""
    from .runs import POSTERIOR_FILE

    if rule != "auto":
        return rule
    own = opened.directory / POSTERIOR_FILE if opened.directory else None
    return "tangent" if posterior or (own and own.is_file()) else "none"


def _refuse_without_posterior(run: str, names: list[str] | None, levels: str) -> None:
    from ..scores import SCORES

    needy = [name for name in names or () if SCORES[name].needs_posterior]
    if needy or (levels and not names):
        asked = f"--score {','.join(needy)}" if needy else f"--levels {levels}"
        raise ValueError(
            f"{asked} needs a posterior: fit one (`flare fit {run}`) or name one with --posterior, and leave "
            "out --rule none. Plain samples are drawn without one."
        )

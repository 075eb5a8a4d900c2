"""`flare baseline`: draw or score samples by a published alternative to FLARE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core import DIRECTIONS
from . import options
from .app import command, start
from .claims import refuse_existing
from .files import READABLE
from .output import show_facts
from .parts import PART, SamplingJob, run_in_parts

if TYPE_CHECKING:
    from torch import Tensor

    from ..bench.baselines import Baseline, Inputs
    from ..core.progress import Progress
    from ..network.denoiser import Denoiser
    from ..posteriors import Posterior
    from ..results.result import Result
    from .runs import Run

N = 1000  # samples
MEMBERS = 10  # models of a hypernetwork
REAL = 2_000  # real samples to compare with
ToScore = Annotated[
    Path | None,
    typer.Option(
        help="residual, denoising_error, flipd and the methods of --real: the samples to score "
        f"({', '.join(READABLE)})."
    ),
]
Real = Annotated[
    int | None,
    typer.Option(
        help="msma, ddpm_ood, diffpath, gradient_norms, realism, density: the number of real samples to "
        f"compare with, drawn from the training data or from --data; {REAL:,} by default."
    ),
]
OwnPosterior = Annotated[
    Path | None,
    typer.Option(help="llla, bayesdiff, generative: a fitted posterior; by default that of the method."),
]
Hypernetwork = Annotated[
    Path | None,
    typer.Option(
        help="hyperdm: its file, trained if there is none; RUN/hypernetwork.safetensors by default."
    ),
]
TrainSteps = Annotated[
    int | None, typer.Option(help="hyperdm: optimizer steps of the hypernetwork; 20,000 by default.")
]
Epistemic = Annotated[bool, typer.Option("--epistemic", help="bayesdiff: the epistemic part only.")]
Rule = Annotated[str | None, typer.Option(help="llla: one of {rules}; the paper's recursion by default.")]
Directions = Annotated[
    str | None,
    typer.Option(help=f"llla, bayesdiff: number of posterior draws, or exact; {DIRECTIONS} by default."),
]
Models = Annotated[
    int | None, typer.Option(help="generative: posterior draws; hyperdm: models of the hypernetwork.")
]
Repeats = Annotated[
    int | None,
    typer.Option(help="hyperdm: noises per model; denoising_error, gradient_norms: noises per level."),
]
Level = Annotated[float | None, typer.Option(help="residual, flipd: the noise level, as a fraction of T.")]
Levels = Annotated[
    str,
    typer.Option(
        help="denoising_error, msma, ddpm_ood, gradient_norms: levels as fractions of T, separated by commas."
    ),
]
Draws = Annotated[
    int | None,
    typer.Option(help="bayesdiff: states drawn for the covariance; aleatoric: noised copies per step."),
]
Every = Annotated[int | None, typer.Option(help="bayesdiff: steps between two updates.")]
Last = Annotated[
    str,
    typer.Option(
        help="last_iterates, aleatoric: numbers of last steps, with commas; 10,100 and all by default."
    ),
]
Calls = Annotated[
    int | None, typer.Option(help="ddpm_ood: network calls per level; diffpath: network calls per sample.")
]
Density = Annotated[str | None, typer.Option(help="msma: {densities}.")]
Neighbors = Annotated[
    int | None, typer.Option(help="realism, density: k, of the neighbor that sets a radius.")
]
Dimensions = Annotated[int | None, typer.Option(help="diffpath: number of statistics, 1 or 6.")]
Probes = Annotated[int | None, typer.Option(help="flipd: derivatives per sample.")]


@command()
def baseline(
    name: Annotated[str, typer.Argument(help="One of {baselines}.")],
    runs: Annotated[
        list[str],
        typer.Argument(help="A run directory or a shipped model: {models}; several for ensemble."),
    ],
    n: Annotated[int | None, typer.Option("-n", help=f"Number of samples; {N} by default.")] = None,
    samples: ToScore = None,
    real: Real = None,
    posterior: OwnPosterior = None,
    pairs: Annotated[int, typer.Option(help="Training pairs for the posterior of the method.")] = 20_000,
    hypernetwork: Hypernetwork = None,
    train_steps: TrainSteps = None,
    variant: Annotated[str | None, typer.Option(help="bayesdiff: {variants}.")] = None,
    draws: Draws = None,
    every: Every = None,
    epistemic: Epistemic = False,
    rule: Rule = None,
    directions: Directions = None,
    models: Models = None,
    repeats: Repeats = None,
    level: Level = None,
    levels: Levels = "",
    last: Last = "",
    calls: Calls = None,
    density: Density = None,
    neighbors: Neighbors = None,
    dimensions: Dimensions = None,
    probes: Probes = None,
    sampler: options.Sampler = "ddpm",
    steps: options.Steps = None,
    file: options.ResultFile = Path("baseline.safetensors"),
    overwrite: options.Overwrite = False,
    batch_size: Annotated[str, typer.Option(help="Samples per network call, or auto.")] = str(PART),
    model: options.Model = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Sample from a trained model, or score its samples, by a published alternative to FLARE.

    The file is like that of `flare sample`: filter, evaluate and report read it. Finished batches are kept
    beside it: the same command resumes an interrupted run.

    Example: `flare baseline bayesdiff runs/sines -n 1000 --variant released --out bayesdiff.safetensors`

    Several runs: `flare baseline ensemble runs/a runs/b runs/c --out ensemble.safetensors`
    """
    from ..bench.baselines import BASELINES, Inputs
    from ..core.validation import require_positive_int
    from ..results.formats import check_suffix

    start(threads)
    found = BASELINES.find(name)
    own = {
        "variant": variant, "draws": draws, "every": every, "total": False if epistemic else None,
        "rule": rule, "directions": directions and options.parse_directions(directions),
        "models": models, "repeats": repeats, "level": level, "levels": options.parse_levels(levels),
        "last": options.parse_counts("--last", last), "calls": calls, "density": density,
        "neighbors": neighbors, "dimensions": dimensions, "probes": probes,
    }  # fmt: skip
    own = {key: value for key, value in own.items() if value is not None}
    sources = Sources(samples, posterior, pairs, hypernetwork, train_steps, real)
    _refuse_other_options(found, own)
    _refuse_other_inputs(found, n, sources)
    size = options.parse_batch_size(batch_size)
    check_suffix(file)
    refuse_existing(file, overwrite)
    opened = _open_runs(found, runs, model, data, device)
    sampling = {
        "n": require_positive_int("-n", N if n is None else n),
        "shape": opened[0].shape,
        "seed": seed,
    }
    given = Inputs(opened[0].denoiser, opened[0].sampler(sampler, steps), sampling, own)
    given = _add_needs(given, found, opened, sources, quiet or json)
    about = {"run": runs[0] if len(runs) == 1 else runs, "baseline": name, "seed": seed, **own}
    job = BaselineJob(
        file=file, about=about | {"n": given.sampling["n"]}, shape=opened[0].shape,
        dtype=given.denoiser.dtype, batch_size=size, run=opened[0].name, baseline=found, given=given,
    )  # fmt: skip
    facts = run_in_parts(job, quiet or json)
    show_facts(json, quiet, facts, last=str(file))


@dataclass(frozen=True)
class Sources:
    """What a baseline needs besides a run, and where it is.

    Attributes:
        samples: a file of existing samples.
        posterior: a file; None for the posterior of the baseline's publication.
        pairs: the number of training pairs for that posterior.
        hypernetwork: a file; None for that of the run directory.
        train_steps: optimizer steps of a new hypernetwork.
        real: the number of real samples to compare with.
    """

    samples: Path | None
    posterior: Path | None
    pairs: int
    hypernetwork: Path | None
    train_steps: int | None
    real: int | None


@dataclass(frozen=True, kw_only=True)
class BaselineJob(SamplingJob):
    """A baseline on n samples, made in parts.

    Attributes:
        run: the name of the run.
        baseline: what is run.
        given: what it is run with, for all samples.
    """

    run: str
    baseline: Baseline
    given: Inputs

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.about["n"])

    @property
    def title(self) -> str:
        """The title of the progress bar."""
        return f"{self.baseline.name} of {self.run}"

    @property
    def items_per_part(self) -> int:
        """One item per step and trajectory, or a single one for existing samples."""
        return max(1, self.baseline.count_trajectories(self.given) * len(self.given.steps))

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        from .. import __version__
        from .runs import draw_shared_directions

        given = self.given
        fitted = given.posterior
        return self.about | {
            "table": given.steps,
            "options": dict(given.options),
            "weights": [each.fingerprint() for each in (given.denoiser, *given.models)],
            "posterior": None if fitted is None else draw_shared_directions(fitted, 1, 0),
            "samples": given.samples,
            "real": given.real,
            "version": __version__,
        }

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Run the baseline on samples first..first+count−1."""
        sampling = {**self.given.sampling, "n": count, "first": first, "batch_size": self.batch_size}
        if self.given.samples is None:
            return self.baseline.run(replace(self.given, sampling={**sampling, "progress": progress}))
        here = replace(self.given, sampling=sampling, samples=self.given.samples[first : first + count])
        (result,) = progress(self.baseline.run(here) for _ in range(self.items_per_part))
        return result


def _refuse_other_options(found: Baseline, own: Mapping[str, Any]) -> None:
    """Raise if an option was given that the baseline does not have."""
    flags = {"total": "--epistemic"}
    if other := [flags.get(key, f"--{key}") for key in own if key not in found.options]:
        has = ", ".join(flags.get(key, f"--{key}") for key in found.options) or "no options of its own"
        raise ValueError(f"{', '.join(other)} cannot be used with {found.name}, which has {has}.")


def _refuse_other_inputs(found: Baseline, n: int | None, sources: Sources) -> None:
    """Raise if something was given that the baseline does not use, or not given that it needs."""
    users = {
        "samples": ("samples", "real data"),
        "posterior": ("posterior",),
        "hypernetwork": ("hypernetwork",),
        "train_steps": ("hypernetwork",),
        "real": ("real data",),
    }
    for source, needs in users.items():
        if getattr(sources, source) is not None and found.needs not in needs:
            flag = source.replace("_", "-")
            raise ValueError(f"--{flag} cannot be used with {found.name}, which needs {found.needs}.")
    if found.scores_existing and (sources.samples is None or n is not None):
        raise ValueError(
            f"{found.name} scores existing samples: name their file with --samples, and leave out -n."
        )


def _open_runs(
    found: Baseline, runs: Sequence[str], model: str | None, data: Path | None, device: str | None
) -> list[Run]:
    """Open one run, or several with the same shape and schedule for a baseline that needs several models."""
    from .runs import open_run

    if (found.needs == "models") != (len(runs) > 1):
        wanted = "at least 2 runs" if found.needs == "models" else "one run"
        raise ValueError(f"{found.name} needs {wanted}, got {len(runs)}: {', '.join(runs)}.")
    opened = [open_run(run, model, data, device) for run in runs]
    for other in opened[1:]:
        mine, theirs = ((run.shape, run.schedule.spec) for run in (opened[0], other))
        if mine != theirs:
            raise ValueError(
                f"the runs must have the same shape and schedule, got {opened[0].name} with {mine} and "
                f"{other.name} with {theirs}."
            )
    return opened


def _add_needs(
    given: Inputs, found: Baseline, opened: Sequence[Run], sources: Sources, quiet: bool
) -> Inputs:
    """Add what the baseline needs: existing samples, real data, a posterior, or models."""
    from .runs import draw_shared_directions, read_samples

    run, seed = opened[0], given.sampling["seed"]
    if found.scores_existing and sources.samples is not None:
        existing = read_samples(sources.samples, run.shape, run.columns).to(run.denoiser.device)
        given = replace(given, samples=existing, sampling={**given.sampling, "n": len(existing)})
    if found.compare is not None:
        real = _draw_real(run, sources, seed)
        return replace(given, real=real, comparison=found.compare(given).fit(real, seed=seed))
    if found.needs == "models":
        return replace(given, models=[each.denoiser for each in opened])
    if found.needs == "hypernetwork":
        return replace(given, models=_make_members(given, run, sources, quiet))
    if found.needs == "posterior":
        fitted = _fit_or_load(found, run, sources, seed)
        own = dict(given.options)
        if "directions" in found.options:
            own["directions"] = draw_shared_directions(fitted, own.get("directions", DIRECTIONS), seed)
        return replace(given, posterior=fitted, options=own)
    return given


def _draw_real(run: Run, sources: Sources, seed: int) -> Tensor:
    """Random rows of the run's data, or all of them if there are fewer."""
    import torch

    from ..core.noise_streams import REAL_STREAM, mix_seed
    from ..core.validation import require_positive_int

    count = require_positive_int("--real", REAL if sources.real is None else sources.real)
    generator = torch.Generator().manual_seed(mix_seed(seed, REAL_STREAM))
    rows = torch.randperm(len(run.data), generator=generator)[:count].sort().values
    return run.data[rows].to(run.denoiser.device)


def _fit_or_load(found: Baseline, run: Run, sources: Sources, seed: int) -> Posterior:
    """The posterior in the given file, or that of the baseline's publication, fitted now."""
    from ..core.validation import require_positive_int

    if sources.posterior is not None or found.fit is None:
        return run.posterior(sources.posterior)
    return found.fit(run.denoiser, run.pairs(require_positive_int("--pairs", sources.pairs), seed))


def _make_members(given: Inputs, run: Run, sources: Sources, quiet: bool) -> list[Denoiser]:
    """Models of the hypernetwork, which is loaded, or trained first."""
    from ..bench.baselines import hyperdm
    from .hypernetworks import choose_file, load_or_train

    file, seed = choose_file(run, sources.hypernetwork), given.sampling["seed"]
    hyper = load_or_train(run, file, sources.train_steps, seed, quiet)
    made = hyperdm.members(hyper, given.options.get("models", MEMBERS), run.denoiser.prediction, seed)
    return [each.to(run.denoiser.device) for each in made]

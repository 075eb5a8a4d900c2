"""The work of `flare bench`: train models, run baselines, measure filters, and show the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from .. import bench
from ..bench import Benchmark, datasets, leaderboard, metrics, oracles
from ..bench.baselines import Baseline
from ..bench.contest import Score
from ..bench.entries import ENTRIES
from ..bench.shipped import CONFIG_FILE, WEIGHTS_FILE
from ..bench.tasks import KINDS, find_tasks, import_named
from ..core.memory import BatchSize
from ..core.noise_streams import REAL_STREAM, mix_seed
from ..core.progress import Progress
from ..core.validation import one_of
from ..network.training import Training, save_losses, train
from ..results.result import Result
from ..storage.resume import Resume
from .app import answer, console, plain, remark
from .models_in import parse_value
from .samples_in import read_array
from .writing import bar, claim, refuse_replacing

MOST_REAL = 8_000  # real samples by which the truth of a benchmark is judged
MOST_COMPARED = 5_000  # samples of each kind in an energy distance
EXISTING = ("samples", "real data")  # needs of baselines that score existing samples
NARROW = ("", "score", "AUROC", "95%", *KINDS, "AP", "bad in best half", "calls")
WIDE = 160  # columns of a terminal that show all columns of the leaderboard


def train_benchmark(
    directory: Path, config: dict[str, Any], save_every: int, overwrite: bool, quiet: bool
) -> None:
    """Train the benchmark model of a configuration into a run directory, or resume its training."""
    name = config["dataset"]["name"]
    net, schedule = bench.build(config)
    job = Training(net, datasets.make(**config["dataset"]), schedule, bench.train_config(config))
    with claim(directory):
        refuse_replacing(directory, (directory / CONFIG_FILE).is_file(), "a run directory", overwrite)
        resume = Resume.beside(directory)
        frames = train(job, resume.for_job(config).directory, save_every)
        for _ in bar(f"training {name}", quiet, lambda frame: f"loss {frame.loss:.4f}")(frames):
            pass
        (directory / WEIGHTS_FILE).unlink(missing_ok=True)
        bench.save(directory, config, job.weights())
        save_losses(directory / "loss.csv", job.losses)
        resume.clear()
        if not quiet:
            tail = job.losses[-max(1, len(job.losses) // 20) :].mean()
            remark("", f"trained {name}: mean loss {tail:.4f} over the last 5% of the steps.")
            remark("next:", f"flare fit {directory} --out scorer")
        answer(str(directory))


def check_samples(baseline: Baseline, samples: Path | None, n: int | None) -> None:
    """Check that samples are given to the baselines that score existing ones, and to no others."""
    if baseline.needs in EXISTING and (samples is None or n is not None):
        raise ValueError(
            f"{baseline.name} scores existing samples: name their file with --samples, and leave out -n."
        )
    if baseline.needs not in EXISTING and samples is not None:
        raise ValueError(f"--samples cannot be used with {baseline.name}, which needs {baseline.needs}.")


def parse_options(baseline: Baseline, texts: Sequence[str]) -> dict[str, Any]:
    """The values of --option key=value, checked against the signature of the baseline.

    >>> baseline = flare.bench.baselines.BASELINES["bayesdiff"]
    >>> parse_options(baseline, ["draws=3", "total=false", "variant=released"])
    {'draws': 3, 'total': False, 'variant': 'released'}
    """
    defaults, found = baseline.options, {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (sign and value):
            raise ValueError(f"--option must be key=value, such as draws=20, got {text!r}.")
        if not defaults:
            raise ValueError(f"--option {key} cannot be used with {baseline.name}, which has no options.")
        parsed = parse_value(value, ",")
        default = defaults[one_of(f"option of {baseline.name}", key, defaults)]
        if isinstance(default, bool) and not isinstance(parsed, bool):
            raise ValueError(f"--option {key} takes true or false, got {value!r}.")
        is_word = isinstance(parsed, bool) or (isinstance(parsed, str) and parsed != "exact")
        if isinstance(default, (int, float, tuple)) and not isinstance(default, bool) and is_word:
            raise ValueError(f"--option {key} takes numbers, such as {key}=1 or {key}=1,2, got {value!r}.")
        found[key] = parsed
    return found


def open_models(baseline: Baseline, runs: Sequence[str], device: str | None) -> list[Benchmark]:
    """Open one model, or several with the same shape and schedule for a baseline that needs several."""
    if (baseline.needs == "models") != (len(runs) > 1):
        wanted = "at least 2 models" if baseline.needs == "models" else "one model"
        raise ValueError(f"{baseline.name} needs {wanted}, got {len(runs)}: {', '.join(runs)}.")
    models = [bench.load(run) for run in runs]
    for other in models[1:]:
        mine, theirs = ((model.shape, model.schedule.spec) for model in (models[0], other))
        if mine != theirs:
            raise ValueError(
                f"the models must have the same shape and schedule, got {models[0].name} with {mine} and "
                f"{other.name} with {theirs}."
            )
    for model in models if device is not None else ():
        model.denoiser = model.denoiser.to(str(device))
    return models


def draw_real(model: Benchmark, count: int, seed: int) -> Tensor:
    """Random rows of the training data, or all of them if there are fewer."""
    generator = torch.Generator().manual_seed(mix_seed(seed, REAL_STREAM))
    rows = torch.randperm(len(model.data), generator=generator)[:count].sort().values
    return model.data[rows].to(model.denoiser.device)


def score_part(
    detector: Any, x: Tensor, first: int, seed: int, batch_size: BatchSize, progress: Progress
) -> Result:
    """Score a part of existing samples that starts at index `first`, as one item of the progress."""
    (values,) = progress(detector.score(x, seed=seed, first=first, batch_size=batch_size) for _ in range(1))
    return Result(x, scores={detector.name: values})


def evaluate_filter(
    file: Path, truth: str | None, data: Path | None, keep: float, score: str | None
) -> tuple[str, dict[str, Any]]:
    """Compare a filter by score with a random filter, by the truth of a benchmark and by held-out data.

    Returns:
        The name of the score, and the figures by name.
    """
    if truth is not None:
        one_of("benchmark", truth, oracles.BENCHMARKS)
    result = Result.load(file)
    result = result.select(~result.lost)
    name, values = _choose_score(result, score, file)
    kept = metrics.keep_lowest(values, keep)
    if kept.sum() < 2:
        raise ValueError(
            f"--keep {keep:g} keeps {int(kept.sum())} of the {len(values)} samples of {file}; distances to "
            "data need at least 2. Keep or draw more."
        )
    random = metrics.keep_lowest(torch.rand(len(values), generator=torch.Generator().manual_seed(0)), keep)
    facts: dict[str, Any] = {"score": name, "n": len(result), "kept": int(kept.sum())}
    x = result.samples.float()
    if truth is not None:
        real = datasets.make(truth, min(MOST_REAL, len(datasets.make(truth))), seed=1)
        if real.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"{truth} has samples of shape {tuple(real.shape[1:])}, {file} has {tuple(x.shape[1:])}."
            )
        bad = oracles.find_hallucinations(truth, x, real)
        facts |= {
            "hallucination_rate": metrics.rate(bad),
            "after_the_filter": metrics.rate(bad, kept),
            "after_a_random_filter": metrics.rate(bad, random),
            "auroc": metrics.auroc(values, bad) if 0 < int(bad.sum()) < len(bad) else None,
        }
    if data is not None:
        real = read_array(data, tuple(x.shape[1:]))
    for label, chosen in {"all": x, "filtered": x[kept], "randomly_filtered": x[random]}.items():
        distance = metrics.energy_distance(chosen[:MOST_COMPARED], real[:MOST_COMPARED])
        facts[f"energy_distance_{label}"] = distance
    return name, facts


def _choose_score(result: Result, name: str | None, file: Path) -> tuple[str, Tensor]:
    """The score of this name; by default the verdict's z, or the first score."""
    scores = dict(result.scores)
    if result.verdict is not None:
        scores = {"verdict": result.verdict.z, **scores}
    if not scores:
        raise ValueError(f"{file} has samples without scores; draw or score them with a scorer.")
    chosen = next(iter(scores)) if name is None else one_of(f"score of {file}", name, scores)
    return chosen, scores[chosen]


def find_score(name: str) -> tuple[str, Score]:
    """The name and the function of package.module:function, or of an entry of the leaderboard."""
    if ":" in name:
        return name.partition(":")[2], import_named("SCORE", name)
    return name, ENTRIES[one_of("score", name, ENTRIES)]


def find_results(tasks: Sequence[str]) -> Path:
    """The results of the leaderboard, next to the tasks."""
    return find_tasks(tasks or None)[0].parent / leaderboard.RESULTS


def show_rows(found: dict[str, Any], others: dict[str, dict[str, Any]]) -> None:
    """Print the leaderboard with a new score, on its tasks that the leaderboard has results for."""
    scored = {task: figures["task"] for task, figures in found["tasks"].items() if "auroc" in figures}
    if not scored:
        task, figures = next(iter(found["tasks"].items()))
        raise ValueError(f"{found['score']} was skipped on {task}: {figures['skipped']}.")
    theirs = {
        name: {task for task, own in scored.items() if each["tasks"].get(task, {}).get("task") == own}
        for name, each in others.items()
    }
    known = set().union(*theirs.values()) or set(scored)
    if left := sorted(set(scored) - known):
        remark("", f"the leaderboard has no results for {', '.join(left)}; ranked without.")
    comparable = {name: others[name] for name, tasks in theirs.items() if tasks == known}
    show_ranking(leaderboard.rank({**comparable, f"→ {found['score']}": found}, sorted(known)))


def show_ranking(rows: list[dict[str, Any]]) -> None:
    """Print the leaderboard: its main columns, or all in a wide terminal."""
    cells, terminal = leaderboard.table(rows), console(stderr=False)
    chosen = [cells[0].index(column) for column in (cells[0] if terminal.width >= WIDE else NARROW)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for k in chosen:
        table.add_column(cells[0][k], no_wrap=k < 4)  # names and intervals are never cut
    for row in cells[1:]:
        table.add_row(*(plain(row[k]) for k in chosen))
    terminal.print(table)


def read_vector(path: Path, what: str) -> Tensor:
    """One number per sample from an npy file."""
    try:
        values = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path} is not an npy file of numbers: {error}.") from error
    if values.ndim != 1:
        raise ValueError(f"{path} must have one number per sample for {what}, got shape {values.shape}.")
    return torch.from_numpy(values)

"""A score on all tasks: how well it finds the bad samples, with intervals, and what it costs.

`run` calls the score once per task, with the samples of all seeds. Intervals are 95% of bootstrap
replicates over seeds, and over samples within them. All scores have the same replicates, so two scores can
be compared in pairs.
"""

from __future__ import annotations

import hashlib
import inspect
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor

from ..core import __version__
from ..core.conditions import take_rows
from ..core.precision import no_autocast
from ..core.progress import Progress, show_by_default, watch
from ..core.validation import require_positive_int
from ..storage import checkpoint
from ..storage.locks import lock
from . import metrics
from .tasks import KINDS, Conditions, Task, describe_error, find_tasks

RESULTS_FORMAT = 1
REPLICATES = 200
LEVEL = 0.95
_AGAIN = 64  # bad and good samples each that are scored again, in another order
_SAME, _CHANGE = 0.9, 0.25  # rank correlation, and AUROC: what noise may change
_FEWEST = 10  # samples of a mode, or of a kind of fault, that a figure needs
Score = Callable[..., Tensor]


def run(
    score: Score,
    tasks: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    processes: int = 1,
    progress: Progress | bool | None = None,
) -> dict[str, Any]:
    """Evaluate a score on tasks; returns the figures of each task.

    The score is a function `score(model, samples, data, held_out, cond)` that returns one number per
    sample, (n,); larger means less trust. `cond` is a `flare.bench.Conditions`. A score that needs the
    trajectory also takes `start`, the noise that each sample was drawn from: `flare.sample(model.denoiser,
    model.steps(), start=start)` repeats it.

    >>> bad = torch.arange(40) % 4 == 0
    >>> task = flare.bench.make_task("mine", "sines", data[:40], bad, data[40:300], data[300:400])
    >>> found = flare.bench.run(lambda model, samples, *others: samples.abs().mean(1), "mine")
    >>> found["tasks"]["mine"]["n"]
    40

    Args:
        score: The score.
        tasks: Task directories; by default all in `tasks` in the current directory.
        out: A JSON file for the result. It is written after each task, and a later call resumes from it,
            unless the source of the function has changed.
        name: The name of the score; by default the name of the function.
        processes: The number of processes; with several, the score must be a function of a module.
        progress: A function such as `tqdm.tqdm`, True for a bar, or False; by default a bar in a terminal.
    """
    if not callable(score):
        raise TypeError(f"score must be a function, got {type(score).__name__}.")
    require_positive_int("processes", processes)
    name = name or str(getattr(score, "__name__", type(score).__name__))
    directories = find_tasks(tasks)
    with nullcontext() if out is None else lock(out):
        found = _resume(out, name)
        for task, figures in watch(
            _run_each(partial(run_task, score, name, found["tasks"]), directories, processes),
            len(directories),
            show_by_default(progress),
        ):
            found["tasks"][task] = figures
            if out is not None:
                checkpoint.save_json(out, found)
    return found


def run_task(score: Score, name: str, done: dict[str, Any], directory: Path) -> tuple[str, dict[str, Any]]:
    """The name of a task, and the figures of a score on it; existing figures are kept."""
    task, code, extra = Task(directory), _hash_code(score), {}
    found = done.get(task.name, {})
    if found.get("task") == task.hash and found.get("code", code) == code:
        return task.name, found
    if "start" in inspect.signature(score).parameters:
        if task.start is None:
            return task.name, {
                "task": task.hash,
                "skipped": "samples were not drawn by FLARE, so x_T is unknown",
            }
        extra = {"start": task.start}

    real = {"data": task.data.clone(), "held_out": task.held_out.clone()}

    def call(rows: Tensor, seed: int) -> Tensor:
        own = {key: value[rows] for key, value in extra.items()}
        cond = Conditions(take_rows(dict(task.cond.samples), rows), task.cond.data, task.cond.held_out)
        try:
            with _seed_globals(seed), no_autocast():
                values = score(task.model, task.samples[rows], task.data, task.held_out, cond, **own)
        except Exception as error:  # the user's code may raise anything
            raise RuntimeError(f"{name} failed on {task.name}: {describe_error(error)}") from error
        if changed := [key for key, value in real.items() if not torch.equal(getattr(task, key), value)]:
            raise ValueError(f"{name} changes {' and '.join(changed)} in place; let it work on a copy.")
        return _check(values, name, task.name, len(rows))

    with _count_rows(task.model.denoiser.module) as rows:
        values = call(torch.arange(len(task.samples)), 0)
    calls = rows[0] / len(values)
    order = _choose_again(task)
    again = call(order, 1)
    repeats = float(spearmanr(again, values[order]).statistic)
    stays = torch.equal(again.argsort(stable=True), values[: len(order)].argsort(stable=True))
    change = abs(metrics.auroc(again, task.bad[order]) - metrics.auroc(values[order], task.bad[order]))
    if (stays and repeats < _SAME) or change > _CHANGE:
        raise ValueError(
            f"{name} depends on the order of the samples: on {len(order)} samples of {task.name} in another "
            f"order, its rank correlation with its first answer is {repeats:.2f}, and its AUROC changes by "
            f"{change:.2f}. Compute the score of a sample from this sample alone."
        )
    figures = {"task": task.hash, "code": code, "calls": calls, "repeats": repeats}
    return task.name, {**figures, **evaluate(task, values)}


def _hash_code(score: Score) -> str:
    """A hash of the source of a score and of its module; "" for scores of FLARE and without a source.

    Figures of an edited score are computed again.
    """
    try:
        if str(score.__module__).startswith("flare."):
            return ""
        source = inspect.getsource(score) + inspect.getsource(inspect.getmodule(score) or score)
    except (TypeError, OSError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


@contextmanager
def _seed_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of NumPy and torch; restore them and the default type afterwards."""
    state, dtype = np.random.get_state(), torch.get_default_dtype()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
            torch.set_default_dtype(dtype)


def _choose_again(task: Task) -> Tensor:
    """Some bad and some good samples in random order."""
    order = torch.randperm(len(task.bad), generator=torch.Generator().manual_seed(0))
    bad = task.bad[order]
    some = torch.cat([order[bad][:_AGAIN], order[~bad][:_AGAIN]])
    return some[torch.randperm(len(some), generator=torch.Generator().manual_seed(1))]


def evaluate(task: Task, values: Tensor) -> dict[str, Any]:
    """The figures of scores (n,) on a task."""
    bad, kept = task.bad, metrics.keep_lowest(values, 0.5)
    replicates = _bootstrap(task, values)
    real = task.held_out.flatten(1)
    figures: dict[str, Any] = {
        "group": task.about["group"],
        "n": len(bad),
        "bad": metrics.rate(bad),
        "auroc": [metrics.auroc(values, bad), *find_interval(replicates[:, 0])],
        "average_precision": [metrics.average_precision(values, bad), *find_interval(replicates[:, 1])],
        "kept_bad": metrics.rate(bad, kept),
        "energy_distance": [metrics.energy_distance(x, real) for x in (task.samples, task.samples[kept])],
        "kinds": {},
    }
    for k, kind in enumerate(KINDS):
        chosen = ~bad | (task.kind == k)
        if int((task.kind == k).sum()) >= _FEWEST:
            figures["kinds"][kind] = metrics.auroc(values[chosen], bad[chosen])
    if task.mode is not None:
        counts = [(task.mode == mode, kept & (task.mode == mode)) for mode in task.mode.unique()]
        shares = [float(after.sum() / before.sum()) for before, after in counts if before.sum() >= _FEWEST]
        figures["rarest_mode_kept"] = min(shares) if shares else None
    return {**figures, "replicates": [round(float(value), 4) for value in replicates[:, 0]]}


def _bootstrap(task: Task, values: Tensor) -> np.ndarray[Any, Any]:
    """AUROC and average precision of samples drawn with replacement, seeds first, (REPLICATES, 2)."""
    generator = np.random.default_rng(0)
    groups = [(task.seed == seed).nonzero().flatten().numpy() for seed in task.seed.unique()]
    found: list[tuple[float, float]] = []
    while len(found) < REPLICATES:
        seeds = generator.integers(len(groups), size=len(groups))
        rows = torch.from_numpy(np.concatenate([generator.choice(groups[s], len(groups[s])) for s in seeds]))
        if 0 < int(task.bad[rows].sum()) < len(rows):
            pair = values[rows], task.bad[rows]
            found.append((metrics.auroc(*pair), metrics.average_precision(*pair)))
    return np.array(found)


def find_interval(replicates: np.ndarray[Any, Any]) -> list[float]:
    """The ends of the interval of bootstrap replicates."""
    return [float(end) for end in np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])]


def _check(values: Any, name: str, task: str, n: int) -> Tensor:
    """The scores in float64; an error that says what is wrong with them."""
    try:
        if not isinstance(values, (Tensor, np.ndarray)) or values.dtype in (
            torch.complex64,
            torch.complex128,
        ):
            raise TypeError(type(values).__name__)
        values = torch.as_tensor(values).detach().cpu().to_dense().double()
    except (TypeError, NotImplementedError):
        kind = getattr(values, "dtype", type(values).__name__)
        raise TypeError(f"{name} must return a tensor of {n} numbers on {task}, got {kind}.") from None
    if values.shape != (n,):
        raise ValueError(
            f"{name} must return one number per sample, ({n},) on {task}, got {tuple(values.shape)}."
        )
    if lost := int((~values.isfinite()).sum()):
        raise ValueError(
            f"{name} returned NaN or infinity for {lost} of {n} samples of {task}; return finite numbers."
        )
    if n > 1 and bool((values == values[0]).all()):
        raise ValueError(
            f"{name} returned the same number for all {n} samples of {task}, which ranks none of them."
        )
    return values


@contextmanager
def _count_rows(net: torch.nn.Module) -> Iterator[list[int]]:
    """Count the rows that pass through a network and through copies of it that are made meanwhile."""
    rows = [0]

    def note(module: Any, given: Any, keywords: Any) -> None:
        x = given[0] if given else next(iter(keywords.values()))
        everything = x
        while is_batchedtensor(everything):  # vmap shows a network one row of many
            everything = get_unwrapped(everything)
        rows[0] += len(x) * everything.numel() // max(1, x.numel())

    hook = net.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        hook.remove()


def _run_each(
    one: Callable[[Path], tuple[str, Any]], directories: Sequence[Path], processes: int
) -> Iterator[tuple[str, Any]]:
    if processes == 1:
        yield from map(one, directories)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        yield from pool.map(one, directories)


def _resume(out: str | os.PathLike[str] | None, name: str) -> dict[str, Any]:
    """The result so far, or a new one."""
    fresh = {"format": RESULTS_FORMAT, "flare": __version__, "score": name, "tasks": {}}
    if out is None or not Path(out).is_file():
        return fresh
    found = read_results(out)
    for key in ("score", "flare"):
        if found[key] != fresh[key]:
            raise ValueError(
                f"{out} has results of {key} {found[key]!r}, not of {fresh[key]!r}: choose another --out, or "
                "delete it."
            )
    return found


def read_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the results of a score; raise if the file has none of this format.

    >>> bad = torch.arange(40) % 4 == 0
    >>> parts = data[:40], bad, data[40:300], data[300:400]
    >>> task = flare.bench.make_task("yours", "sines", *parts)
    >>> score = lambda model, samples, *others: samples[:, 0]
    >>> found = flare.bench.run(score, "yours", "results.json")
    >>> sorted(flare.bench.read_results("results.json")["tasks"])
    ['yours']
    """
    found = checkpoint.load_json(path)
    known = isinstance(found, dict) and {"score", "flare", "tasks"} <= set(found)
    if not known or found.get("format") != RESULTS_FORMAT:
        raise ValueError(f"{path} has no results of `flare bench run` that this version reads; run it again.")
    return found

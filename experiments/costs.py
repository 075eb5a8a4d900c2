"""What the verdict costs compared with plain sampling, measured side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import flare

from .detection import DIRECTIONS, draw, runs_of, size_of
from .lab import Found, Job
from .subjects import STEPS, load
from .verdict import fit

TIMED, QUICK_TIMED = ("digits-early", "mnist"), ("power",)
PAIRS = 500  # training pairs of the curvature, which do not change what a score costs
ROUNDS = 5  # of all tasks in turn


def cost_job(study: str, n: int, rounds: int, quick: bool) -> Found:
    """Seconds per sample of plain sampling, of the verdict, and of sampling with the rules of the paper.

    The tasks take turns, and the ratio is taken within each round, so that what else the machine does hits
    all of them.

    Args:
        study: The data set and model.
        n: The number of samples.
        rounds: How often every task runs.
        quick: Whether the study is small.
    """
    size, plain = size_of(study, quick), load(study, 0, quick, STEPS)
    _, seed, count = next(run for run in runs_of(study, quick) if run[1] == 5)
    x, cond = draw(study, 0, seed, count, quick).found()["samples"][:n], plain.cond(n)
    scorer = fit(load(study, 0, quick, size.walk), 0, pairs=PAIRS, **({"subset": 20} if quick else {}))
    options = {"n": n, "shape": x.shape[1:], "cond": cond}
    tasks: dict[str, Callable[[], object]] = {
        "plain": lambda: flare.sample(plain.denoiser, plain.steps, **options),
        "verdict": lambda: scorer.score(x, cond or None),
        "neighbors": lambda: scorer.training.find(x),
        "expected_residual": lambda: flare.sample(
            plain.denoiser, plain.steps, scorer.posterior, score="expected_residual", directions=DIRECTIONS,
            derivative=plain.derivative, **options,
        ),
    }  # fmt: skip
    for task in tasks.values():
        task()  # batch sizes are tried once
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            started = time.perf_counter()
            task()
            seconds[name].append((time.perf_counter() - started) / n)
    return {"seconds_per_sample": seconds, "steps": len(plain.steps), "states": scorer.encoder.states}


def jobs(quick: bool) -> list[Job]:
    """One job per network, after everything else."""
    config = {"n": 4 if quick else 40, "rounds": 1 if quick else ROUNDS, "quick": quick}
    return [
        Job(f"cost-{study}", cost_job, {"study": study, **config}, stage=5)
        for study in (QUICK_TIMED if quick else TIMED)
    ]


def ratios(jobs: Iterable[Job], study: str) -> dict[str, float]:
    """Time over that of plain sampling, the median over rounds; nothing if it was not measured."""
    for job in jobs:
        if job.run is cost_job and job.config["study"] == study and job.done:
            seconds = job.found()["seconds_per_sample"]
            return {
                name: statistics.median(a / b for a, b in zip(own, seconds["plain"], strict=True))
                for name, own in seconds.items()
            }
    return {}

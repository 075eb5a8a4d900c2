"""What scores cost beside plain sampling, and how much of the full trace a subset of the parameters sees."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import flare

from .detection import DIRECTIONS, draw, fit, judge_job, runs_of, size_of, subject_of
from .gradients import FEW, LEVELS
from .jacobians import Jacobian
from .lab import ENCODED, Found, Job, calibrate
from .subjects import STEPS, load

TIMED = ("digits-early", "mnist", "chirp")
RANKED = ("digits-early", "chirp")  # where the AUROC is measured, too
#: levels and noises per level of the influence
GRIDS = (((0.4,), 2), (FEW, 2), (LEVELS, 2))  # noises come in pairs
TIMES = 2  # repetitions, of which the fastest counts
RIDGE = 1e-6
SEEDS = 5  # random subsets and sketches
LAST = "last layer"


def describe(levels: tuple[float, ...], repeats: int) -> str:
    """A grid in words."""
    return f"{len(levels)} × {repeats}"


def cost_job(study: str, n: int, ranked: int, quick: bool) -> Found:
    """Seconds per sample of plain sampling and of scores, side by side; AUROCs of the influence."""
    size, subject = size_of(study, quick), subject_of(study, 0, quick)
    plain = load(study, 0, quick, size.walk and STEPS)
    posterior = calibrate(fit(study, 0, quick)["random"], subject.denoiser)
    member, seed, count = next(run for run in runs_of(study, quick) if run[1] == 5)
    x = draw(study, member, seed, count, quick).found()["samples"]
    cond = subject.cond(count)

    def influence(levels: tuple[float, ...], repeats: int, own: Tensor) -> Tensor:
        return flare.score(
            subject.denoiser, posterior, subject.schedule, own, score="influence", levels=levels,
            repeats=repeats, cond={k: v[: len(own)] for k, v in cond.items()}, batch_size=20,
            data=subject.train[:ENCODED], data_cond={k: v[:ENCODED] for k, v in subject.train_cond.items()},
        )  # fmt: skip

    options = {"n": n, "shape": x.shape[1:], "cond": subject.cond(n), "batch_size": n}
    tasks: dict[str, Callable[[], object]] = {
        "plain": lambda: flare.sample(plain.denoiser, plain.steps, **options),
        "expected_residual": lambda: flare.sample(
            plain.denoiser, plain.steps, posterior, score="expected_residual", directions=DIRECTIONS,
            derivative=subject.derivative, **options,
        ),
        "neighbors": lambda: flare.scores.neighbors(x[:n], subject.train),
        **{describe(*grid): lambda grid=grid: influence(*grid, x[:n]) for grid in GRIDS},
    }  # fmt: skip
    seconds = {name: min(_time(task) for _ in range(TIMES)) / n for name, task in tasks.items()}
    out: Found = {"per_sample": seconds, "steps": len(plain.steps)}
    for grid in GRIDS if ranked else ():
        out[f"score.{describe(*grid)}"] = influence(*grid, x[:ranked])
    return out


def _time(task: Callable[[], object]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def trace_job(pairs: int, states: int, sizes: list[int], quick: bool) -> Found:
    """(tr Ṽ − tr V)/tr V on the network of the grid: V = J(H + λ)⁻¹Jᵀ of all parameters, Ṽ of m of them."""
    subject = load("grid", 0, quick, None)
    denoiser = flare.Denoiser(copy.deepcopy(subject.denoiser.module).double(), "epsilon")
    everything = flare.subsets.everything(denoiser)
    drawn = flare.noising.pairs(subject.train.double(), subject.schedule, n=pairs + states, seed=0)
    rows = torch.cat([_rows(denoiser, everything, batch) for batch in drawn.batches("epsilon")])
    d = subject.train[0].numel()
    known, at = rows[: pairs * d] / pairs**0.5, rows[pairs * d :]
    whole = _trace(known, at)
    few = subject.pairs(min(pairs, 300), seed=1)
    layer = flare.subsets.last_layer(denoiser)
    errors: dict[str, dict[str, list[float]]] = {}
    for m in [layer.size, *sizes]:
        kinds: dict[str, Iterable[Any]] = {
            "random": (flare.subsets.random(denoiser, count=m, seed=k) for k in range(SEEDS)),
            "sketch": (flare.subsets.sketch(denoiser, m, seed=k) for k in range(SEEDS)),
            "sensitive": [flare.subsets.sensitive(subject.denoiser, few, count=m)],
            LAST: [layer] if m == layer.size else [],
        }
        for kind, subsets in kinds.items():
            found = [_trace(_contract(known, s, everything), _contract(at, s, everything)) for s in subsets]
            errors.setdefault(kind, {})[str(m)] = [value / whole - 1 for value in found]
    return {"errors": errors, "parameters": everything.size}


def _rows(denoiser: flare.Denoiser, everything: Any, batch: Any) -> Tensor:
    """The rows of J of a batch, (B·d, p), times √w."""
    J = Jacobian(denoiser).rows(batch.x, batch.t, everything)
    return (J * batch.weight.sqrt().view(-1, 1, 1)).flatten(0, 1)


def _contract(rows: Tensor, subset: Any, everything: Any) -> Tensor:
    """Rows over all parameters as rows over the coordinates of a subset."""
    return subset.gather(everything.scatter(rows), lead=1)


def _trace(known: Tensor, at: Tensor) -> float:
    """tr J(KᵀK + λ)⁻¹Jᵀ for rows K and J."""
    H = known.T @ known
    H.diagonal().add_(RIDGE)
    return float(torch.linalg.solve_triangular(torch.linalg.cholesky(H), at.T, upper=False).square().sum())


def jobs(quick: bool) -> list[Job]:
    """Costs, after the samples were judged; and the traces."""
    count = 4 if quick else 16
    return [
        *(
            Job(
                f"cost-{study}", cost_job,
                {"study": study, "n": count, "quick": quick,
                 "ranked": 0 if study not in RANKED else 16 if quick else 100}, stage=3,
            )
            for study in TIMED
        ),
        Job(
            "subset-traces", trace_job,
            {"pairs": 100 if quick else 4_500, "states": 20 if quick else 100, "quick": quick,
             "sizes": [200] if quick else [300, 1_000]},
        ),
    ]  # fmt: skip


def ratios(jobs: Iterable[Job], study: str) -> dict[str, float]:
    """Seconds per sample over those of plain sampling; nothing if they were not measured."""
    for job in jobs:
        if job.run is cost_job and job.config["study"] == study:
            seconds = job.found()["per_sample"]
            return {name: value / seconds["plain"] for name, value in seconds.items()}
    return {}


def bad_of(study: str, jobs: Iterable[Job]) -> Tensor:
    """Which samples of the timed run are bad."""
    judged = next(job for job in jobs if job.run is judge_job and job.config["study"] == study)
    return judged.found()["bad.0.5"]

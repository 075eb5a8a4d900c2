"""The figures of the budget study: one case per data set and structure of Σ, its tables and the picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import flare
from flare.bench import metrics
from tools.document import table

from .common import spearman, spread
from .lab import Found, Job

#: what the AUROCs are of
DETECTORS = {
    "main": "paper's trace, main text",
    "appendix": "paper's trace, Appendix A",
    "tangent": "tangent trace",
    "influence": "influence, tuned s and δ",
}
SETTINGS = {"printed": "λ = 1e-6", "tuned": "s = N/σ², δ by marginal likelihood"}
SUMS = ("main", "appendix")
RELIABLE = 0.85  # the lowest rank correlation with sums of every step at which sums of some steps count
DOUBTFUL = "†"  # marks the others


@dataclass(frozen=True)
class Case:
    """The figures of one data set and structure.

    Attributes:
        name: of the model.
        structure: of Σ.
        fits: m, s and δ by share, from the smallest to the largest.
        sums: the exact terms and sums by seed.
        tangents: scores by share and seed.
        config: of the jobs with the sums.
        doubtful: the sums that rank otherwise if J Σ Jᵀ is computed at every step.
    """

    name: str
    structure: str
    fits: dict[float, Found]
    sums: dict[int, Found]
    tangents: dict[tuple[float, int], Found]
    config: Any
    doubtful: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """The data set and the structure."""
        return f"{self.name}, {self.structure}"

    @property
    def shares(self) -> list[float]:
        """The shares, from the smallest."""
        return sorted(self.fits)

    def own(self, share: float, setting: str = "printed") -> Tensor:
        """tr(J Σ Jᵀ) at each computed step, (steps, samples of all seeds)."""
        return torch.cat([found[f"own.{share:g} {setting}"] for found in self.sums.values()], 1)

    def typical(self, share: float, setting: str) -> float:
        """tr(J Σ Jᵀ) at the median step of the median sample."""
        return float(self.own(share, setting).median(0).values.median())

    def total(self, share: float, weighting: str, setting: str = "printed") -> float:
        """The median of the paper's trace."""
        return float(torch.cat(self._totals(share, weighting, setting)).median())

    def _totals(self, share: float, weighting: str, setting: str = "printed") -> list[Tensor]:
        return [found[f"sum.{share:g} {setting}, {weighting}"] for found in self.sums.values()]

    def least_growth(self) -> list[float]:
        """The smallest factor by which a sample's term grows at a step, from each share to the next."""
        pairs = zip(self.shares[:-1], self.shares[1:], strict=True)
        return [float((self.own(more) / self.own(less)).min()) for less, more in pairs]

    def growth(self, setting: str) -> float:
        """The typical term with the largest share over that with the smallest."""
        return self.typical(self.shares[-1], setting) / self.typical(self.shares[0], setting)

    def held(self, weighting: str) -> tuple[float, float]:
        """What holding J Σ Jᵀ between the computed steps does to the sums of the smallest share.

        The lowest rank correlation with the sums of every step, and the largest median relative difference.
        """
        ranks, errors = [], []
        for found in self.sums.values():
            exact = found[f"sum.check printed, {weighting}"]
            held = found[f"sum.{self.shares[0]:g} printed, {weighting}"]
            held, exact = held[exact > 0], exact[exact > 0]
            ranks.append(spearman(held, exact))
            errors.append(float((held / exact - 1).abs().median()))
        return min(ranks), max(errors)

    def mark(self, detector: str) -> str:
        """Behind a figure: nothing, or the sign that it cannot be relied on."""
        return DOUBTFUL if detector in self.doubtful else ""

    def scores(self, detector: str, share: float) -> list[tuple[Tensor, Tensor]]:
        """The scores and which samples are bad, one pair per seed."""
        if detector in SUMS:
            bad = [found["bad"] for found in self.sums.values()]
            return list(zip(self._totals(share, detector), bad, strict=True))
        found = [self.tangents[share, seed] for seed in self.sums]
        return [(one[detector], one[f"{detector}.bad"]) for one in found]

    def auroc(self, detector: str, share: float) -> list[float]:
        """One AUROC per seed that has bad samples."""
        scores = self.scores(detector, share)
        return [metrics.auroc(score, bad) for score, bad in scores if 0 < bad.sum() < len(bad)]

    def rank(self, detector: str, share: float) -> list[float]:
        """The rank correlation with the largest share, one per seed."""
        both = zip(self.scores(detector, share), self.scores(detector, self.shares[-1]), strict=True)
        return [spearman(one, all_) for (one, _), (all_, _) in both]

    def range(self, detector: str, least: float) -> tuple[float, float]:
        """The lowest and highest mean AUROC from a share on; NaN if no sample is bad."""
        values = [self.auroc(detector, share) for share in self.shares if share >= least]
        means = [statistics.fmean(v) for v in values if v]
        return (min(means), max(means)) if means else (float("nan"),) * 2


def cases(jobs: Sequence[Job]) -> list[Case]:
    """The results, one case per data set and structure."""
    order = dict.fromkeys((j.config["name"], j.config["structure"]) for j in jobs if "structure" in j.config)
    out = []
    for name, structure in order:
        own = [j for j in jobs if (j.config.get("name"), j.config.get("structure")) == (name, structure)]
        sums = [job for job in own if "every" in job.config]
        shared = [job for job in own if "fraction" in job.config]
        fits = {job.config["fraction"]: job.found() for job in shared if "seed" not in job.config}
        tangents = {
            (job.config["fraction"], job.config["seed"]): job.found()
            for job in shared
            if "seed" in job.config
        }
        by_seed = {job.config["seed"]: job.found() for job in sums}
        out.append(Case(name, structure, fits, by_seed, tangents, sums[0].config))
    return mark_doubtful(out)


def mark_doubtful(found: Sequence[Case]) -> list[Case]:
    """The cases with their doubtful sums; only dense ones were checked, at the same steps as the others."""
    doubtful = {
        case.name: frozenset(weighting for weighting in SUMS if case.held(weighting)[0] < RELIABLE)
        for case in found
        if case.structure == "dense"
    }
    return [replace(case, doubtful=doubtful[case.name]) for case in found]


def held_table(found: Sequence[Case]) -> str:
    """How the sums of some steps agree with those of every step."""
    rows = []
    for case in found:
        for key in SUMS if case.structure == "dense" else ():
            rank, error = case.held(key)
            rows.append([case.title, DETECTORS[key], f"{rank:.2f}{case.mark(key)}", f"{100 * error:.2g}%"])
    return table(["data, Σ", "sum", "rank correlation", "median difference"], rows)


def _kept(case: Case, share: float) -> list[str]:
    return [case.title, f"{100 * share:g}% ({case.fits[share]['m']:,})"]


def growth_table(found: Sequence[Case]) -> str:
    """The term of a step and its sums, by share."""
    header = [
        "data, Σ", "parameters kept", "tr(JΣJᵀ), median over steps and samples",
        "smallest factor from the previous share, in any sample and step", "paper's trace, main text, median",
        "paper's trace, Appendix A, median", "tuned s, δ", "tr(JΣJᵀ), tuned, median over steps and samples",
    ]  # fmt: skip
    rows = []
    for case in found:
        least = ["–", *(f"× {v:.3g}" for v in case.least_growth())]
        for share, smallest in zip(case.shares, least, strict=True):
            fit = case.fits[share]
            rows.append([*_kept(case, share), f"{case.typical(share, 'printed'):.3g}", smallest])
            rows[-1] += [f"{case.total(share, key):.3g}{case.mark(key)}" for key in SUMS]
            rows[-1] += [f"{fit['scale']:.2g}, {fit['prior_precision']:.2g}"]
            rows[-1] += [f"{case.typical(share, 'tuned'):.3g}"]
    return table(header, rows)


def detection_table(found: Sequence[Case]) -> str:
    """AUROCs by share, and how the paper's traces rank beside those of the largest share."""
    header = ["data, Σ", "parameters kept", *(f"AUROC, {text}" for text in DETECTORS.values())]
    ranked = ("main", "appendix", "tangent")
    header += [f"rank correlation, {DETECTORS[key]}" for key in ranked]
    rows = []
    for case in found:
        for share in case.shares:
            aurocs = {key: case.auroc(key, share) for key in DETECTORS}
            rows.append(_kept(case, share))
            rows[-1] += [spread(v) + case.mark(key) if v else "–" for key, v in aurocs.items()]
            rows[-1] += [f"{statistics.fmean(case.rank(key, share)):.2f}{case.mark(key)}" for key in ranked]
    return table(header, rows)


def figure(found: Sequence[Case], path: Path) -> None:
    """The term of a step, and the AUROCs, against the share."""
    colors = flare.plot.COLORS
    fig, axes = plt.subplots(
        2, len(found), figsize=(2.4 * len(found), 4.8), sharey="row", squeeze=False, layout="constrained"
    )
    for (top, bottom), case in zip(axes.T, found, strict=True):
        percent = [100 * share for share in case.shares]
        for (setting, text), line in zip(SETTINGS.items(), ("o-", "s--"), strict=True):
            typical = [case.typical(share, setting) for share in case.shares]
            relative = [value / typical[0] for value in typical]
            top.plot(percent, relative, line, ms=4, color="black", label=text)
        top.set(xscale="log", yscale="log", title=case.title)
        for index, (key, text) in enumerate(DETECTORS.items()):
            if key in case.doubtful:
                continue
            means = [statistics.fmean(case.auroc(key, share) or [float("nan")]) for share in case.shares]
            bottom.plot(percent, means, "o-", ms=4, color=colors(index / 3), label=text)
        bottom.axhline(0.5, color="grey", lw=0.7, ls=":")
        bottom.set(xscale="log", xlabel="parameters kept, %")
        for ax in (top, bottom):
            ax.set_xticks(percent, labels=[f"{value:g}" for value in percent], fontsize=8)
            ax.minorticks_off()
            ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("tr(JΣJᵀ), smallest share = 1")
    axes[1, 0].set_ylabel("AUROC")
    both = [ax.get_legend_handles_labels() for ax in axes[:, 0]]
    handles, labels = ([*both[0][i], *both[1][i]] for i in (0, 1))
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    fig.savefig(path, dpi=150)
    plt.close(fig)

"""The charts of docs/real-data.md: one row per data set, narrow enough to be read on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from scipy import stats

from . import keeping
from .candidates import ACTIVATIONS, EPISTEMIC, INFLUENCE, NEIGHBORS, VERDICT
from .choice import Interval, average, interval_of, table_of
from .concepts import CALM, DOUBT, FAINT, INK, REAL, picture
from .real_tables import ALPHAS, Noise

WIDTH, ROW, REST = 4.8, 0.27, 1.2  # inches: of a chart, of a data set, and of axis and legend
COLORS = {"verdict": CALM, NEIGHBORS: INK, ACTIVATIONS: REAL, EPISTEMIC: "#a26ad4"}
MARKERS = {"verdict": "o", NEIGHBORS: "^", ACTIVATIONS: "s", EPISTEMIC: "D"}
MEAN = "mean"


@contextmanager
def rows(path: Path, names: Sequence[str], columns: int = 1) -> Iterator[list[Axes]]:
    """Axes in a row with one line per name, the first at the top; the legend is below the first axes."""
    with picture(path, columns, (WIDTH, ROW * len(names) + REST)) as axes:
        for ax in axes:
            ax.set(ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)))
            ax.set_yticklabels(names if ax is axes[0] else [])
            ax.tick_params(left=False)
            ax.spines["left"].set_visible(False)
            ax.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
            ax.set_axisbelow(True)
        yield axes


def _legend(ax: Axes, columns: int, place: float = 0.5) -> None:
    ax.set_title("\n", fontsize=9)  # room for the legend, which may be wider than its axes
    legend = ax.legend(
        frameon=False, labelcolor=INK, ncols=columns, loc="lower center", bbox_to_anchor=(place, 1.0),
        fontsize=9, handletextpad=0.3, columnspacing=1.0, borderpad=0.2,
    )  # fmt: skip
    legend.set_in_layout(False)


def draw_scores(path: Path, studies: Sequence[str], quick: bool, best: Mapping[str, float]) -> None:
    """The AUROC of the verdict with intervals, of its three scores, and of the best baseline."""
    found = table_of(quick)
    with rows(path, studies) as (ax,):
        for name in (NEIGHBORS, ACTIVATIONS, EPISTEMIC):
            own = {place: found[name][study] for place, study in enumerate(studies) if study in found[name]}
            ax.plot(
                list(own.values()), list(own), MARKERS[name], color=COLORS[name], markersize=4.5,
                fillstyle="none", label=name,
            )  # fmt: skip
        places = [place for place, study in enumerate(studies) if study in best]
        values = [best[studies[place]] for place in places]
        ax.plot(values, places, "x", color=DOUBT, markersize=6, label="best baseline")
        intervals = [one for study in studies if (one := interval_of(study, quick, VERDICT)) is not None]
        _dots(ax, range(len(intervals)), intervals, COLORS["verdict"], "verdict")
        ax.axvline(0.5, color=FAINT, linewidth=0.8, linestyle=":")
        ax.set(xlabel="AUROC (0.5 is chance)", xlim=(min(0.44, *values, *(i.low for i in intervals)), 1.01))
        _legend(ax, 3, 0.4)


def draw_gains(path: Path, found: Mapping[str, Mapping[str, Interval]]) -> None:
    """What the scores that need a posterior add to the AUROC, with one standard error."""
    studies = list(found[EPISTEMIC])
    with rows(path, [*studies, MEAN]) as (ax,):
        for name, color, shift in ((EPISTEMIC, CALM, -0.15), (INFLUENCE, DOUBT, 0.15)):
            own = {study: (one.mean, one.error) for study, one in found[name].items()}
            if own:
                own[MEAN] = average(list(found[name].values()))
            places = [[*studies, MEAN].index(study) + shift for study in own]
            means, errors = zip(*own.values(), strict=True) if own else ((), ())
            ax.errorbar(means, places, xerr=errors, fmt="o", color=color, markersize=4, label=name)
        ax.axvline(0, color=INK, linewidth=0.8)
        ax.axhline(len(studies) - 0.5, color=FAINT, linewidth=0.8)
        ax.set(xlabel="change of the AUROC, ± 1 standard error")
        _legend(ax, 2, 0.4)


def draw_noise(path: Path, every: Mapping[str, Noise]) -> None:
    """How well scores repeat with other noise, and the p-values of fresh real data."""
    with rows(path, list(every), 2) as (left, right):
        for name in (NEIGHBORS, ACTIVATIONS, EPISTEMIC, "verdict"):
            values = [noise.spearman[name] for noise in every.values()]
            left.plot(
                values, range(len(values)), MARKERS[name], color=COLORS[name], markersize=4.5, label=name,
                fillstyle="full" if name == "verdict" else "none",
            )  # fmt: skip
        left.set(xlabel="rank correlation,\ntwo noises")
        _legend(left, 2, 0.9)
        for place, noise in enumerate(every.values()):
            hits = round(noise.shares[0] * noise.count)
            low, high = stats.binomtest(hits, noise.count).proportion_ci(method="wilson")
            right.plot([100 * low, 100 * high], [place, place], color=CALM, linewidth=1.2)
            right.plot(100 * noise.shares[0], place, "o", color=CALM, markersize=4.5)
        right.axvline(100 * ALPHAS[0], color=INK, linewidth=0.8)
        right.set(xlabel=f"% of real data\nwith p ≤ {ALPHAS[0]:g}", xlim=(0, None))


def draw_filters(path: Path, found: Mapping[str, Mapping[str, keeping.Kept]]) -> None:
    """The share of bad samples before a filter, in a random half, and in the best half of every region."""
    with rows(path, list(found)) as (ax,):
        ends = [
            [100 * own[name].bad for own in found.values()] for name in (keeping.EVERYTHING, keeping.REGION)
        ]
        ax.hlines(range(len(found)), *ends, color=FAINT, linewidth=1.2)
        for name, label, marker, color in (
            (keeping.RANDOM, "random half", "x", DOUBT),
            (keeping.EVERYTHING, "all samples", "o", INK),
            (keeping.REGION, "best half by region", "o", CALM),
        ):
            values = [100 * own[name].bad for own in found.values()]
            ax.plot(values, range(len(found)), marker, color=color, markersize=5, label=label)
        ax.set(xlabel="bad samples, %", xlim=(-2, 100))
        _legend(ax, 3, 0.4)


def _dots(ax: Axes, places: Sequence[int], found: Sequence[Interval], color: str, label: str) -> None:
    for place, one in zip(places, found, strict=True):
        ax.plot([one.low, one.high], [place, place], color=color, linewidth=1.6, alpha=0.7)
    ax.plot([one.mean for one in found], list(places), "o", color=color, markersize=6, label=label)

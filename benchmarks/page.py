"""docs/performance.md and its charts, written from docs/evidence/performance.md."""

from __future__ import annotations

import re
from collections.abc import Callable

from matplotlib.axes import Axes

import flare
from experiments.concepts import CALM, DOUBT, FAINT, IMAGES, INK, REAL, picture
from tools.document import DOCS, read_tables, section, table, write_page

from .harness import PAGE

CHARTS = IMAGES / "performance"
COLORS = (CALM, DOUBT, REAL, INK)
#: sections of the evidence, and what the page says of those that it does not have
PARTS = {
    "costs": "cost of each part",
    "secants": "ways to differentiate",
    "neighbors": "nearest-neighbor search",
    "images": "20,000 images of 3 × 64 × 64",
    "growth": "growth",
    "knee": "the effect of larger fits",
    "startup": "start-up",
    "processes": "two processes",
    "large": "a network of 860 million parameters",
}
Row = dict[str, str]


def write() -> None:
    """Write the page and draw its charts."""
    evidence = PAGE.read_text(encoding="utf-8")
    CHARTS.mkdir(parents=True, exist_ok=True)
    for name, tables in _read(evidence).items():
        if name in DRAWN:
            DRAWN[name](tables[0])
    write_page(DOCS / "performance.md", compose(evidence))


def compose(evidence: str) -> str:
    """The page, from the sections of the evidence."""
    found = _read(evidence)
    costs = found["costs"][0]
    short = [[cell.partition(" (")[0] if i else cell for i, cell in enumerate(row.values())] for row in costs]
    parts = [
        "# What it costs",
        "Unless a row or a chart says otherwise, numbers are multiples of the time of plain sampling in 50 "
        f"steps. We measure CPU time on one thread, with version {flare.__version__}. `make bench` writes "
        "this page and [all measurements](evidence/performance.md).",
        table(list(costs[0]), short),
    ]
    for name in DRAWN:
        if name in found:
            claim = _claim(name, found[name][0])
            parts.append(f"**{claim}**\n\n![{PARTS[name]}](images/performance/{name}.svg)")
    parts.append(list_targets(evidence))
    missing = [words for name, words in PARTS.items() if name not in found]
    parts.append(f"Not measured with this version: {', '.join([*missing, 'GPUs'])}.")
    return "\n\n".join(parts) + "\n"


def _read(evidence: str) -> dict[str, list[list[Row]]]:
    """The tables of all sections that there are."""
    return {
        name: read_tables(section(evidence, name)) for name in PARTS if f"<!-- {name}:begin -->" in evidence
    }


def _claim(name: str, rows: list[Row]) -> str:
    """What a chart shows, with its figures."""
    if name == "costs":
        verdict, fit = (
            [_value(cell) for row in rows if words in row["what"] for cell in list(row.values())[1:]]
            for words in ("verdict", "over drawing")
        )
        return (
            f"The verdict takes {min(verdict):g} to {max(verdict):g} times as long as plain sampling, and a "
            f"fit {min(fit):g} to {max(fit):g} times as long as drawing 1,000 samples."
        )
    if name == "secants":
        ours, single = (
            max(float(row["other batch size"]) for row in rows if ("one-sided" in row["way"]) == other)
            for other in (False, True)
        )
        return (
            f"Another batch size changes scores by up to {ours:.0e}, or by up to {single:.0e} with float32 "
            "differences."
        )
    if name == "neighbors":
        ratios = [_value(row["FLARE over scikit-learn"]) for row in rows]
        times = f"{min(ratios):g} to {max(ratios):g} times"
        return f"Nearest-neighbor search takes {times} as long as scikit-learn's."
    if name == "growth":
        slopes = [float(row["exponent of time"]) for row in rows]
        return f"Time grows with exponents of {min(slopes):g} to {max(slopes):g}, where 1 is linear."
    change = 0.0
    for row in rows:
        varied = [
            float(each["verdict, AUROC"])
            for each in rows
            if all(each[key] == row[key] for key in ("set", "what is varied"))
        ]
        change = max(change, max(varied) - min(varied))
    return f"The size of one part of the fit changes the AUROC of the verdict by up to {change:.3f}."


def list_targets(evidence: str) -> str:
    """Our targets, in two lines."""
    found = re.findall(
        r"^- (.*): ([\d.]+), target ([\d.]+): (met|\*\*missed\*\*)$", evidence, flags=re.MULTILINE
    )
    lines = ["## Targets", "Measured values, with the targets in parentheses."]
    for word, name in (("**missed**", "Missed"), ("met", "Met")):
        own = [f"- {what}: {value} ({target})" for what, value, target, state in found if state == word]
        lines += [f"**{name}**", "\n".join(own)]
    return "\n\n".join(lines)


def draw_costs(rows: list[Row]) -> None:
    """Bars of multiples of plain sampling."""
    bars = [row for row in rows if "verdict" in row["what"] or "variances" in row["what"]]
    networks = list(rows[0])[1:]
    with picture(CHARTS / "costs.svg", 1, (6.4, 3.0)) as (ax,):
        for i, network in enumerate(networks):
            places = [j + (i - 1) * 0.26 for j in range(len(bars))]
            ax.barh(places, [_value(row[network]) for row in bars], 0.24, color=COLORS[i], label=network)
        ax.set_yticks(range(len(bars)), [row["what"].partition(",")[0] for row in bars])
        ax.invert_yaxis()
        ax.set_xscale("log")
        ax.axvline(1, color=FAINT, linewidth=1)
        ax.set_xlabel("times plain sampling")
        ax.legend(frameon=False, labelcolor=INK, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3)


def draw_ways(rows: list[Row]) -> None:
    """Cost against the change of scores with the batch size."""
    with picture(CHARTS / "secants.svg", 1, (6.4, 3.0)) as (ax,):
        for color, way in zip(COLORS, dict.fromkeys(row["way"] for row in rows), strict=True):
            own = [row for row in rows if row["way"] == way]
            calls, change = (
                [float(row[key]) for row in own] for key in ("bare calls per direction", "other batch size")
            )
            ax.plot(calls, change, "o", color=color, label=way)
        ax.axhline(1e-3, color=FAINT, linewidth=1)
        ax.set_yscale("log")
        ax.set_xlabel("bare calls per direction, one point per network")
        ax.set_ylabel("change with batch size")
        ax.legend(frameon=False, labelcolor=INK, fontsize=8)


def draw_neighbors(rows: list[Row]) -> None:
    """Bars next to scikit-learn."""
    with picture(CHARTS / "neighbors.svg", 1, (6.4, 2.2)) as (ax,):
        ax.barh(
            [row["dimension"] for row in rows],
            [_value(row["FLARE over scikit-learn"]) for row in rows],
            color=CALM,
        )
        ax.axvline(1.5, color=DOUBT, linewidth=1)
        ax.set_xlabel("time over scikit-learn's (line: target)")
        ax.set_ylabel("dimension")


def draw_growth(rows: list[Row]) -> None:
    """Time against size, relative to the smallest."""
    with picture(CHARTS / "growth.svg", 1, (6.4, 3.2)) as (ax,):
        for color, name in zip(COLORS, dict.fromkeys(row["as this grows"] for row in rows), strict=True):
            own = [row for row in rows if row["as this grows"] == name]
            label = f"{own[0]['what']} by {name}: {own[0]['exponent of time']}"
            _relative(ax, own, "size", "CPU seconds", color, label)
        ax.set_xlabel("size, times the smallest")
        ax.set_ylabel("time, times the shortest")
        ax.legend(frameon=False, labelcolor=INK, fontsize=8)


def draw_knee(rows: list[Row]) -> None:
    """AUROC of the verdict against sizes of the fit."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    with picture(CHARTS / "knee.svg", len(sets), (6.4, 3.0)) as axes:
        for ax, name in zip(axes, sets, strict=True):
            for color, what in zip(COLORS, dict.fromkeys(row["what is varied"] for row in rows), strict=True):
                own = [row for row in rows if row["set"] == name and row["what is varied"] == what]
                aurocs = [float(row["verdict, AUROC"]) for row in own]
                ax.plot([_value(row["size"]) for row in own], aurocs, "o-", color=color, label=what)
            ax.set_xscale("log")
            ax.set_title(name, color=INK)
        axes[0].set_ylabel("AUROC of the verdict")
        axes[0].legend(frameon=False, labelcolor=INK, fontsize=7)


def _relative(ax: Axes, rows: list[Row], x: str, y: str, color: str, label: str) -> None:
    across, up = ([_value(row[key]) for row in rows] for key in (x, y))
    ax.loglog([v / across[0] for v in across], [v / up[0] for v in up], "o-", color=color, label=label)


def _value(cell: str) -> float:
    return float(cell.partition(" ")[0].replace(",", ""))


#: the sections with a chart, and what draws it
DRAWN: dict[str, Callable[[list[Row]], None]] = {
    "costs": draw_costs,
    "secants": draw_ways,
    "neighbors": draw_neighbors,
    "growth": draw_growth,
    "knee": draw_knee,
}


if __name__ == "__main__":
    write()

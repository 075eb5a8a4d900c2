"""docs/performance.md and its charts, written from docs/evidence/performance.md."""

from __future__ import annotations

import re

from matplotlib.axes import Axes

import flare
from experiments.concepts import CALM, DOUBT, FAINT, IMAGES, INK, REAL, picture
from tools.document import DOCS, read_tables, section, table, write_page

from .harness import PAGE

CHARTS = IMAGES / "performance"
COLORS = (CALM, DOUBT, REAL, INK)
#: sections of the evidence, and what the page says of those that it does not have
PARTS = {
    "costs": "what costs what",
    "secants": "ways to differentiate",
    "neighbors": "the search of neighbors",
    "images": "20,000 images of 3 × 64 × 64",
    "growth": "growth",
    "knee": "what the verdict needs",
    "startup": "start-up",
    "processes": "two processes",
    "large": "a network of 860 million parameters",
}
Row = dict[str, str]


def write() -> None:
    """Draw the charts and write the page."""
    evidence = PAGE.read_text(encoding="utf-8")
    tables = {
        name: read_tables(section(evidence, name)) for name in PARTS if f"<!-- {name}:begin -->" in evidence
    }
    CHARTS.mkdir(parents=True, exist_ok=True)
    costs = tables["costs"][0]
    shown = [
        {what: cell.partition(" (")[0] for what, cell in row.items()} | {"what": row["what"]} for row in costs
    ]
    parts = [
        "# What it costs",
        "Multiples of plain sampling in 50 steps, on one thread of a CPU, with version "
        f"{flare.__version__}. `make bench` writes this page and [all measurements]"
        "(evidence/performance.md).",
        table(list(shown[0]), [list(row.values()) for row in shown]),
    ]
    draw_costs(costs)
    first, *_, last = (row["what"] for row in shown if "verdict" in row["what"] or "variances" in row["what"])
    parts.append(
        _chart("costs", f"Cost of {first.partition(',')[0]}, and of {last}, next to plain sampling.")
    )
    if "secants" in tables:
        draw_ways(tables["secants"][0])
        default, single = (
            max(float(row["other batch size"]) for row in tables["secants"][0] if words in row["way"])
            for words in ("default", "one-sided")
        )
        claim = (
            f"Across batch sizes, scores change by {default:.0e}; by float32 differences, by {single:.0e}."
        )
        parts.append(_chart("ways", claim))
    if "neighbors" in tables:
        draw_neighbors(tables["neighbors"][0])
        ratios = [_value(row["FLARE over scikit-learn"]) for row in tables["neighbors"][0]]
        claim = (
            f"The search of neighbors takes {min(ratios)} to {max(ratios)} times scikit-learn's brute search."
        )
        parts.append(_chart("neighbors", claim))
    if "growth" in tables:
        draw_growth(tables["growth"][0])
        slopes = [float(row["exponent of time"]) for row in tables["growth"][0]]
        claim = f"Time grows with exponents of {min(slopes)} to {max(slopes)}; 1 is linear."
        parts.append(_chart("growth", claim))
    if "knee" in tables:
        draw_knee(tables["knee"][0])
        parts.append(_chart("knee", "What a larger fit adds to the verdict."))
    parts.append(list_targets(evidence))
    if missing := [words for name, words in PARTS.items() if name not in tables]:
        parts.append(
            f"Not measured with this version: {', '.join(missing)}. GPUs and half precision: not measured."
        )
    else:
        parts.append("GPUs are not measured.")
    write_page(DOCS / "performance.md", "\n\n".join(parts) + "\n")


def list_targets(evidence: str) -> str:
    """Our targets, in two lines."""
    found = re.findall(
        r"^- (.*): ([\d.]+), target ([\d.]+): (met|\*\*missed\*\*)$", evidence, flags=re.MULTILINE
    )
    lines = ["## Targets", "Found, with the target in brackets."]
    for word, name in (("**missed**", "Missed"), ("met", "Met")):
        own = [f"{what} {value} ({target})" for what, value, target, state in found if state == word]
        lines.append(f"- **{name}**: {'; '.join(own)}.")
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


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
        ax.legend(frameon=False, labelcolor=INK)


def draw_ways(rows: list[Row]) -> None:
    """Cost against the change of scores with the batch size."""
    with picture(CHARTS / "ways.svg", 1, (6.4, 3.0)) as (ax,):
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


def _chart(name: str, claim: str) -> str:
    return f"**{claim}**\n\n![{claim.rstrip('.')}](images/performance/{name}.svg)"


if __name__ == "__main__":
    write()

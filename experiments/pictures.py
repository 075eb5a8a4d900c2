"""The pictures of the README and the documents, all from one run of `flare demo`. `make pictures`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

import flare
from flare.bench import shapes

from . import sheets
from .concepts import STYLE

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
FLARE = Path(sys.executable).with_name("flare")
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
ACROSS, DOWN = 8, 3  # tiles of each half of the sheet
WIDTH, DPI = 600, 100  # pixels


def main() -> None:
    """Record what the demo prints, draw the best and the worst shapes, and photograph the report."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "COLUMNS": "100"}
        done = subprocess.run(
            [FLARE, "demo"], cwd=home, env=environment, capture_output=True, text=True, check=True
        )
        console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        console.print("[bold]$ flare demo[/bold]")
        console.print(Text(done.stdout.strip()))
        console.save_svg(str(IMAGES / "terminal.svg"), title="flare demo")
        made = Path(home) / "flare-demo"
        draw_ends(flare.Result.load(made / "shapes.safetensors"), IMAGES / "shapes.png")
        photograph(made / "report.html", IMAGES / "report.png")


def draw_ends(result: flare.Result, path: Path) -> None:
    """The most and the least plausible samples; what breaks the rule of the shapes has a red frame."""
    bad = shapes.bad(result.samples)
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(2, 1, figsize=(WIDTH / DPI, 5.2))
        for ax, rows, name in zip(
            axes, sheets.ends(result.verdict.z, ACROSS * DOWN), ("most", "least"), strict=True
        ):
            sheets.tile(ax, result.samples[rows], bad[rows], ACROSS, DOWN)
            title = f"the {len(rows)} {name} plausible of {len(result)}: {int(bad[rows].sum())} are bad"
            ax.set_title(title, fontsize=11, loc="left")
        figure.tight_layout(pad=0.5)
        figure.savefig(path, dpi=DPI)
        plt.close(figure)


def photograph(page: Path, path: Path) -> None:
    """The first screen of a report."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        tab = browser.new_page(viewport={"width": 1180, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_timeout(800)
        tab.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main()

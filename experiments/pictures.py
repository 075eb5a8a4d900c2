"""The pictures of the documents: a report in a headless Chromium, and a terminal. `make pictures`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

import flare

from . import realdata, realmodels
from .subjects import WEIGHTING, labelled, model_config

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
FLARE = Path(sys.executable).with_name("flare")
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def main() -> None:
    """Record what the demo prints, and photograph a report."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "COLUMNS": "100"}
        done = subprocess.run(
            [FLARE, "demo", "-n", "1000"],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        console.print("[bold]$ flare demo[/bold]")
        console.print(Text(done.stderr + done.stdout.strip()))
        console.save_svg(str(IMAGES / "terminal.svg"), title="flare demo")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
            path = Path(home) / "report.html"
            images_report(path)
            page = browser.new_page(viewport={"width": 1180, "height": 900})
            page.goto(path.as_uri())
            page.wait_for_timeout(800)
            page.screenshot(path=IMAGES / "report-digits.png")
            browser.close()


def images_report(path: Path) -> None:
    """A report of images: the early model of digits, all classes in turn."""
    config = model_config("digits-early", quick=False)
    real = realdata.load("digits")
    x, cond = realmodels.data(config)
    scorer = flare.fit(
        realmodels.flow(config), x, cond=cond, held_out=real.test,
        held_out_cond={"class_labels": real.test_labels}, weighting=WEIGHTING,
        pairs=1_000, subset=500,
    )  # fmt: skip
    labels = labelled(torch.arange(300) % realmodels.NULL)
    result = scorer.sample(300, steps=25, directions=4, cond=labels)
    scorer.report(path, result, title="Digits, a UNet that was stopped early")


if __name__ == "__main__":
    main()

"""The page on plots: its code runs, and draws the pictures that it shows."""

from __future__ import annotations

import pytest
from matplotlib.image import imread

from experiments import plots
from tools.document import DOCS

PICTURES = [path for _, path in plots.PART.findall(plots.PAGE.read_text(encoding="utf-8")) if path]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prior_precision was tuned", "ignore:do not trust this scorer yet")
def test_the_code_of_the_page_draws_its_pictures(tmp_path):
    plots.draw_page(tmp_path)
    made = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    assert made == sorted(PICTURES)
    for path in PICTURES:
        assert imread(tmp_path / path).shape == imread(DOCS / path).shape


def test_the_pictures_are_small_and_all_shown():
    folder = DOCS / "images" / "plots"
    assert {f"images/plots/{path.name}" for path in folder.iterdir()} == set(PICTURES)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 400_000
    for path in folder.iterdir():
        assert (imread(path)[0, 0] == 1).all()  # white: readable in dark mode

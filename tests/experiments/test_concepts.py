"""The pictures of the page on concepts, and the summary of the study of rules."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from experiments import agreement, concepts
from tools.document import DOCS, read_tables

PAGES = {"fan": "how-it-works.md", "directions": "how-it-works.md", "p-value": "trust.md"}


@pytest.mark.parametrize("draw", [concepts.draw_directions])
def test_a_picture_is_the_same_file_each_time(draw, tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert ElementTree.fromstring(first).tag.endswith("svg")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_every_picture(name):
    text = (concepts.IMAGES / f"concept-{name}.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert len(text) < 150_000
    assert "#ffffff" not in text  # no background: it would glare in dark mode
    assert f"images/concept-{name}.svg" in (DOCS / PAGES[name]).read_text(encoding="utf-8")


def test_the_summary_of_the_rules_is_that_of_its_tables():
    page = (DOCS / "evidence" / "agreement.md").read_text(encoding="utf-8")
    _, rows, own = ([list(row.values()) for row in table] for table in read_tables(page))
    assert agreement.summarize(rows, own) in page


def test_a_model_beyond_first_order_is_not_counted():
    rows = [["a", rule, "1.0 ± 0.1", "0.9 ± 0.1"] for rule in ("tangent", "decoupled", "released")]
    own = [
        ["a", "1", "0.1", "0.2", "First order is not enough at this scale"],
        ["a", "0.01", "1", "1", "First order is enough"],
    ]
    assert "On 0 of 1 models;" in agreement.summarize(rows, own)

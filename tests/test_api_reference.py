"""The API reference has every public name, and the pages around it say what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import flare
from benchmarks import page
from tools import summaries
from tools.document import fill, read_tables, section, table
from tools.public import public_names
from tools.reference import navigation, pages

ROOT = Path(__file__).parent.parent
PAGES = pages()
TEXT = "\n".join(PAGES.values())
ENTRIES = set(re.findall(r"^(?:::: |#+ )(flare[\w.]*)$", TEXT, flags=re.MULTILINE))


def listed(module: ModuleType) -> list[str]:
    """What a module offers, told without the code that makes the reference."""
    if names := getattr(module, "__all__", None):
        return list(names)
    return [
        name
        for name, value in inspect.getmembers(module)
        if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]  # fmt: skip


@pytest.mark.parametrize("name", flare.__all__)
def test_every_public_name_is_in_the_reference(name):
    value = getattr(flare, name)
    assert f"flare.{name}" in ENTRIES
    if isinstance(value, ModuleType):
        assert {f"flare.{name}.{own}" for own in listed(value)} <= ENTRIES


def test_a_new_public_name_gets_an_entry(monkeypatch):
    monkeypatch.setattr(flare, "brand_new", lambda: None, raising=False)
    monkeypatch.setattr(flare, "__all__", [*flare.__all__, "brand_new"])
    assert "::: flare.brand_new\n" in pages()["reference/flare.md"]


def test_a_thing_has_one_public_name():
    described = re.findall(r"^::: (flare[\w.]*)$", TEXT, flags=re.MULTILINE)
    assert len(described) == len(set(described))
    values = [name.value for name in public_names() if callable(name.value)]
    assert len(values) == len(set(map(id, values)))


def test_the_navigation_has_every_page():
    assert {path for entry in navigation() for path in entry.values()} == set(PAGES)


def test_the_page_of_costs_is_that_of_its_evidence():
    text = page.DOCS.joinpath("performance.md").read_text(encoding="utf-8")
    assert text == page.compose(page.PAGE.read_text(encoding="utf-8")), "run `python -m benchmarks.page`"


@pytest.mark.parametrize("path", summaries.SUMMARIES, ids=lambda path: path.name)
def test_the_summaries_are_up_to_date(path):
    text = path.read_text(encoding="utf-8")
    assert text == summaries.fill_page(path, text), "run `python -m tools.summaries`"


def test_a_summary_follows_its_tables():
    page = summaries.RELIABILITY.read_text(encoding="utf-8")
    before = int(re.search(r"([\d,]+) kills", summaries.summarize_reliability(page))[1].replace(",", ""))
    row = re.compile(r"^(\| `bench train` \| \d+ s \| )(\d+)( .*)\| yes \|$", re.MULTILINE)
    changed = row.sub(lambda found: f"{found[1]}{int(found[2]) + 1000}{found[3]}| no |", page)
    summary = summaries.summarize_reliability(changed)
    assert f"{before + 1000} kills" in summary
    assert "**not all equal**" in summary


def test_tables_are_read_by_column():
    text = "before\n| a | b |\n|---|---|\n| 1 | x |\n| 2 | y |\n\n| c |\n| --- |\n| 3 |\n"
    assert read_tables(text) == [[{"a": "1", "b": "x"}, {"a": "2", "b": "y"}], [{"c": "3"}]]


@pytest.mark.parametrize("cell", ["|tr(V)| ≤ 1", "|a|", "a | b", "x' ~ q(x' | x)", "|", "plain"])
def test_a_bar_does_not_end_a_cell(cell):
    text = table(["claim", "verdict"], [[cell, "holds"]])
    assert read_tables(text) == [[{"claim": cell, "verdict": "holds"}]]
    row = text.splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3  # what Markdown takes for borders


def test_a_section_is_what_fill_puts_there():
    page = fill("<!-- x:begin -->\n<!-- x:end -->", "x", "inside")
    assert section(page, "x").strip() == "inside"
    with pytest.raises(ValueError, match="must have the lines"):
        section(page, "y")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_code_fits_into_a_page(page):
    # docs/assets/site.css: 98 columns at 1280 pixels
    for block in re.findall(
        r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        for line in block.splitlines():
            assert len(line) <= 98, line

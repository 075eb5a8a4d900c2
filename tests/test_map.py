"""Documents follow the source: the map of the rooms, the tables of options, and the names on these pages."""

from __future__ import annotations

import ast
import re
from xml.etree import ElementTree

import pytest
import torch

from flare.results.result import Spread
from flare.scores import SCORES
from tools import map as rooms_map
from tools import tables
from tools.rooms import LEVELS, ROOT, files_by_room, reachable, reduce_graph, room_graph

AGAIN = "run `python -m tools.map`"


def test_the_picture_and_the_table_are_up_to_date():
    assert rooms_map.PICTURE.read_text(encoding="utf-8") == rooms_map.draw(), AGAIN
    page = rooms_map.PAGE.read_text(encoding="utf-8")
    assert page == rooms_map.fill_page(page), AGAIN


@pytest.mark.parametrize("page", sorted({page for page, _ in tables.TABLES.values()}), ids=lambda p: p.name)
def test_the_tables_of_options_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert text == tables.fill_page(page, text), "run `python -m tools.tables`"


def test_the_picture_shows_every_room():
    texts = {
        node.text for node in ElementTree.fromstring(rooms_map.draw()).iter() if node.tag.endswith("text")
    }
    assert set(files_by_room()) <= texts
    assert {f"level {level}" for level in range(8)} <= texts


def test_the_drawn_arrows_imply_every_import():
    graph = room_graph()
    reduced = reduce_graph(graph)
    for room, others in graph.items():
        assert reduced[room] <= others <= reachable(reduced, room)
        assert all(LEVELS[other] < LEVELS[room] for other in others)


def test_reduction_drops_what_a_longer_path_implies():
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert reduce_graph(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="must have the lines"):
        rooms_map.fill_page("nothing here")


def names_of(path):
    """The functions, classes, methods and constants that a file defines, methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
            }
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


PAPER = rooms_map.PAGE.with_name("paper.md")
HOPS = sorted(
    {
        hop
        for page in (rooms_map.PAGE, PAPER)
        for hop in re.findall(r"`((?!tests/)\w+/\w+\.py)(?::([\w.]+))?`", page.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize(("file", "name"), HOPS, ids=lambda part: part)
def test_every_file_and_name_on_the_pages_exists(file, name):
    path = PAPER.parent.parent / file if file.startswith("experiments/") else ROOT / file
    assert path.is_file()
    assert not name or name in names_of(path)


def test_every_experiment_on_the_page_of_the_paper_exists():
    from experiments.reproduce import EXPERIMENTS

    named = set(re.findall(r"experiments\.reproduce --only (\w+)", PAPER.read_text(encoding="utf-8")))
    assert named
    assert named <= set(EXPERIMENTS)


def test_the_score_of_the_page_is_a_whole_score(monkeypatch):
    monkeypatch.setattr(SCORES, "_entries", dict(SCORES._entries))
    page = rooms_map.PAGE.read_text(encoding="utf-8").partition("## Adding a score")[2]
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(block, "scores/largest.py", "exec"), {"__package__": "flare.scores", "__name__": "largest"})
    x = torch.zeros(2, 3)
    spread = Spread(x, torch.tensor([[1.0, 5.0, 2.0], [0.5, 0.0, 0.1]]), None, None, {})
    assert SCORES["largest"].of_spread(spread).tolist() == [5.0, 0.5]

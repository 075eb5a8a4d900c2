from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from flare.core.registry import Registry, import_room


@dataclass(frozen=True)
class Fruit:
    name: str
    summary: str = "a fruit"


def test_entries_are_found_by_name_and_listed_in_order():
    fruits = Registry("fruit")
    pear, apple = fruits.register(Fruit("pear")), fruits.register(Fruit("apple"))
    assert list(fruits) == ["apple", "pear"]
    assert fruits.find("pear") is pear
    assert fruits["apple"] is apple
    assert len(fruits) == 2


def test_an_unknown_name_is_refused_with_the_nearest_match():
    fruits = Registry("fruit")
    fruits.register(Fruit("pear"))
    with pytest.raises(ValueError, match=r"unknown fruit 'paer'; did you mean 'pear'\?"):
        fruits.find("paer")


def test_a_name_is_taken_once():
    fruits = Registry("fruit")
    pear = fruits.register(Fruit("pear"))
    assert fruits.register(pear) is pear
    with pytest.raises(ValueError, match="fruit 'pear' is already registered"):
        fruits.register(Fruit("pear", "another"))


def test_a_new_file_of_a_room_is_all_that_an_entry_needs(tmp_path, monkeypatch):
    room = tmp_path / "orchard"
    room.mkdir()
    (room / "base.py").write_text("from flare.core.registry import Registry\nFRUITS = Registry('fruit')\n")
    (room / "__init__.py").write_text(
        "from flare.core.registry import import_room\n"
        "from .base import FRUITS\nimport_room(__name__, __path__)\n"
    )
    (room / "plum.py").write_text(
        "from types import SimpleNamespace as Fruit\nfrom .base import FRUITS\n"
        "FRUITS.register(Fruit(name='plum', summary='blue'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import orchard

    try:
        assert list(orchard.FRUITS) == ["plum"]
        import_room("orchard", orchard.__path__)  # again: nothing changes
        assert list(orchard.FRUITS) == ["plum"]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "orchard"]:
            del sys.modules[name]

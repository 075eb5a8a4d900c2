from __future__ import annotations

from dataclasses import dataclass

import pytest

from flare.core.registry import Registry


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

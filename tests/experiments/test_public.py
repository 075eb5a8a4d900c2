"""The studies call what users call: no file of `experiments` reaches into a private room of the library."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import flare

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.py"))
FACTS = ("__version__", "__file__")


def names_used(path: Path) -> Iterator[str]:
    """The dotted names of the library that a file imports, or reaches through `flare`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("flare."))
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and f"{node.module}.".startswith("flare."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = ast.unparse(node)
            if chain.startswith("flare.") and chain.replace(".", "").isidentifier():
                yield chain


def find_private(name: str) -> str | None:
    """The first part of a dotted name that is not public; None if all of them are."""
    found: object = flare
    for part in name.split(".")[1:]:
        if not isinstance(found, ModuleType):
            return None  # an attribute of a public class
        if part not in public_names(found):
            return f"{found.__name__}.{part}"
        found = getattr(found, part)
    return None


def public_names(module: ModuleType) -> set[str]:
    """What a module exports: its `__all__`, or the names that neither start with _ nor are modules."""
    if hasattr(module, "__all__"):
        return {*module.__all__, *(FACTS if module is flare else ())}
    plain = {name for name in vars(module) if not name.startswith("_")}
    return {name for name in plain if not isinstance(vars(module)[name], ModuleType)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_study_uses_public_names_only(path):
    private = {found for name in names_used(path) if (found := find_private(name))}
    assert not private, f"{path.name} uses {sorted(private)}; use a public name, or write it in the study."


@pytest.mark.parametrize(
    ("name", "private"),
    [
        ("flare.fit", None),
        ("flare.bench.metrics.auroc", None),
        ("flare.Result.load", None),
        ("flare.core.memory", "flare.core"),
        ("flare.bench.shipped.load", "flare.bench.shipped"),
        ("flare.propagation.trajectory", "flare.propagation.trajectory"),
    ],
)
def test_private_names_are_told_from_public_ones(name, private):
    assert find_private(name) == private


def test_every_study_can_be_imported():
    for path in FILES:
        if path.stem not in ("__init__", "pictures"):  # pictures needs a browser
            importlib.import_module(f"experiments.{path.stem}")

"""The library does not grow: what a reader has to hold in the head, as `python -m tools.budget` counts it."""

from __future__ import annotations

import ast
from collections import Counter

from tools import budget
from tools.rooms import FILES, ROOT


def test_the_library_does_not_grow():
    found = budget.measure()
    grown = {name: value for name, value in found.items() if value > budget.TABLE[name][2]}
    assert not grown, "remove or merge an idea, or say in the review why it must grow (tools/budget.py)"


def test_a_module_name_occurs_once():
    names = Counter(path.stem for path in FILES if not path.stem.startswith("__"))
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_a_class_name_occurs_once():
    names = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_only_the_command_line_prints():
    for path in FILES:
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in calls or path.is_relative_to(ROOT / "cli"), path


def test_code_lines_are_counted_without_docstrings_comments_and_blank_lines(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(
        '"""A docstring."""\n\n# a comment\nx = (\n    1,\n)\n\n\n'
        'def f():\n    """Another\n\n    one."""\n    import os  # local\n'
        '    return """text\nof two lines"""\n',
        encoding="utf-8",
    )
    assert budget.count_code_lines(path) == 3 + 1 + 1 + 2
    assert budget.count_local_imports(path) == 1
    assert budget.count_dataclasses(path) == 0


def test_a_walk_lists_functions_by_their_first_call():
    from flare.core.validation import one_of, require_positive_int

    result, walk = budget.record_walk(lambda: (require_positive_int("n", 2), one_of("x", "a", "a")))
    assert result == (2, "a")
    assert [name.partition(":")[0] for _, name in walk] == ["require_positive_int", "one_of"]
    assert budget.count_changes(walk) == 0
    assert budget.count_changes([(str(ROOT / room / "x.py"), "f") for room in ("core", "cli", "core")]) == 2


def test_the_table_names_what_is_measured():
    assert set(budget.TABLE) == set(budget.measure_walks()) | {
        "code lines in src/flare",
        "files",
        "dataclasses",
        "names in flare.__all__",
        "function-local imports in cli",
    }

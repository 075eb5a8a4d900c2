"""The size of the library: `python -m tools.budget` prints what its readers have to hold in their heads.

Code lines are counted without docstrings, comments and blank lines. The walk of a call is the list of
functions of the library that it enters, in the order of their first calls, without lambdas and
comprehensions; a change of room is a step of this list from one room to another.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import time
import tokenize
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import flare
from tools.rooms import FILES, ROOT, room_of

#: what version 0.4.0 had, what version 0.5 aims at, and what must not grow any more
TABLE: dict[str, tuple[float, float, float]] = {
    "code lines in src/flare": (17_019, 12_500, 16_475),
    "files": (209, 140, 144),
    "dataclasses": (138, 70, 51),
    "names in flare.__all__": (47, 30, 30),
    "Scorer.sample: functions": (214, 120, 161),
    "Scorer.sample: changes of room": (90, 45, 64),
    "flare.fit: functions": (281, 170, 316),
    "flare.fit: changes of room": (120, 65, 122),
    "function-local imports in cli": (308, 25, 31),
}
_SKIPPED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
Walk = list[tuple[str, str]]


def count_code_lines(path: Path) -> int:
    """The lines of a file without docstrings, comments and blank lines."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def count_dataclasses(path: Path) -> int:
    """The classes of a file that are decorated as dataclasses."""
    names = [
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
    ]
    return sum(name.split(".")[-1] == "dataclass" for name in names)


def count_local_imports(path: Path) -> int:
    """The imports inside the functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return len(
        {
            node
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
    )


def record_walk(call: Callable[[], Any]) -> tuple[Any, Walk]:
    """Run a call; return its result, and the functions that it enters as (file, name), by first call."""
    seen: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and not code.co_name.startswith("<"):
            # co_qualname is new in Python 3.11; a line number tells functions of one name apart, too
            seen.setdefault((code.co_filename, f"{code.co_name}:{code.co_firstlineno}"))

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, list(seen)


def count_changes(walk: Walk) -> int:
    """The changes of room of a walk."""
    rooms = [room_of(Path(file)) for file, _ in walk]
    return sum(a != b for a, b in pairwise(rooms))


def measure_walks() -> dict[str, int]:
    """Functions and changes of room of `flare.fit` and `Scorer.sample` on the shipped grid model."""
    model = flare.bench.load("grid")
    data = model.data
    flare.fit(model, data, pairs=500, subset=100).sample(10, steps=5)  # imports are not part of the walks
    model = flare.bench.load("grid")
    scorer, fit = record_walk(lambda: flare.fit(model, data, pairs=2000))
    _, sample = record_walk(lambda: scorer.sample(1000))
    return {
        "Scorer.sample: functions": len(sample),
        "Scorer.sample: changes of room": count_changes(sample),
        "flare.fit: functions": len(fit),
        "flare.fit: changes of room": count_changes(fit),
    }


def measure() -> dict[str, int]:
    """All numbers of the table."""
    cli = [path for path in FILES if room_of(path) == "cli"]
    return {
        "code lines in src/flare": sum(map(count_code_lines, FILES)),
        "files": len(FILES),
        "dataclasses": sum(map(count_dataclasses, FILES)),
        "names in flare.__all__": len(flare.__all__),
        **measure_walks(),
        "function-local imports in cli": sum(map(count_local_imports, cli)),
    }


def measure_help(command: str = "sample") -> float:
    """Seconds of `flare COMMAND --help`, the shortest of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "flare", command, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the table."""
    print(f"| {'':32} | 0.4.0 | aim of 0.5 | now |\n|---|---|---|---|")
    for name, value in measure().items():
        before, aim, _ = TABLE[name]
        print(f"| {name:32} | {before:,} | {aim:,} | {value:,} |")
    print(f"| `flare sample --help`, seconds   | 2.8 | 0.4 | {measure_help():.2f} |")


if __name__ == "__main__":
    main()

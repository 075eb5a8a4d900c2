"""The rooms of `src/flare`: their levels, their files, and who imports whom, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import flare

ROOT = Path(flare.__file__).parent
#: a file imports only from rooms of a lower level, or from its own room
LEVELS = {
    "core": 0, "storage": 0,
    "diffusion": 1,
    "network": 2,
    "model": 3, "autodiff": 3, "results": 3,
    "posteriors": 4, "propagation": 4, "scores": 4,
    "sampling": 5, "report": 5,
    "diagnostics": 6, "integrations": 6,
    "scorer": 7,
    "bench": 8,
    "cli": 9,
    "__init__": 10, "__main__": 10,
}  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))
Graph = Mapping[str, set[str]]


def room_of(path: Path) -> str:
    """The room that a file belongs to; a file directly in `src/flare` is a room of its own."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def find_imports(path: Path) -> set[str]:
    """The dotted names that a file imports, inside functions too; relative ones start with "flare."."""
    found = set()
    package = ("flare", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1])
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {f"{base}.{name}" for name in names}
    return found


def imported_rooms(path: Path) -> Iterator[str]:
    """The rooms that a file imports from; public names of `flare` count for the rooms that define them."""
    homes = {**flare._HOMES, **flare._MODULES}
    for name in find_imports(path):
        top, _, rest = name.partition(".")
        if top == "flare" and rest:
            first = rest.split(".")[0]
            yield homes.get(first, first).split(".")[0]


def files_by_room() -> dict[str, list[Path]]:
    """The files of each room, highest level first, without the package's own `__init__` and `__main__`."""
    rooms: dict[str, list[Path]] = {room: [] for room in sorted(LEVELS, key=lambda r: -LEVELS[r])}
    for path in FILES:
        rooms[room_of(path)].append(path)
    return {room: paths for room, paths in rooms.items() if paths and not room.startswith("__")}


def room_graph() -> Graph:
    """The rooms that each room imports from."""
    rooms = files_by_room()
    return {
        room: {other for path in paths for other in imported_rooms(path) if other in rooms} - {room}
        for room, paths in rooms.items()
    }


def reduce_graph(graph: Graph) -> Graph:
    """The transitive reduction of an acyclic graph: without edges that a longer path implies."""
    return {
        node: {b for b in others if not any(b in reachable(graph, c) for c in others - {b})}
        for node, others in graph.items()
    }


def reachable(graph: Graph, node: str) -> set[str]:
    """The nodes that a path of at least one edge leads to."""
    found: set[str] = set()
    left = [node]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def summary_of(room: str) -> str:
    """The first paragraph of a room's docstring, as one line."""
    path = ROOT / room / "__init__.py" if (ROOT / room).is_dir() else ROOT / f"{room}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())

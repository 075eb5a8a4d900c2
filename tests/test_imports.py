"""Data flows one way: a file imports from rooms of a lower level, or from its own room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flare

ROOT = Path(flare.__file__).parent
LEVELS = {
    "core": 0, "storage": 0,
    "diffusion": 1, "results": 1,
    "network": 2, "report": 2,
    "autodiff": 3,
    "posteriors": 4, "propagation": 4, "scores": 4, "zoo": 4,
    "sampling": 5, "evaluation": 5,
    "baselines": 6, "integrations": 6,
    "cli": 7,
    "__init__": 8, "__main__": 8,
}  # fmt: skip
# the files of the library that may import these packages, as prefixes of their paths
FOREIGN = {
    "typer": ("cli/",),
    "rich": ("cli/", "core/progress.py"),
    "tqdm": (),
    "matplotlib": ("cli/", "report/plot.py"),
    "diffusers": ("integrations/",),
    "flare": (),  # relative imports only
}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, wherever in it; relative ones start with "flare."."""
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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_from_lower_levels_or_its_own_room(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    room = place.split("/")[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        if rest and name.startswith("flare."):
            target = rest.split(".")[0]
            if target in LEVELS:
                assert target == room or LEVELS[target] < LEVELS[room], f"{place} must not import {name}"
            else:  # a public name of the package itself
                assert (room, target in {*flare.__all__, "__version__"}) == ("cli", True), f"{place}: {name}"
        elif top in FOREIGN:
            assert place.startswith(FOREIGN[top]), f"{place} must not import {top}"


def test_importing_the_command_line_does_not_import_torch() -> None:
    code = "import flare.cli, sys; assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_flare_does_not_import_diffusers() -> None:
    code = "import flare, sys; flare.from_diffusers, flare.sample; assert 'diffusers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve() -> None:
    for name in flare.__all__:
        assert getattr(flare, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = flare.nonsense

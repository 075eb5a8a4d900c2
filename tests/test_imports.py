"""Data flows one way: a module imports only what stands in its list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flare

ROOT = Path(flare.__file__).parent
LEAVES = {
    "arrays",
    "formats",
    "checks",
    "progress",
    "checkpoint",
    "streams",
    "results",
    "views",
    "limits",
    "forward",
    "conditions",
    "swapping",
    "distributed",
    "locks",
    "shards",
    "losses",
    "batching",
    "defaults",
    "derivatives",
    "recurrent",
}
TABLES = {"schedules", "parameterizations", "samplers"}
# module or package -> the modules and packages of flare that it may import, LEAVES aside
MAY_IMPORT: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "schedules": set(),
    "parameterizations": set(),
    "samplers": {"schedules", "parameterizations"},
    "denoiser": {"parameterizations"},
    "probing": {"denoiser"},
    "subsets": {"denoiser"},
    "jacobians": {"denoiser", "subsets"},
    "secants": {"denoiser", "subsets"},
    "pushing": {"denoiser", "subsets", "secants", "probing"},
    "noising": {"schedules", "parameterizations"},
    "passes": {"denoiser", "noising", "probing"},
    "curvature": {"denoiser", "subsets", "jacobians", "pushing", "noising", "passes"},
    "posteriors": {"schedules", "denoiser", "subsets", "jacobians", "noising", "passes", "curvature"},
    "trajectory": {"samplers", "denoiser"},
    "propagation": TABLES | {"denoiser", "subsets", "jacobians", "pushing", "trajectory"},
    "scores": TABLES | {"denoiser", "subsets", "pushing", "trajectory"},
    "filtering": set(),
    "observing": {"pushing", "trajectory"},
    "sampling": TABLES
    | {"denoiser", "observing", "posteriors", "probing", "propagation", "pushing", "scores", "trajectory"},
    "baselines": TABLES
    | {"denoiser", "subsets", "pushing", "noising", "posteriors", "trajectory", "sampling"},
    "data_comparison": set(),
    "model_check": TABLES | {"data_comparison", "denoiser", "probing", "sampling"},
    "linearization": {"denoiser", "samplers", "posteriors", "sampling", "scores"},
    "training": {"schedules", "noising"},
    "integrations": TABLES | {"denoiser", "noising", "posteriors", "sampling"},
    "evaluation": {"zoo"},
    "zoo": TABLES | {"denoiser", "noising", "training"},
    "report": {"filtering"},
    "plot": {"filtering"},
    "__main__": {"cli"},
}
ALL = set(MAY_IMPORT) - {"__main__"}
MAY_IMPORT |= {"__init__": ALL, "cli": ALL | set(flare.__all__) | {"__version__"}}
# packages whose files import these of their own, and never each other
SHARED = {"posteriors": {"base", "tuning"}, "propagation": {"additive"}, "baselines": {"rollouts"}}
FOREIGN = {
    "typer": {"cli"},
    "rich": {"cli", "progress"},
    "tqdm": set(),
    "matplotlib": {"cli", "plot"},
    "diffusers": {"integrations"},
}


def imports(path: Path) -> set[tuple[int, str]]:
    """(level, dotted name) of everything that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(0, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                found.add((node.level, node.module))
            else:
                found |= {(node.level, alias.name) for alias in node.names}
    return found


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    home = parts[0]
    assert home in MAY_IMPORT, f"{home} is new: give it a place in MAY_IMPORT"
    for level, name in imports(path):
        top = name.split(".")[0]
        if level == 0:
            assert top != "flare", f"{path.name} imports {name} by its full name"
            assert home in FOREIGN.get(top, {home}), f"{home} must not import {top}"
        elif home in SHARED and level == 1 and parts[-1] != "__init__":
            assert top in SHARED[home], f"{home}/{path.name} must not import its neighbour {top}"
        elif level == len(parts):  # relative to the package itself
            assert top in MAY_IMPORT[home] | LEAVES, f"{home} must not import {top}"


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

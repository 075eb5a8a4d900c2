"""Data flows one way: a file imports from rooms of a lower level, or from its own room."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import flare
from tools.rooms import FILES, LEVELS, ROOT, find_imports, room_of

# the files of the library that may import these packages, as prefixes of their paths
FOREIGN = {
    "typer": ("cli/",),
    "rich": ("cli/", "core/progress.py"),
    "tqdm": (),
    "matplotlib": ("results/plot.py", "results/pictures.py", "results/result.py"),
    "diffusers": ("integrations/",),
    "huggingface_hub": ("integrations/hub.py",),
    "flare": (),  # relative imports only
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_from_lower_levels_or_its_own_room(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    room = room_of(path)
    for name in find_imports(path):
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


def test_importing_flare_does_not_import_diffusers_or_matplotlib() -> None:
    code = "import flare, sys; flare.from_diffusers, flare.sample, flare.Result; "
    code += "assert not {'diffusers', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve() -> None:
    for name in flare.__all__:
        assert getattr(flare, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = flare.nonsense


def test_public_modules_are_imported_by_their_public_names() -> None:
    code = """
import flare, pickle
from flare import samplers, schedules
import flare.diffusion.schedules as room
assert schedules is flare.schedules is room
assert pickle.loads(pickle.dumps(samplers.ddim)) is samplers.ddim
assert pickle.loads(pickle.dumps(flare.posteriors.dense)) is flare.posteriors.dense
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flare.nonsense")

"""`make dist`: build the sdist and the wheel, look into them, and try the wheel in an empty environment.

The environment does not see the repository: what the wheel lacks is missing there. The files stay in dist/.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path

from flare import __version__

from .installed import ROOT, install, run, smoke

DIST = ROOT / "dist"
HOME = ROOT / ".venv-dist"
SOURCE = ROOT / "src" / "flare"


def build() -> tuple[Path, Path]:
    """Build both files, from nothing; return their paths."""
    for folder in (DIST, ROOT / "build"):  # or files of an earlier build go into the package
        shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", DIST, ROOT], quiet=True)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def package_files() -> set[str]:
    """The files of the package in the repository, as paths below src."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE.parent).as_posix() for path in files}


def check_wheel(wheel: Path) -> None:
    """Compare the wheel with the source: all files of the package and no others, version, license, extras."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    found = {name for name in names if ".dist-info/" not in name}
    if missing := package_files() - found:
        raise RuntimeError(f"{wheel.name} lacks files of the package: {_list(missing)}.")
    if foreign := found - package_files():
        raise RuntimeError(f"{wheel.name} has files that the package does not: {_list(foreign)}.")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        raise RuntimeError(f"{wheel.name} has no LICENSE.")
    facts = read_metadata(wheel)
    if facts["Version"] != __version__:
        raise RuntimeError(
            f"the version of the wheel is {facts['Version']}, that of the package {__version__}."
        )
    if facts["License-Expression"] != "MIT":
        raise RuntimeError(f"the license of the wheel is {facts['License-Expression']}, expected MIT.")


def read_metadata(wheel: Path) -> Message:
    """The fields that describe a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(metadata).decode())


def check_sdist(sdist: Path) -> None:
    """The source distribution holds the package, its license, and what a reader of it looks for."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "constraints.txt"}
    if missing := (wanted | {f"src/{name}" for name in package_files()}) - names:
        raise RuntimeError(f"{sdist.name} lacks {_list(missing)}.")


def check_extras(wheel: Path) -> None:
    """Every extra resolves together with the tested versions; nothing is installed."""
    extras = read_metadata(wheel).get_all("Provides-Extra", [])
    pip = [HOME / "bin" / "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}[{','.join(extras)}]"], quiet=True)
    print("extras resolve:", ", ".join(extras))


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:10])


def main() -> None:
    """Build, check, install and try."""
    sdist, wheel = build()
    check_sdist(sdist)
    check_wheel(wheel)
    print(f"built {sdist.name} ({_size(sdist)}) and {wheel.name} ({_size(wheel)})", flush=True)
    install(sys.executable, HOME, str(wheel))
    smoke(HOME)
    check_extras(wheel)
    print(f"{wheel.name} works in an empty environment", flush=True)


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


if __name__ == "__main__":
    main()

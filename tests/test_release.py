"""What a release needs: one version, complete package data, files that call the targets of the Makefile."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import flare
from tools.dist import package_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("code", ["import flare", "import flare; [getattr(flare, n) for n in flare.__all__]"])
def test_importing_is_silent(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_version_is_written_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    found = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r'^__version__ = "', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    home = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].removesuffix(".__version__")
    assert found == [ROOT / "src" / home.replace(".", "/") / "__init__.py"]


def test_the_changelog_has_this_version():
    versions = re.findall(
        r"^## (\d+\.\d+\.\d+) \(", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert versions[0] == flare.__version__
    assert versions == sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)


def test_every_file_of_the_package_is_packaged():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["flare"]
    data = [name.removeprefix("flare/") for name in package_files() if not name.endswith(".py")]
    assert data
    for name in data:
        assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_extras_are_bounded_below_and_pinned():
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    for extra in ("docs", "browser", "notebooks", "test"):
        for wanted in PROJECT["project"]["optional-dependencies"][extra]:
            name, bound, _ = re.match(r"([\w-]+)(>=)?(.*)", wanted).groups()
            assert bound == ">=", wanted
            assert name in pinned, wanted


@pytest.mark.parametrize("file", [".github/workflows/ci.yml", ".pre-commit-config.yaml", ".ci/run"])
def test_automation_calls_targets_that_exist(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    called = set(re.findall(r"\bmake ([a-z-]+)$", text, re.MULTILINE))
    if matrix := re.search(r"target: \[(.*)\]", text):
        called |= set(matrix[1].split(", "))
    assert called
    assert called <= TARGETS


def test_the_citation_names_the_authors_of_the_paper():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    bibtex = (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    families = re.findall(r"family-names: (\w+)", citation)
    assert families == ["Gupta", "Meyer", "Yaniv", "Chen", "Erichson"]
    positions = [bibtex.index(f"{family}, ") for family in families]
    assert positions == sorted(positions)
    assert "2602.09170" in citation
    assert "2602.09170" in bibtex


DOCUMENTS = [
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "src").rglob("*.py"),
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_only_the_page_on_installation_names_an_index_and_says_that_it_is_not_there_yet(path):
    text = path.read_text(encoding="utf-8")
    if path.name == "install.md":
        assert "not on the package index yet" in text.partition("pip install 'flare")[0]
    else:
        assert not re.search(r"pip install ['\"]?flare", text)

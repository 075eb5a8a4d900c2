"""The examples of the docstrings run, and every public function has one."""

from __future__ import annotations

import copy
import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import matplotlib as mpl
import pytest
import torch
from local_hub import use_local_hub
from matplotlib import pyplot as plt

import flare
from tools.public import public_names
from tools.reference import FOREIGN, SETUP

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: for those who add parts to FLARE: their tests are the examples
PARTS = ("propagation", "scores")


def find_examples() -> dict[str, doctest.DocTest]:
    """Every docstring of the library with an example, by its name."""
    finder, found = doctest.DocTestFinder(exclude_empty=True), {}
    for info in walk_packages(flare.__path__, "flare."):
        if info.name != "flare.__main__":  # starts the command line
            tests = finder.find(import_module(info.name), info.name)
            found |= {test.name: test for test in tests if test.examples}
    return found


EXAMPLES = find_examples()


@pytest.fixture(scope="module")
def shared() -> dict[str, object]:
    """The names that the reference says examples may use."""
    names: dict[str, object] = {}
    exec(compile(SETUP, "tools/reference.py", "exec"), names)
    return names


@pytest.fixture(scope="module")
def foreign() -> dict[str, object]:
    """The names of the examples with diffusers, as tiny as they can be."""
    from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler
    from integrations import tiny

    made = {
        "pipe": DDPMPipeline(tiny.unet2d(), DDPMScheduler(100)),
        "class_pipe": DDPMPipeline(tiny.unet2d(num_class_embeds=11), DDPMScheduler(100)),
        "text_pipe": tiny.stable(DDIMScheduler(100)),
        "images": torch.rand(20, 1, 8, 8) * 2 - 1,
        "text_images": torch.rand(4, 3, 16, 16) * 2 - 1,
    }
    assert made.keys() == FOREIGN.keys()
    return made


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.filterwarnings("ignore:prior_precision was tuned")
def test_the_example_runs(name, shared, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    use_local_hub(monkeypatch, tmp_path / "hub")
    test = EXAMPLES[name]
    test.globs |= shared | {"net": copy.deepcopy(shared["net"])}  # some examples train it
    if FOREIGN.keys() & set(re.findall(r"\w+", "".join(each.source for each in test.examples))):
        test.globs |= request.getfixturevalue("foreign")
    told: list[str] = []
    with mpl.rc_context({"backend": "agg"}):
        failed, _ = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False).run(
            test, out=told.append, clear_globs=False
        )
    plt.close("all")
    assert not failed, "".join(told)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_fits_into_a_page(name):
    # 98 columns (docs/assets/site.css), of which a prompt takes 4
    assert max(len(line) for each in EXAMPLES[name].examples for line in each.source.splitlines()) <= 94


def test_no_example_is_skipped():
    for path in Path(flare.__file__).parent.rglob("*.py"):
        assert "doctest: +SKIP" not in path.read_text(encoding="utf-8"), path


NAMES = [name for name in public_names() if callable(name.value) and not name.path.endswith("Coefficients")]


@pytest.mark.parametrize("name", [n for n in NAMES if n.depth == 1], ids=lambda name: name.path)
def test_every_function_and_class_of_flare_has_an_example(name):
    assert ">>> " in (inspect.getdoc(name.value) or "")


FUNCTIONS = [
    name
    for name in NAMES
    if name.depth > 1 and name.path.split(".")[1] not in PARTS and inspect.isfunction(name.value)
    and not name.path.rpartition(".")[2].startswith("register_")  # decorators
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS, ids=lambda name: name.path)
def test_every_public_function_has_an_example(name):
    assert ">>> " in (inspect.getdoc(name.value) or "")

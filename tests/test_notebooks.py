"""The notebooks of the documentation: their outputs are those of their code, and the code runs."""

from __future__ import annotations

import re
import sys

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from flare.bench import metrics
from tools.notebooks import HASH, NOTEBOOKS, code_of, errors_of, hash_code, read, tidy, to_markdown

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr|opt)/|[A-Z]:\\\\")


def test_all_four_are_there():
    assert [path.stem for path in PATHS] == ["downstream", "images", "plane", "series"]


@each
def test_the_outputs_are_those_of_the_code(path):
    notebook = read(path)
    assert notebook["metadata"][HASH] == hash_code(notebook), "run `make notebooks`"
    assert not errors_of(notebook)
    assert [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"] == list(
        range(1, len(code_of(notebook)) + 1)
    )


@each
def test_the_file_is_small_and_knows_no_machine(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not MACHINE.search(without_pictures)


@each
def test_the_page_shows_code_and_pictures(path):
    notebook = read(path)
    page, pictures = to_markdown(notebook, path.stem)
    assert page.startswith("# ")
    for code in code_of(notebook):
        assert f"```python\n{code}\n```" in page
    assert pictures
    for name, content in pictures.items():
        assert content.startswith(b"\x89PNG")
        assert f"]({name})" in page


def test_a_changed_cell_changes_the_hash():
    notebook = read(PATHS[0])
    before = hash_code(notebook)
    text, code = (
        next(cell for cell in notebook["cells"] if cell["cell_type"] == kind) for kind in ("markdown", "code")
    )
    text["source"] = ["other words"]
    assert hash_code(notebook) == before
    code["source"] = ["1 + 1"]
    assert hash_code(notebook) != before


def test_outputs_become_blocks_of_text_and_pictures():
    cell = {
        "cell_type": "code",
        "source": ["print(1)"],
        "outputs": [
            {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]},
            {"output_type": "display_data", "data": {"image/png": "iVBORw==\n"}, "metadata": {}},
        ],
    }
    page, pictures = to_markdown({"cells": [{"cell_type": "markdown", "source": ["# A"]}, cell]}, "a")
    assert "```python\nprint(1)\n```\n\n```text\n1\n2\n```\n\n![Output of the code above](a-1.png)" in page
    assert pictures == {"a-1.png": b"\x89PNG"}


def test_printed_text_is_merged_and_other_outputs_are_not():
    picture = {"output_type": "display_data", "data": {"image/png": "a", "text/plain": "b"}, "metadata": {}}
    lines = [{"output_type": "stream", "name": "stdout", "text": text} for text in ("1\n", "2\n")]
    cell = {"cell_type": "code", "source": "", "outputs": [*lines, picture, {**lines[0]}]}
    notebook = {"cells": [cell], "metadata": {}}
    tidy(notebook)
    assert [output.get("text") for output in cell["outputs"]] == ["1\n2\n", None, "1\n"]
    assert cell["outputs"][1]["data"] == {"image/png": "a"}
    assert notebook["metadata"][HASH] == hash_code(notebook)


def finds_bad_samples(names):
    return metrics.auroc(names["result"].verdict.z, names["bad"]) > 0.7


def trusts_some(names):
    return 20 < int(names["result"].trusted(0.05).sum()) < 200


def drops_wrong_labels(names):
    wrong = [[run[name]["wrong label"] for run in names["runs"]] for name in ("half by the verdict", "all")]
    return len(wrong[0]) == 6 and all(after < before for after, before in zip(*wrong, strict=True))


EXPECTED = {
    "downstream": drops_wrong_labels,
    "images": trusts_some,
    "plane": finds_bad_samples,
    "series": finds_bad_samples,
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # tensors in matplotlib
@each
def test_the_code_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: dict[str, object] = {}
    with mpl.rc_context({"backend": "agg"}):
        for number, code in enumerate(code_of(read(path)), 1):
            exec(compile(code, f"{path.name}, code {number}", "exec"), names)
    plt.close("all")
    assert EXPECTED[path.stem](names)

"""The code of the README and of the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from reference import TinyNet

import flare

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["docs/index.md", "docs/own-model.md", "docs/tables.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert blocks(page)
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    if page == "docs/index.md":
        assert names["kept"].shape == (100, 2)
        assert (tmp_path / "report.html").stat().st_size > 10_000
        assert flare.posteriors.load(tmp_path / "posterior.safetensors", names["denoiser"])


def test_the_readme_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = blocks("README.md")
    exec(compile(first, "README.md", "exec"), {})
    assert "torch.Size([500, 10])" in capsys.readouterr().out
    names = {"net": TinyNet((3, 32, 32)), "flare": flare, "tqdm": iter}
    exec(compile(second, "README.md", "exec"), names)
    assert names["samples"].shape == torch.Size([64, 3, 32, 32])

"""The code of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from reference import TinyNet

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_runs(capsys):
    exec(compile(BLOCKS[0], "README.md", "exec"), {})
    assert "torch.Size([500, 10])" in capsys.readouterr().out


def test_the_own_network_example_runs():
    import flare

    names = {"net": TinyNet((3, 32, 32)), "flare": flare, "tqdm": iter}
    exec(compile(BLOCKS[1], "README.md", "exec"), names)
    assert names["samples"].shape == torch.Size([64, 3, 32, 32])

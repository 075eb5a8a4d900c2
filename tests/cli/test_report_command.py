"""`flare report` of a file with a verdict."""

from __future__ import annotations

import numpy as np
import pytest
from judged import fake, judge
from running import flare


@pytest.fixture
def home(tmp_path):
    judge(fake((2,))).save(tmp_path / "judged.safetensors")
    np.save(tmp_path / "train.npy", np.zeros((120, 2), dtype=np.float32))
    return tmp_path


def test_the_page_says_the_verdict(home):
    doubtful = int((judge(fake((2,))).p_value <= 0.2).sum())
    more = ("--p-value", "0.2", "--data", "train.npy", "--title", "Mine")
    flare("report", "judged.safetensors", *more, cwd=home)
    page = (home / "report.html").read_text(encoding="utf-8")
    assert f"{doubtful} of 60 samples look less plausible than 80% of real data. About 12 of 60" in page
    assert "Mine" in page
    assert '"real_of":[' in page


def test_mistakes_are_explained(home):
    np.save(home / "few.npy", np.zeros((3, 2), dtype=np.float32))
    for arguments, message in [
        (["--p-value", "5"], "--p-value must lie in (0, 1), got 5"),
        (["--data", "few.npy"], "names training sample 118, which data does not have: it has 3 samples"),
    ]:
        done = flare("report", "judged.safetensors", *arguments, cwd=home, code=None)
        assert done.returncode != 0
        assert message in " ".join(done.stderr.split())
    assert not (home / "report.html").exists()

"""Results in parts: what is lost of one part, and of all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from flare import Result
from flare.cli.parts import run_in_parts
from flare.core.nonfinite import AllLostError, LostSamples


@dataclass
class Job:
    """Scores of n samples in parts of 4; the parts that begin in `bad` lose all of their samples."""

    file: Path
    n: int
    bad: Collection[int]
    part_size: int = 4
    title: str = ""
    items_per_part: int = 1

    def identity(self):
        return {}

    def make(self, first, count, progress):
        lost = LostSamples(count)
        lost.add(torch.full((count,), first in self.bad), first, "the end")
        return self._part(first, torch.ones(count))

    def make_lost(self, first, count):
        return self._part(first, torch.full((count,), torch.nan))

    def write(self, whole):
        return {"whole": whole}

    def _part(self, first, scores):
        samples = torch.arange(2.0 * self.n).view(self.n, 2)[first : first + len(scores)]
        return Result(samples, scores={"s": scores}, about={"seed": 1})


def run(tmp_path, n, bad):
    return run_in_parts(Job(tmp_path / "x.safetensors", n, bad), quiet=True)["whole"]


@pytest.mark.parametrize("first", [0, 4])
def test_a_lost_part_costs_only_itself_and_is_told(tmp_path, first):
    with pytest.warns(RuntimeWarning, match="the end has NaN or infinity in 4 of 4 samples"):
        whole = run(tmp_path, 10, bad=[first])
    gone = list(range(first, first + 4))
    assert whole.score.isnan().nonzero().flatten().tolist() == gone
    assert whole.about == {"seed": 1, "lost": {"the end": gone}}


@pytest.mark.filterwarnings("ignore:the end has NaN")
@pytest.mark.parametrize(("n", "error"), [(10, ValueError), (4, AllLostError)])
def test_if_all_are_lost_nothing_is_written(tmp_path, n, error):
    with pytest.raises(error, match=f"NaN or infinity in {n} of|all {n} samples have NaN"):
        run(tmp_path, n, bad=range(0, n, 4))
    assert not (tmp_path / "x.safetensors").exists()

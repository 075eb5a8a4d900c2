"""Results in parts: what is lost of one part, and of all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from flare import Result
from flare.cli.writing import make_in_parts
from flare.core.nonfinite import AllLostError, LostSamples

SOURCE = SimpleNamespace(shape=(2,), denoiser=SimpleNamespace(dtype=torch.float32))


def run(tmp_path, n, bad):
    """Scores of n samples in parts of 4; the parts that begin in `bad` lose all of their samples."""

    def make(first, count, progress):
        lost = LostSamples(count)
        lost.add(torch.full((count,), first in bad), first, "the end")
        return Result(torch.rand(count, 2), scores={"s": torch.ones(count)}, about={"seed": 1})

    file = tmp_path / "x.safetensors"
    with make_in_parts(file, n, 4, make, SOURCE, {}, title="", quiet=True) as whole:
        return whole


@pytest.mark.parametrize("first", [0, 4])
def test_a_lost_part_costs_only_itself_and_is_told(tmp_path, first):
    with pytest.warns(RuntimeWarning, match="the end has NaN or infinity in 4 of 4 samples"):
        whole = run(tmp_path, 10, bad=[first])
    gone = list(range(first, first + 4))
    assert whole.score.isnan().nonzero().flatten().tolist() == gone
    assert whole.lost.nonzero().flatten().tolist() == gone
    assert whole.about == {"seed": 1, "lost": {"the end": gone}}


@pytest.mark.filterwarnings("ignore:the end has NaN")
@pytest.mark.parametrize(("n", "error"), [(10, ValueError), (4, AllLostError)])
def test_if_all_are_lost_nothing_is_written(tmp_path, n, error):
    with pytest.raises(error, match=f"NaN or infinity in {n} of|all {n} samples have NaN"):
        run(tmp_path, n, bad=range(0, n, 4))
    assert not (tmp_path / "x.safetensors").exists()

"""Results in parts: what is lost of one part, and of all."""

from __future__ import annotations

import pytest
import torch

from flare import Result
from flare.cli.parts import run_in_parts
from flare.core.nonfinite import AllLostError, LostSamples


def made(tmp_path, n, bad):
    """The scores of n samples in parts of 4, where all of the parts that begin in `bad` are lost."""
    existing, written = torch.arange(2.0 * n).view(n, 2), []

    def make(first, count, progress):
        losses = LostSamples(count)
        losses.add(torch.full((count,), first in bad), first, "the end")
        return Result(existing[first : first + count], scores={"s": torch.ones(count)}, about={"seed": 1})

    def nothing(first, count):
        scores = {"s": torch.full((count,), torch.nan)}
        return Result(existing[first : first + count], scores=scores, about={"seed": 1})

    run_in_parts(tmp_path / "x.safetensors", {}, n, 4, make, nothing, written.append, "", 1, True)
    return written[0]


@pytest.mark.parametrize("first", [0, 4])
def test_a_lost_part_costs_only_itself_and_is_told(tmp_path, first):
    with pytest.warns(RuntimeWarning, match="the end has NaN or infinity in 4 of 4 samples"):
        whole = made(tmp_path, 10, bad=[first])
    gone = list(range(first, first + 4))
    assert whole.score.isnan().nonzero().flatten().tolist() == gone
    assert whole.about == {"seed": 1, "lost": {"the end": gone}}


@pytest.mark.filterwarnings("ignore:the end has NaN")
@pytest.mark.parametrize(("n", "error"), [(10, ValueError), (4, AllLostError)])
def test_if_all_are_lost_nothing_is_written(tmp_path, n, error):
    with pytest.raises(error, match=f"NaN or infinity in {n} of|all {n} samples have NaN"):
        made(tmp_path, n, bad=range(0, n, 4))
    assert not (tmp_path / "x.safetensors").exists()

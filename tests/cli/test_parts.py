"""Results in parts: what is lost of one part, and of all."""

from __future__ import annotations

import pytest
import torch

from flare import Result
from flare.cli.parts import in_parts
from flare.losses import AllLostError, Losses


def made(tmp_path, n, bad):
    """The scores of n samples in parts of 4, where all of the parts that begin in `bad` are lost."""
    existing, written = torch.arange(2.0 * n).view(n, 2), []

    def make(first, count, progress):
        losses = Losses(count)
        losses.add(torch.full((count,), first in bad), first, "the end")
        return Result(existing[first : first + count], scores={"s": torch.ones(count)})

    def nothing(first, count):
        return Result(existing[first : first + count], scores={"s": torch.full((count,), torch.nan)})

    in_parts(tmp_path / "x.safetensors", {}, n, 4, make, nothing, written.append, "", 1, True)
    return written[0]


def test_a_lost_part_costs_only_itself(tmp_path):
    whole = made(tmp_path, 10, bad=[4])
    assert whole.score.isnan().nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert whole.about["lost"] == {"the end": [4, 5, 6, 7]}


@pytest.mark.parametrize(("n", "error"), [(10, ValueError), (4, AllLostError)])
def test_if_all_are_lost_nothing_is_written(tmp_path, n, error):
    with pytest.raises(error, match=f"NaN or infinity in {n} of|all {n} samples have NaN"):
        made(tmp_path, n, bad=range(0, n, 4))
    assert not (tmp_path / "x.safetensors").exists()

from __future__ import annotations

import pytest
import torch

import flare
from flare import checkpoint
from flare.results import joined


def result(n=5):
    return flare.Result(
        samples=torch.randn(n, 3),
        variance=torch.rand(n, 3),
        scores={"off_manifold": torch.rand(n), "trace": torch.rand(n)},
        covariance=torch.rand(n, 3, 3),
        profile=torch.rand(n, 7),
        about={"seed": 1},
    )


def equal(a, b):
    for name in ("samples", "variance", "covariance", "profile"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    assert list(a.scores) == list(b.scores)
    assert all(torch.equal(a.scores[k], b.scores[k]) for k in a.scores)


def test_a_saved_result_comes_back(tmp_path):
    one = result()
    one.save(tmp_path / "r.safetensors", rule="tangent")
    again = flare.Result.load(tmp_path / "r.safetensors")
    equal(one, again)
    assert again.about == {"seed": 1, "rule": "tangent"}
    assert torch.equal(again.score, one.scores["off_manifold"])
    plain = flare.Result(torch.randn(2, 3))
    plain.save(tmp_path / "p.safetensors")
    assert flare.Result.load(tmp_path / "p.safetensors").variance is None


def test_select_takes_everything_along():
    one = result()
    mask = torch.tensor([True, False, True, True, False])
    some = one.select(mask)
    assert len(some) == 3
    assert torch.equal(some.scores["trace"], one.scores["trace"][mask])
    assert torch.equal(some.covariance, one.covariance[mask])
    with pytest.raises(ValueError, match=r"shape \(5,\), got \(4,\)"):
        one.select(mask[:4])


def test_bad_files_are_named(tmp_path):
    checkpoint.save(tmp_path / "x.safetensors", {"samples": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match="not a file of samples of format 1"):
        flare.Result.load(tmp_path / "x.safetensors")
    result().save(tmp_path / "r.safetensors")
    tensors, header = checkpoint.load(tmp_path / "r.safetensors")
    del tensors["score.trace"]
    checkpoint.save(tmp_path / "h.safetensors", tensors, header)
    with pytest.raises(ValueError, match="it has no score trace"):
        flare.Result.load(tmp_path / "h.safetensors")


def test_a_part_that_is_all_lost_takes_the_form_of_the_others():
    lost = flare.Result(torch.full((2, 3), torch.nan), about={"lost": {"step 1": [0, 1]}})
    whole = joined([lost, result()])
    assert whole.lost.tolist() == [True] * 2 + [False] * 5
    assert whole.covariance.shape == (7, 3, 3)
    assert all(score[:2].isnan().all() and score[2:].isfinite().all() for score in whole.scores.values())
    assert whole.about == {"seed": 1, "lost": {"step 1": [0, 1]}}

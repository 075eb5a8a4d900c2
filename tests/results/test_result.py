from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import flare
from flare.results.result import join
from flare.results.result_files import load_table
from flare.storage import checkpoint


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


def test_select_selects_rows_of_every_tensor():
    one = result()
    mask = torch.tensor([True, False, True, True, False])
    some = one.select(mask)
    assert len(some) == 3
    assert torch.equal(some.scores["trace"], one.scores["trace"][mask])
    assert torch.equal(some.covariance, one.covariance[mask])
    with pytest.raises(IndexError, match="boolean axis is 4"):
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


def test_a_part_without_usable_samples_gets_the_tensors_of_the_others():
    lost = flare.Result(torch.full((2, 3), torch.nan), about={"lost": {"step 1": [0, 1]}})
    whole = join([lost, result()])
    assert whole.lost.tolist() == [True] * 2 + [False] * 5
    assert whole.covariance.shape == (7, 3, 3)
    assert all(score[:2].isnan().all() and score[2:].isfinite().all() for score in whole.scores.values())
    assert whole.about == {"seed": 1, "lost": {"step 1": [0, 1]}}


def test_npz_holds_everything_and_needs_no_pickle(tmp_path):
    one = result()
    one.save(tmp_path / "r.npz", rule="tangent")
    again = flare.Result.load(tmp_path / "r.npz")
    assert again == one
    assert again.about == {"seed": 1, "rule": "tangent"}
    with np.load(tmp_path / "r.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["score_trace"], one.scores["trace"])
        assert json.loads(archive["metadata"].item())["scores"] == ["off_manifold", "trace"]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 1)])
def test_csv_holds_samples_and_scores(tmp_path, shape):
    one = flare.Result(torch.randn(5, *shape), scores={"b": torch.rand(5), "a": torch.rand(5)})
    one.samples[2], one.scores["b"][2] = torch.nan, torch.nan
    with pytest.warns(UserWarning, match=r"r\.csv: csv holds samples, scores and verdicts"):
        one.save(tmp_path / "r.csv")
    _, samples, scores = load_table(tmp_path / "r.csv")
    np.testing.assert_array_equal(samples.astype(np.float32), one.samples)
    np.testing.assert_array_equal(scores["b"].astype(np.float32), one.scores["b"])
    names, first, *rest = (tmp_path / "r.csv").read_text().splitlines()
    assert names.split(",")[-2:] == ["score_b", "score_a"]
    assert len(rest) == 4, "other tools read it as a plain table"
    np.testing.assert_allclose([float(c) for c in first.split(",")][:-2], one.samples[0].flatten())
    with pytest.raises(ValueError, match=r"r\.csv cannot be read as a result: .*\.safetensors or \.npz"):
        flare.Result.load(tmp_path / "r.csv")


def test_dtypes_are_kept_as_far_as_the_format_can(tmp_path):
    for dtype, kept in [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)]:
        one = flare.Result(torch.randn(4, 3).to(dtype), scores={"a": torch.rand(4).to(dtype)})
        one.save(tmp_path / "r.npz")
        again = flare.Result.load(tmp_path / "r.npz")
        assert again.samples.dtype == again.score.dtype == kept
        assert torch.equal(again.samples, one.samples.to(kept))


def test_files_of_other_programs_are_read_by_their_names(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3))
    np.savez(tmp_path / "a.npz", samples=x.astype(">f8"), score_mine=x[:, 0], other=np.array(["a"]))
    assert list(flare.Result.load(tmp_path / "a.npz").scores) == ["mine"]


@pytest.mark.parametrize("name", ["r.txt", "r.npy", "r", "r.NPZ"])
def test_an_unknown_suffix_is_refused(tmp_path, name):
    for call in (result().save, flare.Result.load):
        with pytest.raises(ValueError, match=r"must end in \.safetensors, \.npz or \.csv"):
            call(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": np.array("{")}, "metadata must be JSON"),
        ({"metadata": np.array("[]")}, "metadata must be JSON"),
        ({"metadata": np.array("[" * 100_000)}, "metadata must be JSON"),
        ({"metadata": np.zeros(3)}, "metadata must be JSON"),
        ({"metadata": np.array('{"format": 9}')}, "not a file of samples of format 1"),
        ({"samples": np.array(["a"])}, "must hold numbers in samples"),
        ({"samples": np.zeros((5, 3), dtype=object)}, "r.npz cannot be read as npz"),
        ({"score_trace": np.zeros(4)}, "score 'trace' as"),
        ({"samples": np.zeros((5, 3), dtype=np.int64)}, "samples as torch.int64"),
        ({"score_trace": None}, "it has no score trace"),
    ],
    ids=range(10),
)
def test_archives_that_are_not_results(tmp_path, change, message):
    path = tmp_path / "r.npz"
    result().save(path)
    with np.load(path) as archive:
        arrays = {**archive, **change}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=message):
        flare.Result.load(path)


def test_files_that_are_missing_empty_or_not_what_their_suffix_says(tmp_path):
    for name in ("r.safetensors", "r.npz", "r.csv"):
        with pytest.raises(
            FileNotFoundError, match=rf"no file at .*{name}; expected samples, as .*Result\.save"
        ):
            flare.Result.load(tmp_path / name)
        (tmp_path / name).write_bytes(b"\xff\x00")
        with pytest.raises(ValueError, match=name):
            flare.Result.load(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "e.npz", "w"):
        pass
    with pytest.raises(ValueError, match="not a file of samples"):
        flare.Result.load(tmp_path / "e.npz")


def test_the_repr_fits_on_one_screen():
    one = flare.Result(
        torch.randn(1000, 3, 32, 32), torch.rand(1000, 3, 32, 32), {"trace": torch.arange(1000.0)},
        about={"rule": "tangent", "seed": 7, "lost": {"step 3": list(range(900))}, "note": "long " * 1000},
    )  # fmt: skip
    one.samples[5], one.scores["trace"][5] = torch.nan, torch.nan
    text = repr(one)
    assert len(text) < 1000
    assert "1000 samples of shape (3, 32, 32), float32 on cpu" in text
    assert "score trace: 10% 101, median 500, 90% 899" in text
    assert "lost: 1 of 1000" in text
    assert "rule=tangent, seed=7" in text
    assert "variance" in text
    assert "0 samples" in repr(one[:0])
    assert "all NaN" in repr(one[5])


@pytest.mark.parametrize(
    ("which", "rows"),
    [
        (3, [3]), (-1, [4]), (np.int64(2), [2]), (torch.tensor(2), [2]),
        (slice(None, 2), [0, 1]), (slice(None, None, -2), [4, 2, 0]),
        ([1, 4], [1, 4]), ([-1, 0, 0], [4, 0, 0]), (np.array([4, 1])[::-1], [1, 4]), (torch.tensor([2]), [2]),
        ([True, False, True, False, False], [0, 2]), (np.arange(5) > 2, [3, 4]), (torch.arange(5) < 1, [0]),
        ([], []), (range(2), [0, 1]),
    ],
    ids=str,
)  # fmt: skip
def test_samples_are_selected_by_masks_indices_and_slices(which, rows):
    one = result()
    for some in (one[which], one.select(which)):
        assert isinstance(some, flare.Result)
        assert len(some) == len(rows)
        assert torch.equal(some.samples, one.samples[rows])
        assert torch.equal(some.scores["trace"], one.scores["trace"][rows])
        assert torch.equal(some.profile, one.profile[rows])


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (5, "index 5 is out of bounds .* size 5"),
        ([0, -6], "index -6 is out of bounds"),
        ([0.5], r"integer indices \(k,\).* must be of integer"),
        ([[0, 1]], r"shape \(k,\), got \(1, 2\)"),
        ([True, False], r"mask \(5,\).* size of axis is 5 but size of corresponding boolean axis is 2"),
        ("trace", "select samples by a bool mask"),
        (None, "select samples by a bool mask"),
        ([[0], [1, 2]], "select samples by a bool mask"),
    ],
    ids=str,
)
def test_invalid_selections_raise(which, message):
    with pytest.raises(IndexError, match=message):
        result()[which]


def test_results_are_equal_if_their_numbers_are():
    one = result()
    one.scores["trace"][1], one.samples[1] = torch.nan, torch.nan
    twin = replace(one, samples=one.samples.clone(), about={"seed": 2})
    assert (one == twin) is True
    for other in (
        one[:4],
        replace(one, variance=None),
        replace(one, samples=one.samples.double()),
        replace(one, profile=one.profile + 1),
        replace(one, scores=dict(reversed(one.scores.items()))),
    ):
        assert (one == other) is False
    assert one != "a result"


def test_to_numpy_has_every_tensor():
    one = result()
    arrays = one.to_numpy()
    assert set(arrays) == {
        "samples", "variance", "covariance", "profile", "score_off_manifold", "score_trace",
    }  # fmt: skip
    np.testing.assert_array_equal(arrays["score_trace"], one.scores["trace"])
    half = flare.Result(torch.randn(2, 3).bfloat16()).to_numpy()
    assert half["samples"].dtype == np.float32


def test_to_pandas_has_a_row_per_sample(monkeypatch):
    small, large = result(), flare.Result(torch.randn(4, 11, 11), scores={"a": torch.rand(4)})
    fake = SimpleNamespace(DataFrame=lambda columns, index: (columns, len(index)), RangeIndex=range)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    columns, rows = small.to_pandas()
    assert rows == 5
    assert list(columns) == ["x0", "x1", "x2", "score_off_manifold", "score_trace"]
    np.testing.assert_array_equal(columns["x1"], small.samples[:, 1])
    assert list(large.to_pandas()[0]) == ["score_a"]
    assert list(large.to_pandas(coordinates=True)[0])[:2] == ["x_0_0", "x_0_1"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_pandas needs pandas: pip install pandas"):
        small.to_pandas()


def test_a_mask_of_bytes_is_refused():
    result = flare.Result(torch.zeros(4, 2))
    with pytest.raises(IndexError, match=r"a mask must be of bool.*call \.bool\(\) on it"):
        result.select(torch.tensor([0, 1, 0, 1], dtype=torch.uint8))

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from running import call_here

from flare import Result
from flare.cli.flags import READABLE
from flare.cli.samples_in import read_array, read_data
from flare.scorer.tables import match_columns
from flare.storage import checkpoint

ARRAY = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_every_format_is_read(tmp_path):
    np.save(tmp_path / "a.npy", ARRAY.astype(np.float64))
    np.savez(tmp_path / "a.npz", samples=ARRAY, other=np.zeros(9))
    checkpoint.save(tmp_path / "a.safetensors", {"x": torch.from_numpy(ARRAY)})
    np.savetxt(tmp_path / "a.csv", ARRAY, delimiter=",")
    for suffix in (".npy", ".npz", ".safetensors", ".csv"):
        read = read_array(tmp_path / f"a{suffix}")
        assert read.dtype == torch.float32
        np.testing.assert_array_equal(read, ARRAY)
    (tmp_path / "named.csv").write_text("a,b,score_trace\n1,2,9\n3,4,9\n")
    assert read_array(tmp_path / "named.csv").tolist() == [[1, 2], [3, 4]]


def test_text_of_a_file_is_shown_without_markup_and_control_characters(tmp_path, monkeypatch, capsys):
    Result(torch.zeros(2, 3)).save(tmp_path / "a.npz", note="[/x] \x1b[31mred\x9b0m")
    code, out, _ = call_here(monkeypatch, capsys, "info", tmp_path / "a.npz")
    assert code == 0
    assert r"[/x] \x1b[31mred\x9b0m" in out


def test_parquet_is_read_or_the_way_out_is_named(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    pq.write_table(pyarrow.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}), tmp_path / "a.parquet")
    assert read_array(tmp_path / "a.parquet").tolist() == [[1, 3], [2, 4]]
    assert read_data(tmp_path / "a.parquet").names == ["a", "b"]
    pq.write_table(pyarrow.table({"a": [1.0, 2.0], "__index_level_0__": [3, 9]}), tmp_path / "i.parquet")
    assert read_data(tmp_path / "i.parquet").names == ["a"]  # of filtered rows, pandas writes the index


def test_columns_of_one_name_keep_their_order():
    with pytest.warns(UserWarning, match=r"t has the columns.*\(b, a, c, a, not a, a, b, c\).*reordered"):
        assert match_columns("t", ["b", "a", "c", "a"], ["a", "a", "b", "c"]) == [1, 3, 0, 2]
    with pytest.raises(ValueError, match=r"t must have the columns of the training.*: b missing, a unknown"):
        match_columns("t", ["a", "a"], ["a", "b"])


@pytest.mark.filterwarnings("ignore:.*csv holds samples")
def test_what_is_written_is_read_back(tmp_path):
    result = Result(torch.randn(5, 2, 3), scores={"trace": torch.rand(5)})
    for suffix in (".safetensors", ".npz", ".csv"):
        result.save(tmp_path / f"r{suffix}")
        torch.testing.assert_close(read_array(tmp_path / f"r{suffix}"), result.samples)
    with pytest.raises(ValueError, match=r"must end in \.safetensors, \.npz or \.csv"):
        result.save(tmp_path / "r.txt")


@pytest.mark.parametrize("name", ["", "index", "Unnamed: 0", '""'])
def test_a_column_that_numbers_the_rows_is_left_out_and_told(tmp_path, name):
    path = tmp_path / "a.csv"
    path.write_text(f"{name},x0,x1\n0,1.5,2\n1,3.5,4\n")
    with pytest.warns(UserWarning, match=r"numbers the rows, 0 to 1.*df\.to_csv\(path, index=False\)"):
        assert read_array(path).tolist() == [[1.5, 2], [3.5, 4]]


def test_a_first_column_that_may_be_data_is_kept_or_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",x0\n3,1.5\n7,3.5\n")  # as pandas writes what is left of a table
    with pytest.raises(ValueError, match=r"looks like an index of rows; .*index=False"):
        read_array(path)
    path.write_text("index,x0\n3,1.5\n7,3.5\n")
    assert read_array(path).tolist() == [[3, 1.5], [7, 3.5]]


def test_columns_that_are_numbered_are_no_row_of_data(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1,2\n1.5,2,3\n")  # pandas, without names
    with pytest.warns(UserWarning, match="the first row, 0 to 2, is read as names"):
        assert read_array(path).tolist() == [[1.5, 2, 3]]
    path.write_text("a,b,c\n1.5,2\n")
    with pytest.raises(ValueError, match="names 3 columns, but its rows have 2"):
        read_array(path)


@settings(max_examples=150)
@given(data=st.binary(max_size=200), suffix=st.sampled_from([s for s in READABLE if s != ".parquet"]))
@pytest.mark.filterwarnings("ignore:.*is read as names", "ignore:.*numbers the rows")
def test_any_bytes_give_an_array_or_a_clear_error(tmp_path_factory, data, suffix):
    path = tmp_path_factory.mktemp("fuzz") / f"x{suffix}"
    path.write_bytes(data)
    try:
        message = f"{path}: {read_array(path).isfinite().all()}"
    except (ValueError, TypeError) as error:
        message = str(error)
    assert str(path) in message
    assert "False" not in message

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from flare.storage import checkpoint


def test_tensors_and_metadata_come_back(tmp_path):
    path = tmp_path / "deep" / "file.safetensors"
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.randn(4, 4).T.double()}
    checkpoint.save(path, tensors, {"format": 1, "name": "ü"})
    loaded, metadata = checkpoint.load(path)
    assert all(torch.equal(loaded[k], v) and loaded[k].dtype == v.dtype for k, v in tensors.items())
    assert metadata == {"format": 1, "name": "ü"}


def test_tensors_that_share_memory_are_written_separately(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    tensors = {"tied": whole, "again": whole, "row": whole[1], "column": whole[:, 1], "part": whole[1:]}
    checkpoint.save(tmp_path / "file.safetensors", tensors)
    loaded, _ = checkpoint.load(tmp_path / "file.safetensors")
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())


def test_a_directory_is_not_replaced_by_a_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a directory: give the path of a file in it"):
        checkpoint.save_json(tmp_path, {})
    assert not list(tmp_path.parent.glob(".*"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.json"
    checkpoint.save_json(path, {"good": 1})
    with pytest.raises(TypeError):
        checkpoint.save_json(path, {"bad": object()})

    def fail():
        with checkpoint.atomic(path) as partial:
            partial.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert checkpoint.load_json(path) == {"good": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(True), "none": torch.zeros(0)}


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path_factory, place, bit):
    path = tmp_path_factory.mktemp("flip") / "file.safetensors"
    checkpoint.save(path, TENSORS, {"format": 1, "about": {"seed": 3}})
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        tensors, metadata = checkpoint.load(path)
    except ValueError:
        return
    # for instance a blank that pads the header
    assert metadata == {"format": 1, "about": {"seed": 3}}
    assert all(torch.equal(tensors[k], v) and tensors[k].dtype == v.dtype for k, v in TENSORS.items())


def test_files_without_a_checksum_are_read_and_equal_content_has_equal_checksums(tmp_path):
    save_file(TENSORS, tmp_path / "theirs.safetensors", metadata={"format": "1"})
    assert checkpoint.load(tmp_path / "theirs.safetensors")[1] == {"format": 1}
    assert checkpoint.metadata(tmp_path / "theirs.safetensors") == {"format": 1}
    for name, tensors in (("one", TENSORS), ("same", TENSORS), ("other", {"a": torch.zeros(1)})):
        checkpoint.save(tmp_path / f"{name}.safetensors", tensors)
    one, same, other = (checkpoint.metadata(tmp_path / f"{n}.safetensors") for n in ("one", "same", "other"))
    assert one == same != other
    assert set(one) == {"checksum"}


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_truncated_file_is_named(tmp_path, cut):
    path = tmp_path / "file.safetensors"
    checkpoint.save(path, {"a": torch.randn(100)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        checkpoint.load(path)


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file at .*; expected a \.safetensors file"):
        checkpoint.load(tmp_path / "none.safetensors")
    torch.save({"a": 1}, tmp_path / "pickle.pt")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        checkpoint.load(tmp_path / "pickle.pt")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not a JSON file"):
        checkpoint.load_json(tmp_path / "bad.json")


def test_tensors_that_do_not_fit_are_listed_and_nothing_is_loaded():
    net = nn.Linear(3, 2)
    before = net.weight.detach().clone()
    bad = {"weight": torch.zeros(2, 4), "scale": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"missing: bias; not in the network: scale; weight: .*\(2, 3\)"):
        checkpoint.load_into(net, bad)
    assert torch.equal(net.weight, before)

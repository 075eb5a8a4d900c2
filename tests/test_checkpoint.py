from __future__ import annotations

import pytest
import torch
from torch import nn

from flare import checkpoint


def test_tensors_and_metadata_come_back(tmp_path):
    path = tmp_path / "deep" / "file.safetensors"
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.randn(4, 4).T.double()}
    checkpoint.save(path, tensors, {"format": 1, "name": "ü"})
    loaded, metadata = checkpoint.load(path)
    assert all(torch.equal(loaded[k], v) and loaded[k].dtype == v.dtype for k, v in tensors.items())
    assert metadata == {"format": 1, "name": "ü"}


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


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_truncated_file_is_named(tmp_path, cut):
    path = tmp_path / "file.safetensors"
    checkpoint.save(path, {"a": torch.randn(100)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        checkpoint.load(path)


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        checkpoint.load(tmp_path / "none.safetensors")
    torch.save({"a": 1}, tmp_path / "pickle.pt")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        checkpoint.load(tmp_path / "pickle.pt")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not a JSON file"):
        checkpoint.load_json(tmp_path / "bad.json")


def test_what_does_not_fit_is_listed_and_nothing_is_loaded():
    net = nn.Linear(3, 2)
    before = net.weight.detach().clone()
    bad = {"weight": torch.zeros(2, 4), "scale": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"missing: bias; not in the network: scale; weight: .*\(2, 3\)"):
        checkpoint.load_into(net, bad)
    assert torch.equal(net.weight, before)

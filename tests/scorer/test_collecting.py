"""Data in the forms that users have: dicts, images, folders, memory-mapped files, and more than fits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from points import Net, T, ring
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

import flare
from flare.scorer import collecting
from flare.scorer.collecting import collect_samples


class Rows:
    """Items by index, like those of the package datasets: not a Dataset of torch."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(4000.0).view(-1, 2)


def picture(shade, mode="L", size=(6, 4)):
    return Image.new(mode, size, shade if mode == "L" else (shade, 0, 255))


@pytest.fixture
def scarce(monkeypatch):
    """Half of the free memory is 400 bytes: 50 samples of two float32."""
    monkeypatch.setattr(collecting, "free_memory", lambda device: 800)


@pytest.mark.parametrize("key", ["image", "images", "pixel_values", "input"])
def test_dicts_are_read_by_the_usual_keys_whatever_else_they_have(key):
    items = Rows([{"text": "a" * i, "label": i, key: torch.full((3,), float(i))} for i in range(5)])
    found = collect_samples("data", items, cond={"class_labels": "label"})
    assert found.samples[:, 0].tolist() == found.cond["class_labels"].tolist() == [0, 1, 2, 3, 4]


def test_a_dict_without_such_a_key_is_refused_by_name():
    with pytest.raises(
        TypeError, match=r"dicts with x, y, and FLARE cannot tell .* image, images, pixel_values or"
    ):
        collect_samples("data", Rows([{"x": 1.0, "y": 2.0}]))


def test_what_cannot_be_read_is_explained(tmp_path):
    with pytest.raises(ValueError, match=r"at 'lable', got dicts with input, label; name"):
        collect_samples("data", Rows([{"input": torch.zeros(3), "label": 1}]), cond={"y": "lable"})
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*none"):
        collect_samples("data", tmp_path / "none")


def test_arrays_of_the_other_byte_order_are_converted():
    x = np.arange(6.0).reshape(3, 2)
    assert collect_samples("data", x.astype(">f4")).samples.tolist() == x.tolist()


def test_images_of_pillow_become_tensors_between_minus_one_and_one():
    found = collect_samples(
        "data", Rows([{"image": picture(shade, "RGB"), "label": 1} for shade in (0, 255)])
    )
    assert found.samples.shape == (2, 3, 4, 6)
    assert found.samples[:, :, 0, 0].tolist() == [[-1, -1, 1], [1, -1, 1]]


def test_a_folder_of_images_is_data(tmp_path):
    for i in range(3):
        picture(255 * (i % 2)).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("no image")
    assert collect_samples("data", tmp_path).samples[:, 0, 0, 0].tolist() == [-1, 1, -1]
    assert collect_samples("data", str(tmp_path), shape=(3, 4, 6)).samples.shape == (3, 3, 4, 6)
    picture(0, size=(5, 5)).save(tmp_path / "9.png")
    with pytest.raises(ValueError, match=r"9\.png is 5 × 5 pixels.*6 × 4; remove it"):
        collect_samples("data", tmp_path)


def test_subfolders_of_images_are_classes(tmp_path):
    for name, shade in (("cat", 0), ("dog", 255)):
        (tmp_path / name).mkdir()
        picture(shade).save(tmp_path / name / "1.png")
    found = collect_samples("data", tmp_path, cond="class_labels")
    assert found.cond["class_labels"].tolist() == [0, 1]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="has no images"):
        collect_samples("data", tmp_path / "none")


def test_a_mapped_file_is_read_without_a_copy_and_without_a_warning(tmp_path):
    np.save(tmp_path / "x.npy", ring().numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = collect_samples("data", mapped)
    assert found.samples.data_ptr() == mapped.ctypes.data
    assert torch.equal(found.samples, ring())


def test_of_a_mapped_file_beyond_the_memory_random_rows_are_read_with_their_conditions(tmp_path, scarce):
    values = torch.arange(2000.0).view(-1, 2)
    np.save(tmp_path / "x.npy", values.numpy())
    found = collect_samples(
        "data", np.load(tmp_path / "x.npy", mmap_mode="r"), cond={"label": torch.arange(1000)}
    )
    assert torch.equal(found.samples, values[found.rows])
    assert torch.equal(found.cond["label"], found.rows)
    assert len(found.rows.unique()) == 50
    assert found.rows.max() > 500
    assert "1,000 samples, which take more than half of the free memory: 50 of them" in found.remarks[0]
    assert torch.equal(collect_samples("data", values).samples, values), "what is in memory is used as it is"


@pytest.mark.parametrize("shuffle", [None, False, True])
def test_of_a_data_set_beyond_the_memory_random_samples_are_read(scarce, shuffle):
    values = torch.arange(2000.0).view(-1, 2)
    data = TensorDataset(values, torch.arange(1000))
    if shuffle is not None:
        data = DataLoader(data, batch_size=10, shuffle=shuffle)
    found = collect_samples("data", data, cond="class_labels")
    assert torch.equal(found.samples, values[found.cond["class_labels"]])
    assert len(found.samples.unique(dim=0)) == 50
    assert found.samples.max() > 1000
    if not shuffle:
        assert torch.equal(found.rows, found.cond["class_labels"])
    assert "50 of them are used, drawn at random" in " ".join(found.remarks)


def test_of_a_loader_with_a_batch_sampler_beyond_the_memory_random_samples_are_read(scarce):
    values = torch.arange(2000.0).view(-1, 2)
    batches = BatchSampler(SequentialSampler(values), 10, drop_last=False)
    loader = DataLoader(TensorDataset(values, torch.arange(1000)), batch_sampler=batches)
    found = collect_samples("data", loader, cond="class_labels")
    assert torch.equal(found.samples, values[found.rows])
    assert torch.equal(found.cond["class_labels"], found.rows)
    assert len(found.rows.unique()) == 50
    assert found.rows.max() > 500


def test_of_a_stream_beyond_the_memory_the_first_samples_are_read(scarce):
    found = collect_samples("data", DataLoader(Stream(), batch_size=10))
    assert torch.equal(found.samples, torch.arange(100.0).view(-1, 2))
    assert found.remarks == ["data is long: only its first 50 samples are used, to save memory"]


def test_the_nearest_sample_is_a_row_of_the_whole_data(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", ring().numpy())
    monkeypatch.setattr(collecting, "_count_fitting", lambda size, n=None: 300)
    scorer = flare.fit(
        Net(),
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        flare.schedules.cosine(T),
        subset=20,
        pairs=50,
        check=False,
    )
    assert "300 of them are used" in str(scorer)
    result = scorer.score(ring()[:20])
    nearest = flare.scores.neighbors(ring()[:20], scorer.data, k=1).indices[:, 0]
    assert torch.equal(ring()[result.verdict.nearest], scorer.data[nearest])

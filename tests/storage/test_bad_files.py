"""Invalid files raise an error that names them; one test per finding of the fuzzer."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference import TinyNet

import flare
from flare import bench, noising, posteriors, schedules, subsets
from flare.cli.samples_in import read_array
from flare.posteriors.curvature import spectrum
from flare.posteriors.posterior import has_orthonormal_columns
from flare.storage import checkpoint
from fuzz.mutate import safetensors_file
from fuzz.run import page
from tools.document import ROOT

DEEP = "[" * 100_000 + "]" * 100_000


def rewritten(path, tensors=None, **metadata):
    """Rewrite a file with other tensors and metadata, and a valid checksum."""
    old, meta = checkpoint.load(path)
    checkpoint.save(path, {**old, **(tensors or {})}, {**meta, **metadata})


def raw(path, header, body=b""):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.fixture
def fitted(tmp_path):
    """A directory with one posterior file per structure."""
    torch.manual_seed(0)
    denoiser = flare.Denoiser(TinyNet((2,), width=4))
    pairs = noising.pairs(torch.randn(20, 2), schedules.cosine(8), n=20, batch_size=20)
    fits = {
        "dense": posteriors.dense(denoiser, subsets.random(denoiser, count=5), pairs, 1.0, 1.0),
        "diagonal": posteriors.diagonal(denoiser, subsets.everything(denoiser), pairs, 1.0, 1.0),
        "low_rank": posteriors.low_rank(denoiser, subsets.everything(denoiser), pairs, 1.0, 1.0, rank=2),
        "kronecker": posteriors.kronecker(denoiser, subsets.named(denoiser, "second.*"), pairs, 1.0, 1.0),
    }
    for name, posterior in fits.items():
        posterior.save(tmp_path / f"{name}.safetensors")
        posteriors.load(tmp_path / f"{name}.safetensors", denoiser)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "tensors", "message"),
    [
        ("dense", {"eigenvalues": torch.ones(4).double()}, r"eigenvalues must be float64 of shape \(5,\)"),
        ("dense", {"eigenvalues": -torch.ones(5).double()}, "must be finite and at least 0"),
        ("dense", {"eigenvectors": torch.full((5, 5), torch.nan).double()}, "must have orthonormal columns"),
        ("dense", {"eigenvectors": 1e300 * torch.eye(5).double()}, "must have orthonormal columns"),
        ("dense", {"eigenvectors": 0.9 * torch.eye(5).double()}, "must have orthonormal columns"),
        ("dense", {"eigenvectors": torch.eye(5).roll(1, 0).double().tril()}, "must have orthonormal columns"),
        ("low_rank", {"eigenvectors": torch.eye(26, 1).double().expand(-1, 2)}, "must have orthonormal"),
        ("diagonal", {"diagonal": torch.ones(40).double()}, "diagonal must be float64 of shape"),
        ("diagonal", {"diagonal": torch.ones(22)}, "got torch.float32"),
        ("low_rank", {"eigenvectors": torch.ones(3, 2).double()}, r"eigenvectors must be .* got .* \(3, 2\)"),
        ("kronecker", {"second:a": torch.ones(3).double()}, "must make up the"),
        ("kronecker", {"second:QG": torch.full((2, 2), torch.inf).double()}, "must have orthonormal columns"),
        ("kronecker", {"second:QG": torch.full((2, 2), 0.5).double()}, "second:QG must have orthonormal"),
        ("dense", {"subset.second.weight": torch.tensor([5, 1])}, "must be ascending positions"),
        ("dense", {"subset.second.weight": torch.tensor([-1, 10**12])}, "must be ascending positions"),
        ("dense", {"subset.second.weight": torch.ones(2)}, "must be ascending positions"),
    ],
)
def test_tensors_that_are_no_posterior(fitted, name, tensors, message):
    path = fitted / f"{name}.safetensors"
    rewritten(path, tensors)
    with pytest.raises(
        ValueError, match=rf"{name}\.safetensors cannot be used as a {name} posterior: .*{message}"
    ):
        posteriors.load(path)


@pytest.mark.parametrize("make", [torch.zeros, torch.ones, torch.randn])
def test_computed_eigenvectors_pass_as_orthonormal(make):
    H = make(300, 300, dtype=torch.float64)
    _, vectors = spectrum(H @ H.T)
    assert has_orthonormal_columns(vectors)
    assert has_orthonormal_columns(vectors[:, :7])
    vectors[3, 5] += 1e-3
    assert not has_orthonormal_columns(vectors)


def test_the_fuzzer_changes_what_tensors_mean(fitted):
    data, found = (fitted / "dense.safetensors").read_bytes(), set()
    for seed in range(200):
        (fitted / "other.safetensors").write_bytes(safetensors_file(data, random.Random(seed)))
        try:
            posteriors.load(fitted / "other.safetensors")
        except ValueError as error:
            found.add(str(error).rpartition(": ")[2])
    assert "eigenvectors must have orthonormal columns; fit and save the posterior again." in found
    assert any("eigenvectors must be float64 of shape (5, 5), got torch." in each for each in found)


def test_the_fuzzer_names_test_files_that_exist():
    named = re.findall(r"`(tests/\S+\.py)`", page([], [], 0.0))
    assert named
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize(
    "metadata",
    [
        {"shapes": 3},
        {"shapes": {"second.weight": "x"}},
        {"shapes": {"second.weight": [2**70]}},
        {"statistics": {"pairs": "x", "data_size": 1, "dimension": 1, "residual_variance": 1.0}},
        {"statistics": {"pairs": 1, "data_size": 0, "dimension": 1, "residual_variance": 1.0}},
        {"statistics": None},
        {"fingerprint": []},
        {"squared_norm": {}},
        {"squared_norm": float("nan")},
        {"prior_precision": "x"},
        {"scale": float("nan")},
        {"structure": ["dense"]},
        {"layers": 0.5},
    ],
    ids=str,
)
def test_metadata_that_is_no_posterior(fitted, metadata):
    path = fitted / ("kronecker.safetensors" if "layers" in metadata else "dense.safetensors")
    rewritten(path, **metadata)
    with pytest.raises(ValueError, match=r"\w+"):
        posteriors.load(path)


def test_metadata_that_is_too_deep_or_no_json(tmp_path):
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    for text in (DEEP, "", "{", "9" * 5000):
        raw(tmp_path / "x.safetensors", {"__metadata__": {"a": text}, "x": entry}, bytes(4))
        with pytest.raises(ValueError, match="not a readable safetensors file"):
            checkpoint.load(tmp_path / "x.safetensors")
    for text in (DEEP, "9" * 5000):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="not a JSON file"):
            checkpoint.load_json(tmp_path / "x.json")


def test_a_header_that_claims_a_terabyte(tmp_path):
    path = tmp_path / "x.safetensors"
    raw(path, {"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}, bytes(4))
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        read_array(path)


def result(path, **changes):
    parts = {"samples": torch.randn(5, 2), "variance": torch.rand(5, 2), "scores": {"trace": torch.rand(5)}}
    flare.Result(**(parts | changes)).save(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": torch.randn(5)}, r"samples of shape \(n, \*shape\), got \(5,\)"),
        ({"samples": torch.randn(0, 2)}, r"got \(0, 2\)"),
        ({"samples": torch.ones(5, 2).long()}, "samples as torch.int64"),
        ({"variance": torch.rand(4, 2)}, "variance as torch.float32 of shape"),
        ({"scores": {"trace": torch.rand(4)}}, "score 'trace' as"),
        ({"covariance": torch.rand(5, 2)}, r"covariance as .* must be floating point of shape \(5, 2, 2\)"),
        ({"profile": torch.rand(5)}, r"profile as .* \(5, steps\)"),
        ({"observed": torch.rand(3, 2)}, "observed as"),
        ({"about": ["a"]}, "must have a dict as 'about'"),
    ],
)
def test_results_whose_parts_do_not_belong_together(tmp_path, changes, message):
    about = changes.pop("about", None)
    result(tmp_path / "r.safetensors", **changes)
    if about is not None:
        rewritten(tmp_path / "r.safetensors", about=about)
    with pytest.raises(ValueError, match=message):
        flare.Result.load(tmp_path / "r.safetensors")


def test_results_whose_list_of_scores_is_none(tmp_path):
    result(tmp_path / "r.safetensors")
    for scores in (3, [1], "trace", None):
        rewritten(tmp_path / "r.safetensors", scores=scores)
        with pytest.raises(ValueError, match="must list its scores by name"):
            flare.Result.load(tmp_path / "r.safetensors")


def npy(header, body=b"", version=1):
    text = header.encode() + b"\n"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", len(text))
        + text
        + body
    )


@pytest.mark.parametrize(
    "data",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 2)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2)}", bytes(64)),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 2)}", bytes(64)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4,3,"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': __import__('os')}"),
        npy("(" * 5000),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2)}", bytes(64), 9),
        b"\x93NUMPY",
        b"",
    ],
    ids=range(9),
)
def test_headers_of_arrays_that_are_not_true(tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.npy"):
        read_array(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples.npy", data)
    with pytest.raises(ValueError, match=r"x\.npz"):
        read_array(tmp_path / "x.npz")


def test_an_archive_that_unpacks_to_more_than_there_is_memory(tmp_path, monkeypatch):
    array = np.zeros((1000, 1000))
    np.savez_compressed(tmp_path / "x.npz", samples=array)
    assert read_array(tmp_path / "x.npz").shape == (1000, 1000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**6))
    with pytest.raises(ValueError, match=r"unpacks to 0\.008 GB, more than the free memory"):
        read_array(tmp_path / "x.npz")


def test_archives_that_are_none_or_locked(tmp_path):
    packed = io.BytesIO()
    np.savez(packed, samples=np.zeros((2, 2)))
    data = bytearray(packed.getvalue())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # as if encrypted
    data[6] |= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.npz cannot be read as npz"):
        read_array(tmp_path / "x.npz")


def run(tmp_path, **changes):
    config = bench.configure("grid", width=2, samples=30, steps=2)
    config["schedule"] = {"name": "cosine", "T": 8}
    net, _ = bench.build(config)
    bench.save(tmp_path / "run", config | changes, net.state_dict())
    return tmp_path / "run"


@pytest.mark.parametrize(
    "changes",
    [
        {"network": {"name": "ScoreNet", "dim": 2, "width": 10**9}},
        {"network": {"name": "ScoreNet", "dim": 10**40, "width": 2}},
        {"network": {"name": "ScoreNet", "dim": "2", "width": 2}},
        {"network": []},
        {"schedule": {"name": "cosine", "T": 10**9}},
        {"schedule": {"name": "cosine", "T": 10**40}},
        {"schedule": 3},
        {"dataset": {"name": "grid", "n": 10**12, "seed": 0}},
        {"dataset": {"name": "grid", "n": 30, "seed": 0, "side": 10**6}},
        {"dataset": {"name": ["grid"], "n": 30, "seed": 0}},
        {"training": {"weighting": "min_snr", "seed": 10**40}},
        {"training": {"weighting": {}, "seed": 0}},
        {"dataset": {"name": "grid", "n": 30, "seed": "0"}},
        {"dataset": {"name": "grid", "n": 30, "seed": 0.5}},
        {"clip": float("nan")},
        {"clip": "1"},
        {"prediction": {}},
    ],
    ids=str,
)
def test_configurations_that_are_no_run(tmp_path, changes):
    bench.load(run(tmp_path))
    with pytest.raises(ValueError, match=r"\w+"):
        bench.load(run(tmp_path, **changes))


@pytest.mark.parametrize(
    "spec",
    [
        3, None, [], {}, {"name": 3}, {"name": []},
        {"name": "flow", "T": 4, "shift": float("inf")}, {"name": "flow", "T": 4, "time_scale": float("inf")},
        {"name": "from_betas", "betas": [10**40]}, {"name": "from_betas", "betas": "x"},
        {"name": "linear", "T": 10**7}, {"name": "linear", "T": 4, "start": "x"},
        {"name": "cosine", "T": 4, "max_beta": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_descriptions_that_are_no_schedule(spec):
    with pytest.raises(ValueError, match=r"\w+"):
        schedules.build(spec)

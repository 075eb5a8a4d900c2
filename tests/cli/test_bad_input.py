"""Bad input exits with 2, says why, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from running import flare

from flare import Result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sine", "--out", "x"], "did you mean 'sines'"),
        (["train", "--out", "x"], "one of the two"),
        (["train", "sines", "--model", "a:b", "--out", "x"], "one of the two"),
        (["train", "--model", "a:b", "--out", "x"], "needs --data FILE"),
        (["train", "sines", "--out", "file"], "file is a file"),
        (["train", "sines", "--out", "full", "--overwrite"], "full is not a run directory"),
        (["train", "sines", "--out", "full"], "full is not a run directory, and not empty"),
        (["train", "sines", "--out", "x", "--steps", "0"], "--steps must be an integer of at least 1"),
        (["train", "sines", "--out", "x", "--samples", "0"], "--samples must be an integer of at least 1"),
        (["train", "sines", "--out", "x", "--weighting", "snr"], "unknown weighting 'snr'"),
        (["train", "sines", "--out", "x", "--level-sampling", "snr"], "unknown level sampling 'snr'"),
        (["sample", "chirps"], "did you mean 'chirp'"),
        (["sample", "sines", "--sampler", "ddmp"], "did you mean 'ddpm'"),
        (["sample", "sines", "--steps", "601"], "at most 600"),
        (["sample", "sines", "-n", "0"], "-n must be an integer of at least 1"),
        (["sample", "sines", "--sampler", "euler"], "euler needs a flow schedule"),
        (["info", "./nowhere"], "no run directory at ./nowhere"),
        (["info", "file"], "must be a .safetensors, .npz or .csv file"),
        (["info", "bytes.npz"], "bytes.npz is not an archive of arrays"),
        (["sample", "sines", "--score", "trace"], "--score trace needs a posterior"),
        (["sample", "sines", "--score", "trace", "--rule", "none"], "--score trace needs a posterior"),
        (["sample", "sines", "--device", "cuda:99"], "--device cuda:99 cannot be used"),
        (["fit", "sines", "--device", "gpu"], "--device gpu cannot be used"),
        (["check", "sines", "--device", "meta"], "--device meta cannot be used"),
        (["score", "sines", "--samples", "x.npy", "--device", "cuda:99"], "Choose from: cpu"),
        (["score", "sines", "--samples", "x.npy", "--out", "x.txt"], "x.txt must end in"),
        (
            ["filter", "none.npz", "--keep", "50"],
            "--keep must be a fraction in (0, 1], got 50; did you mean 0.5?",
        ),
        (["report", "none.npz", "--keep", "50"], "did you mean 0.5?"),
        (["evaluate", "none.npz", "--keep", "50"], "did you mean 0.5?"),
        (["demo", "--keep", "50"], "did you mean 0.5?"),
        (["filter", "one.npz", "--keep", "0"], "got 0."),
        (["filter", "one.npz", "--keep", "0.5", "--out", "x.txt"], "x.txt must end in"),
        (["evaluate", "one.npz", "--truth", "sines", "--keep", "0.5"], "--keep 0.5 keeps 1 of the 2 samples"),
        (["fit", "sines"], "say where to write the posterior with --out"),
        (["fit", "sines", "--out", "p.safetensors", "--structure", "densе"], "unknown structure"),
        (["fit", "sines", "--out", "p.safetensors", "--prior", "marlik"], "'marglik' or 'validation'"),
        (["fit", "sines", "--out", "p.safetensors", "--fraction", "0"], "--fraction must lie in"),
        (
            ["fit", "sines", "--out", "p.safetensors", "--subset", "none.*"],
            "no parameter of ScoreNet matches",
        ),
        (
            ["fit", "sines", "--out", "p.safetensors", "--subset", "randm"],
            "--subset randm: did you mean random? Choose from auto, random, sensitive, sketch, last_layer,",
        ),
        (["fit", "sines", "--out", "p.safetensors", "--subset", "out"], "it has: inp.weight"),
        (["fit", "new", "--model", "a:b"], "needs --data FILE"),
        (["sample", "sines", "--rule", "tangent"], "say which posterior with --posterior"),
        (["sample", "sines", "--posterior", "none.safetensors"], "no posterior at none.safetensors"),
        (["sample", "sines", "--out", "samples.txt"], "must end in .safetensors, .npz or .csv"),
        (["sample", "sines", "--data", "wide.npy"], "has samples of shape (3,), the model's are (10,)"),
        (["sample", "sines", "--data", "text.npy"], "must hold numbers"),
        (["sample", "sines", "--data", "pickle.npy"], "cannot be read as npy"),
        (["sample", "sines", "--data", "ragged.csv"], "same number of numeric columns"),
        (["sample", "sines", "--data", "two.npz"], "must hold one array"),
        (["sample", "sines", "--data", "nan.npy"], "NaN or infinity in 1 of 2 samples"),
        (["sample", "sines", "--data", "none.npy"], "no file at none.npy"),
        (
            ["filter", "none.safetensors", "--keep", "0.5"],
            "no file at none.safetensors; expected samples, as `flare sample`",
        ),
        (["report", "none.npz"], "no file at none.npz; expected samples, as `flare sample`"),
        (["info", "none.safetensors"], "no file at none.safetensors"),
        (["info", "none.npz"], "no file at none.npz"),
        (["filter", "none.safetensors"], "one of them"),
        (["filter", "none.safetensors", "--below", "1", "--strata", "3"], "go with --keep"),
        (["evaluate", "none.safetensors"], "give --truth NAME"),
        (["info", "full"], "not a finished run"),
    ],
)
def test_bad_input_exits_2_and_says_why(tmp_path, arguments, message):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "keep").write_text("mine")
    np.save(tmp_path / "wide.npy", np.zeros((4, 3)))
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "nan.npy", np.array([[np.nan] * 10, [0.0] * 10]))
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    Result(torch.randn(2, 10), scores={"a": torch.rand(2)}).save(tmp_path / "one.npz")
    (tmp_path / "bytes.npz").write_bytes(b"none")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    stderr = flare(*arguments, cwd=tmp_path, code=2).stderr
    assert message in stderr
    assert (tmp_path / "full" / "keep").read_text() == (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "p.safetensors").exists()

"""Bad input exits with 2, says why, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from running import flare

from flare import Result

FIT = ["fit", "sines", "--out", "x", "--no-check"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sines", "--out", "x"], "flare train is now flare bench train."),
        (["fit", "sine", "--out", "x"], "did you mean 'sines'"),
        (["fit", "file", "--out", "x"], "file is not a model: give package.module:function"),
        (["fit", "full", "--out", "x"], "full is not a model"),
        (["fit", "old", "--out", "x"], "old is a run directory of version 0.4"),
        (["fit", "a:b", "--out", "x"], "a:b: No module named 'a'; is it installed, or in the current"),
        (["fit", "a.py:b", "--out", "x"], "leave out .py: a:b"),
        (["fit", ":b", "--out", "x"], "MODEL must be package.module:function"),
        (["fit", "sines", "--out", "file"], "file exists and is not a scorer: choose another --out"),
        (["fit", "sines", "--out", "full", "--overwrite"], "full exists and is not a scorer"),
        ([*FIT, "--device", "gpu"], "--device gpu cannot be used"),
        ([*FIT, "--schedule", "cosine:T=9"], "leave --schedule out"),
        ([*FIT, "--prediction", "v"], "leave --prediction out"),
        ([*FIT, "--structure", "densе"], "unknown structure"),
        ([*FIT, "--prior-precision", "marlik"], "--prior-precision must be"),
        ([*FIT, "--scale", "-1"], "--scale must be"),
        ([*FIT, "--rank", "3"], "--rank is for --structure low_rank"),
        ([*FIT, "--subset", "none.*"], "no parameter of ScoreNet matches"),
        ([*FIT, "--subset", "out"], "it has: inp.weight"),
        ([*FIT, "--subset", "0"], "--subset must be an integer of at least 1"),
        ([*FIT, "--pairs", "0"], "--pairs must be an integer of at least 1, got 0"),
        ([*FIT, "--weighting", "snr"], "unknown weighting 'snr'"),
        ([*FIT, "--data", "text.npy"], "must hold numbers"),
        ([*FIT, "--data", "pickle.npy"], "cannot be read as npy"),
        ([*FIT, "--data", "ragged.csv"], "same number of numeric columns"),
        ([*FIT, "--data", "two.npz"], "must hold one array"),
        ([*FIT, "--data", "nan.npy"], "NaN or infinity in 1 of 2 samples"),
        ([*FIT, "--data", "none.npy"], "no file at none.npy"),
        (
            [*FIT, "--held-out", "wide.npy"],
            "--held-out must have samples of shape (10,), like data, got (3,)",
        ),
        (["sample", "sines"], "there is no scorer at sines; make one: `flare fit MODEL"),
        (["sample", "nowhere"], "there is no scorer at nowhere"),
        (["sample", "old"], "old is a run directory of version 0.4. Fit its network again"),
        (["sample", "nowhere", "-n", "0"], "Invalid value for '-n'"),
        (["sample", "nowhere", "--batch-size", "0"], "--batch-size must be a number of at least 1, or auto"),
        (["sample", "nowhere", "--rule", "tangent"], "also give --directions"),
        (["sample", "nowhere", "--device", "cuda:99"], "--device cuda:99 cannot be used"),
        (["sample", "nowhere", "--out", "samples.txt"], "must end in .safetensors, .npz or .csv"),
        (["score", "nowhere", "x.npy", "--device", "cuda:99"], "Choose from: cpu"),
        (["score", "nowhere", "x.npy", "--out", "x.txt"], "x.txt must end in"),
        (["score", "nowhere", "x.npy"], "there is no scorer at nowhere"),
        (["check", "nowhere", "--device", "meta"], "--device meta cannot be used"),
        (["info", "./nowhere"], "nothing at nowhere"),
        (["info", "file"], "must be a .safetensors, .npz or .csv file"),
        (["info", "bytes.npz"], "bytes.npz is not an archive of arrays"),
        (["info", "old"], "old is a run directory of version 0.4"),
        (["info", "full"], "not a finished run"),
        (["info", "none.safetensors"], "no file at none.safetensors"),
        (["info", "none.npz"], "no file at none.npz"),
        (
            ["filter", "none.npz", "--keep", "50"],
            "--keep must be a fraction in (0, 1], got 50; did you mean 0.5?",
        ),
        (["report", "none.npz", "--keep", "50"], "did you mean 0.5?"),
        (["demo", "--keep", "50"], "did you mean 0.5?"),
        (["filter", "one.npz", "--keep", "0"], "got 0."),
        (["filter", "one.npz", "--p-value", "1.5"], "--p-value must lie in (0, 1), got 1.5"),
        (["filter", "one.npz", "--p-value", "0.05"], "one.npz has no p-values"),
        (["filter", "one.npz", "--keep", "0.5", "--by", "rnk"], "unknown by 'rnk'"),
        (["filter", "one.npz", "--keep", "0.5", "--out", "x.txt"], "x.txt must end in"),
        (["filter", "plain.npz", "--keep", "0.5"], "plain.npz has samples without scores"),
        (
            ["filter", "none.safetensors", "--keep", "0.5"],
            "no file at none.safetensors; expected samples, as `flare sample`",
        ),
        (["filter", "one.npz"], "give either --keep SHARE or --p-value P"),
        (["filter", "one.npz", "--p-value", "0.1", "--by", "rank"], "--by goes with --keep"),
        (["report", "none.npz"], "no file at none.npz; expected samples, as `flare sample`"),
        (["calibrate", "one.npz", "none.csv"], "no file at none.csv"),
        (["calibrate", "one.npz", "ragged.csv"], "ragged.csv must have a column index or name"),
        (
            ["calibrate", "one.npz", "far.csv"],
            "far.csv labels the index '9', but one.npz has the samples 0 to 1",
        ),
        (["calibrate", "one.npz", "twice.csv"], "twice.csv labels sample 1 twice, as bad and as good"),
        (["calibrate", "one.npz", "words.csv"], "words.csv has the label 'maybe': write good or bad"),
        (
            ["calibrate", "one.npz", "one.csv"],
            "labels are missing for 1 of the 2 proposed samples: 0. Add",
        ),
    ],
)
def test_bad_input_exits_2_and_says_why(tmp_path, arguments, message):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "keep").write_text("mine")
    (tmp_path / "old").mkdir()
    for name in ("config.json", "posterior.safetensors", "posterior.scorer.json"):
        (tmp_path / "old" / name).write_text("{}")
    np.save(tmp_path / "wide.npy", np.zeros((4, 3)))
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "nan.npy", np.array([[np.nan] * 10, [0.0] * 10]))
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    Result(torch.randn(2, 10), scores={"a": torch.rand(2)}).save(tmp_path / "one.npz")
    Result(torch.randn(2, 10)).save(tmp_path / "plain.npz")
    (tmp_path / "bytes.npz").write_bytes(b"none")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "far.csv").write_text("index,bad\n9,1\n")
    (tmp_path / "one.csv").write_text("index,label\n1,bad\n")
    (tmp_path / "twice.csv").write_text("index,bad\n1,1\n1,0\n")
    (tmp_path / "words.csv").write_text("index,bad\n1,maybe\n")
    stderr = flare(*arguments, cwd=tmp_path, code=2).stderr
    assert message in " ".join(stderr.split())
    assert (tmp_path / "full" / "keep").read_text() == (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "x").exists()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]

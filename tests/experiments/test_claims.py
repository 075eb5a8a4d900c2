"""What the page of the reproduction says of claims: it follows the figures, also where they change."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from experiments import (
    budget_claims,
    cross_term,
    every_method_claims,
    every_method_results,
    lattice,
    missing_mode,
    page,
    recursion_case,
)
from experiments.budget_case import Case, mark_doubtful
from experiments.claims import Claim
from experiments.common import typeset
from experiments.cross_term_case import TERMS
from experiments.every_method_results import BLIND, SAME
from experiments.methods import BY_REGION, DEFAULT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-3 [-inf, inf]", "−3 [−∞, ∞]"),
        ("-0.00 ± 0.04, -0%, -0.05", "0.00 ± 0.04, 0%, −0.05"),
        ("falls to -0.0.", "falls to 0.0."),
        ("sines-16, 1e-06, 2025-01-01, | --- | --- |", "sines-16, 1e-06, 2025-01-01, | --- | --- |"),
        ("m^(-1.77), -1.9e-07%", "m^(−1.77), −1.9e-07%"),
        ("information, infinite", "information, infinite"),
    ],
)
def test_negative_numbers_are_typeset(text, expected):
    assert typeset(text) == expected


def test_claims_are_counted_by_how_their_verdict_begins():
    verdicts = ["holds", "holds with the coefficients of A", "holds in part: once", "does not hold on a",
                "holds with a correction: b", "not testable: c"]  # fmt: skip
    claims = [Claim("a", "b", "c", verdict) for verdict in verdicts]
    assert page.count(claims) == (
        "Of 6 claims, 2 hold, 1 hold with a correction, 1 hold in part, 1 do not hold and 1 cannot be tested."
    )
    assert [claim.short for claim in claims][-2:] == ["holds with a correction", "not testable"]
    assert [claim.rest for claim in claims][:3] == ["", " with the coefficients of A", ": once"]


def results(bad: list[int], auroc_of: float = 1.0) -> recursion_case.Results:
    """Results of one model, `bad` samples of 100 per seed; the score is the distance or its opposite."""
    found = recursion_case.Results([])
    distance = torch.arange(100.0)
    for count in bad:
        score = distance if auroc_of == 1 else -distance
        one = {"distance": distance, "threshold": 99.5 - count}
        found.by_name.setdefault("sines", []).append(
            one | {"score.FLARE, main": score, "score.FLARE, appendix": score}
        )
    return found


def test_an_auroc_of_few_bad_samples_is_that_of_the_farthest_fifth():
    few, many, rare_good = results([0, 0, 9]), results([5, 5]), results([99, 96])
    assert few.counts("sines") == (9, 300)
    assert few.kind("sines") == "far fifth"
    assert len(few.judged("sines", "FLARE, main")) == 3
    assert many.kind("sines") == "bad samples"
    assert rare_good.kind("sines") == "far fifth"


def rows(**figures: dict) -> list[dict]:
    """Two equal seeds of a data set."""
    base = {"oracle": {"rate_before": 0.1}}
    return [base | figures, base | figures]


def everywhere(**figures: dict) -> dict[str, list[dict]]:
    return {name: rows(**figures) for name in every_method_results.NAMES}


def test_a_filter_that_keeps_more_bad_samples_does_not_remove_them():
    kinds = (BY_REGION, DEFAULT, SAME)
    found = everywhere(**{m: {"hallucination_rate": 0.0} for m in kinds})
    assert every_method_claims.price(found).verdict == "holds"
    found["damped"] = rows(**{BY_REGION: {"hallucination_rate": 0.05}, DEFAULT: {"hallucination_rate": 0.0}})
    assert every_method_claims.price(found).verdict.startswith("holds with a correction: on damped")
    found["chirp"] = rows(**{m: {"hallucination_rate": 0.1} for m in kinds})
    assert every_method_claims.price(found).verdict.startswith("does not hold on chirp; on damped")


def test_distances_below_zero_are_no_closer_than_zero_and_small_differences_are_ties():
    def found(mine, residual, chance):
        return everywhere(
            **{BY_REGION: {"energy_distance": mine}, SAME: {"energy_distance": residual},
               BLIND: {"energy_distance": chance}}
        )  # fmt: skip

    assert every_method_claims.closeness(found(0.0, 1.0, 1.0)).verdict == "holds"
    assert "chance on no set" in every_method_claims.closeness(found(-0.01, 1.0, -0.001)).verdict
    wide = found(0.0, 0.0, 1.0)
    for name in wide:
        wide[name][0] = wide[name][0] | {SAME: {"energy_distance": 0.05}}  # 0.025 ± 0.035
    assert "the residual on no set" in every_method_claims.closeness(wide).verdict


def test_the_verdict_is_level_within_the_spread_and_not_judged_on_few_bad_samples():
    def seeds(*pairs, rate=0.1):
        oracle = {"rate_before": rate}
        return [{"oracle": oracle, DEFAULT: {"auroc": a}, "neighbors": {"auroc": b}} for a, b in pairs]

    found = {name: seeds((0.9, 0.8), (0.9, 0.8)) for name in every_method_results.NAMES}
    assert (
        every_method_claims.detection(found, "auroc", "x").verdict
        == "holds: ahead on 5, level on 0, behind on 0"
    )
    found["grid"] = seeds((0.9, 0.95), (0.8, 0.7))
    found["chirp"] = seeds((0.5, 0.6), (0.5, 0.6), rate=0.001)
    claim = every_method_claims.detection(found, "auroc", "x")
    assert claim.verdict == "does not hold: ahead on 3, level on 1, behind on 0"
    assert "chirp is not judged (bad samples: 1)" in claim.ours


def budget_case(structure: str, held: torch.Tensor) -> Case:
    exact = torch.arange(1.0, 11.0)
    sums = {"sum.check printed, main": exact, "sum.0.01 printed, main": exact * 1.1,
            "sum.check printed, appendix": exact, "sum.0.01 printed, appendix": held}  # fmt: skip
    return Case("chirp", structure, {0.01: {}}, {10: sums}, {}, {})


def test_sums_that_rank_otherwise_are_marked_with_both_structures():
    good, bad = torch.arange(1.0, 11.0), torch.arange(10.0, 0.0, -1.0)
    marked = mark_doubtful([budget_case("dense", bad), budget_case("diagonal", good)])
    assert [case.doubtful for case in marked] == [{"appendix"}] * 2
    assert (marked[0].mark("appendix"), marked[0].mark("main"), marked[0].mark("influence")) == ("†", "", "")
    assert marked[0].held("main") == pytest.approx((1.0, 0.1))
    assert mark_doubtful([budget_case("dense", good)])[0].doubtful == frozenset()


def test_a_share_suffices_where_the_paper_s_own_sums_no_longer_change():
    def case(title, by_share, doubtful=frozenset()):
        def span(key, least):
            values = [value for share, value in by_share.items() if share >= least]
            shift = -0.4 if key == "main" else 0.0
            return min(values) + shift, max(values) + shift

        return SimpleNamespace(
            title=title, shares=sorted(by_share), doubtful=doubtful, range=span, mark=lambda key: ""
        )

    early = case("grid", {0.1: 0.95, 0.3: 0.96, 1.0: 0.96})
    late = case("sines", {0.1: 0.80, 0.3: 0.95, 1.0: 0.96})
    never = case("chirp", {0.1: 0.70, 0.3: 0.80, 1.0: 0.90})
    unreliable = case("chirp", {0.1: 0.70, 0.3: 0.80, 1.0: 0.90}, frozenset({"appendix"}))
    assert "from 10% on" in budget_claims.enough([early]).verdict
    assert "from 30% on" in budget_claims.enough([early, late]).verdict
    assert budget_claims.enough([early, never]).kind == "does not hold"
    assert "from 30% on" in budget_claims.enough([late, unreliable]).verdict
    assert "mode coverage was not measured" in budget_claims.enough([early]).verdict
    assert budget_claims.enough([case("grid", {0.1: 0.5, 1.0: 0.5})]).kind == ""


def cross_case(change: float, setting: str, ratio: float, inflation: float = 1e6) -> cross_term.Case:
    """One trajectory of two steps: the cross term is `ratio` times the kept one, and `change` % of u."""
    ones = torch.ones(2, 2, dtype=torch.float64)
    terms = dict.fromkeys(TERMS, ones) | {"cross": ratio * ones, "full_cross": 100 * ratio * ones}
    u = torch.full((2,), inflation, dtype=torch.float64)
    found = {
        "terms": torch.stack(list(terms.values())), "without": u, "with_cross": u * (1 + change / 100),
        "own": u, "tangent": torch.ones_like(u), "rerun": torch.ones_like(u) * 10, "parameters": 9,
    }  # fmt: skip
    return cross_term.Case("sines", setting, {}, found)


def test_the_cross_term_is_judged_over_all_posteriors():
    found = [cross_case(0.005, "calibrated", 50.0), cross_case(1e-6, "paper", 0.2)]
    verdict = cross_term.dropped(found).verdict
    assert "at least 20 times" in verdict
    assert "0.2 to 50 times" in verdict
    assert cross_term.size(found).verdict.startswith("holds in part: cases in this range: 1 of 2, above it 0")
    assert "1e+05 times" in cross_term.size(found).verdict
    assert cross_term.size(found[:1]).kind == "holds with a correction"
    assert cross_term.size(found[1:]).kind == "does not hold"


def test_a_filter_s_lost_modes_are_named():
    centers = lattice.bench.datasets.grid_centers(lattice.SIDE)
    samples = centers.repeat(2, 1)
    kept = torch.arange(50) < 25
    assert lattice.lost_modes(samples, kept) == "50% to 50%, something of every mode"
    kept[3] = False
    x, y = centers[3].tolist()
    assert lattice.lost_modes(samples, kept).endswith(f"and nothing of ({x:g}, {y:g})")


def test_the_lattice_reports_seeds_that_no_choice_has_seen():
    from experiments.detection import CHOOSING

    assert not set(lattice.SEEDS) & set(CHOOSING)
    stages = [job.stage for job in lattice.jobs(False) if job.run is lattice.lattice_job]
    assert stages == [1, 2, 2]


def test_kept_results_of_the_missing_mode_are_found_by_their_old_names():
    names = [job.name for job in missing_mode.jobs(False) if job.run is missing_mode.missing_job]
    assert names == ["without-corner", "without-edge", "without-centre"]


def test_the_linear_range_is_said_of_every_case():
    inside, outside = (cross_case(0.1, "calibrated", 1.0) for _ in range(2))
    inside = replace(inside, name="chirp", found=inside.found | {"rerun": torch.ones(2)})
    text = cross_term._beyond([inside, outside], [outside])
    assert "in the linear range on chirp, and out of it on sines" in text

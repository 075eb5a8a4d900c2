from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from judged import fake, judge

from flare.report.sentences import describe
from flare.results.drawing import rank_by


def words(result, alpha=0.05, keep=0.5):
    return describe(result, rank_by(result), alpha, keep)


def with_p(result, p, size=99):
    """The result with these p-values of the verdict."""
    verdict = replace(result.verdict, p_value=p.double(), reference_size=size)
    return replace(result, verdict=verdict)


def test_the_headline_counts_as_trusted_does():
    result = judge(fake(n=200))
    for alpha in (0.01, 0.05, 0.2):
        kept = int(result.trusted(alpha).sum())
        said = words(result, alpha)
        real = {0.01: "99%", 0.05: "95%", 0.2: "80%"}[alpha] + " of real data."
        assert said["headline"] == f"{200 - kept} of 200 samples look less plausible than {real}"
        doubtful = int((result.keep(0.5) & ~result.trusted(alpha)).sum())
        expected = "The filter keeps 100 of 200 samples, the most plausible 50%; "
        inside = {0: "none of them is", 1: "1 of them is"}.get(doubtful, f"{doubtful} of them are")
        assert said["filter"] == f"{expected}{inside} doubtful (p ≤ {alpha})."


@pytest.mark.parametrize(
    ("doubtful", "expected"),
    [
        (0, "The model produces fewer: its samples may cover too little of the data."),
        (50, "As a whole, the samples look like real data."),
        (200, "The model produces 4.0 times as many."),
    ],
)
def test_the_count_is_compared_with_chance(doubtful, expected):
    result = judge(fake(n=1000), size=999)
    p = torch.full((1000,), 0.5)
    p[:doubtful] = 0.01
    said = words(with_p(result, p, size=999))
    assert said["details"][0].startswith("About 50 of 1,000 real samples look this odd, too. ")
    assert expected in said["details"][0]
    assert said["alert"] is None


def test_a_small_reference_explains_more_by_chance():
    p = torch.full((1000,), 0.5)
    p[:100] = 0.01
    result = judge(fake(n=1000))
    assert "2.0 times" in words(with_p(result, p, size=2000))["details"][0]
    assert "look like real data" in words(with_p(result, p, size=50))["details"][0]


def test_a_model_that_is_wrong_raises_an_alert():
    half = torch.tensor([0.01] * 30 + [0.5] * 30)
    assert words(with_p(judge(fake()), half))["alert"] is None
    more = torch.tensor([0.01] * 31 + [0.5] * 29)
    alert = words(with_p(judge(fake()), more))["alert"]
    assert alert.startswith("Most samples look unlike real data: 31 of 60, where about 3 are expected.")
    assert "no filter repairs that" in alert


def test_reasons_of_the_doubtful_are_listed_most_frequent_first():
    result = judge(fake())
    p = torch.tensor([0.01] * 5 + [0.5] * 55)
    reason = ["influence"] * 2 + ["neighbors"] * 3 + ["influence"] * 55
    result = with_p(result, p)
    result = replace(result, verdict=replace(result.verdict, reason=reason))
    expected = "Main reasons: far from the training data (3), it would change the network (2)."
    assert expected in words(result)["details"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "No sample is a near copy"), (1, "1 sample is a near copy"), (12, "12 samples are near copies")],
)
def test_copies_are_counted(count, expected):
    result = judge(fake())
    result = replace(result, verdict=replace(result.verdict, copies=torch.arange(60) < count))
    assert any(line.startswith(f"{expected} of training data") for line in words(result)["details"])
    unknown = replace(result, verdict=replace(result.verdict, copies=None))
    assert not any("cop" in line for line in words(unknown)["details"])


def test_limits_of_the_comparison_are_said():
    training = words(judge(fake(), held_out=False))
    assert "95% of the training data" in training["headline"]
    assert any("Hold out some data" in line for line in training["details"])
    with pytest.warns(UserWarning, match="only 9 samples"):
        few = judge(fake(), size=9)
    assert any("With 9 real samples no p-value is below 0.1" in line for line in words(few)["details"])


def test_without_real_data_nothing_is_claimed():
    result = fake(n=10, scores={"trace": torch.arange(10.0)})
    said = words(result, keep=0.3)
    assert said["headline"] == "10 samples, ranked by the score “trace”: larger means more doubtful."
    assert said["filter"] == "The filter keeps 3 of 10 samples, the most plausible 30%."
    said = words(replace(result, regions=torch.arange(10) % 2), keep=0.3)
    assert said["filter"] == "The filter keeps 3 of 10 samples, the most plausible 30% of every region."
    assert "cannot say how many of them are bad" in said["details"][0]
    assert said["alert"] is None

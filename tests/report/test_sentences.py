from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from judged import fake, judge

from flare.report.sentences import describe
from flare.results.drawing import rank_by


def words(result, alpha=0.05, bad=None):
    return describe(result, rank_by(result), alpha, bad)


def with_p(result, p, size=99):
    """The result with these p-values of the verdict."""
    verdict = replace(result.verdict, p_value=p.double(), reference_size=size)
    return replace(result, verdict=verdict)


def test_the_model_is_judged_as_trusted_does():
    result = judge(fake(n=200))
    for alpha, share in ((0.01, "99%"), (0.05, "95%"), (0.2, "80%")):
        doubtful = 200 - int(result.trusted(alpha).sum())
        said = words(result, alpha)
        start = f"{doubtful} of 200 samples look less plausible than {share} of real data. "
        usual = f"About {200 * alpha:.0f} of 200 real samples look this doubtful, too. "
        assert said["model"].startswith(f"{start}{usual}")
        assert said["details"][0].endswith(f"A sample is doubtful if p ≤ {alpha:g}.")


@pytest.mark.parametrize(
    ("doubtful", "expected"),
    [
        (0, "The model produces fewer, so it may cover too little of the data."),
        (53, "The difference is within chance."),
        (120, "The model produces 2.4 times as many."),
    ],
)
def test_the_count_is_compared_with_chance(doubtful, expected):
    result = judge(fake(n=1000), size=999)
    p = torch.full((1000,), 0.5)
    p[:doubtful] = 0.01
    said = words(with_p(result, p, size=999))
    start = f"{doubtful} of 1,000 samples look less plausible than 95% of real data. "
    assert said["model"] == f"{start}About 50 of 1,000 real samples look this doubtful, too. {expected}"
    assert said["alert"] is None
    assert not said["off"]


def test_one_sample_is_counted_in_the_singular():
    said = words(with_p(judge(fake(n=1)), torch.tensor([0.01])))
    start = (
        "1 of 1 samples looks less plausible than 95% of real data. Fewer than 1 of 1 real samples look this "
        "doubtful, too"
    )
    assert said["model"].startswith(start)


def test_a_small_reference_explains_more_by_chance():
    p = torch.full((1000,), 0.5)
    p[:100] = 0.01
    result = judge(fake(n=1000))
    assert "2.0 times" in words(with_p(result, p, size=2000))["model"]
    assert "within chance" in words(with_p(result, p, size=50))["model"]


def test_the_truth_is_said():
    said = words(judge(fake()), bad=3)
    assert said["model"].endswith(" Known to be bad: 3 of 60 (5%).")
    assert words(fake(), bad=0)["model"].endswith(" Known to be bad: 0 of 60 (0%).")


def test_a_model_that_is_wrong_raises_an_alert():
    half = torch.tensor([0.01] * 30 + [0.5] * 30)
    assert words(with_p(judge(fake()), half))["alert"] is None
    more = words(with_p(judge(fake()), torch.tensor([0.01] * 31 + [0.5] * 29)))
    assert more["alert"].startswith("Most samples look unlike real data. ")
    assert "a filter cannot fix it" in more["alert"]
    assert more["off"]
    problem = words(replace(judge(fake()), about={"problems": ["The network fails."]}))
    assert problem["alert"] == "Do not trust these p-values yet. The network fails."
    assert problem["off"]


def test_limits_of_the_comparison_are_said():
    training = words(judge(fake(), held_out=False))
    assert "95% of training data. About 3 of 60 training samples look this doubtful, too" in training["model"]
    assert any("Hold out some data" in line for line in training["details"])
    with pytest.warns(UserWarning, match="only 9 samples"):
        few = judge(fake(), size=9)
    assert any("With 9 real samples, no p-value is below 0.1" in line for line in words(few)["details"])


def test_without_real_data_nothing_is_claimed():
    result = fake(n=10, scores={"trace": torch.arange(10.0)})
    said = words(result)
    assert said["model"] == "10 samples, ranked by the score “trace”: higher is more doubtful."
    assert "so this page only ranks the samples" in said["details"][0]
    assert said["alert"] is None

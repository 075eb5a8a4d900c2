"""Does a sample fit its condition: the ratio of errors by hand, in the verdict, in files, and bad input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flare
from flare.cli.samples_in import read_null_condition
from flare.core import SHARED_LEVELS

T = 50
ALPHAS = torch.tensor([flare.schedules.cosine(T).at(level).alpha for level in range(1, T + 1)])
QUICK = {"subset": 20, "pairs": 100, "progress": False, "check": False}


class Labeled(nn.Module):
    """Knows that the data of class k is near k + 1, and assumes 0 without a class (3)."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(20, 20)

    def forward(self, x, t, labels):
        alpha = ALPHAS.to(x)[t].unsqueeze(1)
        clean = torch.where(labels < 3, labels + 1.0, 0.0).to(x).unsqueeze(1)
        noise = (x - alpha * clean) / (1 - alpha.square()).sqrt()
        return noise + 1e-3 * self.scale(x)


@pytest.fixture(scope="module")
def have():
    torch.manual_seed(0)
    labels = torch.arange(600) % 3
    data = (labels + 1.0).unsqueeze(1) + 0.1 * torch.randn(600, 20)
    net, schedule = Labeled(), flare.schedules.cosine(T)
    scorer = flare.fit(
        net, data, schedule, cond={"labels": labels}, null_cond={"labels": 3}, **QUICK
    )  # fmt: skip
    return net, schedule, data, labels, scorer


def test_a_wrong_label_is_doubtful_and_named(have):
    *_, data, labels, scorer = have
    few = slice(0, 60)
    right = scorer.score(data[few], {"labels": labels[few]})
    wrong = scorer.score(data[few], {"labels": (labels[few] + 1) % 3})
    assert wrong.scores["condition_fit"].min() > right.scores["condition_fit"].max()
    assert (wrong.p_value <= 0.05).all()
    assert (right.p_value > 0.05).double().mean() > 0.8
    assert set(wrong.reason) == {"condition_fit"}
    assert scorer.about["repeatability"]["condition_fit"] > 0.5


def test_it_is_the_ratio_of_errors(have):
    net, schedule, data, labels, scorer = have
    found = scorer.score(data[:8], {"labels": labels[:8]}).scores["condition_fit"]
    null = torch.full((8,), 3)
    profile = flare.score(
        flare.Denoiser(net), None, schedule, data[:8], score="error_profile", levels=SHARED_LEVELS, repeats=2,
        cond={"labels": labels[:8]}, unconditional={"labels": null},
    )  # fmt: skip
    assert torch.allclose(found, profile.exp().double(), rtol=1e-4)


def test_a_saved_scorer_knows_the_null_condition(have, tmp_path):
    net, _, data, labels, scorer = have
    scorer.save(tmp_path / "scorer")
    again = flare.load(tmp_path / "scorer", net)
    for own in (scorer, again):
        assert own.about["null_cond"] == {"labels": 3}
    given = {"labels": labels[:20]}
    assert torch.allclose(scorer.score(data[:20], given).verdict.z, again.score(data[:20], given).verdict.z)


def test_wrong_null_conditions_are_named(have):
    net, schedule, data, labels, _ = have
    with pytest.raises(ValueError, match="null_cond names 'label', but the conditions are labels"):
        flare.fit(net, data, schedule, cond={"labels": labels}, null_cond={"label": 3}, **QUICK)
    for number in (3, 0):
        with pytest.raises(TypeError, match=rf"must be a dict such as {{'labels': {number}}}, got int"):
            flare.fit(net, data, schedule, cond={"labels": labels}, null_cond=number, **QUICK)
    with pytest.raises(TypeError, match=r"one number per name, .* got str"):
        flare.fit(net, data, schedule, cond={"labels": labels}, null_cond={"labels": "none"}, **QUICK)


@pytest.mark.parametrize(("text", "value"), [("3", {"labels": 3}), ("labels=0.5", {"labels": 0.5})])
def test_the_command_line_reads_it(text, value):
    assert read_null_condition(text, Labeled()) == value
    assert read_null_condition(None, Labeled()) is None
    with pytest.raises(ValueError, match="--null-cond must be a number, or KEYWORD=NUMBER, got none"):
        read_null_condition("none", Labeled())

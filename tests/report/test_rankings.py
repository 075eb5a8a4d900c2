from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from judged import fake, judge

from flare.results.drawing import Scale, count_bins, names, rank_by


def test_the_verdict_comes_first_and_every_score_follows():
    plain, judged = fake(), judge(fake())
    assert names(plain) == ["trace"]
    assert names(judged) == ["verdict", "influence", "neighbors", "trace"]
    assert rank_by(judged).name == "verdict"
    assert torch.equal(rank_by(judged).values, judged.verdict.z)
    assert torch.equal(rank_by(judged).p_value, judged.p_value)
    with pytest.raises(ValueError, match="unknown score 'verdit'; did you mean 'verdict'"):
        rank_by(judged, "verdit")


def test_p_values_of_a_score_are_shares_of_real_data():
    result = judge(fake(), size=49)
    ranking = rank_by(result, "influence")
    real = result.reference.scores["influence"]
    expected = [(1 + int((real >= s).sum())) / 50 for s in result.scores["influence"].double()]
    np.testing.assert_allclose(ranking.p_value, expected)
    assert (ranking.size, len(ranking.real)) == (49, 49)
    assert rank_by(result, "trace").p_value is None
    alone = rank_by(replace(result, reference=None), "influence")
    np.testing.assert_allclose(alone.p_value, expected)
    assert alone.real is None


def test_real_data_has_the_p_values_of_its_own_verdict():
    """Placing a sample among the real sums gives its p-value back."""
    result = judge(fake(), size=49)
    ranking = rank_by(result)
    counts = (ranking.real[None] >= ranking.values[:, None] - 1e-9).sum(1)
    np.testing.assert_allclose((1 + counts) / 50, ranking.p_value)


def test_bins_hold_every_value_and_outliers_do_not_stretch_them():
    values = torch.cat([torch.linspace(0, 1, 999), torch.tensor([1e6])])
    edges = Scale.of(values).edges(values)
    assert edges[-1] < 2
    assert count_bins(values, edges).sum() == 1000
    assert count_bins(values, edges)[-1] > count_bins(values[:-1], edges)[-1]
    far = torch.linspace(50, 51, 100)  # real data elsewhere stays on the axis
    both = Scale.of(values[:-1], far).edges(values[:-1], far)
    assert (both[0], both[-1]) == (0, 51)
    assert count_bins(far, both).sum() == 100


def test_a_logarithmic_axis_needs_positive_real_data():
    values = torch.logspace(-3, 3, 50)
    assert Scale.of(values).log
    assert not Scale.of(values, torch.tensor([0.0, 1.0])).log
    edges = Scale.of(values, values).edges(values, values)
    np.testing.assert_allclose(np.diff(np.log(edges)), np.log(edges[1] / edges[0]))

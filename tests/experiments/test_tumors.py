"""Tumors: real rows obey the inequalities, and rows that were changed to break one are bad."""

from __future__ import annotations

import pytest
import torch

from experiments import tumors


def test_every_real_row_obeys_the_inequalities():
    x, labels = tumors.make()
    assert x.shape == (569, 30)
    assert (float(x.min()), float(x.max())) == (-1.0, 1.0)
    assert not tumors.bad(x.float()).any()
    assert labels.bincount().tolist() == [212, 357]


def test_scaling_is_undone():
    x, _ = tumors.make()
    torch.testing.assert_close(tumors.measured(x), tumors.table()[0])


@pytest.mark.parametrize("feature", range(10))
def test_a_worst_value_below_the_mean_is_bad(feature):
    x, _ = tumors.make()
    rows = tumors.measured(x)
    whole = rows[:, 20 + feature].amax()
    x[:, 20 + feature] = -1  # the smallest worst value
    low = tumors.table()[0][:, 20 + feature].min() < rows[:, feature] - 1e-6 * whole
    assert low.any()
    assert tumors.bad(x)[low].all()


@pytest.mark.parametrize("column", [3, 23])
def test_an_area_that_no_perimeter_encloses_is_bad(column):
    x, _ = tumors.make()
    x[:, column] = 1  # the largest area
    small = tumors.table()[0][:, column - 1] < tumors.table()[0][:, column - 1].median()
    assert tumors.bad(x)[small].all()

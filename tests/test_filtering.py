from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flare


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.01, 1))
def test_keep_fraction_keeps_the_lowest(values, fraction):
    score = torch.tensor(values)
    mask = flare.keep_fraction(score, fraction)
    assert mask.sum() == max(1, round(fraction * len(values)))
    if not mask.all():
        assert score[mask].max() <= score[~mask].min()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(-1e6, 1e6))
def test_keep_below_is_a_threshold(values, threshold):
    assert flare.keep_below(torch.tensor(values).double(), threshold).tolist() == [
        v <= threshold for v in torch.tensor(values).double().tolist()
    ]


def test_bad_input_is_named():
    score = torch.rand(5)
    for call, message in [
        (lambda: flare.keep_fraction(score, 0.0), r"\(0, 1\]"),
        (lambda: flare.keep_fraction(torch.rand(5, 2), 0.5), r"shape \(n,\)"),
        (lambda: flare.keep_fraction(torch.rand(0), 0.5), "at least 1"),
        (lambda: flare.keep_below(torch.tensor([1.0, torch.nan]), 0.5), "1 of 2 scores are NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

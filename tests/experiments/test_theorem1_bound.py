"""The constants of Theorem 1 against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.theorem1_bound import DELTA, Constants

P, K, BLOCK = 40, 6, 2


@pytest.fixture
def jacobians():
    g = torch.Generator().manual_seed(0)
    J_pop = torch.randn(K, P, generator=g, dtype=torch.float64)
    J_t = torch.randn(3 * BLOCK, K, generator=g, dtype=torch.float64) @ J_pop
    return J_pop, J_t + 0.5 * torch.randn(J_t.shape, generator=g, dtype=torch.float64)


def test_constants_are_those_of_the_definitions(jacobians):
    J_pop, J_t = jacobians
    found = Constants.of(J_pop, J_t, BLOCK)
    A, B = J_pop.numpy().T, J_t.numpy().T
    projection = A @ np.linalg.pinv(A)
    inside, outside = projection @ B, B - projection @ B
    assert found.condition == pytest.approx(np.linalg.cond(A))
    assert found.coherence == pytest.approx(projection.diagonal().max())
    assert found.alignment == pytest.approx((inside**2).sum() / (outside**2).sum())
    ratios = [(inside[:, i : i + 2] ** 2).sum() / (outside[:, i : i + 2] ** 2).sum() for i in (0, 2, 4)]
    assert found.alignments == pytest.approx(ratios)
    bound = (P * found.alignment * found.coherence / (10 * DELTA)) ** 0.5 * found.condition
    assert found.printed(10) == pytest.approx(bound)
    assert found.corrected(10) == pytest.approx(bound / found.alignment)
    assert found.corrected(found.needed) == pytest.approx(1)


def test_a_factor_of_the_jacobian_changes_nothing(jacobians):
    J_pop, J_t = jacobians
    one, other = Constants.of(J_pop, J_t, BLOCK), Constants.of(J_pop / 12**0.5, J_t, BLOCK)
    assert other.printed(10) == pytest.approx(one.printed(10))
    assert other.alignments == pytest.approx(one.alignments)


def test_more_rows_than_parameters_are_refused(jacobians):
    J_pop, J_t = jacobians
    with pytest.raises(ValueError, match="at most as many rows as columns, got 40 by 6"):
        Constants.of(J_pop.T, J_t, BLOCK)

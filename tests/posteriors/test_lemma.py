from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st


@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(1, 14), st.integers(1, 6))
def test_lemma_1_of_the_paper_holds_for_all_full_rank_matrices(seed, p, k, l):  # noqa: E741
    """Bᵀ(AAᵀ)⁺B = X*ᵀX*, X* the least-squares solution of AX = B, for A (p, k) and B (p, l), k < p."""
    assume(k < p)
    g = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(p, n, generator=g, dtype=torch.float64) for n in (k, l))
    assume(torch.linalg.cond(A) < 1e4)
    X = torch.linalg.lstsq(A, B).solution
    covariance = B.T @ torch.linalg.pinv(A @ A.T, rtol=1e-12) @ B
    torch.testing.assert_close(covariance, X.T @ X, rtol=1e-5, atol=1e-8)

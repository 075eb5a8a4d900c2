"""A sketch against the explicit p × m matrix that it stands for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TinyNet

import flare
from flare import subsets
from flare.network.coordinates import Sketch

DENOISER = flare.Denoiser(TinyNet((4,), 7).double())
P = DENOISER.parameter_count


def explicit(sketch):
    """S, (p, m)."""
    S = torch.zeros(P, sketch.size, dtype=torch.float64)
    for row, (bucket, sign) in enumerate(zip(sketch.buckets.tolist(), sketch.signs.tolist(), strict=True)):
        S[row, bucket] = sign
    return S


def flat(tensors, lead=0):
    return torch.cat([tensors[name].flatten(lead) for name in DENOISER.params], dim=lead)


@settings(max_examples=20)
@given(st.integers(1, P), st.integers(0, 2), st.integers(0, 3))
def test_scatter_and_gather_are_the_matrix_and_its_transpose(count, lead, seed):
    sketch = subsets.sketch(DENOISER, count, seed=seed)
    S, axes = explicit(sketch), [2] * lead
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(*axes, count, generator=generator, dtype=torch.float64)
    u = {n: torch.randn(*axes, *p.shape, generator=generator).double() for n, p in DENOISER.params.items()}
    torch.testing.assert_close(flat(sketch.scatter(v), lead), v @ S.T)
    torch.testing.assert_close(sketch.gather(u, lead), flat(u, lead) @ S)
    again = subsets.sketch(DENOISER, count=count, seed=seed)
    assert torch.equal(again.buckets, sketch.buckets)
    assert torch.equal(again.signs, sketch.signs)


def test_every_parameter_moves_with_one_coordinate_and_buckets_are_uniform():
    sketch = subsets.sketch(DENOISER, fraction=0.25, seed=3)
    assert sketch.size == round(P / 4)
    assert sketch.entry_count == P
    assert (explicit(sketch).abs().sum(1) == 1).all()
    counts, positive = torch.zeros(5), 0
    for seed in range(200):
        one = subsets.sketch(DENOISER, 5, seed=seed)
        counts += one.buckets.bincount(minlength=5)
        positive += int((one.signs == 1).sum())
    expected = 200 * P / 5
    assert (counts - expected).abs().max() < 5 * (expected * 0.8) ** 0.5
    assert abs(positive - 100 * P) < 5 * (50 * P) ** 0.5


def test_the_coordinates_of_the_network_are_those_of_the_nearest_embedded_point():
    theta = flat(DENOISER.params)
    # more buckets than parameters would fill: some are empty
    for count in (1, 6, P):
        sketch = subsets.sketch(DENOISER, count, seed=1)
        torch.testing.assert_close(sketch.locate(DENOISER), torch.linalg.pinv(explicit(sketch)) @ theta)
    chosen = subsets.random(DENOISER, count=5)
    torch.testing.assert_close(chosen.locate(DENOISER), chosen.gather(DENOISER.params))


def test_a_sketch_has_no_whole_tensors_and_says_what_it_is():
    sketch = subsets.sketch(DENOISER, 6)
    assert not sketch.whole
    assert repr(sketch) == f"Sketch(6 sums of {P:,} numbers in 4 tensors)"
    with pytest.raises(ValueError, match=f"count must be at most {P}"):
        subsets.sketch(DENOISER, P + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sketch.signs": torch.zeros(P, dtype=torch.int8)}, "signs of 1 or -1"),
        ({"sketch.buckets": torch.full((P,), 6, dtype=torch.int32)}, "buckets in 0 to 5"),
        ({"sketch.buckets": torch.zeros(P - 1, dtype=torch.int32)}, "int32 bucket"),
    ],
)
def test_a_damaged_sketch_is_refused(change, message):
    sketch = subsets.sketch(DENOISER, 6)
    again = Sketch.restore(sketch.tensors(), sketch.metadata())
    assert torch.equal(again.buckets, sketch.buckets)
    assert again.shapes == sketch.shapes
    with pytest.raises(ValueError, match=message):
        Sketch.restore(sketch.tensors() | change, sketch.metadata())

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flare.core.noise_streams import NoiseStreams, mix_seed


@given(seed=st.integers(0, 2**40), first=st.integers(0, 7), steps=st.integers(1, 9), d=st.integers(1, 3000))
def test_noise_depends_on_seed_and_index_alone(seed, first, steps, d):
    whole, part = NoiseStreams(seed, 0, 9, (d,), steps), NoiseStreams(seed, first, 2, (d,), steps)
    for _ in range(steps):
        assert torch.equal(whole.next()[first : first + 2], part.next())


def test_noise_is_standard_normal_and_uncorrelated():
    noise = NoiseStreams(3, 0, 64, (7,), 1000)
    x = torch.stack([noise.next().clone() for _ in range(1000)])  # (steps, samples, d)
    assert stats.kstest(x.flatten().numpy(), "norm").pvalue > 1e-3
    for a, b in [(x[:-1], x[1:]), (x[:, :-1], x[:, 1:]), (x[..., :-1], x[..., 1:])]:
        correlation = (a * b).mean() * (a.numel() ** 0.5)
        assert abs(correlation) < 4, "neighboring steps, samples or coordinates are correlated"


@given(d=st.integers(1, 5000), draws=st.integers(1, 9), more=st.integers(0, 9))
def test_a_draw_does_not_depend_on_how_many_follow(d, draws, more):
    few, many = NoiseStreams(1, 0, 3, (d,), draws), NoiseStreams(1, 0, 3, (d,), draws + more)
    for _ in range(draws):
        assert torch.equal(few.next(), many.next())


def test_what_goes_wrong_in_the_thread_is_raised(monkeypatch):
    streams = NoiseStreams(0, 0, 2, (3,), 5000)
    streams.next()
    streams._drawing.result()  # the block under way is drawn before the fault
    monkeypatch.setattr(torch.Tensor, "normal_", lambda *_, **__: 1 / 0)
    streams.next()  # from the block that was drawn before; the next one fails
    with pytest.raises(ZeroDivisionError):
        [streams.next() for _ in range(5000)]


@pytest.mark.parametrize("draws", [1, 3])
def test_more_draws_than_declared_are_refused(draws):
    streams = NoiseStreams(0, 0, 2, (5000,), draws)
    for _ in range(draws):
        streams.next()
    with pytest.raises(RuntimeError, match="the rule's `extra_noise`"):
        streams.next()


def test_near_seeds_and_indices_give_unlike_streams():
    seeds = {mix_seed(seed, index) for seed in range(200) for index in range(200)}
    assert len(seeds) == 200 * 200
    assert max(seeds) < 2**63


def test_streams_beside_others_belong_to_the_same_samples():
    def beside(first, count, tag):
        return NoiseStreams(7, first, count, (3,), 5).beside(tag, 4).next()

    assert torch.equal(beside(0, 6, 1)[2:4], beside(2, 2, 1))  # whatever the batch
    assert not torch.equal(beside(0, 6, 1), beside(0, 6, 2))
    assert not torch.equal(beside(0, 6, 1), NoiseStreams(7, 0, 6, (3,), 5).next())

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import TinyNet
from torch import nn

import flare
from flare import subsets
from flare.posteriors import subsets as own

DENOISER = flare.Denoiser(TinyNet((4,), 7))
P = DENOISER.parameter_count


def test_a_huge_network_draws_without_a_permutation():
    found = own._draw_distinct(2**40, 5000, torch.Generator().manual_seed(0))
    assert len(found.unique()) == 5000
    assert found.max() < 2**40


@given(st.integers(1, P), st.integers(0, 5))
def test_random_subsets_are_sorted_distinct_and_seeded(count, seed):
    subset = subsets.random(DENOISER, count=count, seed=seed)
    assert subset.size == count
    for name, index in subset.indices.items():
        assert (index.diff() > 0).all()
        assert index[0] >= 0
        assert index[-1] < DENOISER.params[name].numel()
    again = subsets.random(DENOISER, count=count, seed=seed)
    assert all(torch.equal(again.indices[k], v) for k, v in subset.indices.items())


@pytest.mark.parametrize("huge", [2**27, 0])
def test_random_is_uniform_over_all_layers(huge, monkeypatch):
    monkeypatch.setattr(own, "_HUGE", huge)
    counts = torch.zeros(P)
    for seed in range(400):
        chosen = {name: torch.zeros(p.shape) for name, p in DENOISER.params.items()}
        chosen |= subsets.random(DENOISER, count=P // 4, seed=seed).scatter(torch.ones(P // 4))
        counts += subsets.everything(DENOISER).gather(chosen)
    expected = 400 * (P // 4) / P
    assert (counts - expected).abs().max() < 5 * (expected * 0.75) ** 0.5


@given(st.integers(1, P), st.integers(0, 3))
def test_gather_undoes_scatter(count, lead):
    subset = subsets.random(DENOISER, count=count, seed=1)
    v = torch.randn(*[2] * lead, count)
    scattered = subset.scatter(v)
    assert torch.equal(subset.gather(scattered, lead), v)
    assert sum(t.count_nonzero() for t in scattered.values()) == v.numel()


def test_everything_fraction_and_names():
    assert subsets.everything(DENOISER).size == P
    assert subsets.random(DENOISER, fraction=0.5).size == round(P / 2)
    named = subsets.named(DENOISER, "second.*")
    assert list(named.indices) == ["second.weight", "second.bias"]
    assert named.whole
    assert not subsets.random(DENOISER, count=3).whole


class Swapped(nn.Module):
    """Its last registered layer is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(2, 2, 3, padding=1)
        self.body = nn.Linear(5, 5)

    def forward(self, x, t):
        return self.head(self.body(x))


def test_the_last_layer_is_found_by_order_and_by_name():
    assert list(subsets.last_layer(DENOISER).indices) == ["second.weight", "second.bias"]
    swapped = flare.Denoiser(Swapped())
    assert list(subsets.last_layer(swapped).indices) == ["body.weight", "body.bias"]
    assert list(subsets.last_layer(swapped, "head").indices) == ["head.weight", "head.bias"]
    for name, head in (("grid", 66), ("chirp", 10_320)):
        assert subsets.last_layer(flare.bench.load(name).denoiser).size == head


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x, t):
            return self.b(torch.tanh(self.a(x)))

    assert subsets.everything(flare.Denoiser(Tied())).size == 9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: subsets.random(DENOISER), "count= or fraction="),
        (lambda: subsets.random(DENOISER, count=3, fraction=0.1), "either count= or fraction="),
        (lambda: subsets.random(DENOISER, count=0), "count must be an integer of at least 1"),
        (lambda: subsets.random(DENOISER, count=P + 1), f"count must be at most {P:,}"),
        (lambda: subsets.random(DENOISER, fraction=1.5), r"\(0, 1\]"),
        (lambda: subsets.named(DENOISER, "third.*"), "no parameter of TinyNet matches 'third"),
        (lambda: subsets.last_layer(DENOISER, "third"), "has no module 'third'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()

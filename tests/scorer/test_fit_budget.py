"""What an expensive network gets by default, and what the fit says of its time."""

from __future__ import annotations

import pytest
import torch

import flare
from flare.core.progress import Sized
from flare.scorer import choosing, fit


@pytest.fixture
def model():
    return flare.bench.load("grid")


def test_an_expensive_network_gets_fewer_pairs_and_a_smaller_reference(model):
    for work, pairs, reference in [(1e4, 20_000, 1000), (9.5e7, 4000, 1000), (2e8, 1000, 300)]:
        chosen = choosing.choose(model.denoiser, 100, "dense", None, 0, None, work)
        assert chosen.pairs == pairs
        assert choosing.reference_size(50_000, work) == reference
    assert choosing.choose(model.denoiser, 100, "dense", 123, 0, None, 2e8).pairs == 123  # as asked for


def test_fit_takes_the_smaller_reference(model, monkeypatch):
    monkeypatch.setattr(choosing, "EXPENSIVE", 1.0)
    scorer = flare.fit(model, model.data[:6000], subset=20, check=False)
    assert (len(scorer.reference), scorer.about["pairs"]) == (300, 1000)
    assert scorer.about["training_size"] == 5700


def test_a_bar_says_how_long_it_takes_after_the_first_batch(model, capsys, monkeypatch):
    clock = iter([0.0, 2.0])
    monkeypatch.setattr(fit.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(fit, "watch", lambda items, length, progress: items)
    train, real = torch.zeros(1000, 2), torch.zeros(300, 2)
    parts = fit.Parts(train, {}, torch.arange(1000), torch.arange(1000), real, {}, True)
    timed = fit._time(10_000, parts, True)
    assert list(timed(Sized(iter("abcd"), 4))) == list("abcd")
    # 4 batches of 2 s; 1,600 encoded samples, 8 states each, 2.8 calls per state, over 10,000 calls
    assert "about 8 s, and 29 s for features" in " ".join(capsys.readouterr().err.split())
    assert fit._time(10_000, parts, False) is False

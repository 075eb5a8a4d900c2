"""Deliberate mistakes of new users, one row each: what they do, and what they are told."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from points import Net, T, ring, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flare

QUICK = {"subset": 20, "pairs": 100, "progress": False}
COSINE = flare.schedules.cosine(T)


class Loud(nn.Module):
    """Calls a network with another output, or other arguments, than FLARE expects."""

    def __init__(self, net, call):
        super().__init__()
        self.net, self.call = net, call

    def forward(self, x, t):
        return self.call(self.net, x, t)


@pytest.fixture(scope="module")
def have():
    """What a user has: a network, its data, and a scorer with a result."""
    net, data = trained(ring(), steps=1500), ring()
    scorer = flare.fit(net, data, COSINE, **QUICK, check=False)
    return SimpleNamespace(net=net, data=data, scorer=scorer, result=scorer.sample(20, steps=5))


def fit(have, **changes):
    given = {"net": have.net, "data": have.data, "schedule": COSINE, **QUICK, **changes}
    return flare.fit(given.pop("net"), given.pop("data"), given.pop("schedule"), **given)


def other(call):
    return lambda have: fit(have, net=Loud(have.net, call), check=False)


MISTAKES = {
    # the network and its noise levels
    "no schedule": (lambda h: fit(h, schedule=None), TypeError, "schedule must be the noise levels"),
    "T for a schedule": (lambda h: fit(h, schedule=T), TypeError, "got int; give for instance schedule="),
    "betas for a schedule": (
        lambda h: fit(h, schedule=torch.linspace(1e-4, 0.02, T)),
        TypeError,
        "from_betas",
    ),
    "weights for a network": (
        lambda h: fit(h, net=h.net.state_dict()),
        TypeError,
        "net must be a torch module",
    ),
    "path of a checkpoint": (lambda h: fit(h, net="model.pt", schedule=None), ValueError, "load_state_dict"),
    "unknown prediction": (lambda h: fit(h, prediction="eps"), ValueError, "unknown prediction 'eps'"),
    "wrong prediction": (lambda h: fit(h, prediction="v"), UserWarning, "seems to predict epsilon, not v"),
    "wrong T": (
        lambda h: fit(h, schedule=flare.schedules.cosine(10 * T)),
        UserWarning,
        "seems to be trained with about 50 noise levels",
    ),
    "wrong schedule": (
        lambda h: fit(h, schedule=flare.schedules.linear(T)),
        UserWarning,
        "do not trust this scorer yet",
    ),
    "untrained network": (lambda h: fit(h, net=Net()), UserWarning, "untrained weights"),
    "output of a tuple": (
        other(lambda net, x, t: (net(x, t), None)),
        ValueError,
        "got tuple; wrap it in a module",
    ),
    "output of another shape": (
        other(lambda net, x, t: net(x, t).sum(1)),
        ValueError,
        "like its input, shape",
    ),
    "dropout": (
        other(lambda net, x, t: nn.functional.dropout(net(x, t), 0.5)),
        ValueError,
        "it draws random numbers",
    ),
    "batch statistics": (
        other(lambda net, x, t: net(x - x.mean(0), t)),
        ValueError,
        "it mixes or reorders samples",
    ),
    # the data
    "list of numbers": (lambda h: fit(h, data=h.data.tolist()), TypeError, "torch.as_tensor"),
    "integers": (lambda h: fit(h, data=(100 * h.data).long()), TypeError, "must be floating point"),
    "one sample": (lambda h: fit(h, data=h.data[0]), ValueError, "at least 2 axes"),
    "too few samples": (lambda h: fit(h, data=h.data[:8]), ValueError, "at least 12, preferably thousands"),
    "missing values": (
        lambda h: fit(h, data=torch.cat([h.data, torch.full((1, 2), torch.nan)])),
        ValueError,
        "NaN or infinity in 1 of 601",
    ),
    "another shape": (lambda h: fit(h, data=torch.rand(600, 3)), ValueError, "It works on samples of shape"),
    "another scale": (lambda h: fit(h, data=40 * h.data), UserWarning, "this data has values from"),
    "path of a file": (lambda h: fit(h, data=__file__), TypeError, "np.load"),
    "path of no file": (lambda h: fit(h, data="data.npy"), FileNotFoundError, "data.npy"),
    "shuffled loader with labels": (
        lambda h: fit(
            h, data=DataLoader(TensorDataset(h.data), shuffle=True), cond={"label": torch.zeros(600)}
        ),
        ValueError,
        "the order of data is not known",
    ),
    "dict of a loader": (
        lambda h: fit(h, data=DataLoader([{"x": x} for x in h.data])),
        TypeError,
        "dicts with x, and FLARE cannot tell",
    ),
    "held-out data is the data": (
        lambda h: fit(h, held_out=h.data),
        ValueError,
        "nothing is left to compare",
    ),
    "held-out data of another scale": (
        lambda h: fit(h, held_out=50 * ring(100, seed=1), check=False),
        UserWarning,
        "scaled as in training",
    ),
    "conditions as a tensor": (lambda h: fit(h, cond=torch.zeros(600)), TypeError, "cond must be a dict"),
    "conditions of a network that takes none": (
        lambda h: fit(h, cond={"y": torch.zeros(600)}),
        ValueError,
        "does not take these arguments",
    ),
    # options
    "unknown structure": (lambda h: fit(h, structure="full"), ValueError, "unknown structure 'full'"),
    "rank without low rank": (lambda h: fit(h, rank=3), ValueError, "rank= is for structure='low_rank'"),
    "no such parameters": (lambda h: fit(h, subset="head.*"), ValueError, "no parameter of Net matches"),
    # sampling and scoring
    "integers to score": (
        lambda h: h.scorer.score((h.data[:5] * 100).long()),
        TypeError,
        "use x / 127.5 - 1",
    ),
    "one sample to score": (lambda h: h.scorer.score(h.data[0]), ValueError, r"existing\[None\]"),
    "samples of another shape": (lambda h: h.scorer.score(torch.rand(5, 3)), ValueError, r"shape \(n, 2\)"),
    "samples of another scale": (
        lambda h: h.scorer.score(50 * h.data[:50]),
        UserWarning,
        "are they scaled as in training",
    ),
    "samples as a list": (lambda h: h.scorer.score(h.data[:5].tolist()), TypeError, "torch.as_tensor"),
    "no samples": (lambda h: h.scorer.sample(0), ValueError, "n must be an integer of at least 1"),
    "name of a sampler": (lambda h: h.scorer.sample(5, steps="ddpm"), TypeError, "flare.samplers.ddpm"),
    "variance without directions": (
        lambda h: h.scorer.sample(5, covariance=True),
        ValueError,
        "give directions=16",
    ),
    "percent to keep": (lambda h: h.result.keep(50), ValueError, "did you mean 0.5"),
    "percent of p-values": (lambda h: h.result.trusted(5), ValueError, "did you mean 0.05"),
    "network that was trained on": (
        lambda h: flare.load(h.saved, trained(ring(), steps=3), schedule=COSINE),
        ValueError,
        "weights",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained(have, mistake, tmp_path):
    call, kind, words = MISTAKES[mistake]
    if "network that" in mistake:
        have.saved = tmp_path / "scorer"
        have.scorer.save(have.saved)
    if issubclass(kind, Warning):
        with pytest.warns(kind, match=words):
            call(have)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kind, match=words):
            call(have)

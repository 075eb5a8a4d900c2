"""The error messages for a network that does not fit the data."""

from __future__ import annotations

import re

import pytest
import torch
from reference import Backward, TinyNet
from torch import nn

import flare
from flare.network.probing import call
from flare.posteriors import STRUCTURES


class Flat(nn.Module):
    """Samples of 3 numbers, flat."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x, t):
        return self.out(x)


class Wide(Flat):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 6)


class Channels(nn.Module):
    """Series of 2 channels, (B, 2, L)."""

    def __init__(self):
        super().__init__()
        self.out = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x, t):
        return self.out(x)


class Grays(nn.Module):
    """Gray images, (B, 1, H, W)."""

    def __init__(self):
        super().__init__()
        self.out = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x, t):
        return self.out(x)


class Timeless(Flat):
    def forward(self, x):
        return self.out(x)


class Labelled(Flat):
    def forward(self, x, t, label):
        return self.out(x)


class IntegerTime(Flat):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 3)

    def forward(self, x, t):
        return self.out(x) + self.time(t[:, None])


class Table(Flat):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(10, 3)

    def forward(self, x, t):
        return self.out(x) + self.time(t)


class Swapped(Flat):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(100, 3)

    def forward(self, t, x):
        return self.out(x) + self.time(t)


class Loss(nn.Module):
    """A diffusion process around a network: its forward takes clean samples and returns a loss."""

    def __init__(self):
        super().__init__()
        self.model = Flat()

    def forward(self, img, *args, times=None):
        times = torch.zeros(len(img)) if times is None else times
        return (self.model(img, times, *args) - img).square().mean()


class MeanLoss(Loss):
    def forward(self, img, *args):
        return (self.model(img, None) - img).square().mean()


class OnlyLoss(Loss):
    def forward(self, img):
        return (self.model(img, None) - img).square().mean()


class Doubled(Flat):
    def forward(self, x, t):
        return self.out(x).repeat(1, 2)


class Torn(Flat):
    def forward(self, x, t):
        raise KeyError("nothing")


@pytest.mark.parametrize(
    ("net", "shape", "messages"),
    [
        (Flat, (7,), ["Flat failed on x of shape (2, 7)", "mat1 and mat2", "width of its first layer"]),
        (Flat, (4,), ["works on samples of shape (3,), and the data has (4,)", "an index? Remove it"]),
        (Wide, (2, 3), ["works on samples of shape (6,)", "flatten"]),
        (Grays, (4, 4), ["shape (2, 4, 4)", "works on samples of shape (1, 4, 4)", "data.unsqueeze(1)"]),
        (Channels, (5, 2), ["shape (2, 5, 2)", "works on samples of shape (2, 5)", "data.movedim(-1, 1)"]),
        (Timeless, (3,), ["must be called net(x, t)", "its forward(x) does not take", "takes (x, t)"]),
        (Labelled, (3,), ["missing a required argument: 'label'", "Pass cond={'label': ...}, with one row"]),
        (IntegerTime, (3,), ["t of shape (2,) (torch.int64)", "t = t.to(x.dtype)"]),
        (Table, (3,), ["works at t = 0, but not at t = 99", "number of levels that it was trained with"]),
        (Doubled, (3,), ["must return a tensor like its input, shape (2, 3), got shape (2, 6)"]),
        (Torn, (3,), ["Torn failed on x of shape (2, 3)", "KeyError: 'nothing'. It must take samples of"]),
        (Swapped, (3,), ["mat1 and mat2", "It works as net(t, x): swap the arguments"]),
        (Loss, (3,), ["Loss failed on x", "Its .model (Flat) works", "pass net.model"]),
        (MeanLoss, (3,), ["got shape ()", "Its .model (Flat) works", "pass net.model"]),
        (OnlyLoss, (3,), ["OnlyLoss failed on x", "Its .model (Flat) works", "pass net.model"]),
    ],
)
def test_a_network_that_does_not_fit_is_told_what_to_do(net, shape, messages):
    with pytest.raises(ValueError, match=re.escape(messages[0])) as caught:
        call(flare.Denoiser(net()), torch.randn(2, *shape), torch.tensor([99, 99]))
    for message in messages:
        assert message in str(caught.value)
    assert ("first layer" in str(caught.value)) == ("width of its first layer" in messages)


@pytest.mark.parametrize(("net", "shape"), [(Channels, (3, 5)), (Channels, (3, 4, 5, 6)), (Wide, (4,))])
def test_a_shape_that_no_layer_takes_is_explained_by_the_first_layer(net, shape):
    with pytest.raises(ValueError, match="Check the width of its first layer"):
        call(flare.Denoiser(net()), torch.randn(2, *shape), torch.tensor([99, 99]))


class Classes(Flat):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, x, t, label):
        return self.out(x) + self.table(label)


def test_labels_that_are_not_integers_are_named():
    with pytest.raises(ValueError, match=r"It works with label as integers: give label.long\(\)"):
        call(flare.Denoiser(Classes()), torch.randn(2, 3), torch.zeros(2), {"label": torch.ones(2)})


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range_are_named(label):
    labels = torch.tensor([3, label])
    with pytest.raises(ValueError, match=r"IndexError: index out of range") as caught:
        call(flare.Denoiser(Classes()), torch.randn(2, 3), torch.zeros(2), {"label": labels})
    low, high = sorted([3, label])
    assert f"It works with label = 0, but not with {low} to {high}" in str(caught.value)
    assert "first layer" not in str(caught.value)


def test_a_fit_finds_the_labels_that_are_out_of_range():
    labels = torch.arange(200) % 10
    labels[150] = 10
    with pytest.raises(ValueError, match=r"It works with label = 0, but not with 0 to 10"):
        flare.fit(Classes(), torch.randn(200, 3), flare.schedules.cosine(20), cond={"label": labels})


def test_an_argument_that_an_error_names_is_asked_for_as_a_condition():
    class Labelled(Flat):
        def forward(self, x, t, class_labels=None):
            if class_labels is None:
                raise ValueError("class_labels should be provided")
            return self.out(x)

    with pytest.raises(ValueError, match=r"Give it as cond=\{'class_labels': \.\.\.\}, with one row"):
        call(flare.Denoiser(Labelled()), torch.randn(2, 3), torch.zeros(2))


def test_a_probe_needs_no_derivative_and_takes_conditions():
    class NoForwardMode(Flat):
        def forward(self, x, t):
            return Backward.apply(self.out(x))

    call(flare.Denoiser(NoForwardMode()), torch.randn(2, 3), torch.tensor([1, 2]))
    shifted = flare.Denoiser(TinyNet((3,)))
    call(shifted, torch.randn(2, 3), torch.tensor([1, 2]), {"shift": torch.ones(2)})
    with pytest.raises(ValueError, match=r"net\(x, t, label=\)"):
        call(shifted, torch.randn(2, 3), torch.tensor([1, 2]), {"label": torch.ones(2)})


def test_running_out_of_memory_is_not_explained_away():
    class Greedy(Flat):
        def forward(self, x, t):
            raise MemoryError

    with pytest.raises(MemoryError):
        call(flare.Denoiser(Greedy()), torch.randn(2, 3), torch.tensor([1, 2]))


class Noisy(Flat):
    """A network that draws its own noise."""

    def forward(self, x, t):
        return self.out(x) + 0.1 * torch.randn_like(x)


class AlwaysDropout(Flat):
    """Dropout that eval mode does not turn off."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 64)
        self.out = nn.Linear(64, 3)

    def forward(self, x, t):
        return self.out(nn.functional.dropout(self.inner(x), 0.2))


@pytest.mark.parametrize("make", [Noisy, AlwaysDropout])
def test_a_network_that_draws_random_numbers_is_refused_first(make):
    torch.manual_seed(0)
    denoiser, schedule, data = flare.Denoiser(make()), flare.schedules.cosine(10), torch.randn(60, 3)
    pairs, subset = flare.noising.pairs(data, schedule, n=50, seed=0), flare.subsets.everything(denoiser)
    calls = [
        lambda fit=fit: fit.function(
            denoiser, subset, pairs, **({"rank": 4} if "rank" in fit.options else {})
        )
        for fit in STRUCTURES.values()
    ]
    calls += [
        lambda: flare.fit(denoiser, data, schedule, pairs=50, check=False),
        lambda: flare.score(denoiser, None, schedule, data),
        lambda: flare.check_model(denoiser, data, schedule),
    ]
    for attempt in calls:
        with pytest.raises(ValueError, match=f"{make.__name__} must return the same output for the same"):
            attempt()


def test_differences_of_the_size_of_rounding_are_accepted():
    class Rounds(Flat):
        def forward(self, x, t):
            self.calls = getattr(self, "calls", 0) + 1
            return self.out(x) * (1 + 1e-6 * (self.calls % 2))

    call(flare.Denoiser(Rounds()), torch.randn(2, 3), torch.zeros(2))

"""The activations of many networks against forward hooks, one sample and one state at a time."""

from __future__ import annotations

import math

import naive
import pytest
import torch
from reference import TinyNet
from torch import nn

import flare
from flare.sampling.finished import make_encoder, trace_layers
from flare.scores.space import compute_distances

SEED, LEVELS = 4, (0.1, 0.6)


class Tokens(nn.Module):
    """A transformer over a sequence (B, L, C)."""

    def __init__(self, batch_first, layers=2):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=batch_first)
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 2)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, x, t):
        h = self.first(x) + (t.to(x.dtype) / 50).view(-1, 1, 1)
        if self.batch_first:
            return self.last(self.body(h))
        return self.last(self.body(h.transpose(0, 1))).transpose(0, 1)


class Stubborn(TinyNet):
    """Branches on the values of x, which vmap cannot."""

    def forward(self, x, t):
        return super().forward(x, t) + (0.5 if float(x.sum()) > 0 else -0.5)


class Twice(nn.Module):
    """Calls a layer twice; the first call counts."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, t):
        return self.out(self.inner(self.inner(x).tanh() + t.to(x.dtype).view(-1, 1) / 50))


class InPlace(nn.Module):
    """Layers after a convolution write to its output."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.ReLU(inplace=True), nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x, t):
        return self.net(x).mul_(2).add_((t.to(x.dtype) / 50).view(-1, 1, 1, 1))


class Labeled(TinyNet):
    """A network with class labels."""

    def __init__(self, shape, width):
        super().__init__(shape, width)
        self.label = nn.Embedding(3, 3)

    def forward(self, x, t, label):
        return super().forward(x + self.label(label), t)


class Signal(nn.Module):
    """Convolutions of a long sequence."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv1d(2, 1, 3, padding=1))

    def forward(self, x, t):
        return self.net(x) + (t.to(x.dtype) / 50).view(-1, 1, 1)


def unet_1d():
    from diffusers import UNet1DModel

    return UNet1DModel(
        sample_size=16, in_channels=1, out_channels=1, block_out_channels=(8, 8), layers_per_block=1,
        down_block_types=("DownResnetBlock1D",) * 2, up_block_types=("UpResnetBlock1D",) * 2,
        mid_block_type="MidResTemporalBlock1D", out_block_type="OutConv1DBlock", norm_num_groups=4,
        use_timestep_embedding=True, time_embedding_type="positional", act_fn="silu",
    )  # fmt: skip


def unet_2d(**options):
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(4, 8), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4, **options,
    )  # fmt: skip


NETWORKS = {
    "mlp": (lambda: TinyNet((3,), 5), (3,), "epsilon"),
    "mlp, v": (lambda: TinyNet((3,), 5), (3,), "v"),
    "mlp, sample": (lambda: TinyNet((3,), 5), (3,), "sample"),
    "mlp, flow": (lambda: TinyNet((3,), 5), (3,), "flow"),
    "mlp, edm": (lambda: TinyNet((3,), 5), (3,), "edm"),
    "mlp of images": (lambda: TinyNet((1, 3, 2), 700), (1, 3, 2), "epsilon"),
    "signal": (Signal, (1, 150), "epsilon"),
    "in place": (InPlace, (1, 22, 10), "epsilon"),
    "transformer": (lambda: Tokens(True), (5, 2), "epsilon"),
    "transformer, batch second": (lambda: Tokens(False), (5, 2), "epsilon"),
    "long transformer": (lambda: Tokens(True, 1), (100, 2), "epsilon"),
    "no vmap": (lambda: Stubborn((3,), 5), (3,), "epsilon"),
    "twice": (Twice, (3,), "epsilon"),
    "unet 1d": (unet_1d, (1, 16), "epsilon"),
    "unet 2d": (unet_2d, (1, 8, 8), "epsilon"),
}


def schedule_of(prediction):
    return {"flow": flare.schedules.flow, "edm": flare.schedules.edm}.get(prediction, flare.schedules.cosine)(
        20
    )


def layers_that_depend_on_x(net, prediction, x, level, cond):
    """Convolutions and linear layers in the order of their calls whose outputs differ for two states."""
    found = []
    for own in x:
        seen: dict[str, torch.Tensor] = {}
        handles = [
            module.register_forward_hook(
                lambda _module, _inputs, out, seen=seen, name=name: seen.update(
                    {name: seen.get(name, out.clone())}
                )
            )
            for name, module in net.named_modules()
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d))
        ]
        with torch.no_grad():
            naive.answer(net.eval(), prediction, own, level.time, naive.one_row(cond, 0))
        for handle in handles:
            handle.remove()
        found.append(seen)
    names = [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
    count = min(12, len(names))
    return [names[round(i * (len(names) - 1) / max(1, count - 1))] for i in range(count)]


def check(net, x, data, prediction="epsilon", cond=None, data_cond=None, pairs=2, tolerance=2e-4):
    """The library's features and scores against those of the naive loop."""
    schedule = schedule_of(prediction)
    model = flare.Model(flare.Denoiser(net, prediction), schedule)
    layers, work = trace_layers(model, data, data_cond or {})
    assert work >= model.denoiser.parameter_count
    level = schedule.at_fraction(0.03)
    expected = layers_that_depend_on_x(net, prediction, data[[0, -1]], level, data_cond)
    assert list(layers) == expected
    encoder = make_encoder(model, None, layers, SEED, pairs=pairs, levels=LEVELS)
    assert list(encoder.readers) == ["activations"]
    train, ours = encoder.encode(data, data_cond or {}), encoder.encode(x, cond or {}, batch_size=2)
    options = {"prediction": prediction, "pairs": pairs}
    blocks = [
        naive.activations(net, expected, each, encoder.levels, SEED, cond=own, **options)
        for each, own in ((data, data_cond), (x, cond))
    ]
    for found, own in zip((train, ours), blocks, strict=True):
        joined = torch.cat(list(own.values()), dim=1).float()
        assert found["activations"].dtype == torch.float32
        assert found["activations"].shape[1] <= 2048
        torch.testing.assert_close(
            found["activations"], joined, rtol=0, atol=tolerance * float(joined.abs().max())
        )
    points, others = naive.activation_points(*blocks)
    scores = compute_distances(encoder.make_spaces(train), ours)["activations"]
    torch.testing.assert_close(scores, naive.nearest(others, points), rtol=10 * tolerance, atol=0)
    if not cond:
        again = flare.score(
            model.denoiser, None, schedule, x, score="activations", data=data, levels=LEVELS,
            repeats=2 * pairs, seed=SEED, batch_size=1,
        )  # fmt: skip
        torch.testing.assert_close(again.double(), scores, rtol=10 * tolerance, atol=0)
    return layers


@pytest.mark.parametrize("name", list(NETWORKS))
def test_hooks_give_the_same(name):
    make, shape, prediction = NETWORKS[name]
    torch.manual_seed(0)
    net = make()
    pairs = 1 if name.startswith("unet") else 2
    layers = check(net, torch.randn(3, *shape), torch.randn(6, *shape), prediction, pairs=pairs)
    sizes = {
        "mlp": [5, 3],
        "mlp of images": [700, 6],
        "signal": [2 * 64, 64],
        "in place": [3 * 64, 4 * 8 * 5, 64],
        "long transformer": [4 * 64, 8 * 64, 4 * 64, 2 * 64],
    }
    if name in sizes:
        assert list(layers.values()) == sizes[name]


def test_time_layers_are_left_out_and_twelve_are_spread_over_the_depth():
    torch.manual_seed(0)
    net = unet_2d()
    data = torch.randn(6, 1, 8, 8)
    layers, _ = trace_layers(flare.Model(flare.Denoiser(net), flare.schedules.cosine(20)), data, {})
    assert len(layers) == 12
    assert not any("time" in name for name in layers)
    assert next(iter(layers)) == "conv_in"
    assert list(layers)[-1] == "conv_out"


def test_conditions():
    torch.manual_seed(0)
    net = Labeled((3,), 5)
    labels = [torch.tensor([0, 2, 1]), torch.arange(8) % 3]
    check(
        net, torch.randn(3, 3), torch.randn(8, 3), cond={"label": labels[0]}, data_cond={"label": labels[1]}
    )


def test_class_labels_of_a_unet():
    torch.manual_seed(0)
    net = unet_2d(num_class_embeds=3)
    labels = [torch.tensor([0, 2]), torch.arange(6) % 3]
    conditions = {"cond": {"class_labels": labels[0]}, "data_cond": {"class_labels": labels[1]}}
    check(net, torch.randn(2, 1, 8, 8), torch.randn(6, 1, 8, 8), pairs=1, **conditions)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_in_single_precision(dtype):
    """The activations exceed 65504, the largest number of float16."""
    torch.manual_seed(0)
    half, wide = TinyNet((3,), 5), TinyNet((3,), 5)
    with torch.no_grad():
        half.second.weight.mul_(3e5).clamp_(-6e4, 6e4)
        half.to(dtype)
        for own, other in zip(wide.parameters(), half.parameters(), strict=True):
            own.copy_(other.float())
    x, data, schedule = 3 * torch.randn(9, 3), torch.randn(8, 3), flare.schedules.cosine(20)
    model = flare.Model(flare.Denoiser(half), schedule)
    layers, _ = trace_layers(model, data, {})
    encoder = make_encoder(model, None, layers, SEED, levels=LEVELS)
    ours = encoder.encode(x, {})["activations"]
    expected = naive.activations(wide, list(layers), x, encoder.levels, SEED)
    joined = torch.cat(list(expected.values()), dim=1)
    assert float(joined.abs().max()) > 65504
    torch.testing.assert_close(ours, joined, rtol=1e-4, atol=1e-5 * float(joined.abs().max()))


def test_samples_like_training_samples_have_distance_zero_and_blocks_count_equally():
    torch.manual_seed(0)
    net = TinyNet((3,), 5)
    with torch.no_grad():
        net.first.weight.mul_(100)  # the first layer must not drown the second
    data = torch.randn(40, 3)
    model = flare.Model(flare.Denoiser(net), flare.schedules.cosine(20))
    encoder = make_encoder(model, None, trace_layers(model, data, {})[0], SEED, levels=LEVELS)
    space = encoder.make_spaces(encoder.encode(data, {}))["activations"]
    near = space.find(encoder.encode(data, {}, batch_size=3)["activations"], 1)
    assert near.indices.flatten().tolist() == list(range(40))
    assert float(near.distances.max()) < 1e-4
    spread = space.points.double().var(0, correction=0)
    assert [float(part.sum()) for part in spread.split([5, 5, 3, 3])] == pytest.approx([1.0] * 4, rel=1e-5)


def test_named_layers():
    torch.manual_seed(0)
    net, data, x = Tokens(True), torch.randn(9, 5, 2), torch.randn(3, 5, 2)
    model = flare.Model(flare.Denoiser(net), flare.schedules.cosine(20))
    names = ["body.layers.1.linear2", "body.layers.0", "first"]
    layers, _ = trace_layers(model, data, {}, names)
    assert layers == {"first": 20, "body.layers.0": 20, "body.layers.1.linear2": 20}
    options = {"score": "activations", "data": data, "seed": SEED, "levels": LEVELS}
    denoiser, schedule = model.denoiser, model.schedule
    assert flare.score(denoiser, None, schedule, x, layers=names, **options).shape == (3,)
    with pytest.raises(ValueError, match=r"layer.*frist.*first"):
        flare.score(denoiser, None, schedule, x, layers=["frist"], **options)
    for tuples in ("body.layers.0.self_attn",):
        with pytest.raises(ValueError, match=f"the output of '{tuples}' is not a tensor that depends on x"):
            flare.score(denoiser, None, schedule, x, layers=["first", tuples], **options)


class OfTime(nn.Module):
    """Its only layers do not look at x."""

    def __init__(self, layer=True):
        super().__init__()
        self.time = nn.Linear(1, 3) if layer else None
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x, t):
        y = x * self.scale
        return y if self.time is None else y + self.time(t.to(x.dtype).view(-1, 1) / 50)


@pytest.mark.parametrize("layer", [True, False])
def test_a_network_without_layers_to_look_at(layer):
    net, data = OfTime(layer), torch.randn(30, 3)
    schedule = flare.schedules.cosine(20)
    arguments = (flare.Denoiser(net), None, schedule, data[:3])
    with (
        pytest.warns(UserWarning, match="OfTime has no convolution or linear layers that depend on x"),
        pytest.raises(ValueError, match=r"'activations' needs layers of the network.*layers="),
    ):
        flare.score(*arguments, score="activations", data=data)
    if layer:
        with pytest.raises(ValueError, match="'time' is not a tensor that depends on x"):
            flare.score(*arguments, score="activations", data=data, layers=["time"])
    with pytest.warns(UserWarning, match="scored without its activations"):
        scorer = flare.fit(net, data, schedule, held_out=torch.randn(25, 3), pairs=100, check=False)
    assert "activations" not in scorer.reference.scores
    assert set(scorer.reference.scores) == {"neighbors", "epistemic_distance"}


class Fragile(TinyNet):
    """A side branch is NaN for samples with a large first coordinate, the output is not."""

    def __init__(self, shape, width, limit):
        super().__init__(shape, width)
        self.side, self.limit = nn.Linear(3, 2), limit

    def forward(self, x, t):
        y = torch.where(x[:, :1] > self.limit, math.nan, x)
        return super().forward(x, t) + 0.01 * self.side(y).nan_to_num().sum(1, keepdim=True)


def test_activations_that_are_not_finite():
    torch.manual_seed(0)
    data, schedule = torch.randn(30, 3).clamp(-2, 2), flare.schedules.cosine(20)
    data[4], data[0] = torch.tensor([500.0, 0, 0]), 0
    options = {"score": "activations", "levels": (0.1,)}
    denoiser = flare.Denoiser(Fragile((3,), 5, 100.0))
    with pytest.warns(UserWarning, match="1 of 30 training samples have NaN or infinity in activations"):
        some = flare.score(denoiser, None, schedule, data[5:8], data=data, **options)
    rest = torch.cat([data[:4], data[5:]])
    whole = flare.score(denoiser, None, schedule, data[5:8], data=rest, **options)
    torch.testing.assert_close(some, whole, rtol=1e-4, atol=1e-6)
    with pytest.warns(RuntimeWarning, match="1 of 3 samples"):
        lost = flare.score(denoiser, None, schedule, data[3:6], data=rest, **options)
    assert lost.isnan().tolist() == [False, True, False]
    never = flare.Denoiser(Fragile((3,), 5, -1e9))
    with (
        pytest.warns(UserWarning, match="all training samples have NaN or infinity in activations"),
        pytest.raises(ValueError, match="not finite for any training sample"),
    ):
        flare.score(never, None, schedule, rest[:2], data=rest, layers=["first", "side"], **options)


class Gated(nn.Module):
    """A layer whose input does not depend on x at high levels."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(3, 37), nn.Linear(37, 41), nn.Linear(41, 3)

    def forward(self, x, t):
        open_ = (t < 5).to(x.dtype).view(-1, 1)
        return self.out(self.inner(self.first(x) * open_ + 1.7).tanh())


def test_constant_activations_do_not_count():
    """Only the first layer depends on x at the second level."""
    torch.manual_seed(0)
    net, data, x = Gated(), torch.randn(101, 3), torch.randn(7, 3)
    model = flare.Model(flare.Denoiser(net), flare.schedules.cosine(20))
    layers, _ = trace_layers(model, data, {})
    encoder = make_encoder(model, None, layers, SEED, levels=LEVELS)
    train, ours = encoder.encode(data, {}, batch_size=13), encoder.encode(x, {}, batch_size=3)
    space = encoder.make_spaces(train)["activations"]
    blocks = [37, 37, 41, 41, 3, 3]
    scales = [float(part.abs().max()) for part in space.scale.split(blocks)]
    assert [scale > 0 for scale in scales] == [True, True, True, False, True, False]
    kept = torch.cat([torch.full((size,), scale > 0) for size, scale in zip(blocks, scales, strict=True)])
    expected = naive.nearest((ours["activations"] * space.scale)[:, kept], space.points[:, kept])
    torch.testing.assert_close(space.score(ours["activations"]), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("offset", [1.0, 1e4, 0.0])
def test_what_rounding_leaves_of_constant_activations_does_not_count(offset):
    torch.manual_seed(0)
    model = flare.Model(flare.Denoiser(TinyNet((3,), 5)), flare.schedules.cosine(20))
    encoder = make_encoder(model, None, {"first": 5, "second": 3}, SEED, levels=(0.1,))
    features = torch.randn(50, 8)
    features[:, :5] = offset * (1 + 1e-7 * torch.randn(50, 5)) if offset else 1e-41 * torch.randn(50, 5)
    scale = encoder.readers["activations"].scale(encoder, features)
    assert scale[:5].tolist() == [0.0] * 5
    expected = 1 / math.sqrt(sum(float(column.double().var(correction=0)) for column in features[:, 5:].T))
    assert scale[5:].tolist() == pytest.approx([expected] * 3, rel=1e-5)


def test_a_huge_sample_is_far_away_or_lost_and_the_others_are_scored():
    torch.manual_seed(0)
    net, data = TinyNet((3,), 5), 1e-3 * torch.randn(30, 3)
    schedule, x = flare.schedules.cosine(20), 1e-3 * torch.randn(4, 3)
    options = {"score": "activations", "data": data}
    whole = flare.score(flare.Denoiser(net), None, schedule, x, **options)
    x[1] = 1e20
    far = flare.score(flare.Denoiser(net), None, schedule, x, **options)
    assert far[1] > 1e3 * whole.max()
    x[1] = 3e38
    with pytest.warns(RuntimeWarning, match="1 of 4 samples"):
        lost = flare.score(flare.Denoiser(net), None, schedule, x, **options)
    assert lost.isnan().tolist() == [False, True, False, False]
    torch.testing.assert_close(lost[[0, 2, 3]], whole[[0, 2, 3]], rtol=1e-4, atol=1e-6)

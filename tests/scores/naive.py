"""Features of finished samples by naive loops: one sample, one state and one parameter vector at a time.

Nothing here is built from the code that it checks.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import nn

SHARED = -7  # the stream of the noise that all samples share


def mix(seed, index):
    """The finalizer of splitmix64 over two words, 63 bits."""
    z, mask = 0, 2**64 - 1
    for word in (seed, index):
        z = (z + word + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
    return z >> 1


def min_snr(prediction, a, s):
    """min(SNR, 5) times the square of the coefficient of f in the predicted x_0."""
    snr = a * a / (s * s)
    q = {"epsilon": s / a, "sample": 1.0, "v": s, "flow": s, "edm": 0.5 * s / math.sqrt(s * s + 0.25)}
    return min(snr, 5.0) * q[prediction] ** 2


def target(prediction, a, s, x, noise):
    """What the network should answer."""
    if prediction == "edm":
        skip, out = 0.25 / (s * s + 0.25), 0.5 * s / math.sqrt(s * s + 0.25)
        return (x - skip * (x + s * noise)) / out
    return {"epsilon": noise, "sample": x, "v": a * noise - s * x, "flow": noise - x}[prediction]


def answer(net, prediction, state, time, cond):
    """The network at one state (*shape)."""
    if prediction == "edm":
        state, time = state / math.sqrt(time * time + 0.25), math.log(time) / 4
    t = torch.tensor([time], dtype=torch.float64 if isinstance(time, float) else torch.long)
    t = t.to(state.dtype) if t.is_floating_point() else t
    out = net(state[None], t, **cond)
    return getattr(out, "sample", out)[0]


def states(x, levels, seed, pairs=1, first=0):
    """All states of one sample: (level's place, pair, level, ε, x_t, u), with −ε after ε."""
    for pair in range(first, first + pairs):
        generator = torch.Generator().manual_seed(mix(mix(seed, SHARED), pair))
        noise, probe = torch.randn(2, len(levels), *x.shape, generator=generator).to(x.dtype)
        for place, level in enumerate(levels):
            for sign in (1, -1):
                epsilon = sign * noise[place]
                yield place, pair, level, epsilon, level.alpha * x + level.sigma * epsilon, probe[place]


def gradient(net, output):
    """∂output/∂θ over all parameters, (p,)."""
    params = list(net.parameters())
    grads = torch.autograd.grad(output, params, allow_unused=True)
    both = zip(grads, params, strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in both])


def one_row(cond, row):
    return {name: value[row : row + 1] for name, value in (cond or {}).items()}


def answer_gradients(net, x, levels, seed, prediction="epsilon", pairs=1, first=0, cond=None):
    """√w·J̄ᵀu of every sample, level and pair, (n, levels, pairs, p)."""
    p = sum(q.numel() for q in net.parameters())
    found = torch.zeros(len(x), len(levels), pairs, p, dtype=x.dtype)
    for row, own in enumerate(x):
        for place, pair, level, _, state, u in states(own, levels, seed, pairs, first):
            f = answer(net, prediction, state, level.time, one_row(cond, row))
            w = min_snr(prediction, level.alpha, level.sigma)
            found[row, place, pair - first] += math.sqrt(w) * gradient(net, (f * u).sum()) / 2
    return found


def loss_gradients(net, x, levels, seed, prediction="epsilon", pairs=1, first=0, cond=None):
    """The mean over levels and noises of √w·∇_θ ½‖f − target‖², (n, p)."""
    found = []
    for row, own in enumerate(x):
        total = 0
        for _, _, level, epsilon, state, _ in states(own, levels, seed, pairs, first):
            f = answer(net, prediction, state, level.time, one_row(cond, row))
            y = target(prediction, level.alpha, level.sigma, own, epsilon)
            w = min_snr(prediction, level.alpha, level.sigma)
            total = total + math.sqrt(w) * gradient(net, 0.5 * (f - y).square().sum())
        found.append(total / (2 * len(levels) * pairs))
    return torch.stack(found)


@cache
def averages(size, most):
    """The matrix (count, size) that averages positions to at most `most` of them."""
    count = min(size, most)
    matrix = torch.zeros(count, size)
    for i in range(count):
        begin, end = i * size // count, -(-(i + 1) * size // count)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix


def pool(layer, y):
    """The output of a layer for one sample as a vector, averaged to few positions."""
    y = y.float()
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        rows, columns = (averages(size, 8) for size in y.shape[-2:])
        return torch.einsum("...hw,ih,jw->...ij", y, rows, columns).flatten()
    if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
        return torch.einsum("...l,il->...i", y, averages(y.shape[-1], 64)).flatten()
    tokens = y.reshape(-1, y.shape[-1])  # (positions, channels)
    return torch.einsum("lc,il->ci", tokens, averages(len(tokens), 64)).flatten()


@cache
def signs_and_places(count, size, seed):
    """The matrix (size, count) with one entry, +1 or −1, in every column."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(size, (count,), generator=generator).tolist()
    signs = torch.randint(2, (count,), generator=generator).tolist()
    matrix = torch.zeros(size, count)
    for column, (place, sign) in enumerate(zip(places, signs, strict=True)):
        matrix[place, column] = 1.0 if sign else -1.0
    return matrix


def signed_sums(values, size, seed):
    """Every entry is added to one of `size` sums with a random sign."""
    return values if len(values) <= size else signs_and_places(len(values), size, seed) @ values


def activations(net, layers, x, levels, seed, prediction="epsilon", pairs=1, first=0, cond=None):
    """Blocks by (layer, level), (n, size) each: the mean over noises of the pooled, sketched outputs."""
    net.eval()
    modules, seen = dict(net.named_modules()), {}

    def hook(name):
        def remember(module, inputs, output):
            seen.setdefault(name, output.detach().clone())

        return remember

    handles = [modules[name].register_forward_hook(hook(name)) for name in layers]
    most = max(1, 2048 // (len(layers) * len(levels)))
    found = {(name, place): [] for name in layers for place in range(len(levels))}
    try:
        with torch.no_grad():
            for row, own in enumerate(x):
                sums = dict.fromkeys(found, 0)
                for place, _, level, _, state, _ in states(own, levels, seed, pairs, first):
                    seen.clear()
                    answer(net, prediction, state, level.time, one_row(cond, row))
                    for number, name in enumerate(layers):
                        sketched = signed_sums(pool(modules[name], seen[name]), most, number)
                        sums[name, place] = sums[name, place] + sketched
                for key, value in sums.items():
                    found[key].append(value / (2 * pairs))
    finally:
        for handle in handles:
            handle.remove()
    return {key: torch.stack(values) for key, values in found.items()}


def activation_points(train, other):
    """Blocks of training and of other samples, divided by the training data's root mean square · √size."""
    points = [[], []]
    for key, own in train.items():
        own = own.double()
        deviations = own - own.mean(0)
        length = math.sqrt(deviations.square().mean()) * math.sqrt(own.shape[1])
        for side, values in zip(points, (own, other[key].double()), strict=True):
            side.append(values / length if length else torch.zeros_like(values))
    return tuple(torch.cat(side, dim=1) for side in points)


def nearest(points, train, k=5):
    """The mean Euclidean distance to the k nearest training points, by a loop over all of them."""
    found = []
    for one in points.double():
        distances = sorted(float((one - other).norm()) for other in train.double())[:k]
        found.append(sum(distances) / len(distances))
    return torch.tensor(found, dtype=torch.float64)

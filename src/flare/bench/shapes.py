"""Colored shapes with exact labels: generated images, and a validator that checks the rule from pixels.

The rule: an image of 32 × 32 holds exactly two shapes on gray, full and apart, of two different kinds
(circle, square, triangle) and two different colors (red, green, blue). All shapes of a radius r have the area
πr², so the area and the centroid of the painted pixels determine which circle, square or triangle should be
there.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

SIDE = 32
KINDS = ("circle", "square", "triangle")
COLORS = ("red", "green", "blue")  # the channels: a color is 1 in its own and −1 in the others; gray is 0
RADII = (3.5, 5.5)
GAP = 2.5  # pixels between the boxes of two shapes
PAIRS = tuple(combinations(range(3), 2))
CLASSES = tuple(f"{KINDS[a]} + {KINDS[b]}, {COLORS[c]} + {COLORS[d]}" for a, b in PAIRS for c, d in PAIRS)
UNKNOWN = len(CLASSES)  # the class of an image without two shapes that can be named

# what a validator tolerates: a real image misses none of these by half
PAINT = 0.5  # a pixel is painted from here on: its product with a color, of 0 to 1
STRAY = 0.5  # the strongest pixel away from the shapes, of 0 to 1
OVERLAP = 0.9  # intersection over union with the ideal shape
IMPURE = 0.35  # of the mean color of a shape, in every channel
SLACK = 0.35  # pixels that a radius may lie outside `RADII`

_FINE = 4  # subpixels per pixel and axis
_BASE = float(np.sqrt(2 * np.pi))  # base and height of the triangle of radius 1
_HALF = float(np.sqrt(np.pi) / 2)  # half the side of the square of radius 1
_VECTORS = 2 * torch.eye(3) - 1
# how far the kinds reach left and right, up, and down, in radii
_REACH = torch.tensor([[1.0, 1.0, 1.0], [_HALF] * 3, [_BASE / 2, 2 * _BASE / 3, _BASE / 3]])


def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """`n` images that follow the rule, (n, 3, 32, 32) in [−1, 1], and their classes, (n,).

    >>> images, labels = flare.bench.shapes.make(100, seed=0)
    >>> tuple(images.shape), flare.bench.shapes.CLASSES[labels[0]]
    ((100, 3, 32, 32), 'circle + triangle, red + blue')
    """
    generator = torch.Generator().manual_seed(seed)
    kinds, colors = (torch.rand(n, 3, generator=generator).argsort(1)[:, :2] for _ in range(2))
    radii = RADII[0] + (RADII[1] - RADII[0]) * torch.rand(n, 2, generator=generator)
    reach = _REACH[kinds] * radii[..., None]
    low = torch.stack([reach[..., 0], reach[..., 1]], -1) + 1
    high = SIDE - 1 - torch.stack([reach[..., 0], reach[..., 2]], -1)
    centers = torch.zeros(n, 2, 2)
    todo = torch.arange(n)
    while len(todo):
        draw = torch.rand(len(todo), 2, 2, generator=generator)
        centers[todo] = low[todo] + (high[todo] - low[todo]) * draw
        todo = todo[~_apart(centers[todo], reach[todo])]
    images = torch.zeros(n, 3, SIDE, SIDE)
    for shape in range(2):
        cover = render(kinds[:, shape], centers[:, shape], radii[:, shape])
        images += _VECTORS[colors[:, shape]][:, :, None, None] * cover[:, None]
    return images, _class_of(kinds, colors)


def render(kinds: Tensor, centers: Tensor, radii: Tensor) -> Tensor:
    """How much of each pixel a shape covers, (n, 32, 32); kinds (n,), centroids (n, 2), radii (n,).

    >>> circle = torch.tensor([0]), torch.tensor([[16.0, 16.0]]), torch.tensor([4.0])
    >>> round(flare.bench.shapes.render(*circle).sum().item())  # the area
    51
    """
    return torch.cat([
        _render(*part) for part in zip(kinds.split(500), centers.split(500), radii.split(500), strict=True)
    ])  # fmt: skip


def faults(x: Tensor) -> list[str]:
    """The fault of each image, or an empty string.

    >>> images, _ = flare.bench.shapes.make(2, seed=0)
    >>> images[1] = 0  # gray
    >>> flare.bench.shapes.faults(images)
    ['', '0 shapes']
    """
    return [_parse(image)[0] for image in _pixels(x)]


def bad(x: Tensor) -> Tensor:
    """Which images break the rule, (n,) bool.

    >>> images, _ = flare.bench.shapes.make(2, seed=0)
    >>> flare.bench.shapes.bad(images).tolist()
    [False, False]
    """
    return torch.tensor([bool(fault) for fault in faults(x)])


def classes(x: Tensor) -> Tensor:
    """The class of each image, (n,); `UNKNOWN` if there are no two shapes of two kinds and colors.

    >>> images, labels = flare.bench.shapes.make(100, seed=0)
    >>> torch.equal(flare.bench.shapes.classes(images), labels)
    True
    """
    return torch.tensor([_parse(image)[1] for image in _pixels(x)])


def _pixels(x: Tensor) -> np.ndarray:
    return x.detach().double().clamp(-1, 1).numpy()


def _parse(image: np.ndarray) -> tuple[str, int]:
    """The first fault of an image (3, 32, 32) in [−1, 1], and its class."""
    paint = np.einsum("kc,chw->khw", _VECTORS.numpy() / 3, image).max(0).clip(0, 1)
    regions, count = ndimage.label(paint > PAINT, structure=np.ones((3, 3)))
    if count != 2:
        return f"{count} shapes", UNKNOWN
    near = [ndimage.binary_dilation(regions == k, np.ones((3, 3))) for k in (1, 2)]
    if np.abs(image[:, ~(near[0] | near[1])]).max(initial=0.0) > STRAY:
        return "paint outside the shapes", UNKNOWN
    found = [_measure(image, paint * area / paint[area].max()) for area in near]
    kinds, colors = (torch.tensor([[shape[k] for shape in found]]) for k in (1, 2))
    same = "two of a kind" if kinds[0, 0] == kinds[0, 1] else ""
    same = same or ("two of a color" if colors[0, 0] == colors[0, 1] else "")
    label = UNKNOWN if same else int(_class_of(kinds, colors))
    return next((shape[0] for shape in found if shape[0]), same), label


def _measure(image: np.ndarray, cover: np.ndarray) -> tuple[str, int, int]:
    """The fault of one shape, its nearest kind and its nearest color."""
    area = cover.sum()
    places = np.arange(SIDE) + 0.5
    center = torch.tensor([[(cover.sum(0) * places).sum(), (cover.sum(1) * places).sum()]]) / area
    radius = float(np.sqrt(area / np.pi))
    ideal = render(torch.arange(3), center.repeat(3, 1), torch.full((3,), radius)).numpy()
    overlap = np.minimum(ideal, cover).sum((1, 2)) / np.maximum(ideal, cover).sum((1, 2))
    inside = cover > 0.9
    color = image[:, inside].mean(1)
    kind, channel = int(overlap.argmax()), int(color.argmax())
    if not RADII[0] - SLACK <= radius <= RADII[1] + SLACK:
        return "a wrong size", kind, channel
    if overlap[kind] < OVERLAP:
        return "no known shape", kind, channel
    if np.abs(color - _VECTORS[channel].numpy()).max() > IMPURE:
        return "a mixed color", kind, channel
    return "", kind, channel


def _render(kinds: Tensor, centers: Tensor, radii: Tensor) -> Tensor:
    places = (torch.arange(SIDE * _FINE) + 0.5) / _FINE
    x = (places - centers[:, :1]) / radii[:, None]  # in radii from the centroid
    y = (places - centers[:, 1:]) / radii[:, None]
    x, y = x[:, None, :], y[:, :, None]
    circle = x.square() + y.square() <= 1
    square = (x.abs() <= _HALF) & (y.abs() <= _HALF)
    depth = y + 2 * _BASE / 3  # below the tip; as wide as it is deep
    triangle = (depth <= _BASE) & (2 * x.abs() <= depth)
    inside = torch.where(
        kinds.view(-1, 1, 1) == 0, circle, torch.where(kinds.view(-1, 1, 1) == 1, square, triangle)
    )
    return torch.nn.functional.avg_pool2d(inside.float(), _FINE)


def _apart(centers: Tensor, reach: Tensor) -> Tensor:
    """Whether the boxes of two shapes are at least `GAP` apart, (n,)."""
    left, right = centers[..., 0] - reach[..., 0], centers[..., 0] + reach[..., 0]
    top, bottom = centers[..., 1] - reach[..., 1], centers[..., 1] + reach[..., 2]
    across = torch.maximum(left[:, 1] - right[:, 0], left[:, 0] - right[:, 1])
    down = torch.maximum(top[:, 1] - bottom[:, 0], top[:, 0] - bottom[:, 1])
    return torch.maximum(across, down) >= GAP


def _class_of(kinds: Tensor, colors: Tensor) -> Tensor:
    """The class of pairs of kinds and colors, both (n, 2), in any order."""
    # the sums of `PAIRS` are 1, 2, 3
    return 3 * (kinds.sum(1) - 1) + colors.sum(1) - 1

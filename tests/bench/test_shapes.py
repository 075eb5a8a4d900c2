"""Colored shapes: what the maker makes passes the validator, and hand-made faults do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flare.bench import shapes

WHITE = (1.0, 1.0, 1.0)
RED, GREEN, BLUE = ((1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0))


def blank() -> Tensor:
    return torch.zeros(3, 32, 32)


def square(image: Tensor, top: int, left: int, color: tuple[float, ...], side: int = 8) -> Tensor:
    """Whole pixels, painted by hand."""
    image[:, top : top + side, left : left + side] = torch.tensor(color)[:, None, None]
    return image


def circle(image: Tensor, y: float, x: float, color: tuple[float, ...], radius: float = 4.5) -> Tensor:
    """Every pixel by the share of 25 points in it that are inside."""
    for row in range(32):
        for column in range(32):
            steps = [(k + 0.5) / 5 for k in range(5)]
            points = [(row + a - y, column + b - x) for a in steps for b in steps]
            share = sum(a * a + b * b <= radius**2 for a, b in points) / 25
            if share:
                image[:, row, column] = share * torch.tensor(color)
    return image


def triangle(image: Tensor, top: int, left: int, color: tuple[float, ...], height: int = 12) -> Tensor:
    """As wide as it is high, its tip above."""
    for row in range(height):
        half = (row + 0.5) / 2
        for column in range(height):
            if abs(column + 0.5 - height / 2) <= half:
                image[:, top + row, left + column] = torch.tensor(color)
    return image


def fault(image: Tensor) -> str:
    return shapes.faults(image[None])[0]


def test_made_images_follow_the_rule_and_have_their_class():
    x, labels = shapes.make(300, seed=5)
    assert x.shape == (300, 3, 32, 32)
    assert float(x.abs().max()) == 1.0
    assert shapes.bad(x).double().mean() <= 0.005
    assert torch.equal(shapes.classes(x), labels)
    assert len(labels.unique()) == len(shapes.CLASSES) == 9
    assert torch.equal(x, shapes.make(300, seed=5)[0])


def test_some_noise_is_tolerated():
    x, _ = shapes.make(50, seed=6)
    noise = 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert not shapes.bad(x + noise).any()


def test_all_kinds_have_the_area_of_the_circle():
    kinds, centers = torch.arange(3), torch.full((3, 2), 16.0)
    cover = shapes.render(kinds, centers, torch.full((3,), 5.0))
    torch.testing.assert_close(
        cover.sum((1, 2)), torch.full((3,), torch.pi * 25).to(cover), rtol=0.05, atol=0.0
    )
    places = torch.arange(32) + 0.5
    middle = (cover.sum(1) * places).sum(1) / cover.sum((1, 2))
    torch.testing.assert_close(middle, torch.full((3,), 16.0), rtol=0, atol=0.1)


@pytest.mark.parametrize(
    "image",
    [
        circle(square(blank(), 3, 3, RED), 20, 20, BLUE),
        triangle(square(blank(), 3, 3, GREEN), 16, 16, RED),
        triangle(circle(blank(), 7, 7, BLUE), 16, 16, GREEN),
    ],
)
def test_images_painted_by_hand_are_good(image):
    assert fault(image) == ""


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (blank(), "0 shapes"),
        (square(blank(), 3, 3, RED), "1 shapes"),
        (circle(square(square(blank(), 1, 1, RED), 1, 15, BLUE), 24, 16, GREEN), "3 shapes"),
        (circle(square(blank(), 5, 5, RED), 9, 16.5, BLUE), "1 shapes"),  # they touch
        (square(square(blank(), 3, 3, RED), 18, 18, BLUE), "two of a kind"),
        (circle(square(blank(), 3, 3, RED), 20, 20, RED), "two of a color"),
        (circle(square(blank(), 3, 3, RED), 20, 20, (-0.2, -1.0, 1.0)), "a mixed color"),
        (circle(square(blank(), 3, 3, RED), 20, 20, BLUE, radius=2.5), "a wrong size"),
        (circle(square(blank(), 3, 3, RED, side=12), 24, 24, BLUE), "a wrong size"),
        (square(circle(square(blank(), 3, 3, RED), 20, 20, BLUE), 28, 2, WHITE, 1), "paint outside"),
    ],
)  # fmt: skip
def test_faults_are_named(image, said):
    assert fault(image).startswith(said)


def test_a_cross_is_no_known_shape():
    image = square(blank(), 20, 20, BLUE)
    image[:, 4:14, 7:11] = torch.tensor(RED)[:, None, None]
    image[:, 7:11, 4:14] = torch.tensor(RED)[:, None, None]
    assert fault(image) == "no known shape"

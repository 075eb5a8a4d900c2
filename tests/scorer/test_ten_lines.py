"""From `import flare` to a filtered array in ten lines or fewer: points, images, a pipeline."""

from __future__ import annotations

import warnings

import pytest
from points import images, ring, trained, unet

from flare.scorer import choosing

POINTS = """
import flare
scorer = flare.fit(net, data, flare.schedules.cosine(50))
result = scorer.sample(100, seed=0)
good = result.samples[result.trusted(0.05)]
"""

IMAGES = """
import flare
from torch.utils.data import DataLoader
schedule = flare.schedules.linear(1000)
scorer = flare.fit(unet, DataLoader(images, batch_size=64), schedule, held_out=test_images)
result = scorer.sample(6, steps=10)
good = result.samples[result.keep(0.5)].numpy()
"""

PIPELINE = """
import flare
scorer = flare.fit(pipe, images)
result = scorer.sample(6, steps=10)
good = result.samples[result.keep(0.5)]
"""


@pytest.fixture
def small(monkeypatch):
    """Smaller defaults, so that the networks of images are fitted in seconds."""
    monkeypatch.setattr(choosing, "PAIRS", 300)
    monkeypatch.setattr(choosing, "SUBSET_SIZE", 200)


def run(code, **names):
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 10
    with warnings.catch_warnings():
        # the networks of these tests are hardly trained, and a warning says so
        warnings.filterwarnings("ignore", message="do not trust this scorer yet")
        exec(code, names)
    return names


def test_points_of_an_own_network():
    names = run(POINTS, net=trained(ring()), data=ring().numpy())
    assert names["good"].shape[1:] == (2,)
    assert 0 < len(names["good"]) <= 100
    assert names["result"].verdict is not None


def test_images_of_a_unet(small):
    pytest.importorskip("diffusers")
    names = run(IMAGES, unet=unet(), images=images(120), test_images=images(60, seed=1))
    assert names["good"].shape == (3, 1, 8, 8)
    assert names["scorer"].reference.held_out


def test_images_of_a_pipeline(small):
    diffusers = pytest.importorskip("diffusers")
    pipe = diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler(1000))
    names = run(PIPELINE, pipe=pipe, images=images(120))
    assert names["good"].shape == (3, 1, 8, 8)
    assert names["result"].about["sampler"] == "ddpm"

"""The UNet of the shipped model of shapes beside diffusers' own."""

import pytest
import torch

import flare
from flare.network.unet import UNet


def test_the_unet_is_the_one_of_diffusers():
    """With the same weights under the same names, both give the same answers."""
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.UNet2DModel(
        sample_size=16, in_channels=2, out_channels=2, block_out_channels=(16, 32, 64), layers_per_block=1,
        norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    ).double()  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.2 * torch.randn(value.shape, generator=generator, dtype=torch.double)
        for name, value in theirs.state_dict().items()
    }
    ours = UNet(2, 16, flare.schedules.cosine(1000)).double()
    for net in (ours, theirs):
        net.load_state_dict(weights)
    x = torch.randn(3, 2, 16, 16, generator=generator, dtype=torch.double)
    t = torch.tensor([0, 400, 999])
    expected = theirs(x, t).sample.detach()
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(x, t), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))

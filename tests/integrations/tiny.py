"""Tiny models of diffusers with random weights, and their conditions."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from diffusers import (
    AutoencoderKL,
    DiTTransformer2DModel,
    FluxImg2ImgPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    PixArtAlphaPipeline,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3Pipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPipeline,
    Transformer2DModel,
    UNet1DModel,
    UNet2DConditionModel,
    UNet2DModel,
)

TOKENS, TEXT, POOLED = 3, 6, 5


def unet1d(**options):
    defaults = {
        "sample_size": 16, "in_channels": 2, "out_channels": 2, "extra_in_channels": 64,
        "block_out_channels": (32, 32), "layers_per_block": 1, "mid_block_type": "UNetMidBlock1D",
        "down_block_types": ("DownBlock1DNoSkip", "AttnDownBlock1D"),
        "up_block_types": ("AttnUpBlock1D", "UpBlock1DNoSkip"),
    }  # fmt: skip
    return seeded(UNet1DModel, defaults | options)


def unet2d(**options):
    defaults = {
        "sample_size": 8, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "norm_num_groups": 4,
        "block_out_channels": (8, 16), "attention_head_dim": 4,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    return seeded(UNet2DModel, defaults | options)


def unet2d_condition(**options):
    defaults = {
        "sample_size": 8, "in_channels": 2, "out_channels": 2, "layers_per_block": 1, "norm_num_groups": 4,
        "block_out_channels": (8, 16), "attention_head_dim": 2, "cross_attention_dim": TEXT,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    return seeded(UNet2DConditionModel, defaults | options)


def dit(**options):
    defaults = {
        "num_attention_heads": 2, "attention_head_dim": 4, "in_channels": 2, "out_channels": 4,
        "num_layers": 2, "sample_size": 4, "patch_size": 2, "num_embeds_ada_norm": 1000,
    }  # fmt: skip
    return seeded(DiTTransformer2DModel, defaults | options)


def transformer2d(**options):
    defaults = {
        "num_attention_heads": 2, "attention_head_dim": 4, "in_channels": 2, "out_channels": 2,
        "num_layers": 1, "sample_size": 4, "patch_size": 2, "num_embeds_ada_norm": 10,
        "norm_type": "ada_norm_zero",
    }  # fmt: skip
    return seeded(Transformer2DModel, defaults | options)


def sd3(**options):
    defaults = {
        "sample_size": 4, "patch_size": 2, "in_channels": 2, "out_channels": 2, "num_layers": 2,
        "attention_head_dim": 4, "num_attention_heads": 2, "joint_attention_dim": TEXT,
        "caption_projection_dim": 8, "pooled_projection_dim": POOLED,
    }  # fmt: skip
    return seeded(SD3Transformer2DModel, defaults | options)


def pixart(**options):
    defaults = {
        "num_attention_heads": 2, "attention_head_dim": 6, "in_channels": 2, "out_channels": 4,
        "num_layers": 2, "cross_attention_dim": 12, "sample_size": 8, "patch_size": 2,
        "caption_channels": TEXT,
    }  # fmt: skip
    return seeded(PixArtTransformer2DModel, defaults | options)


def flux(**options):
    defaults = {
        "patch_size": 1, "in_channels": 8, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8,
        "num_attention_heads": 2, "joint_attention_dim": TEXT, "pooled_projection_dim": TEXT,
        "guidance_embeds": True, "axes_dims_rope": (2, 2, 4),
    }  # fmt: skip
    return seeded(FluxTransformer2DModel, defaults | options)


def vae(**options):
    defaults = {
        "in_channels": 1, "out_channels": 1, "latent_channels": 2, "norm_num_groups": 4, "sample_size": 8,
        "block_out_channels": (4, 8), "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2, "scaling_factor": 0.5,
    }  # fmt: skip
    return seeded(AutoencoderKL, defaults | options)


def seeded(make, options):
    """A model with random weights everywhere: fresh ones have zeros in their last layers."""
    torch.manual_seed(5)
    model = make(**options)
    with torch.no_grad():
        for p in model.parameters():
            if not p.any() or bool((p == 1).all()):
                p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def cond(kind, n, seed=0):
    """The conditions that a kind of model needs, for n samples."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(n, TOKENS, TEXT, generator=generator)
    labels = torch.randint(0, 10, (n,), generator=generator)
    pooled = torch.randn(n, POOLED, generator=generator)
    return {
        "unet1d": {}, "unet2d": {}, "unet2d_condition": {"encoder_hidden_states": text},
        "dit": {"class_labels": labels}, "transformer2d": {"class_labels": labels},
        "sd3": {"encoder_hidden_states": text, "pooled_projections": pooled},
    }[kind]  # fmt: skip


SHAPES = {
    "unet1d": (2, 16), "unet2d": (1, 8, 8), "unet2d_condition": (2, 8, 8),
    "dit": (2, 4, 4), "transformer2d": (2, 4, 4), "sd3": (2, 4, 4),
}  # fmt: skip
MODELS = {
    "unet1d": unet1d, "unet2d": unet2d, "unet2d_condition": unet2d_condition,
    "dit": dit, "transformer2d": transformer2d, "sd3": sd3,
}  # fmt: skip


def tokenizer():
    """One of letters."""
    from transformers import CLIPTokenizer

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    with TemporaryDirectory() as home:
        (Path(home) / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
        (Path(home) / "merges.txt").write_text("#version: 0.2\n")
        return CLIPTokenizer(f"{home}/vocab.json", f"{home}/merges.txt", model_max_length=8)


def text_encoder(projected=False):
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=54, hidden_size=TEXT, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8, projection_dim=TEXT, bos_token_id=52, eos_token_id=53,
    )  # fmt: skip
    torch.manual_seed(6)
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def long_text_encoder():
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(7)
    sizes = {"d_model": TEXT, "d_kv": 3, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5EncoderModel(T5Config(vocab_size=54, **sizes)).eval()


def stable(scheduler):
    return StableDiffusionPipeline(
        vae(in_channels=3, out_channels=3), text_encoder(), tokenizer(), unet2d_condition(), scheduler,
        None, None, requires_safety_checker=False,
    )  # fmt: skip


def stable_xl(scheduler, channels=2):
    unet = unet2d_condition(
        in_channels=channels, out_channels=channels, cross_attention_dim=2 * TEXT,
        addition_embed_type="text_time", addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=6 * 4 + TEXT,
    )  # fmt: skip
    return StableDiffusionXLPipeline(
        vae(in_channels=3, out_channels=3, latent_channels=channels), text_encoder(), text_encoder(True),
        tokenizer(), tokenizer(), unet, scheduler, add_watermarker=False,
    )  # fmt: skip


def stable_3(scheduler):
    return StableDiffusion3Pipeline(
        sd3(joint_attention_dim=4 * TEXT, pooled_projection_dim=2 * TEXT), scheduler,
        vae(in_channels=3, out_channels=3, shift_factor=0.1), text_encoder(True), tokenizer(),
        text_encoder(True), tokenizer(), None, None,
    )  # fmt: skip


def pixart_pipe(scheduler, make=PixArtSigmaPipeline, depth=2, **options):
    blocks = {
        "block_out_channels": (4,) * (depth - 1) + (8,), "up_block_types": ("UpDecoderBlock2D",) * depth,
        "down_block_types": ("DownEncoderBlock2D",) * depth,
    }  # fmt: skip
    autoencoder = vae(in_channels=3, out_channels=3, **blocks)
    return make(tokenizer(), long_text_encoder(), autoencoder, pixart(**options), scheduler)


def pixart_alpha(scheduler, **options):
    return pixart_pipe(scheduler, PixArtAlphaPipeline, **options)


def flux_pipe(scheduler, **options):
    autoencoder = vae(in_channels=3, out_channels=3, shift_factor=0.1)
    texts = text_encoder(), tokenizer(), long_text_encoder(), tokenizer()
    return FluxPipeline(scheduler, autoencoder, *texts, flux(**options))


PROMPTED = {"stable": stable, "stable_xl": stable_xl, "stable_3": stable_3}
MORE = {"pixart": pixart_pipe, "pixart_alpha": pixart_alpha, "flux": flux_pipe}


def from_image(name, scheduler):
    """A pipeline from image to image, and the one from text to image with the same parts."""
    plain = (PROMPTED | MORE)[name](scheduler)
    make = {
        "stable": StableDiffusionImg2ImgPipeline, "stable_xl": StableDiffusionXLImg2ImgPipeline,
        "stable_3": StableDiffusion3Img2ImgPipeline, "flux": FluxImg2ImgPipeline,
    }[name]  # fmt: skip
    return make.from_pipe(plain), plain


def inpainting(name, scheduler, channels=9):
    """A pipeline that fills in a mask, and the one from text to image with the same parts."""
    plain = PROMPTED[name](scheduler) if name == "stable" else stable_xl(scheduler, channels=4)
    size = {"in_channels": channels, "out_channels": 4}
    unet = UNet2DConditionModel(**{**plain.unet.config, **size})
    plain.register_modules(unet=seeded(lambda **_: unet, {}))
    plain.register_modules(vae=vae(in_channels=3, out_channels=3, latent_channels=4))
    make = StableDiffusionInpaintPipeline if name == "stable" else StableDiffusionXLInpaintPipeline
    return make.from_pipe(plain), plain

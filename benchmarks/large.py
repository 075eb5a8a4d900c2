"""A UNet of Stable Diffusion's size, 860 million parameters: memory and time of fit, influence and sampling.

It takes many minutes of one core and over 10 GB, and is no part of `make bench`: `make bench-large`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

import flare
from tools.document import table

from .harness import command, measure, peak

SUBSET = 2000
PAIRS, LEVELS, STEPS, DIRECTIONS = 4, (0.15, 0.7), 2, 2
TARGET = 14.0  # GB
TEXT = (77, 768)  # tokens and their width


def section(quick: bool = False) -> str:
    """Fit, score, sample, and write it down."""
    torch.randn(10, 10) @ torch.randn(10, 10)
    before = peak()
    flow = flare.from_diffusers(_make(quick))
    denoiser, schedule = flow.denoiser, flow.schedule
    side = 16 if quick else 64
    latent, cond = torch.randn(1, 4, side, side), {"encoder_hidden_states": torch.randn(1, *TEXT)}
    rows: list[list[object]] = []

    def run(what: str, count: int, job: Callable[[], Any]) -> Any:
        value, seconds = measure(job)
        call = seconds if not rows else cast("float", rows[0][2])
        rows.append([what, count, seconds / count, seconds / count / call, peak() - before])
        return value

    with torch.no_grad():
        run("a forward call of one latent", 1, lambda: denoiser(latent, torch.tensor([500]), cond))
    subset = flare.subsets.random(denoiser, count=SUBSET, seed=0)
    pairs = flare.noising.pairs(latent, schedule, n=PAIRS, seed=0, cond=cond, batch_size=1)
    posterior = run(
        "fit: one row of J", PAIRS,
        lambda: flare.posteriors.dense(denoiser, subset, pairs, prior_precision=1.0, scale=1.0, probes=1),
    )  # fmt: skip
    scoring = {"score": "influence", "levels": LEVELS, "repeats": 1, "batch_size": 1, "cond": cond}
    run(
        "influence: one gradient", len(LEVELS),
        lambda: flare.score(denoiser, posterior, schedule, latent, **scoring),
    )  # fmt: skip
    options = {"n": 1, "shape": latent.shape[1:], "cond": cond, "batch_size": 1, "score": "trace"}
    run(
        f"sampling: one step with {DIRECTIONS} directions", STEPS,
        lambda: flare.sample(denoiser, flow.steps(STEPS), posterior, directions=DIRECTIONS, **options),
    )  # fmt: skip
    highest, p = peak() - before, denoiser.parameter_count
    word = "met" if highest < TARGET else "**missed**"
    head = ("what", "measured", "CPU seconds each", "forward calls each", "peak memory so far, GB")
    shown = [[what, count, *(f"{value:.1f}" for value in values)] for what, count, *values in rows]
    return (
        f"## A UNet of Stable Diffusion's size\n\n`UNet2DConditionModel` with {p:,} random parameters "
        f"({4 * p / 1e9:.1f} GB in float32), one latent of {side} × {side}, m = {SUBSET:,} random "
        "parameters, one thread. The memory is that of the process beyond its imports.\n\n"
        f"{table(head, shown)}\n\n- peak memory: {highest:.1f} GB, target {TARGET:.0f}: {word}"
    )


def _make(quick: bool) -> tuple[torch.nn.Module, object]:
    """The UNet of Stable Diffusion 1.5 as it is initialised (a small one if `quick`), and its scheduler."""
    from diffusers import DDIMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    small = {
        "block_out_channels": (32, 64), "norm_num_groups": 8,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }  # fmt: skip
    net = UNet2DConditionModel(cross_attention_dim=TEXT[1], **(small if quick else {}))
    return net.eval(), DDIMScheduler(1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")


if __name__ == "__main__":
    command("large", __doc__, section)

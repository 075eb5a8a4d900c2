"""A UNet of Stable Diffusion's size, 860 million parameters: memory and time of fit, influence and sampling.

It takes a quarter of an hour of one core and 12 GB, and is not a part of `make bench`: `make bench-large`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.flop_counter import FlopCounterMode

import flare
from flare.core import SHARED_LEVELS
from flare.model import STEPS as DEFAULT_STEPS
from flare.posteriors.curvature import probe_count
from flare.scorer.choosing import FEWEST_PAIRS, REFERENCE_MAX, SUBSET_SIZE
from flare.scorer.witnesses import COMPARED, FEWEST_ENCODED
from flare.scores.encoder import SIGNS
from tools.document import table

from .harness import command, measure, peak

SUBSET = 2000
PAIRS, LEVELS, STEPS, DIRECTIONS = 4, (0.15, 0.7), 2, 2
TARGET = 14.0  # GB
GPUS = 8
RATE = 20e12  # FLOP/s per GPU, sustained, float32 without TF32: a third of an H100's peak
SAMPLES = 10_000  # of the estimate
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

    denoiser(latent, torch.tensor([500]), cond)  # the first call allocates
    run("a forward call of one latent", 1, lambda: denoiser(latent, torch.tensor([500]), cond))
    with FlopCounterMode(display=False) as counter:
        denoiser(latent, torch.tensor([500]), cond)
    subset = flare.subsets.random(denoiser, count=SUBSET, seed=0)
    pairs = flare.noising.pairs(latent, schedule, n=PAIRS, seed=0, cond=cond, batch_size=1)
    posterior = run(
        "fit: one row of J", PAIRS,
        lambda: flare.posteriors.dense(denoiser, subset, pairs, prior_precision=1.0, scale=1.0, probes=1),
    )  # fmt: skip
    scoring = {"score": "influence", "levels": LEVELS, "batch_size": 1, "cond": cond}
    scoring |= {"data": latent, "data_cond": cond}
    run(
        "influence: one gradient", 2 * SIGNS * len(LEVELS),  # of the latent and of the data
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
        f"{table(head, shown)}\n\n- peak memory: {highest:.1f} GB, target {TARGET:.0f}: {word}\n\n"
        + estimate(counter.get_total_flops(), [cast("float", row[3]) for row in rows[1:]])
    )


def estimate(flop: float, calls: list[float]) -> str:
    """What the defaults of `flare.fit` and `Scorer.score` would take on GPUs, by the ratios measured here.

    Args:
        flop: of a forward call of one sample.
        calls: forward calls that a row of the fit, a gradient and a step with its directions cost.
    """
    row, gradient, step = calls
    passes = SIGNS * len(SHARED_LEVELS)
    # training samples and the reference, and half as many of both again with other noise
    encoded = FEWEST_ENCODED + REFERENCE_MAX + 2 * COMPARED
    rows = FEWEST_PAIRS * cast("int", probe_count("auto", FEWEST_PAIRS, SUBSET_SIZE, 4 * 64 * 64))
    work = {
        f"fit: {rows:,} rows, {encoded:,} samples as features": rows * row + encoded * passes * 2 * gradient,
        f"{SAMPLES:,} samples in {DEFAULT_STEPS} steps, unscored": SAMPLES * DEFAULT_STEPS,
        f"their verdicts, {2 * passes} gradients each": SAMPLES * passes * 2 * gradient,
        f"or a trace by {DIRECTIONS} directions, sampling included": SAMPLES * DEFAULT_STEPS * step,
    }
    shown = [
        [what, f"{count:,.0f}", f"{count * flop / RATE / GPUS / 60:.1f}"] for what, count in work.items()
    ]
    return (
        "### On GPUs, estimated\n\nNothing here was run. A forward call of one latent is "
        f"{flop / 1e12:.2f} TFLOP "
        "(counted by torch), and the rest costs the forward calls of the table above. The work grows "
        f"linearly with the number of pairs and samples, as [measured](#growth), and is shared "
        f"by {GPUS} GPUs that sustain {RATE / 1e12:.0f} TFLOP/s each in float32 (a third of an H100's "
        "peak without TF32). m is the default, "
        f"{SUBSET_SIZE:,}, whose matrix is small.\n\n"
        + table(("what", "forward calls of one sample", f"minutes on {GPUS} GPUs"), shown)
    )


def _make(quick: bool) -> tuple[torch.nn.Module, object]:
    """The UNet of Stable Diffusion 1.5 as it is initialized (a small one if `quick`), and its scheduler."""
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

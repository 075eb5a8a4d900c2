"""The models of the studies on real data: networks of diffusers, and the paper's network for vectors.

A model is a configuration. Its weights are shipped beside this file, cached by an earlier run, or trained
now; all three are found by the hash of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import flare
from flare.bench import ScoreNet

from . import lab, realdata
from .files import load_tensors, save_tensors
from .lab import Found, Job, digest

Net = TypeVar("Net", bound=nn.Module)
SHIPPED = Path(__file__).parent / "weights"
VECTORS = {"power": (24, 128), "tumors": (30, 128), "arcs": (2, 64)}  # their length, and the network's width
CONDITIONAL = ("digits",)
NULL = 10  # the label that stands for no label
_DROPPED = 10  # one in this many samples is shown without its label
_CONVOLUTIONS = {"layers_per_block": 1, "norm_num_groups": 8}
_TRAINING = {
    "digits": flare.training.TrainConfig(3_000, batch_size=64, learning_rate=1e-3),
    "mnist": flare.training.TrainConfig(8_000, batch_size=32, learning_rate=1e-3),
    "mnist-70k": flare.training.TrainConfig(5_000, batch_size=32, learning_rate=2e-3),
    "air": flare.training.TrainConfig(3_000, batch_size=64, learning_rate=1e-3),
    "power": flare.training.TrainConfig(20_000, batch_size=256),
    "tumors": flare.training.TrainConfig(5_000, batch_size=128, learning_rate=1e-3),
    "arcs": flare.training.TrainConfig(16_000, batch_size=512, learning_rate=3e-3),
    "shapes": flare.training.TrainConfig(10_000, batch_size=16, learning_rate=2e-3),
}


def configure(
    name: str,
    without: int | None = None,
    share: float = 1.0,
    start: Mapping[str, Any] | None = None,
    attention: bool = False,
    **training: Any,
) -> dict[str, Any]:
    """The configuration of a model.

    Args:
        name: of the data set.
        without: a class that it never sees.
        share: of the training data that it sees.
        start: the configuration of the model whose weights the training starts from; new ones by default.
        attention: whether the network of images has attention in its lowest blocks, too.
        **training: fields of `TrainConfig`.
    """
    return {
        "name": name,
        "without": without,
        "share": share,
        **({"start": dict(start)} if start else {}),
        **({"attention": True} if attention else {}),
        "training": replace(_TRAINING[name], **training).describe(),
    }


def data(config: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """The training data of a configuration: samples and conditions."""
    real = realdata.load(config["name"])
    chosen = torch.ones(len(real.train), dtype=torch.bool)
    if config["without"] is not None:
        chosen &= real.labels != config["without"]
    rows = chosen.nonzero().flatten()
    rows = rows[: round(config["share"] * len(rows))]
    conditional = config["name"] in CONDITIONAL
    return real.train[rows], {"class_labels": real.labels[rows]} if conditional else {}


def network(name: str, attention: bool = False) -> nn.Module:
    """The untrained network."""
    from diffusers import UNet1DModel, UNet2DModel

    if name in VECTORS:
        return ScoreNet(*VECTORS[name], flare.schedules.cosine(1000))
    if name == "air":
        return UNet1DModel(
            sample_size=24, in_channels=7, out_channels=7, extra_in_channels=0,
            block_out_channels=(32, 64, 64), down_block_types=("DownResnetBlock1D",) * 3,
            up_block_types=("UpResnetBlock1D",) * 2,
            mid_block_type="MidResTemporalBlock1D", out_block_type="OutConv1DBlock", act_fn="silu",
            use_timestep_embedding=True, time_embedding_type="positional", **_CONVOLUTIONS,
        )  # fmt: skip
    if name in ("mnist", "shapes"):
        side, channels = {"mnist": (28, 1), "shapes": (32, 3)}[name]
        lowest = "Attn" if attention else ""
        return UNet2DModel(
            sample_size=side, in_channels=channels, out_channels=channels, block_out_channels=(16, 32, 64),
            down_block_types=("DownBlock2D", "DownBlock2D", f"{lowest}DownBlock2D"),
            up_block_types=(f"{lowest}UpBlock2D", "UpBlock2D", "UpBlock2D"), **_CONVOLUTIONS,
        )  # fmt: skip
    side, classes = {"mnist-70k": (14, None), "digits": (8, NULL + 1)}[name]
    return UNet2DModel(
        sample_size=side, in_channels=1, out_channels=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        num_class_embeds=classes, **_CONVOLUTIONS,
    )  # fmt: skip


def scheduler() -> Any:
    """DDIM on a cosine schedule, x̂0 clipped to [−1, 1]."""
    from diffusers import DDIMScheduler

    return DDIMScheduler(1000, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing")


def label(config: Mapping[str, Any]) -> str:
    """The file name of a configuration, without suffix."""
    parts = [config["name"]]
    parts += [] if config["without"] is None else [f"without-{config['without']}"]
    parts += [] if config["share"] == 1 else [f"share-{config['share']:g}"]
    parts += [f"seed-{config['training']['seed']}"] if config["training"]["seed"] else []
    return "-".join([*parts, digest(dict(config))])


def weights_file(config: Mapping[str, Any]) -> Path:
    """The file of the weights: shipped, or in the cache."""
    shipped = SHIPPED / f"{label(config)}.safetensors"
    return shipped if shipped.is_file() else lab.RUNS / "real" / f"{label(config)}.safetensors"


def flow(config: Mapping[str, Any]) -> flare.Model:
    """The trained model, from disk or trained now; an interrupted training resumes."""
    return flare.from_diffusers((trained(config), scheduler()))


def trained(config: Mapping[str, Any]) -> nn.Module:
    """The network of `flow`."""
    return _load_or_train(lambda: untrained(config), config, weights_file(config))


def untrained(config: Mapping[str, Any]) -> nn.Module:
    """The network that a training starts with: new, or with the weights of another model.

    Attention that the other model does not have starts with an output of zero, so it changes nothing.
    """
    net = network(config["name"], config.get("attention", False))
    if "start" in config:
        missing, _ = net.load_state_dict(trained(config["start"]).state_dict(), strict=False)
        for name, value in net.named_parameters():
            if name in missing and ".to_out." in name:
                nn.init.zeros_(value)
    return net


def _load_or_train(make: Callable[[], Net], config: Mapping[str, Any], path: Path) -> Net:
    """The network of `make` with the weights of the file; trains it and writes the file if there is none."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["training"]["seed"])
        net = make()
    if not path.is_file():
        run = _training(net, config)
        for _ in flare.training.train(run, path.parent / path.stem, save_every=200):
            pass
        save_tensors(path, run.weights())
    net.load_state_dict(load_tensors(path))
    return net


def _training(net: nn.Module, config: Mapping[str, Any]) -> flare.training.Training:
    x, cond = data(config)
    if cond:  # guidance needs samples without a label
        labels = cond["class_labels"]
        cond = {"class_labels": torch.cat([labels.repeat(_DROPPED - 1), torch.full_like(labels, NULL)])}
        x = x.repeat(_DROPPED, *[1] * (x.ndim - 1))
    schedule = flare.from_diffusers((net, scheduler())).schedule
    how = flare.training.TrainConfig(**config["training"])
    return flare.training.Training(net, x, schedule, how, cond=cond)


def train_job(config: Mapping[str, Any]) -> Found:
    """Train a model for later jobs."""
    flow(config)
    return {}


def training(config: Mapping[str, Any]) -> Job:
    """The job that trains a model, in the first stage."""
    return Job(f"train-{label(config)}", train_job, {"config": dict(config)}, stage=0)

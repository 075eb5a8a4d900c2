"""Networks in the forms that users have, and checks of samples to be scored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.progress import warn
from ..core.validation import require_tensor
from ..diffusion.schedules import Schedule, from_betas
from ..integrations.diffusers import from_diffusers
from ..integrations.diffusers_networks import NETWORKS, Network, network_of
from ..model import Model
from ..network.denoiser import Denoiser

#: what a GaussianDiffusion of denoising-diffusion-pytorch calls a prediction
OBJECTIVES = {"pred_noise": "epsilon", "pred_x0": "sample", "pred_v": "v"}
LIMIT = 1.0  # the range of its samples
MIN_VALUES = 16  # per sample, to tell from its signs how it is scaled
OUT_OF_RANGE = 3.0  # times the range of the training data: samples that go beyond look scaled differently
_FORMS = (
    "a torch module called as net(x, t, **cond), a flare.Denoiser, a flare.Model, a diffusers pipeline, or a "
    "pair (model, scheduler)"
)


def open_model(net: Any, schedule: Any = None, prediction: str | None = None) -> Model:
    """Make a `Model` of a network in any supported form.

    Args:
        net: A module, a `Denoiser`, a `Model`, a diffusers pipeline or its directory, a GaussianDiffusion, or
            a pair (model, scheduler) or (network, schedule).
        schedule: The noise levels of a module or a `Denoiser`, or a scheduler of diffusers.
        prediction: What a module predicts; "epsilon" by default.
    """
    net = open_gaussian_diffusion(net)
    if isinstance(net, tuple) and len(net) == 2 and isinstance(net[1], Schedule) and schedule is None:
        net, schedule = net
    if isinstance(net, nn.Module) and hasattr(schedule, "set_timesteps"):
        net, schedule = (net, schedule), None
    if isinstance(net, (nn.Module, Denoiser)):
        if not isinstance(schedule, Schedule):
            got = "None" if schedule is None else type(schedule).__name__
            raise TypeError(
                f"schedule must be the noise levels that the network was trained on, got {got}; give for "
                "instance schedule=flare.schedules.cosine(1000), flare.schedules.from_betas(betas) for "
                "custom betas, or a scheduler of diffusers."
            )
        if isinstance(net, nn.Module) and type(net).__name__ in NETWORKS and hasattr(net, "config"):
            net = Network(net, prediction or "epsilon")
        return Model(net, schedule, prediction)
    is_pair = isinstance(net, tuple) and len(net) == 2
    if not is_pair and not isinstance(net, (Model, str, os.PathLike)) and network_of(net) is None:
        hint = "; it is a class: pass an instance with its trained weights" if isinstance(net, type) else ""
        if isinstance(net, Mapping):
            hint = "; for a state dict, build its network, call net.load_state_dict(...) and pass net"
        raise TypeError(f"net must be {_FORMS}, got {type(net).__name__}{hint}.")
    model = net if isinstance(net, Model) else from_diffusers(net)
    given = {"schedule": schedule, "prediction": prediction}
    if extra := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{extra[0]} comes with the model; leave {extra[0]}= out.")
    return model


def open_gaussian_diffusion(net: Any) -> Any:
    """A `Model` of a GaussianDiffusion, of images or series; anything else is returned as it is.

    The network works on samples in [−1, 1]: `auto_normalize` of the object concerns its own loss and sampler.
    """
    inner, betas = (getattr(net, name, None) for name in ("model", "betas"))
    prediction = OBJECTIVES.get(getattr(net, "objective", ""))
    if not isinstance(inner, nn.Module) or not isinstance(betas, Tensor) or prediction is None:
        return net
    sides = net.image_size if hasattr(net, "image_size") else (net.seq_length,)
    sides = (sides, sides) if isinstance(sides, int) else sides
    schedule = from_betas(betas.detach().cpu().double())
    return Model(inner, schedule, prediction, shape=(net.channels, *sides), clip=LIMIT)


def check_existing(model: Model, existing: Any, shape: tuple[int, ...], limits: Sequence[float]) -> Tensor:
    """Return samples to be scored as a tensor in the precision of the scores; images of latents are encoded.

    Args:
        model: The network.
        existing: A tensor or an array.
        shape: The shape of a training sample.
        limits: The smallest and the largest number of the training data; a warning says if the samples go
            far beyond.
    """
    existing = require_tensor("existing", existing)
    expected = f"(n, {', '.join(map(str, shape))})"
    if not existing.is_floating_point():
        raise TypeError(
            f"existing must be floating-point samples {expected}, scaled as the training data, got "
            f"{existing.dtype}; for values of 0 to 255 use x / 127.5 - 1."
        )
    if model.codec is not None and existing.ndim > 1 and tuple(existing.shape[1:]) != shape:
        existing = model.encode(existing)
    if existing.ndim < 2 or tuple(existing.shape[1:]) != shape or not len(existing):
        hint = "; for a single sample use existing[None]" if tuple(existing.shape) == shape else ""
        raise ValueError(
            f"existing must have shape {expected}, with samples like the training data, got "
            f"{tuple(existing.shape)}{hint}."
        )
    x: Tensor = existing.detach().to(torch.promote_types(model.denoiser.dtype, torch.float32))
    warn_of_range("the samples lie", x, "the training data", *limits)
    return x


def warn_of_range(said: str, x: Tensor, data: str, low: float, high: float) -> None:
    """Warn if samples (n, *shape) are not scaled as training data in [low, high].

    Args:
        said: The beginning of the warning, such as "the samples lie".
        x: The samples.
        data: The training data, in words.
        low: Its smallest value.
        high: Its largest value.
    """
    beyond = (x - (low + high) / 2).abs().flatten(1).amax(1) > OUT_OF_RANGE * (high - low) / 2
    # such as images in [0, 1] where those of the training are in [−1, 1]
    no_sign = low < -high / 4 < 0 and x[0].numel() >= MIN_VALUES and bool((x >= 0).all())
    if beyond.double().mean() > 0.5 or no_sign:
        warn(
            f"{said} in [{float(x.min()):.3g}, {float(x.max()):.3g}], {data} in [{low:.3g}, {high:.3g}]: are "
            "they scaled as in training?",
            UserWarning,
        )

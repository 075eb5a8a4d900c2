"""Diffusers networks as denoisers: how each is called, and which part of its output is the prediction."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..core.conditions import Cond, map_values
from ..network.denoiser import Denoiser, Params
from . import packing
from .precision import KeepFloat64

# class name -> the argument that takes the state, and the required conditions
NETWORKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "UNet1DModel": ("sample", ()),
    "UNet2DModel": ("sample", ()),
    "UNet2DConditionModel": ("sample", ("encoder_hidden_states",)),
    "DiTTransformer2DModel": ("hidden_states", ("class_labels",)),
    "Transformer2DModel": ("hidden_states", ()),
    "SD3Transformer2DModel": ("hidden_states", ("encoder_hidden_states", "pooled_projections")),
    "PixArtTransformer2DModel": ("hidden_states", ("encoder_hidden_states",)),
    "FluxTransformer2DModel": ("hidden_states", ("encoder_hidden_states", "pooled_projections")),
}
#: those that see latents as tokens
PACKED = ("FluxTransformer2DModel",)
#: those that cast to float32 inside
CASTING = ("SD3Transformer2DModel", "PixArtTransformer2DModel", "FluxTransformer2DModel")


class Network(Denoiser):
    """A diffusers model as f(params, x, t, cond).

    The conditions are the keyword arguments of the model. One more, `concat`, is concatenated to the state
    along the channels, such as the mask and the image of inpainting and upscaling models. If the model
    returns twice as many channels as it takes, the first half is the prediction and the second half the
    learned variance. A Flux transformer takes latents (n, C, H, W), which are packed into tokens here.

    Args:
        model: one of `NETWORKS`.
        prediction: what it predicts: `epsilon`, `sample`, `v` or `flow`.
    """

    def __init__(self, model: nn.Module, prediction: str) -> None:
        name = type(model).__name__
        if name not in NETWORKS:
            raise ValueError(
                f"{name} is not supported; choose from {', '.join(NETWORKS)}, or wrap it in a module that is "
                "called as net(x, t, **cond) and returns a tensor like x, and pass (module, scheduler)."
            )
        super().__init__(model, prediction)
        self._state, self._needed = NETWORKS[name]
        config: Any = model.config
        #: whether the network sees latents as tokens
        self.packs = name in PACKED
        if self.packs and config.guidance_embeds:
            self._needed = (*self._needed, "guidance")
        taken, given = config.in_channels, config.out_channels or config.in_channels
        if self.packs:
            taken, given = taken // packing.PATCH**2, given // packing.PATCH**2
        #: whether the network also returns a learned variance
        self.learns_variance = given == 2 * taken
        #: the number of channels of a sample
        self.channels: int = taken if self.learns_variance else given
        self._concatenated = taken - self.channels
        #: the number of axes of a sample besides its channels
        self.axes = 1 if "1D" in name else 2

    def check_channels(self, x: Tensor) -> None:
        """Raise unless x is (n, channels, L) or (n, channels, H, W)."""
        check_channels(self.name, x, self.channels, self.axes)

    def _arguments(
        self, x: Tensor, t: Tensor, cond: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.check_channels(x)
        if missing := [name for name in self._needed if name not in cond]:
            raise ValueError(
                f"{self.name} needs a condition: give cond={{'{missing[0]}': ...}}, one row per sample."
            )
        cond = map_values(self._cast, cond)
        extra = cond.pop("concat", None)
        width = 0 if extra is None else extra.shape[1]
        if width != self._concatenated:
            raise ValueError(
                f"{self.name} takes {self._concatenated} channels besides the sample's {self.channels}, got "
                f"{width}; pass them as cond={{'concat': ...}}."
            )
        state = x if extra is None else torch.cat([x, extra], dim=1)
        if self.packs:
            return (), packing.arguments(self.name, state, t, cond)
        return (), {self._state: state, "timestep": t, **cond}

    def _run(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None) -> Any:
        casts = self._widened_to is torch.float64 and self.name in CASTING
        with KeepFloat64() if casts else nullcontext():
            out = super()._run(params, x, t, cond)
        if self.packs:
            return packing.unpack(out, *x.shape[2:])
        return out[:, : self.channels] if self.learns_variance else out

    def variance(self, x: Tensor, t: Tensor, cond: Cond | None) -> Tensor:
        """The learned variance: the last channels of the output, like x."""
        here = self.to(x.device)
        with torch.no_grad():
            return Denoiser._run(here, {}, x, t, cond)[:, self.channels :].to(x.dtype)

    def _cast(self, value: Any) -> Any:
        """The value in the network's dtype if it is floating point."""
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check_channels(name: str, x: Tensor, channels: int, axes: int) -> None:
    """Raise unless x is (n, channels, L) with 1 axis, or (n, channels, H, W) with 2.

    Args:
        name: of the model, for the message.
        x: samples.
        channels: the number of channels the model takes.
        axes: 1 for series, 2 for images.
    """
    sizes, shape = "L" if axes == 1 else "H, W", tuple(x.shape)
    if len(shape) == axes + 2 and shape[1] == channels:
        return
    hint = ""
    if len(shape) == axes + 2 and shape[-1] == channels:
        order = "0, 2, 1" if axes == 1 else "0, 3, 1, 2"
        hint = f" This looks like channels-last data; use images.permute({order})."
    elif len(shape) == axes + 1 and channels == 1:
        hint = " The channel axis is missing; use images[:, None]."
    raise ValueError(
        f"{name} takes samples of {channels} channels, (n, {channels}, {sizes}), got shape {shape}.{hint}"
    )


def network_of(pipe: Any) -> nn.Module | None:
    """The network of a pipeline: its unet or its transformer."""
    unet = getattr(pipe, "unet", None)
    return getattr(pipe, "transformer", None) if unet is None else unet

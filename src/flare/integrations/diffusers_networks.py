"""Diffusers networks as denoisers: how each is called, and which part of its output is the prediction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.conditions import Cond, map_values
from ..network.denoiser import Denoiser, Params

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
#: networks that take latents as tokens, which are patches of 2 × 2
PACKED = ("FluxTransformer2DModel",)
#: networks that cast to float32 inside
CASTING = ("SD3Transformer2DModel", "PixArtTransformer2DModel", "FluxTransformer2DModel")
PATCH = 2
_TIME_SCALE = 1000  # packed networks multiply their time by this


class Network(Denoiser):
    """A diffusers model as f(params, x, t, cond).

    The conditions are the keyword arguments of the model. One more, `concat`, is concatenated to the state
    along the channels, such as the mask and the image of inpainting and upscaling models. If the model
    returns twice as many channels as it takes, the first half is the prediction and the second half the
    learned variance. A Flux transformer takes latents (n, C, H, W), which are packed into tokens here.

    Args:
        model: One of `NETWORKS`.
        prediction: What it predicts: `epsilon`, `sample`, `v` or `flow`.
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
        taken, given = config.in_channels, config.out_channels or config.in_channels
        #: whether the network takes latents as tokens
        self.packs = name in PACKED
        if self.packs:
            taken, given = taken // PATCH**2, given // PATCH**2
            self._needed += ("guidance",) if config.guidance_embeds else ()
        #: whether the network also returns a learned variance
        self.learns_variance = given == 2 * taken
        #: the number of channels of a sample
        self.channels: int = taken if self.learns_variance else given
        self._concatenated = taken - self.channels
        self._axes = 1 if "1D" in name else 2

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of one sample, (C, L) or (C, H, W); None if the configuration has no sample_size."""
        config: Any = self.module.config
        size = getattr(config, "sample_size", None)
        if not size:
            return None
        sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,) * self._axes
        return (self.channels, *sizes)

    def _arguments(
        self, x: Tensor, t: Tensor, cond: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        check_channels(self.name, x, self.channels, self._axes)
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
        if not self.packs:
            return (), {self._state: state, "timestep": t, **cond}
        positions = self._positions(*state.shape[2:]).to(x)
        text = x.new_zeros(cond["encoder_hidden_states"].shape[1], 3)
        time = t.to(x.dtype) / _TIME_SCALE
        own = {self._state: pack(state), "timestep": time, "img_ids": positions, "txt_ids": text}
        return (), own | cond

    def _positions(self, height: int, width: int) -> Tensor:
        """The position (0, row, column) of each token."""
        if height % PATCH or width % PATCH:
            raise ValueError(
                f"{self.name} takes latents of even height and width, got {height} × {width}; choose another "
                "size."
            )
        ranges = (torch.arange(size) for size in (1, height // PATCH, width // PATCH))
        return torch.cartesian_prod(*ranges)

    def _run(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None) -> Any:
        casts = self._widened_to is torch.float64 and self.name in CASTING
        with KeepFloat64() if casts else nullcontext():
            out = super()._run(params, x, t, cond)
        if self.packs:
            return unpack(out, *x.shape[2:])
        return out[:, : self.channels] if self.learns_variance else out

    def variance(self, x: Tensor, t: Tensor, cond: Cond | None) -> Tensor:
        """The learned variance: the last channels of the output, like x."""
        given = {name: value for name, value in (cond or {}).items() if name != "null"}  # of guidance
        with torch.no_grad():
            return Denoiser._run(self.to(x.device), {}, x, t, given)[:, self.channels :].to(x.dtype)

    def _cast(self, value: Any) -> Any:
        """The value in the network's dtype if it is floating point."""
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class KeepFloat64(TorchFunctionMode):
    """Inside, casts of float64 tensors to float32 have no effect, such as in rotary embeddings and RMS norms.

    A difference quotient in float64 takes a relative step of 1e-7, which rounding to float32 would hide.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, unless it is such a cast."""
        kwargs = kwargs or {}
        if func in (Tensor.float, Tensor.to) and args[0].dtype is torch.float64:
            asked = (torch.float32,) if func is Tensor.float else (*args[1:], *kwargs.values())
            if any(value is torch.float32 for value in asked):
                return args[0]
        return func(*args, **kwargs)


def pack(x: Tensor) -> Tensor:
    """The tokens (n, H/2·W/2, 4·C) of latents (n, C, H, W)."""
    return F.pixel_unshuffle(x, PATCH).flatten(2).transpose(1, 2)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """The latents (n, C, height, width) of tokens."""
    patches = tokens.transpose(1, 2).unflatten(2, (height // PATCH, width // PATCH))
    return F.pixel_shuffle(patches, PATCH)


def check_channels(name: str, x: Tensor, channels: int, axes: int) -> None:
    """Raise unless x is (n, channels, L) with 1 axis, or (n, channels, H, W) with 2.

    Args:
        name: Name of the model, for the message.
        x: Samples.
        channels: The number of channels that the model takes.
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
        f"{name} takes samples of shape ({channels}, {sizes}), got samples of shape {shape[1:]}.{hint}"
    )


def network_of(pipe: Any) -> nn.Module | None:
    """The network of a pipeline: its unet or its transformer."""
    unet = getattr(pipe, "unet", None)
    return getattr(pipe, "transformer", None) if unet is None else unet

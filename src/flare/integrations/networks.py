"""The networks of diffusers as denoisers: how each is called, and what of its answer is the prediction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.conditions import Cond, map_values
from ..network.denoiser import Denoiser, Params

# the class -> how it calls the state, and the conditions that it cannot do without
NETWORKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "UNet1DModel": ("sample", ()),
    "UNet2DModel": ("sample", ()),
    "UNet2DConditionModel": ("sample", ("encoder_hidden_states",)),
    "DiTTransformer2DModel": ("hidden_states", ("class_labels",)),
    "Transformer2DModel": ("hidden_states", ()),
    "SD3Transformer2DModel": ("hidden_states", ("encoder_hidden_states", "pooled_projections")),
}


class Network(Denoiser):
    """A model of diffusers as f(params, x, t, cond).

    The conditions are the keyword arguments of the model. One more, `concat`, is put beside the state along
    the channels, as models for inpainting and upscaling want it: a mask, an image. Where the model answers
    with twice the channels, the first half is the prediction and the second the size of the noise.

    Args:
        model: one of `NETWORKS`.
        prediction: what it predicts: `epsilon`, `sample`, `v` or `flow`.
    """

    def __init__(self, model: nn.Module, prediction: str) -> None:
        name = type(model).__name__
        if name not in NETWORKS:
            raise ValueError(
                f"{name} is not supported; choose from {', '.join(NETWORKS)}, or wrap it in a module that is "
                "called net(x, t, **cond) and returns a tensor like x, and give (module, scheduler)."
            )
        super().__init__(model, prediction)
        self._state, self._needed = NETWORKS[name]
        config: Any = model.config
        taken, given = config.in_channels, config.out_channels or config.in_channels
        #: whether the network answers with the size of the noise, too
        self.learns_variance = given == 2 * taken
        #: the channels of a sample
        self.channels: int = taken if self.learns_variance else given
        self._concatenated = taken - self.channels
        #: the axes of a sample beside its channels
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
                f"{self.name} needs a condition: give cond={{'{missing[0]}': ...}}, one row a sample."
            )
        cond = map_values(self._cast, cond)
        beside = cond.pop("concat", None)
        width = 0 if beside is None else beside.shape[1]
        if width != self._concatenated:
            raise ValueError(
                f"{self.name} takes {self._concatenated} channels beside the sample's {self.channels}, got "
                f"{width}; give them as cond={{'concat': ...}}."
            )
        state = x if beside is None else torch.cat([x, beside], dim=1)
        return (), {self._state: state, "timestep": t, **cond}

    def _run(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None) -> Any:
        out = super()._run(params, x, t, cond)
        return out[:, : self.channels] if self.learns_variance else out

    def variance(self, x: Tensor, t: Tensor, cond: Cond | None) -> Tensor:
        """What the network says of the size of the noise: its last channels, like x."""
        here = self.to(x.device)
        with torch.no_grad():
            return Denoiser._run(here, {}, x, t, cond)[:, self.channels :].to(x.dtype)

    def _cast(self, value: Any) -> Any:
        """Floating-point conditions in the network's dtype."""
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check_channels(name: str, x: Tensor, channels: int, axes: int) -> None:
    """Raise unless x has the channels that a model takes, and so many axes after them.

    Args:
        name: of the model.
        x: samples.
        channels: how many it takes.
        axes: 1 of series, 2 of images.
    """
    sizes, shape = "L" if axes == 1 else "H, W", tuple(x.shape)
    if len(shape) == axes + 2 and shape[1] == channels:
        return
    hint = ""
    if len(shape) == axes + 2 and shape[-1] == channels:
        order = "0, 2, 1" if axes == 1 else "0, 3, 1, 2"
        hint = f" This looks like channels last; use images.permute({order})."
    elif len(shape) == axes + 1 and channels == 1:
        hint = " The axis of the channels is missing; use images[:, None]."
    raise ValueError(
        f"{name} takes samples of {channels} channels, (n, {channels}, {sizes}), got shape {shape}.{hint}"
    )


def network_of(pipe: Any) -> nn.Module | None:
    """The network of a pipeline: its unet, or its transformer."""
    unet = getattr(pipe, "unet", None)
    return getattr(pipe, "transformer", None) if unet is None else unet

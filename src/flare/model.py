"""`Model`: a network with its noise levels, default sampler and codec. Built once and tested once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .core.conditions import Cond, take_rows, to_device, trial_rows
from .core.validation import require_instance, require_positive_int, require_tensor
from .diffusion import noising, samplers
from .diffusion.noising import Pairs, Weighting
from .diffusion.samplers import Steps
from .diffusion.schedules import Schedule
from .network.denoiser import Denoiser, times
from .network.guidance import guide
from .network.probing import call

STEPS = 50  # of the default sampler
ENCODED = 32  # images per call of an encoder


class Codec(Protocol):
    """Converts images to the latents of a network, and back."""

    def encode(self, images: Tensor) -> Tensor:
        """The latents of images (n, *shape) in [−1, 1]."""

    def decode(self, latents: Tensor) -> Tensor:
        """The images of latents."""


class Model:
    """A trained network with its noise levels, its default sampler, and its codec if it works on latents.

    `flare.from_diffusers` makes one from a pipeline, `flare.bench.load` loads a shipped one.

    >>> model = flare.Model(net, flare.schedules.cosine(600))
    >>> model
    Model(ScoreNet, predicts epsilon, cosine with T = 600)
    >>> flare.sample(model.denoiser, model.steps(5), n=4, shape=(10,)).samples.shape
    torch.Size([4, 10])

    Attributes:
        denoiser: The network.
        schedule: The noise levels that it was trained on.
        codec: Encodes images as latents and decodes them; None if the network works on the samples.
        clip: The range of clean samples: the default sampler clips them to ±clip; None for no limit.
        source: MODEL of `flare fit`, to find the model again; None otherwise.
        known_shape: The shape of one sample, if it is known.
        learned: Results of trial calls.

    Args:
        net: The network, called as net(x, t, **cond), or a `flare.Denoiser`.
        schedule: The noise levels that it was trained on.
        prediction: What a module predicts: "epsilon" by default, "sample", "v", "flow", "edm" or "edm_sigma".
        sampler: A function that returns the table of the default sampler for a number of steps; by default
            DDIM, or Euler's method for a flow.
        codec: Encodes and decodes the samples of a latent diffusion model.
        shape: The shape of one sample, if it is known.
        clip: The range of clean samples.
        source: Where the command line finds the model.
    """

    def __init__(
        self,
        net: nn.Module | Denoiser,
        schedule: Schedule,
        prediction: str | None = None,
        *,
        sampler: Callable[..., Steps] | None = None,
        codec: Codec | None = None,
        shape: tuple[int, ...] | None = None,
        clip: float | None = None,
        source: str | None = None,
    ) -> None:
        require_instance(
            "schedule", schedule, Schedule, "give the noise levels, such as flare.schedules.cosine(1000)"
        )
        if isinstance(net, Denoiser) and prediction not in (None, net.prediction):
            raise ValueError(
                f"the denoiser predicts {net.prediction}, got prediction={prediction!r}; leave it out."
            )
        self.denoiser = net if isinstance(net, Denoiser) else Denoiser(net, prediction or "epsilon")
        self.schedule, self.codec, self.clip, self.source = schedule, codec, clip, source
        self._sampler, self.known_shape = sampler, shape
        self.learned: dict[Any, Any] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample; an error if the model does not know it."""
        if self.known_shape is None:
            raise ValueError(
                f"{self.denoiser.name} does not say which samples it makes; pass the shape of a sample, such "
                "as shape=(3, 32, 32)."
            )
        return self.known_shape

    def steps(self, n: int | None = STEPS, *, clip: float | None = None, **options: Any) -> Steps:
        """The table of n steps of the default sampler.

        Args:
            n: The number of steps, at most one per noise level.
            clip: The range of clean samples; by default the range of the model.
            **options: Options of the sampler, such as eta=1 for DDIM.
        """
        if self._sampler is not None:
            return self._sampler(n, **options)
        schedule = self.schedule
        if not (schedule.continuous or schedule.variance_preserving):
            raise ValueError(
                f"there is no default sampler for {schedule}; give a sampler's table, such as "
                "steps=flare.samplers.heun(schedule, 20)."
            )
        make = samplers.euler if schedule.continuous else samplers.ddim
        count = schedule.T if n is None else min(require_positive_int("steps", n), schedule.T)
        return make(schedule, count, clip=self.clip if clip is None else clip, **options)

    def pairs(
        self,
        data: Tensor | NDArray[Any],
        n: int = 20_000,
        seed: int = 0,
        *,
        weighting: Weighting = "uniform",
        cond: Mapping[str, Any] | None = None,
        batch_size: int = 500,
    ) -> Pairs:
        """Training pairs of clean samples; see `flare.noising.pairs`. The network is called on a few samples.

        Args:
            data: Clean samples as in training, (N, *shape); for a latent model `model.encode(images)`.
            n: The number of pairs.
            seed: Random seed for rows, levels and noise.
            weighting: The loss weights that the model was trained with: "uniform" or "min_snr".
            cond: Conditions of the network, one row per sample of the data.
            batch_size: The number of pairs per batch.

        Raises:
            ValueError: The network cannot take the data, or the sampler would clip it.
        """
        pairs = noising.pairs(
            data, self.schedule, n, seed, weighting=weighting, cond=cond, batch_size=batch_size
        )
        self.check_samples(pairs.data)
        self.try_on(pairs.data, pairs.cond)
        return pairs

    def encode(self, images: Tensor | NDArray[Any]) -> Tensor:
        """Encode images as latents, in batches, on the CPU; without a codec, return the images unchanged."""
        images = require_tensor("images", images)
        if self.codec is None:
            return images
        return torch.cat([self.codec.encode(batch).cpu() for batch in images.split(ENCODED)])

    def decode(self, latents: Tensor) -> Tensor:
        """Decode latents to images; without a codec, return the samples unchanged."""
        return latents if self.codec is None else self.codec.decode(latents)

    def check_samples(self, x: Tensor) -> None:
        """Raise unless clean samples (n, *shape) lie within ±clip, the range of the default sampler, to 0.01.

        Latents are not checked, because their range differs from the range of the images.
        """
        if self.codec is None and self._sampler is not None and self.clip is not None:
            check_range("the sampler clips samples to", x, self.clip)

    def try_on(self, x: Tensor, cond: Cond | None = None) -> None:
        """Call the network on a few of the samples x (n, *shape), once per shape and set of conditions.

        Raises:
            ValueError: The network cannot take them, or its output is wrong; the message says what to do.
        """
        cond = cond or {}
        # a single sample cannot show whether the network mixes samples
        tried = ("call", tuple(x.shape[1:]), tuple(sorted(cond)), len(x) > 1)
        if tried in self.learned:
            return
        rows = trial_rows(cond)[: None if len(x) > 1 else 1]
        few = x[rows].to(self.denoiser.device, torch.promote_types(self.denoiser.dtype, torch.float32))
        t = times(self.schedule.at(self.schedule.T).time, few)
        call(self.denoiser, few, t, to_device(take_rows(cond, rows), few.device))
        self.learned[tried] = True

    def with_denoiser(self, denoiser: Denoiser) -> Model:
        """The same model with another network, such as a copy on another device."""
        return Model(
            denoiser, self.schedule, sampler=self._sampler, codec=self.codec, shape=self.known_shape,
            clip=self.clip, source=self.source,
        )  # fmt: skip

    def with_guidance(self, scale: float, null: Mapping[str, Any] | None = None) -> Model:
        """The same model with classifier-free guidance f_w = (1+w)·f_cond − w·f_null, w = guidance_scale − 1.

        Args:
            scale: w.
            null: The conditions of the unconditional branch, such as {"class_labels": 1000}; None if every
                sample has its own, as cond["null"].
        """
        return self.with_denoiser(guide(self.denoiser, scale, null))

    def __repr__(self) -> str:
        described = self.schedule.spec.get("name", "its own schedule") if self.schedule.spec else "schedule"
        return (
            f"Model({self.denoiser.name}, predicts {self.denoiser.prediction}, {described} with T = "
            f"{self.schedule.T})"
        )


def check_range(why: str, x: Tensor, limit: float) -> None:
    """Raise unless all values of x lie in ±limit, within 0.01.

    Args:
        why: Beginning of the message, such as "the sampler clips samples to".
        x: Samples (n, *shape).
        limit: The largest absolute value.
    """
    low, high = float(x.min()), float(x.max())
    if max(-low, high) > limit + 0.01:
        raise ValueError(
            f"{why} [{-limit:g}, {limit:g}], but this data of shape {tuple(x.shape)} lies in [{low:g}, "
            f"{high:g}]; scale it as in training, for example images.float() / 127.5 - 1."
        )

"""Training of a denoiser: AdamW, warm-up and cosine decay, gradient clipping, an EMA, and runs that resume.

`train` yields one frame per step; the caller draws the progress bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..core.conditions import check_conditions
from ..core.progress import Sized
from ..core.validation import require_positive_int, require_samples
from ..diffusion.noising import LevelSampling, Noiser, Weighting
from ..diffusion.parameterizations import Prediction, scale_input
from ..diffusion.schedules import Schedule
from ..storage import checkpoint

STATE_FILE = "training.safetensors"
FORMAT = 1


@dataclass(frozen=True)
class TrainConfig:
    """How a denoiser is trained.

    Attributes:
        steps: The number of optimizer steps.
        batch_size: Pairs per step.
        learning_rate: The peak learning rate, reached after the warm-up.
        warmup: The number of linear warm-up steps, followed by a cosine decay to 0.
        weight_decay: The weight decay of AdamW.
        clip_norm: The largest norm of a gradient.
        ema: The decay of the averaged weights, which are the result of the training; usually 0.999 to 0.9999.
        weighting: The loss weights of the noise levels: `min_snr` or `uniform`.
        seed: Random seed for the pairs and the noise; callers also seed the initial weights with it.
        level_sampling: How noise levels are drawn: `uniform`, or `log_snr` for a normal log-SNR around 0.
    """

    steps: int
    batch_size: int = 256
    learning_rate: float = 5e-4
    warmup: int = 500
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    ema: float = 0.999
    weighting: Weighting = "min_snr"
    seed: int = 0
    level_sampling: LevelSampling = "uniform"

    def describe(self) -> dict[str, Any]:
        """The fields as JSON; uniform levels are left out, so files of earlier versions compare equal."""
        fields = asdict(self)
        if self.level_sampling == "uniform":
            del fields["level_sampling"]
        return fields


@dataclass(frozen=True)
class TrainFrame:
    """The report of a training step: steps done, total steps, and the loss of this step."""

    step: int
    total: int
    loss: float


class Training:
    """The state of a training run: network, optimizer, EMA, generator and losses.

    Args:
        net: The network, trained in place.
        data: Clean samples, (n, *shape).
        schedule: The noise levels.
        config: The settings.
        prediction: What the network predicts.
        cond: Conditions of the network, one row per sample of the data, such as {"class_labels": labels}.
    """

    def __init__(
        self,
        net: nn.Module,
        data: Tensor,
        schedule: Schedule,
        config: TrainConfig,
        prediction: Prediction = "epsilon",
        cond: Mapping[str, Any] | None = None,
    ) -> None:
        require_positive_int("steps", config.steps)
        require_positive_int("batch_size", config.batch_size)
        self.net, self.data, self.config = net.train(), require_samples("data", data), config
        self.cond = check_conditions(cond, len(data))
        self.noiser = Noiser(schedule, prediction, config.weighting, data.dtype, config.level_sampling)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.optimizer = torch.optim.AdamW(
            net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(config.ema))
        self.losses = torch.zeros(config.steps)
        self.done = 0
        self.consistent = True  # False during a step, when the state must not be saved

    def step(self) -> TrainFrame:
        """Run one step of the optimizer."""
        self.consistent = False
        config = self.config
        rate = config.learning_rate * learning_rate_factor(self.done, config.warmup, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.noiser.draw(self.data, config.batch_size, self.generator, self.cond)
        x, t = scale_input(self.noiser.prediction, batch.x, batch.t)
        output = self.net(x, t, **batch.cond)
        output = getattr(output, "sample", output)  # diffusers models return an object
        error = (output - batch.target).square().flatten(1).mean(1)
        loss = (batch.weight * error).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), config.clip_norm)
        self.optimizer.step()
        self.ema.update_parameters(self.net)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss became {value} at step {self.done + 1}; lower the learning rate "
                f"(now {config.learning_rate:g}) or scale the data to about [-1, 1]."
            )
        self.losses[self.done] = value
        self.done += 1
        self.consistent = True
        return TrainFrame(self.done, config.steps, value)

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights, as a state_dict of the network."""
        return dict(self.ema.module.state_dict())

    def state(self) -> dict[str, Tensor]:
        """The tensors that `load_state` needs to resume exactly."""
        moments = {
            f"optimizer.{index}.{name}": value
            for index, values in self.optimizer.state_dict()["state"].items()
            for name, value in values.items()
        }
        return {
            **{f"net.{name}": value for name, value in self.net.state_dict().items()},
            **{f"ema.{name}": value for name, value in self.ema.state_dict().items()},
            **moments,
            "losses": self.losses,
            "done": torch.tensor(self.done),
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Resume from what `state` returned; raise if it belongs to another network or number of steps."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        checkpoint.load_into(self.net, part("net."), "the interrupted run")
        self.ema.load_state_dict(part("ema."))
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in part("optimizer.").items():
            index, name = key.split(".", 1)
            moments.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        if len(state["losses"]) != self.config.steps:
            raise ValueError(
                f"the interrupted run has {len(state['losses'])} steps, not {self.config.steps}; "
                "resume it with its own settings."
            )
        self.losses = state["losses"].clone()
        self.done = int(state["done"])
        self.generator.set_state(state["generator"])


def train(training: Training, directory: Path | None = None, save_every: int = 2_000) -> Sized[TrainFrame]:
    """Run the remaining steps, one frame per step.

    An interrupted run that is started again with the same arguments gives the same weights.

    >>> config = flare.training.TrainConfig(steps=3, batch_size=8)
    >>> training = flare.training.Training(net, data, schedule, config)
    >>> len([frame.loss for frame in flare.training.train(training)])
    3

    Args:
        training: The run.
        directory: Checkpoint directory; the run resumes from a checkpoint that it finds there.
        save_every: Steps between checkpoints.
    """
    path = directory / STATE_FILE if directory else None
    if path and path.is_file():
        state, metadata = checkpoint.load(path)
        if (found := metadata.get("format", FORMAT)) != FORMAT:
            raise ValueError(
                f"{path} has format {found!r}; this version of FLARE reads format {FORMAT}. Resume with the "
                "version that wrote it, or start a new run."
            )
        training.load_state(state)
    total = training.config.steps

    def run() -> Iterator[TrainFrame]:
        try:
            while training.done < total:
                yield training.step()
                if path and training.done % save_every == 0:
                    checkpoint.save(path, training.state(), {"format": FORMAT})
        finally:
            # also if the caller stops early
            if path and training.consistent and 0 < training.done < total:
                checkpoint.save(path, training.state(), {"format": FORMAT})

    return Sized(run(), total - training.done)


def learning_rate_factor(step: int, warmup: int, total: int) -> float:
    """The factor of the peak rate: linear from 0 to 1 over `warmup` steps, then a cosine to 0 at `total`.

    >>> flare.training.learning_rate_factor(250, warmup=500, total=10_000)
    0.502
    """
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def save_losses(path: Path, losses: Tensor, every: int = 100) -> None:
    """Write the loss curve as CSV: one row per `every` steps, with the last step and the mean loss.

    >>> from pathlib import Path
    >>> flare.training.save_losses(Path("loss.csv"), torch.rand(300), every=100)
    """
    ends = [min(end, len(losses)) for end in range(every, len(losses) + every, every)]
    rows = [f"{end},{part.mean():.6g}" for end, part in zip(ends, losses.split(every), strict=True)]
    with checkpoint.atomic(path) as partial:
        partial.write_text("step,loss\n" + "\n".join(rows) + "\n", encoding="utf-8")

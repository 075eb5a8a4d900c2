"""The batches of a plan: as large as the memory allows, retried in halves, frame by frame, and joined."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core.memory import MAX_BATCH, BatchSize, plan_batches, run_batches
from ..core.noise_streams import stream_bytes
from ..core.nonfinite import LostSamples, find_nonfinite
from ..core.precision import no_autocast
from ..core.progress import Progress, warn, watch
from ..propagation.trajectory import Frame
from ..results.result import Result, fill_lost, join
from .plan import Plan


class Trajectories:
    """The frames of all batches of a plan: iterate over them once, then take `result`.

    A frame is one step of one batch (`propagation.trajectory.Frame`). A batch that runs out of memory is
    retried in halves, which start again with frame 0 and replace the unfinished attempt.

    Args:
        plan: What to sample.
        batch_size: The batch size, or "auto" to choose it by memory.
        memory: Bytes that a chosen batch may use; None for half of the free memory.
    """

    def __init__(self, plan: Plan, batch_size: BatchSize = "auto", memory: int | None = None) -> None:
        self._plan = plan
        self._observer = None if (observe := plan.readout.observe) is None else observe()
        self._lost = LostSamples(plan.n)
        self._traces: list[Tensor] = []  # of the current batch, one per step
        self._parts: list[Result] = []  # the results of the finished batches
        self._about: dict[str, Any] = dict(plan.about)
        self._size = plan_batches(
            plan.n, batch_size, memory, self._try_batch, plan.denoiser.device, stream_bytes(plan.shape),
            plan.learned, plan.work,
        )  # fmt: skip
        if batch_size == "auto" and self._size < min(plan.n, MAX_BATCH):
            self._about["batch_size"] = self._size
        self._started = self._finished = False

    def __len__(self) -> int:
        """The number of frames, if no batch is retried."""
        return len(self._plan.rows) * -(-self._plan.n // self._size)

    @torch.no_grad()
    def __iter__(self) -> Iterator[Frame]:
        if self._started:
            raise RuntimeError("trajectories can be iterated once; call flare.trajectories again.")
        self._started = True
        too_large: list[int] = []
        if self._plan.noise is None:
            yield from run_batches(self._plan.n, self._size, self._run, too_large)
        else:  # noise that is given cannot be drawn again: there is no retry
            yield from self._run(slice(0, self._plan.n))
        if too_large:
            self._about["batch_size"] = -(-too_large[-1] // 2)
        self._finished = True

    @cached_property
    def result(self) -> Result:
        """The samples with their scores, after the last frame; warns of lost samples."""
        if not self._finished:
            raise RuntimeError("the result is complete after the last frame; iterate to the end first.")
        about = self._about
        if self._observer is not None and self._plan.readout.viewpoint is not None:
            about["observed by"] = self._observer.taken
        if self._lost.where:
            about["lost"] = self._lost.about
            warn(self._lost.warning)
        return replace(join(self._parts), about=about)

    def finish(self, progress: Progress | bool | None = None) -> Result:
        """Run all steps, and return the result."""
        deque(watch(iter(self), len(self), progress), maxlen=0)
        return self.result

    def _run(self, here: slice) -> Iterator[Frame]:
        """Walk one batch, and keep the result of its last frame."""
        for frame in self._plan.walk(here):
            if frame.index == 0:
                self._traces = []
            if frame.lost is not None:
                self._lost.add(frame.lost, frame.first, frame.name)
            if frame.trace is not None:
                self._traces.append(frame.trace)
            if frame.last:
                with no_autocast():
                    part = self._plan.readout.read(frame, self._traces, self._observer)
                lost = _find_lost(part, frame.lost)
                if lost is not None:
                    self._lost.add(lost, frame.first, "the result of the last step")
                    part = fill_lost(part, lost)
                self._parts.append(part)
            yield frame

    @torch.no_grad()
    @no_autocast()
    def _try_batch(self, count: int) -> None:
        """Memory probe: fill the multistep history, then run the end-of-batch work."""
        readout = self._plan.readout
        observer = None if readout.observe is None else readout.observe()
        for frame in self._plan.shorten().walk(slice(0, count)):
            if frame.last:
                readout.read(frame, [], observer)


def _find_lost(part: Result, before: Tensor | None) -> Tensor | None:
    """Find the samples that were lost during sampling, or whose final values are not finite, (B,)."""
    own = [part.samples, *([] if part.variance is None else [part.variance])]
    found = [find_nonfinite(own, part.samples.ndim), find_nonfinite(part.scores.values(), 1), before]
    masks = [mask for mask in found if mask is not None]
    return torch.stack(masks).any(0) if masks else None

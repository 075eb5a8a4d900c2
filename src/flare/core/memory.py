"""Batch sizes: measure the memory of a small batch, choose the largest batch that fits, halve it if it fails.

Memory grows at most linearly with the batch, so the bytes per sample of a small batch are an upper bound for
larger ones. A batch that runs out of memory anyway is retried in halves. Noise is seeded per sample, so the
batch size does not change the samples.
"""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .progress import warn
from .validation import require_positive_int

MAX_BATCH = 1000  # samples; batches of 3000 are no faster, and slower with a posterior
PROBE = 4  # samples in the first batch that is measured
MEMORY_FRACTION = 0.5  # fraction of the free memory that batches may use
CGROUP = Path("/sys/fs/cgroup")  # the memory limit of a container, which psutil does not know
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
BatchSize = int | Literal["auto"]
Item = TypeVar("Item")


def plan_batches(
    n: int,
    batch_size: BatchSize | str,
    memory: int | None,
    run: Callable[[int], object],
    device: torch.device,
    extra: int = 0,
    learned: dict[Any, float] | None = None,
    work: Any = None,
) -> int:
    """Return the batch size: as given, or the largest that fits, min(n, MAX_BATCH) or else a power of two.

    Powers of two keep the batches, and with them the rounding of the samples, the same when the amount of
    free memory changes a little.

    Args:
        n: Number of samples.
        batch_size: A batch size, or "auto" to choose it by memory.
        memory: Bytes that a chosen batch may use; see `memory_budget`.
        run: Function that runs a small part of the work on the given number of samples.
        device: Device of the work.
        extra: Bytes per sample that `run` does not show, such as those of other threads.
        learned: Bytes per sample that earlier calls have measured, by `work` and the size of the batch; this
            call adds its measurements.
        work: A name for the work.
    """
    if batch_size != "auto":
        if isinstance(batch_size, str):
            raise ValueError(f"batch_size must be a number or 'auto', got {batch_size!r}.")
        return require_positive_int("batch_size", batch_size)
    budget = memory_budget(memory, device)
    if n == 1:
        return 1
    largest, size = min(n, MAX_BATCH), min(n, PROBE)
    learned = {} if learned is None else learned
    while True:
        if (work, size) not in learned:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the full run repeats these warnings
                    learned[work, size] = measure_peak(partial(run, size), device) / size
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return max(1, size // PROBE)
        fit = int(budget // max(learned[work, size] + extra, 1))
        if fit >= largest:
            return largest
        power_of_two = 1 << max(0, fit.bit_length() - 1)
        if power_of_two <= size:
            return power_of_two
        size = power_of_two


def run_batches(
    n: int, size: int, work: Callable[[slice], Iterator[Item]], too_large: list[int] | None = None
) -> Iterator[Item]:
    """Yield from `work` for slices of 0..n−1; one that runs out of memory is retried in halves.

    Args:
        n: Number of samples.
        size: Samples per slice.
        work: Function that yields the items of a slice; it may be called again for a part of it.
        too_large: List that collects the sizes that ran out of memory.
    """
    first = 0
    while first < n:
        batch = slice(first, min(first + size, n))
        count = batch.stop - batch.start
        try:
            yield from work(batch)
            first = batch.stop
            continue
        except (RuntimeError, MemoryError) as error:
            if count == 1 or not is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # outside the handler: the error keeps alive the tensors that did not fit
        size = -(-count // 2)
        if too_large is not None:
            too_large.append(count)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warn(
            f"a batch of {count} samples ran out of memory ({reason}); retrying from sample {batch.start} in "
            f"batches of {size}. Give batch_size={size} to avoid the retry."
        )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is an out-of-memory error."""
    if error is None:
        return False
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    matches = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)
    return matches or is_out_of_memory(error.__cause__)


def memory_budget(memory: int | None, device: torch.device) -> int:
    """Bytes that a batch may use: `memory`, or this process's part of MEMORY_FRACTION of the free memory."""
    if memory is not None:
        return require_positive_int("memory", memory)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cuda":  # processes are spread evenly over the GPUs
        processes = -(-processes // torch.cuda.device_count())
    return int(MEMORY_FRACTION * free_memory(device)) // max(1, processes)


def free_memory(device: torch.device) -> int:
    """Bytes of free memory on a device; for the CPU, the lower of what the system and its cgroup report."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # there is no cgroup, or its limit is "max"
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        free = min(free, max(0, limit - used + int(stat["inactive_file"])))
    return free


def measure_peak(run: Callable[[], object], device: torch.device) -> int:
    """Peak bytes of tensors that `run` allocates, beyond those that exist before it starts."""
    with torch.compiler.set_stance("force_eager"):  # compiling for a few samples would waste minutes
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            run()
            return torch.cuda.max_memory_allocated(device) - before
        with _AllocationCounter() as counter:
            run()
        return counter.peak


class _AllocationCounter(TorchDispatchMode):
    """Counts the bytes of every storage that an operation creates, until the storage is freed.

    Attributes:
        peak: The most bytes that were allocated at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._allocated = 0
        self._finalizers: dict[int, weakref.finalize[..., Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._track((args, kwargs), new=False)
        out = func(*args, **(kwargs or {}))
        self._track(out, new=True)
        return out

    def _track(self, values: Any, new: bool) -> None:
        for value in tree_leaves(values):
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                continue
            storage = value.untyped_storage()
            if (key := storage._cdata) not in self._finalizers:
                size = storage.nbytes() if new else 0
                self._finalizers[key] = weakref.finalize(storage, self._release, key, size)
                self._allocated += size
                self.peak = max(self.peak, self._allocated)

    def _release(self, key: int, size: int) -> None:
        self._finalizers.pop(key, None)
        self._allocated -= size

    def __exit__(self, *error: Any) -> None:
        for finalizer in list(self._finalizers.values()):  # storages may outlive the counter
            finalizer.detach()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

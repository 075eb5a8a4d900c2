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
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .validation import require_positive_int
from .warn import warn

MAX_BATCH = 1000  # samples; batches of 3000 are no faster, and slower with a posterior
PROBE = 4  # samples in the first batch that is measured
MEMORY_FRACTION = 0.5  # fraction of the free memory that batches may use
_ASSUMED_FREE = 4 * 2**30  # bytes of free memory to assume if the OS does not report it
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
BatchSize = int | Literal["auto"]
Item = TypeVar("Item")


def check_batch_size(batch_size: BatchSize | str) -> int | None:
    """Return a valid batch size, or None for "auto"."""
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise ValueError(f"batch_size must be a number or 'auto', got {batch_size!r}.")
        return None
    return require_positive_int("batch_size", batch_size)


def choose_batch_size(
    n: int, memory: int, run: Callable[[int], object], device: torch.device, extra: int = 0
) -> int:
    """Return the largest batch size that fits in memory: min(n, MAX_BATCH), or else a power of two.

    Powers of two keep the batches, and with them the rounding of the samples, the same when the amount of
    free memory changes a little.

    Args:
        n: number of samples.
        memory: bytes that a batch may use.
        run: runs a small part of the work on the given number of samples.
        device: where the work runs.
        extra: bytes per sample that `run` does not show, such as those of other threads.
    """
    if n == 1:
        return 1
    largest, size = min(n, MAX_BATCH), min(n, PROBE)
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the full run repeats these warnings
                per_sample = measure_peak(partial(run, size), device) / size + extra
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return max(1, size // PROBE)
        fit = int(memory // max(per_sample, 1))
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
        n: number of samples.
        size: samples per slice.
        work: yields the items of a slice; may be called again for a part of it.
        too_large: collects the sizes that ran out of memory.
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
    reported = [value for value in (_free_in_system(), _free_in_cgroup()) if value is not None]
    return min(reported, default=_ASSUMED_FREE)


def _free_in_system() -> int | None:
    table = _read_numbers(Path("/proc/meminfo"))
    if "MemAvailable:" in table:  # includes caches that the system can reclaim
        return 1024 * table["MemAvailable:"]
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):  # not on every system
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_in_cgroup() -> int | None:
    group = Path("/sys/fs/cgroup")
    limit, used = (_read_numbers(group / name).get("") for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return None
    cached = _read_numbers(group / "memory.stat").get("inactive_file", 0)
    return max(0, limit - used + cached)


def _read_numbers(path: Path) -> dict[str, int]:
    """Read lines of "name number" as a dict; a number without a name has the key ""."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return {}
    named = {line[0] if len(line) > 1 else "": line[min(1, len(line) - 1)] for line in lines if line}
    return {name: int(number) for name, number in named.items() if number.isdigit()}


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
        peak: the most bytes that were allocated at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._allocated = 0
        self._finalizers: dict[int, weakref.finalize[..., Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._track((args, kwargs), new=False)
        out = func(*args, **kwargs)
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

"""How many samples go through the network at once: as many as fit, measured on a few.

The first batches are small, and what they take is counted; memory grows no faster than the batch, so what a
sample takes in a small one bounds what it takes in a large one. A batch that does not fit after all is tried
again in halves. Noise belongs to the sample, so that its batch does not matter to it.
"""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .validation import require_positive_int

MAX_BATCH = 1000  # samples: three times as many are no faster, and slower with a posterior
PROBE = 4  # samples of the first batch that is measured
MEMORY_FRACTION = 0.5  # of the free memory
_ASSUMED_FREE = 4 * 2**30  # bytes that are taken for free where the system does not tell
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
Item = TypeVar("Item")


def check_batch_size(batch_size: int | str) -> int | None:
    """A batch size as it was given; None for "auto"."""
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise ValueError(f"batch_size must be a number or 'auto', got {batch_size!r}.")
        return None
    return require_positive_int("batch_size", batch_size)


def choose_batch_size(
    n: int, memory: int, run: Callable[[int], object], device: torch.device, beside: int = 0
) -> int:
    """The largest batch within the memory: `MOST` or all n samples, or else a power of two.

    A power of two, so that a little more or less free memory leaves the batches, and with them the rounding
    of the samples, as they are.

    Args:
        n: how many samples there are.
        memory: how many bytes a batch may take.
        run: does a small part of the work on so many samples.
        device: where it does.
        beside: bytes a sample that other threads take.
    """
    if n == 1:
        return 1
    most, size = min(n, MAX_BATCH), min(n, PROBE)
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what there is to say is said when the work is done
                each = measure_peak(partial(run, size), device) / size + beside
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return max(1, size // PROBE)
        fit = int(memory // max(each, 1))
        if fit >= most:
            return most
        larger = 1 << max(0, fit.bit_length() - 1)
        if larger <= size:
            return larger
        size = larger


def run_batches(
    n: int, size: int, work: Callable[[slice], Iterator[Item]], sizes: list[int] | None = None
) -> Iterator[Item]:
    """What `work` yields for slices of 0..n−1; one that runs out of memory is begun again in halves.

    Args:
        n: how many samples there are.
        size: of a slice.
        work: yields something for a slice, and may be called for a part of it again.
        sizes: where the sizes are noted that were too large.
    """
    first = 0
    while first < n:
        here = slice(first, min(first + size, n))
        count = here.stop - here.start
        try:
            yield from work(here)
            first = here.stop
            continue
        except (RuntimeError, MemoryError) as error:
            if count == 1 or not is_out_of_memory(error):
                raise
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
        # beyond the handler: the error held the tensors that did not fit
        size = -(-count // 2)
        if sizes is not None:
            sizes.append(count)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"a batch of {count} samples ran out of memory ({why}); going on from its first, {here.start}, "
            f"in batches of {size}. Give batch_size={size} to begin so.",
            RuntimeWarning,
            stacklevel=2,
        )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, says that there was no memory left."""
    if error is None:
        return False
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    says = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)
    return says or is_out_of_memory(error.__cause__)


def memory_budget(memory: int | None, device: torch.device) -> int:
    """The bytes that a batch may take: those given, or `SHARE` of what is free, for each process here."""
    if memory is not None:
        return require_positive_int("memory", memory)
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cuda":  # a GPU each, as far as there are
        sharing = -(-sharing // torch.cuda.device_count())
    return int(MEMORY_FRACTION * free_memory(device)) // max(1, sharing)


def free_memory(device: torch.device) -> int:
    """The bytes that are free on a device."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    found = []
    table = _numbers(Path("/proc/meminfo"))
    if "MemAvailable:" in table:  # with what the system would give back
        found.append(1024 * table["MemAvailable:"])
    elif "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):  # not on every system
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup")
    limit, used = (_numbers(group / name).get("", None) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        cached = _numbers(group / "memory.stat").get("inactive_file", 0)
        found.append(max(0, limit - used + cached))
    return min(found, default=_ASSUMED_FREE)


def measure_peak(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that are alive at once while `run` does its work, beyond those before."""
    with torch.compiler.set_stance("force_eager"):  # nothing is compiled for the few samples of a probe
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            run()
            return torch.cuda.max_memory_allocated(device) - before
        with _Count() as count:
            run()
        return count.most


class _Count(TorchDispatchMode):
    """Counts the bytes of every storage that an operation makes, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = self._now = 0
        self._known: dict[int, weakref.finalize[..., Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._note((args, kwargs), new=False)
        out = func(*args, **kwargs)
        self._note(out, new=True)
        return out

    def _note(self, values: Any, new: bool) -> None:
        for value in tree_leaves(values):
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                continue
            storage = value.untyped_storage()
            if (key := storage._cdata) not in self._known:
                size = storage.nbytes() if new else 0
                self._known[key] = weakref.finalize(storage, self._forget, key, size)
                self._now += size
                self.most = max(self.most, self._now)

    def _forget(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self._now -= size

    def __exit__(self, *error: Any) -> None:
        for finalizer in list(self._known.values()):  # what outlives the count is not watched any longer
            finalizer.detach()
        super().__exit__(*error)  # type: ignore[no-untyped-call]


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a word and a number as a table; a number alone has the name ""."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return {}
    named = {line[0] if len(line) > 1 else "": line[min(1, len(line) - 1)] for line in lines if line}
    return {name: int(number) for name, number in named.items() if number.isdigit()}

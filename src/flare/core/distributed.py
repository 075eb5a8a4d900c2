"""Distributed runs: rank and size, sums over all processes, and broadcasts from the main process.

torchrun, accelerate or a cluster scheduler starts the processes and sets their environment variables.
torch.distributed communicates with gloo between CPUs and nccl between GPUs. In a single process, all of these
functions are no-ops.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = "FLARE_TIMEOUT"  # environment variable: seconds to wait for other processes
Item = TypeVar("Item")


def start() -> None:
    """Join the process group; a no-op in a single process or if already joined.

    >>> flare.distributed.start()
    >>> flare.distributed.size()
    1
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or size() > 1:
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # its functions keep the group that exists when they are defined: imported later, they would keep the
    # threads of gloo alive until Python ends, which sometimes aborts then
    importlib.import_module("torch.distributed.nn")

    with _explain_lost_process():
        dist.init_process_group(backend, timeout=timedelta(seconds=_timeout()))


def stop() -> None:
    """Leave the process group.

    >>> flare.distributed.stop()
    """
    if size() > 1:
        dist.destroy_process_group()


def size() -> int:
    """Number of processes.

    >>> flare.distributed.size()  # of a plain Python process
    1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process, from 0.

    >>> flare.distributed.rank()
    0
    """
    return dist.get_rank() if size() > 1 else 0


def is_main() -> bool:
    """Whether this is the process that writes files and draws progress bars.

    >>> flare.distributed.is_main()
    True
    """
    return rank() == 0


def own_items(items: Sequence[Item]) -> Sequence[Item]:
    """Every size-th item, starting at this rank; the counts of the processes differ by at most one.

    >>> flare.distributed.own_items([3, 1, 2])  # all of them, in a single process
    [3, 1, 2]
    """
    return items[rank() :: size()]


def sum_over_processes(*tensors: Tensor) -> None:
    """Replace each tensor in place by its sum over all processes, which is bitwise equal in all of them.

    >>> count = torch.tensor(20)
    >>> flare.distributed.sum_over_processes(count)
    """
    if size() > 1:
        with _explain_lost_process():
            for tensor in tensors:
                sent = _for_backend(tensor)
                dist.all_reduce(sent)
                tensor.copy_(sent)


def share_rows(compute: Callable[[Tensor], dict[str, Tensor]], rows: Tensor) -> dict[str, Tensor]:
    """What `compute` gives for these rows, (len(rows), ...) by name: every process computes some of them.

    >>> flare.distributed.share_rows(lambda rows: {"double": 2 * rows}, torch.tensor([5, 7]))
    {'double': tensor([10, 14])}
    """
    if not 1 < size() <= len(rows):
        return compute(rows)
    whole = {}
    for name, values in compute(rows[rank() :: size()]).items():
        whole[name] = values.new_zeros(len(rows), *values.shape[1:])
        whole[name][rank() :: size()] = values
    sum_over_processes(*whole.values())
    return whole


def broadcast(tensor: Tensor) -> Tensor:
    """Return the main process's tensor, for values that must be bitwise equal in all processes.

    >>> flare.distributed.broadcast(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if size() > 1:
        sent = _for_backend(tensor)
        with _explain_lost_process():
            dist.broadcast(sent, src=0)
        return sent.to(tensor.device)
    return tensor


def require_agreement(what: str, digest: str) -> None:
    """Raise in every process if their digests of `what` differ.

    >>> from flare.storage.checkpoint import digest
    >>> flare.distributed.require_agreement("the data", digest(data))
    """
    if size() > 1:
        own = torch.tensor([int(digest[k : k + 8], 16) for k in (0, 8)])
        differs = (own != broadcast(own.clone())).any().float()
        sum_over_processes(differs)
        if differs:
            raise ValueError(
                f"{what} are not the same in all {size()} processes; create them with the same seed, or load "
                "them from one file."
            )


def wait() -> None:
    """Wait until all processes get here.

    >>> flare.distributed.wait()
    """
    sum_over_processes(torch.zeros(1))


def _for_backend(tensor: Tensor) -> Tensor:
    """Move a tensor to where the backend can send it: a group of the caller may be nccl only, without CPU."""
    return tensor.cuda() if dist.get_backend() == "nccl" else tensor.contiguous()


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "1800")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{TIMEOUT} must be a number of seconds, got {text!r}.") from None


@contextmanager
def _explain_lost_process() -> Iterator[None]:
    """Translate torch's errors about sockets: say what happened and what to do."""
    try:
        yield
    except RuntimeError as error:
        place = f"process {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}"
        raise ConnectionError(
            f"{place} lost contact with its peers: one of them failed (its message says why), was killed, "
            f"or was silent for {_timeout():.0f} s ({TIMEOUT} sets the limit). Finished work is saved: start "
            f"the same command again to resume. torch says: {str(error).splitlines()[0]}"
        ) from error

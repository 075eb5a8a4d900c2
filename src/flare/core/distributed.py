"""Several processes as one: which of them this is, sums over all, and what only the main one does.

torchrun, accelerate or a scheduler starts the processes and tells each its place in the environment;
torch.distributed carries the sums: gloo between CPUs, nccl between GPUs. In a process by itself every
function here returns at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = "FLARE_TIMEOUT"  # the environment's word for how long to wait for the others, in seconds
Item = TypeVar("Item")


def start() -> None:
    """Join the processes that were started together; by itself, or joined already, there is nothing to do."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or size() > 1:
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with _explain_lost_process():
        dist.init_process_group(backend, timeout=timedelta(seconds=_timeout()))


def stop() -> None:
    """Leave the others, when all is done."""
    if size() > 1:
        dist.destroy_process_group()


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0 on."""
    return dist.get_rank() if size() > 1 else 0


def is_main() -> bool:
    """Whether this one writes the files and draws the bars."""
    return rank() == 0


def own_items(items: Sequence[Item]) -> Sequence[Item]:
    """The items that are this process's to do: every size-th, so that shares differ by one at most."""
    return items[rank() :: size()]


def sum_over_processes(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over all processes, the same to the last bit in each of them."""
    if size() > 1:
        with _explain_lost_process():
            for tensor in tensors:
                carried = _for_backend(tensor)
                dist.all_reduce(carried)
                tensor.copy_(carried)


def broadcast(tensor: Tensor) -> Tensor:
    """The main process's tensor: for what must be alike in all of them, however they round."""
    if size() > 1:
        carried = _for_backend(tensor)
        with _explain_lost_process():
            dist.broadcast(carried, src=0)
        return carried.to(tensor.device)
    return tensor


def require_agreement(what: str, digest: str) -> None:
    """Raise, in every process, if they do not all have the same `digest` of something."""
    if size() > 1:
        own = torch.tensor([int(digest[k : k + 8], 16) for k in (0, 8)])
        differs = (own != broadcast(own.clone())).any().float()
        sum_over_processes(differs)
        if differs:
            raise ValueError(
                f"{what} are not the same in all {size()} processes; seed what makes them, or load them from "
                "one file."
            )


def wait() -> None:
    """Go on when all processes are here."""
    sum_over_processes(torch.zeros(1))


def _for_backend(tensor: Tensor) -> Tensor:
    """The tensor where the backend can take it: a group of nccl alone, as others make, knows no CPU."""
    return tensor.cuda() if dist.get_backend() == "nccl" else tensor.contiguous()


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "1800")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{TIMEOUT} must be a number of seconds, got {text!r}.") from None


@contextmanager
def _explain_lost_process() -> Iterator[None]:
    """What torch says when another process is gone is about sockets; say what happened and what to do."""
    try:
        yield
    except RuntimeError as error:
        place = f"process {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}"
        raise RuntimeError(
            f"{place} lost the others: one of them failed (its own message says why), was killed, or was "
            f"silent for {_timeout():.0f} s ({TIMEOUT} sets how long to wait). What was finished is kept: "
            f"start the same command again. torch says: {str(error).splitlines()[0]}"
        ) from error

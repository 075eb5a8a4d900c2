"""Numbers keep the precision of the network, also inside `torch.autocast`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_DEVICES = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def no_autocast() -> Iterator[None]:
    """Inside, autocast of the caller has no effect: it would round distances and derivatives to three digits.

    A network in half precision still runs in half precision.
    """
    with ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield

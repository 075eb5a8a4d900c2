"""Workarounds for operations of torch that forward-mode differentiation does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from .recurrent import can_unroll, is_cell, run_cell, unroll


class ForwardModeError(RuntimeError):
    """A network, or a function of its samples, has no forward-mode derivative.

    Args:
        reason: what failed, without a full stop.
        advice: what to do instead.

    Attributes:
        reason: for messages with another advice.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}. {advice}" if advice else reason)
        self.reason = reason


@contextmanager
def plain_attention() -> Iterator[None]:
    """Inside, attention runs unfused: fused kernels have no forward-mode derivative and no batching rule."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def no_checkpointing() -> Iterator[None]:
    """Inside, checkpointed parts of a network run as they are.

    Checkpointing calls layers again in the backward pass, when their parameters are no longer replaced, and
    does not work under torch.func.
    """
    own = {name: getattr(checkpoint, name) for name in _WITHOUT_CHECKPOINTS}
    vars(checkpoint).update(_WITHOUT_CHECKPOINTS)
    try:
        yield
    finally:
        vars(checkpoint).update(own)


class _Plain:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _run_once(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


#: what `torch.utils.checkpoint.checkpoint` calls, reentrant and not, and what runs instead
_WITHOUT_CHECKPOINTS = {"CheckpointFunction": _Plain, "_checkpoint_without_reentrant_generator": _run_once}


class Workarounds(TorchFunctionMode):
    """Inside, group norms see contiguous inputs and recurrent layers run step by step.

    The forward-mode derivative of a group norm fails on other memory layouts, such as outputs of attention.
    Fused recurrent layers have no forward-mode derivative and no batching rule.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func` or what replaces it."""
        kwargs = kwargs or {}
        if func is F.group_norm and args:
            return func(args[0].contiguous(), *args[1:], **kwargs)
        if is_cell(func):
            return run_cell(func, *args, **kwargs)
        if can_unroll(func, args):
            return unroll(func, *args)
        return func(*args, **kwargs)


def needs_workarounds(module: nn.Module) -> bool:
    """Whether a network needs `Workarounds`, which slow a small network down by a quarter."""
    return any(isinstance(m, (nn.GroupNorm, nn.RNNBase, nn.RNNCellBase)) for m in module.modules())

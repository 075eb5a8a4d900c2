"""What forward-mode differentiation needs of torch: local cures for operations that it stumbles over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .recurrent import is_single, step, unroll, unrolls


class ForwardModeError(RuntimeError):
    """A network, or a function of its samples, has no forward-mode derivative."""


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention by its formula inside: its fused kernels have no forward derivative and no batching rule."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class Workarounds(TorchFunctionMode):
    """Inside, group norms see contiguous inputs and recurrent layers run step by step.

    The derivative of a group norm fails on other memory layouts, such as attention leaves behind; fused
    recurrent layers have no forward derivative and no batching rule.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, cured."""
        kwargs = kwargs or {}
        if func is F.group_norm and args:
            return func(args[0].contiguous(), *args[1:], **kwargs)
        if is_single(func):
            return step(func, *args, **kwargs)
        if unrolls(func, args):
            return unroll(func, *args)
        return func(*args, **kwargs)


def needs_workarounds(module: nn.Module) -> bool:
    """Whether a network needs `Workarounds`, which cost a small network a quarter of its time."""
    return any(isinstance(m, (nn.GroupNorm, nn.RNNBase, nn.RNNCellBase)) for m in module.modules())

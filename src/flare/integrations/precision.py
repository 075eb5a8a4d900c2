"""Float64 copies of networks that cast to float32 inside, such as in rotary embeddings and RMS norms.

A difference quotient in float64 takes a relative step of 1e-7, which rounding to float32 would hide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class KeepFloat64(TorchFunctionMode):
    """Inside, casts of float64 tensors to float32 have no effect."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, unless it is such a cast."""
        kwargs = kwargs or {}
        if func in (Tensor.float, Tensor.to) and args[0].dtype is torch.float64:
            asked = (torch.float32,) if func is Tensor.float else (*args[1:], *kwargs.values())
            if any(value is torch.float32 for value in asked):
                return args[0]
        return func(*args, **kwargs)

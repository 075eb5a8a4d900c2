"""Derivatives of networks: how to compute them, and workarounds for what torch.func does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..core.validation import one_of


class Derivative(str, Enum):
    """How to compute the change of f along a direction of (θ, x).

    A call such as `flare.sample(..., derivative="exact")` decides. With "auto" the setting of the denoiser
    (`Denoiser.by`) applies. If that is "auto" too, `autodiff.jvp.prepare` chooses what suits the network.

    >>> from flare.network.forward_mode import Derivative
    >>> Derivative("secant") is Derivative.SECANT
    True
    """

    AUTO = "auto"
    #: forward-mode differentiation in the dtype of the network, at least float32
    EXACT = "exact"
    #: the same, compiled by torch.compile: for long runs of small networks
    COMPILED = "compiled"
    #: a difference quotient of a float64 copy of the network, which needs no derivative
    SECANT = "secant"

    @classmethod
    def parse(cls, value: str | Derivative) -> Derivative:
        """The setting with this name; an unknown name raises an error with the nearest match."""
        return cls(one_of("derivative", value, [each.value for each in cls]))

    def or_else(self, other: Derivative) -> Derivative:
        """This setting, or the other one if this is AUTO."""
        return other if self is Derivative.AUTO else self


class ForwardModeError(RuntimeError):
    """A network, or a function of its samples, has no forward-mode derivative.

    Args:
        reason: What failed, without a full stop.
        advice: What to do instead.

    Attributes:
        reason: The same, for messages with other advice.
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
    """Inside, checkpointed parts of a network run without checkpoints.

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
    """Inside, group norms see contiguous inputs.

    The forward-mode derivative of a group norm fails on other memory layouts, such as outputs of attention.

    Args:
        more: Further functions of torch, and what runs instead: called with the function and its arguments.
    """

    def __init__(self, more: Mapping[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self._instead = {**_INSTEAD, **(more or {})}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func` or its replacement."""
        if (instead := self._instead.get(func)) is not None:
            return instead(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def needs_workarounds(module: nn.Module) -> bool:
    """Whether a network needs `Workarounds`, which slow a small network down by a quarter."""
    return any(isinstance(m, nn.GroupNorm) for m in module.modules())


def _group_norm(function: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return function(input.contiguous(), *args, **kwargs)


#: functions of torch, and what runs instead inside `Workarounds`
_INSTEAD: dict[Any, Callable[..., Any]] = {F.group_norm: _group_norm}

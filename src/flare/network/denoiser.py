"""Any network as a pure function f(params, x, t, cond); the network itself is never modified."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..core.conditions import Cond, map_values
from ..core.memory import is_out_of_memory
from ..core.precision import no_autocast
from ..core.validation import one_of, require_device, require_instance
from ..diffusion.parameterizations import PRECONDITIONED, Prediction, check_prediction, scale_input
from .forward_mode import (
    Derivative,
    ForwardModeError,
    Workarounds,
    needs_workarounds,
    no_checkpointing,
    plain_attention,
)

Params = Mapping[str, Tensor]
Predict = Callable[[Cond | None], Tensor]  # f at fixed (params, x, t), as a function of the conditions
Combine = Callable[[Predict, Cond | None], Tensor]
Self = TypeVar("Self", bound="Denoiser")
HALVES = (torch.float16, torch.bfloat16)


class TensorSlots:
    """Where a module keeps its tensors, looked up once so that every later swap is cheap.

    Args:
        module: The module; names are those of `named_parameters` and `named_buffers`. A tied tensor has
            several slots.
    """

    def __init__(self, module: nn.Module) -> None:
        names = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
        self._of: dict[str, list[tuple[dict[str, Any], str]]] = {n: [] for n in names.values()}
        for part in module.modules():
            for table in (part._parameters, part._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        self._of[names[id(tensor)]].append((table, key))
        self._attributes = [(vars(part), dict(vars(part))) for part in module.modules()]
        #: tensors among the attributes: what a call writes there must not outlive it
        self._plain: list[tuple[dict[str, Any], str, Any]] = [
            (now, key, value)
            for now, before in self._attributes
            for key, value in before.items()
            if isinstance(value, Tensor)
        ]

    def restore(self) -> None:
        """Restore the attributes of all modules: a call under vmap leaves unusable tensors there."""
        for now, before in self._attributes:
            now.clear()
            now.update(before)

    @contextmanager
    def swap(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, these tensors replace those of the module with the same names."""
        before = list(self._plain)
        try:
            for name, value in values.items():
                for table, key in self._of[name]:
                    before.append((table, key, table[key]))
                    table[key] = value
            yield
        finally:
            for table, key, own in reversed(before):
                table[key] = own


class Denoiser:
    """A trained network as a pure function of its parameters, the state, the time and conditions.

    The network is called as `net(x, t, **cond)` with x of shape (B, *shape) and t of shape (B,): the
    integer t − 1 of a discrete schedule, the number s of a flow, or σ of EDM. It returns a tensor like x (or
    an object with such a tensor as `.sample`, as diffusers models do).

    Calls run in eval mode on a copy that shares its tensors: the module you pass keeps its mode, buffers and
    gradients, and later changes of its weights are visible here. A denoiser is not thread-safe: a call swaps
    the tensors of the copy.

    >>> denoiser = flare.Denoiser(net, prediction="epsilon")
    >>> denoiser(data[:4], torch.tensor([0, 10, 100, 599])).shape
    torch.Size([4, 10])

    Args:
        net: Any `nn.Module`.
        prediction: What the network predicts: `epsilon`, `sample`, `v`, `flow`, or `edm` for a network in the
            preconditioning of EDM, which is called as net(c_in·x, log(σ)/4, **cond), or `edm_sigma` if it
            is called as net(c_in·x, σ, **cond); `edm:1.0` sets σ_data, 0.5 by default.
    """

    def __init__(self, net: nn.Module, prediction: Prediction | str = "epsilon") -> None:
        if not isinstance(net, nn.Module):
            raise TypeError(
                f"net must be a torch.nn.Module, got {type(net).__name__}; wrap a function in a module."
            )
        if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            net = net.module
        net = getattr(net, "_orig_mod", net)  # of torch.compile, which keeps the module that it was made for
        # configurations and schedulers give plain strings, so this is where they become a Prediction
        self.prediction: Prediction = check_prediction(prediction)
        #: how derivatives are computed in calls that leave derivative="auto"
        self.derivative = Derivative.AUTO
        self.name = type(net).__name__
        # a deep copy that shares the storage, with its own modes, hooks and gradients
        shared: dict[int, Any] = {id(b): b for b in net.buffers()}
        shared |= {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in net.parameters()}
        attributes = (value for part in net.modules() for value in vars(part).values())
        shared |= {id(v): v.detach() for v in attributes if isinstance(v, Tensor) and v.requires_grad}
        self._settle(copy.deepcopy(net, shared).eval())
        self._needs_workarounds = needs_workarounds(self.module)
        self._widened_to: torch.dtype | None = None
        self._hashed: tuple[Any, dict[str, str]] | None = None
        self._combinations: tuple[Combine, ...] = ()

    def _settle(self, twin: nn.Module) -> None:
        #: the copy of the network, in eval mode, for looking at its layers
        self.module, self._slots = twin, TensorSlots(twin)
        #: the trained parameters by name; tied weights appear once
        self.params: dict[str, Tensor] = dict(twin.named_parameters())
        self._buffers = dict(twin.named_buffers())
        if not self.params:
            raise ValueError(f"{self.name} has no parameters; pass a network with at least one.")
        #: the number of parameters, p; tied weights count once
        self.parameter_count = sum(p.numel() for p in self.params.values())
        #: the dtype of the first floating-point parameter
        self.dtype = next(p.dtype for p in self.params.values() if p.is_floating_point())
        #: the device of the first parameter
        self.device = next(iter(self.params.values())).device

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of the given network in another precision, with separate tensors."""
        return self._widened_to is not None

    def __call__(self, x: Tensor, t: Tensor, cond: Cond | None = None) -> Tensor:
        """f(x, t) at the trained parameters, without gradients. x is (B, *shape), t is (B,)."""
        with torch.no_grad():
            return self.call({}, x, t, cond)

    def call(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None = None) -> Tensor:
        """f(params, x, t, cond), differentiable by autograd and torch.func.

        Args:
            params: Values by parameter name; other parameters keep their trained values.
            x: The state, (B, *shape); the network runs in its own dtype, the result has the dtype of x.
            t: The time, (B,).
            cond: Keyword arguments of the network.
        """
        predict: Predict = partial(self._predict, params, x, t)
        for combine in self._combinations:
            predict = partial(combine, predict)
        return predict(cond)

    def _predict(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None) -> Tensor:
        """One call of the network, checked and in the dtype of x."""
        out = self._run(params, x, t, cond)
        if not isinstance(out, Tensor) or out.shape != x.shape:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"{self.name} must return a tensor like its input, shape {tuple(x.shape)}, got "
                f"{got}; wrap it in a module that returns only the prediction."
            )
        return out.to(x.dtype)

    def _run(self, params: Params, x: Tensor, t: Tensor, cond: Cond | None) -> Any:
        """The output of the network, unchecked."""
        given = dict(cond or {})
        if (dtype := self._widened_to) is not None:
            t, given = _widen(t, dtype), map_values(lambda value: _widen(value, dtype), given)
        if self.prediction.startswith(PRECONDITIONED):
            x, t = scale_input(self.prediction, x, t)
        inputs, kwargs = self._arguments(x.to(self.dtype), t, given)
        with no_autocast(), self.replaced(params):
            out = self.module(*inputs, **kwargs)
        return getattr(out, "sample", out)

    @contextmanager
    def replaced(self, params: Params) -> Iterator[None]:
        """Inside, the module has these parameters and copies of its buffers, to which a call may write."""
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        with self._slots.swap(buffers | dict(params)), no_checkpointing():
            yield

    def _arguments(
        self, x: Tensor, t: Tensor, cond: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(x, t, cond) as the positional and keyword arguments of the network."""
        return (x, t), cond

    def with_params(self: Self, params: Params) -> Self:
        """A copy of this denoiser with other values of the named parameters."""
        for name in params:
            one_of("parameter", name, self.params)
        twin = copy.deepcopy(self.module)
        twin.load_state_dict(dict(params), strict=False)
        return self._with(twin)

    def to(self: Self, device: torch.device | str) -> Self:
        """A copy of this denoiser on another device; itself if it is already there."""
        if require_device("device", device) == self.device:
            return self
        return self._with(copy.deepcopy(self.module).to(device))

    def wide(self: Self, dtype: torch.dtype = torch.float32) -> Self:
        """A copy in at least this dtype, for derivatives; itself if it has this precision already.

        Half precision rounds a derivative to three digits at every layer, which changes the ranking of
        samples, and rounding of the weights hides the small step of a difference quotient.
        """
        if all(_widen(p, dtype) is p for p in self.params.values()):
            return self
        twin = copy.deepcopy(self.module)._apply(lambda value: _widen(value, dtype))
        other = self._with(twin)
        other._widened_to = dtype
        return other

    def _with(self: Self, twin: nn.Module) -> Self:
        other = copy.copy(self)
        other._settle(twin)
        return other

    def by(self: Self, derivative: str | Derivative) -> Self:
        """A copy of this denoiser with another `Derivative`, for all calls that leave `derivative="auto"`."""
        other = copy.copy(self)
        other.derivative = Derivative.parse(derivative)
        return other

    def with_combination(self: Self, combine: Combine) -> Self:
        """The same denoiser with a prediction combined from several calls, as guidance does.

        Args:
            combine: Called with (predict, cond), where predict(cond) is f(params, x, t, cond); returns the
                combined prediction.
        """
        other = copy.copy(self)
        other._combinations = (*self._combinations, combine)
        return other

    def restore(self) -> None:
        """Restore the attributes of the copy's modules after a call under a transform of torch.func."""
        self._slots.restore()

    @contextmanager
    def workarounds(self) -> Iterator[None]:
        """Inside, layers use operations that torch.func can differentiate and batch; see `Workarounds`."""
        with ExitStack() as stack:
            stack.enter_context(plain_attention())
            if self._needs_workarounds:
                stack.enter_context(Workarounds())
            yield

    @contextmanager
    def forward_mode(self) -> Iterator[None]:
        """Inside, forward-mode differentiation has its `workarounds`, and errors name the failing module."""
        try:
            with self.workarounds():
                yield
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            raise ForwardModeError(
                f"{self.name} cannot be differentiated in forward mode: {self._where(error)} raised: "
                f"{str(error).splitlines()[0]}",
                "Use derivative='secant' or rule='monte_carlo', which need no derivative, or replace the "
                "operation with one that has a forward-mode derivative.",
            ) from error

    def _where(self, error: BaseException) -> str:
        """The innermost module of the network in whose forward pass the error was raised."""
        inside = ""
        trace = error.__traceback__
        names = {id(module): name for name, module in self.module.named_modules()}
        while trace is not None:
            module = trace.tb_frame.f_locals.get("self")
            if id(module) in names:
                inside = f"its module '{names[id(module)]}' ({type(module).__name__})"
            trace = trace.tb_next
        return inside or "it"

    def fingerprint(self) -> dict[str, str]:
        """Two hashes: `structure` of the prediction and of tensor names and shapes, `weights` of the values.

        Hashes are cached until a tensor is written to or its checksum changes.
        """
        tensors = [*self.params.items(), *self._buffers.items()]
        state = [self.prediction, *((v.data_ptr(), v._version, *_checksum(v)) for _, v in tensors)]
        if self._hashed is not None and self._hashed[0] == state:
            return self._hashed[1]
        structure, weights = hashlib.sha256(self.prediction.encode()), hashlib.sha256()
        for name, value in tensors:
            structure.update(f"{name}:{tuple(value.shape)};".encode())
            weights.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        found = {"structure": structure.hexdigest(), "weights": weights.hexdigest()}
        self._hashed = state, found
        return found

    def __repr__(self) -> str:
        return f"Denoiser({self.name}, prediction={self.prediction!r}, {self.parameter_count:,} parameters)"


def _checksum(value: Tensor) -> tuple[float, float]:
    """Two sums that detect most changes through `.data`, which tensor versions do not count."""
    flat = value.detach().flatten()
    some = flat[:: max(1, len(flat) // 1024)].double()
    return float(flat.sum(dtype=torch.float64)), float(some @ torch.arange(len(some)).to(some))


def _widen(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor in the wider of two dtypes; anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.to(torch.promote_types(value.dtype, dtype))


def require_denoiser(value: Any) -> None:
    """Raise if a value is not a `Denoiser`, such as a bare network."""
    require_instance(
        "denoiser", value, Denoiser, "wrap the network: flare.Denoiser(net, prediction='epsilon')"
    )


def times(time: int | float, x: Tensor) -> Tensor:
    """The same time for all rows of x, (B,): int64 for an integer, the dtype of x otherwise.

    The result is expanded, not filled, so a network can see that all rows have the same time.
    """
    dtype = torch.long if isinstance(time, int) else x.dtype
    return torch.full((1,), time, dtype=dtype, device=x.device).expand(len(x))

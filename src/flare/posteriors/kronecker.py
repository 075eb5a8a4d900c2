"""The Kronecker posterior: each layer's H ≈ A ⊗ G, whole linear layers and convolutions only.

For a layer y = W a, A = mean of a aᵀ over the pairs (with a 1 appended for the bias) and G = mean of
w·g gᵀ with g = (∂f/∂y)ᵀ u for probes u. A layer applied at L places (a convolution, or a linear layer
on sequences) sums A over them and averages G over them. The factors are diagonalised, so that
(s·A ⊗ G + δI)⁻¹ is exact for any s and δ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.noise_streams import mix_seed
from ..core.progress import Progress
from ..diffusion.noising import Batch, Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .accumulate import accumulate, batch_source
from .base import Origin, Posterior, Saved, normal, spectrum
from .curvature import Probes, column, probe, probe_count, residual_statistics
from .tuning import Number, tune

_PARTS = ("a", "QA", "g", "QG")


@dataclass(frozen=True)
class Factors:
    """The spectra of a layer's factors: A (i, i) of its inputs, G (o, o) of its outputs."""

    a: Tensor
    QA: Tensor
    g: Tensor
    QG: Tensor
    bias: bool

    def split(self, v: Tensor) -> Tensor:
        """The layer's part of a vector, weights then bias, (..., o·i) -> (..., o, i)."""
        o, i = len(self.g), len(self.a)
        if not self.bias:
            return v.unflatten(-1, (o, i))
        weight = v[..., : o * (i - 1)].unflatten(-1, (o, i - 1))
        return torch.cat([weight, v[..., o * (i - 1) :].unsqueeze(-1)], dim=-1)

    def join(self, matrix: Tensor) -> Tensor:
        """The way back, (..., o, i) -> (..., o·i)."""
        if not self.bias:
            return matrix.flatten(-2)
        return torch.cat([matrix[..., :-1].flatten(-2), matrix[..., -1]], dim=-1)


class Kronecker(Posterior):
    """Σ of a layer = (Q_A ⊗ Q_G)(s·a ⊗ g + δ)⁻¹(Q_A ⊗ Q_G)ᵀ; layers are independent."""

    structure = "kronecker"

    def __init__(
        self, origin: Origin, layers: Mapping[str, Factors], prior_precision: float, scale: float
    ) -> None:
        super().__init__(origin, prior_precision, scale)
        self.layers = dict(layers)

    def _precision(self, layer: Factors) -> Tensor:
        return self.scale * layer.g[:, None] * layer.a + self.prior_precision  # (o, i)

    def _apply(self, v: Tensor, power: float) -> Tensor:
        """(s·H + δ)^power v for v (..., m)."""
        parts = v.split([layer.g.numel() * layer.a.numel() for layer in self.layers.values()], dim=-1)
        out = []
        for layer, part in zip(self.layers.values(), parts, strict=True):
            matrix = layer.QG.T @ layer.split(part) @ layer.QA
            matrix = layer.QG @ (matrix * self._precision(layer) ** power) @ layer.QA.T
            out.append(layer.join(matrix))
        return torch.cat(out, dim=-1)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """(s·H + δ)^(−½) ε: the symmetric root, which no choice of eigenvectors changes."""
        return self._apply(normal(k, self.size, generator), -0.5)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return self._apply(v.double(), -1.0).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """The symmetric square root of Σ, (m, m)."""
        return self._apply(torch.eye(self.size, dtype=torch.float64), -0.5)

    def log_det_precision(self) -> float:
        """Σ over the layers of log(s·a·g + δ)."""
        return float(sum(self._precision(layer).log().sum() for layer in self.layers.values()))

    def tensors(self) -> dict[str, Tensor]:
        """The spectra of the factors."""
        return {
            f"{name}:{part}": getattr(layer, part) for name, layer in self.layers.items() for part in _PARTS
        }

    def expected(self) -> dict[str, tuple[int, ...]]:
        """(i,), (i, i), (o,) and (o, o) a layer, whose products are the subset."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, layer in self.layers.items():
            i, o = layer.a.numel(), layer.g.numel()
            shapes |= {f"{name}:a": (i,), f"{name}:QA": (i, i), f"{name}:g": (o,), f"{name}:QG": (o, o)}
        sizes = [layer.a.numel() * layer.g.numel() for layer in self.layers.values()]
        if sum(sizes) != self.size or any(not isinstance(layer.bias, bool) for layer in self.layers.values()):
            raise ValueError(
                f"the layers must make up the {self.size} parameters of the subset, got {sizes}."
            )
        return shapes

    def extra(self) -> dict[str, Any]:
        """The order of the layers, and which have a bias in the subset."""
        return {"layers": {name: layer.bias for name, layer in self.layers.items()}}

    @classmethod
    def restore(cls, saved: Saved) -> Kronecker:
        """Put the factors of each layer together."""
        layers = {
            name: Factors(**{part: saved.tensors[f"{name}:{part}"] for part in _PARTS}, bias=bias)
            for name, bias in saved.meta["layers"].items()
        }
        return cls(saved.origin, layers, **saved.numbers)


def kronecker(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: Number = "marglik",
    scale: Number = "calibrated",
    *,
    probes: Probes = 1,
    validation: Pairs | None = None,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Kronecker:
    """Fit the Kronecker-factored posterior over whole linear layers and convolutions.

    Args:
        denoiser: the network.
        subset: whole layers, such as `subsets.named(denoiser, ["blocks.*.linear.*", "out.*"])`.
        pairs: the training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        probes: see `curvature.ggn`.
        validation: held-out pairs, for prior_precision="validation".
        resume: where the sums are kept as they grow; a fit like one that was killed goes on from there.
        progress: wraps the batches of pairs.
    """
    trained, denoiser = denoiser, denoiser.wide()
    layers = _layers(denoiser, subset)
    A, G = {}, {}
    for name, (module, bias) in layers.items():
        outputs, inputs = len(module.weight), module.weight[0].numel() + bias
        A[name] = torch.zeros(inputs, inputs, dtype=torch.float64)
        G[name] = torch.zeros(outputs, outputs, dtype=torch.float64)
    sums = {f"A {name}": A[name] for name in layers} | {f"G {name}": G[name] for name in layers}
    if resume is not None:
        resume = resume.of("kronecker", denoiser.fingerprint(), subset, pairs, probes)
    for index, batch in accumulate(batch_source(denoiser, pairs), len(pairs), sums, resume, progress):
        k = probe_count(probes, pairs.n, subset.size, batch.x[0].numel())
        u = probe(batch.x, k, mix_seed(mix_seed(pairs.seed, 1), index))
        u = u * column(batch.weight.sqrt(), u)
        for name, (a, g) in _backpropagate(denoiser, layers, batch, u).items():
            a, g = a.double(), g.double()
            A[name] += torch.einsum("bli,blj->ij", a, a).cpu() / pairs.n
            G[name] += torch.einsum("kblo,kblp->op", g, g).cpu() / (pairs.n * g.shape[2])
    factors = {
        name: Factors(*spectrum(A[name]), *spectrum(G[name]), bias=bias) for name, (_, bias) in layers.items()
    }
    origin = Origin.of(trained, subset, residual_statistics(denoiser, pairs), pairs.schedule)
    return tune(Kronecker(origin, factors, 1.0, 1.0), denoiser, prior_precision, scale, validation)


def _layers(denoiser: Denoiser, subset: Subset) -> dict[str, tuple[Any, bool]]:
    """The layers that make up the subset, with whether their bias is in it."""
    if not subset.whole:
        raise ValueError(
            "a kronecker posterior needs whole layers, but the subset has single weights of some; choose "
            "layers with subsets.named or subsets.last_layer, or use dense, diagonal or low_rank."
        )
    found: dict[str, tuple[Any, bool]] = {}
    owners: dict[int, list[str]] = {}
    for name, p in denoiser.module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(p), []).append(name)
    for name in subset.indices:
        if len(tied := owners[id(denoiser.params[name])]) > 1:
            raise ValueError(
                f"{' and '.join(tied)} are one tensor: its curvature is no Kronecker product. Leave it out, "
                "or use a dense posterior."
            )
        owner, _, tensor = name.rpartition(".")
        module = denoiser.module.get_submodule(owner)
        plain = isinstance(module, nn.Linear) or (
            isinstance(module, (nn.Conv1d, nn.Conv2d))
            and module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )
        if not plain or tensor not in ("weight", "bias"):
            raise ValueError(
                f"a kronecker posterior has linear layers and plain convolutions, but {name!r} belongs to a "
                f"{type(module).__name__}; leave it out with subsets.named(denoiser, patterns)."
            )
        if tensor == "weight":
            found[owner] = (module, f"{owner}.bias" in subset.indices)
        elif owner not in found:
            raise ValueError(f"the subset has {name!r} without its weight; take the whole layer.")
    return found


def _backpropagate(
    denoiser: Denoiser, layers: Mapping[str, tuple[nn.Module, bool]], batch: Batch, u: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each layer its inputs a (B, L, i) and the pulled-back probes g (k, B, L, o)."""
    params = {name: p.detach().requires_grad_() for name, p in denoiser.params.items()}
    with _record_layers(layers) as seen, torch.enable_grad():
        f = denoiser.call(params, batch.x, batch.t, batch.cond)
    if unused := [name for name in layers if name not in seen]:
        raise ValueError(f"layer {unused[0]!r} is never called, so it has no curvature; leave it out.")
    outputs = [output for _, output in seen.values()]
    pulled = [
        torch.autograd.grad(f, outputs, u[:, j], retain_graph=True, allow_unused=True)
        for j in range(u.shape[1])
    ]
    result = {}
    for place, (name, (inputs, output)) in enumerate(seen.items()):
        module, bias = layers[name]
        grads = [p[place] if p[place] is not None else torch.zeros_like(output) for p in pulled]
        if isinstance(module, nn.Linear):
            a, g = inputs, torch.stack(grads)
            if a.ndim == 2:
                a, g = a.unsqueeze(1), g.unsqueeze(2)
            a, g = a.flatten(1, -2), g.flatten(2, -2)
        else:
            a = _patches(inputs, module)
            g = torch.stack(grads).flatten(3).transpose(2, 3)
        if bias:
            a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
        result[name] = (a, g)
    return result


@contextmanager
def _record_layers(
    layers: Mapping[str, tuple[nn.Module, bool]],
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record the input and the output of each layer during one forward pass."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def record(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if name in seen:
                raise ValueError(
                    f"layer {name!r} is called more than once in a pass: its curvature is no Kronecker "
                    "product. Leave it out, or use a dense posterior."
                )
            # copies: the next layer may work in place
            seen[name] = (inputs[0].detach().clone(), output)
            return output.clone()

        return hook

    hooks = [module.register_forward_hook(record(name)) for name, (module, _) in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _patches(x: Tensor, conv: Any) -> Tensor:
    """The patches that a convolution multiplies, (B, L, in·kernel)."""
    options = {key: getattr(conv, key) for key in ("kernel_size", "dilation", "padding", "stride")}
    if isinstance(conv, nn.Conv1d):
        x = x.unsqueeze(2)
        neutral = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {key: (neutral[key], *value) for key, value in options.items()}
    return F.unfold(x, **options).transpose(1, 2)

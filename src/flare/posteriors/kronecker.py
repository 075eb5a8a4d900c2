"""The Kronecker posterior: H ≈ A ⊗ G per layer, for whole linear layers and convolutions.

For a layer y = W a, A is the mean of a aᵀ over the pairs, weighted by w (with a 1 appended for the bias), and
G the mean of w·g gᵀ with g = (∂f/∂y)ᵀ u for probes u. If the last layer of a network is linear, it has g = u,
and A ⊗ G is H itself. For a layer that is applied at L places (a convolution, or a linear layer on
sequences), A is summed and G averaged over the places. The factors are diagonalized, so (s·A ⊗ G + δI)⁻¹ is
exact for any s and δ.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..autodiff.by_layer import ByLayer, Pass, is_plain
from ..autodiff.contractions import is_dense_convolution
from ..core.progress import Progress
from ..diffusion.noising import Batch, Pairs
from ..network.coordinates import Subset
from ..network.denoiser import Denoiser
from ..storage.resume import Resume
from .curvature import (
    Origin,
    Probes,
    accumulate,
    batch_source,
    column,
    draw_probes,
    residual_statistics,
    spectrum,
)  # fmt: skip
from .posterior import Posterior, normal, register
from .tuning import PriorPrecision, Scale, check_request, choose

_PARTS = ("a", "QA", "g", "QG")


@dataclass(frozen=True)
class Factors:
    """The spectra of a layer's factors: A (i, i) of its inputs, G (o, o) of its outputs."""

    a: Tensor
    QA: Tensor
    g: Tensor
    QG: Tensor
    bias: bool

    @property
    def size(self) -> int:
        """The number of parameters, o·i."""
        return self.g.numel() * self.a.numel()

    def split(self, v: Tensor) -> Tensor:
        """Reshape the layer's part of a vector, weights then bias, (..., o·i) -> (..., o, i)."""
        o, i = len(self.g), len(self.a)
        if not self.bias:
            return v.unflatten(-1, (o, i))
        weight = v[..., : o * (i - 1)].unflatten(-1, (o, i - 1))
        return torch.cat([weight, v[..., o * (i - 1) :].unsqueeze(-1)], dim=-1)

    def join(self, matrix: Tensor) -> Tensor:
        """Invert `split`, (..., o, i) -> (..., o·i)."""
        if not self.bias:
            return matrix.flatten(-2)
        return torch.cat([matrix[..., :-1].flatten(-2), matrix[..., -1]], dim=-1)


@dataclass(eq=False, repr=False)
class Kronecker(Posterior):
    """Σ of a layer = (Q_A ⊗ Q_G)(s·a ⊗ g + δ)⁻¹(Q_A ⊗ Q_G)ᵀ; layers are independent.

    Attributes:
        layers: The factors by layer, in the order of the subset.
    """

    structure = "kronecker"

    layers: Mapping[str, Factors]

    def _precision(self, layer: Factors) -> Tensor:
        return self.scale * layer.g[:, None] * layer.a + self.prior_precision  # (o, i)

    def _split(self, v: Tensor) -> Iterator[tuple[Factors, Tensor]]:
        """The layers with their parts of v (..., m) in the coordinates of their eigenvectors, (..., o, i)."""
        layers = self.layers.values()
        for layer, part in zip(layers, v.split([layer.size for layer in layers], dim=-1), strict=True):
            yield layer, layer.QG.T @ layer.split(part) @ layer.QA

    def _apply(self, v: Tensor, power: float) -> Tensor:
        """(s·H + δ)^power v for v (..., m)."""
        out = []
        for layer, inside in self._split(v):
            matrix = layer.QG @ (inside * self._precision(layer) ** power) @ layer.QA.T
            out.append(layer.join(matrix))
        return torch.cat(out, dim=-1)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """(s·H + δ)^(−½) ε: the symmetric root, which does not depend on the choice of eigenvectors."""
        return self._apply(normal(k, self.size, generator), -0.5)

    def covariance(self, v: Tensor) -> Tensor:
        """Σ v."""
        return self._apply(v.double(), -1.0).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """The symmetric square root of Σ, (m, m)."""
        return self._apply(torch.eye(self.size, dtype=torch.float64), -0.5)

    def log_det_precision(self) -> float:
        """The sum over the layers of log(s·a·g + δ)."""
        return float(sum(self._precision(layer).log().sum() for layer in self.layers.values()))

    def tensors(self) -> dict[str, Tensor]:
        """The spectra of the factors."""
        return {
            f"{name}:{part}": getattr(layer, part) for name, layer in self.layers.items() for part in _PARTS
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(i,), (i, i), (o,) and (o, o) per layer; raise if the layers do not make up the subset."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, layer in self.layers.items():
            i, o = layer.a.numel(), layer.g.numel()
            shapes |= {f"{name}:a": (i,), f"{name}:QA": (i, i), f"{name}:g": (o,), f"{name}:QG": (o, o)}
        sizes = [layer.size for layer in self.layers.values()]
        if sum(sizes) != self.size or any(not isinstance(layer.bias, bool) for layer in self.layers.values()):
            raise ValueError(
                f"the layers must make up the {self.size} parameters of the subset, got {sizes}."
            )
        return shapes

    def metadata(self) -> dict[str, Any]:
        """The order of the layers, and which have a bias in the subset."""
        return {"layers": {name: layer.bias for name, layer in self.layers.items()}}

    @classmethod
    def restore(
        cls, origin: Origin, tensors: Mapping[str, Any], meta: Mapping[str, Any], *given: Any
    ) -> Kronecker:
        """Rebuild the factors of each layer."""
        layers = {
            name: Factors(**{part: tensors[f"{name}:{part}"] for part in _PARTS}, bias=bias)
            for name, bias in meta["layers"].items()
        }
        return super().restore(origin, {"layers": layers}, meta, *given)


@register(Kronecker)
def kronecker(
    denoiser: Denoiser,
    subset: Subset,
    pairs: Pairs,
    prior_precision: PriorPrecision = "marglik",
    scale: Scale = "calibrated",
    *,
    probes: Probes = 1,
    validation: Pairs | None = None,
    resume: Resume | str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Kronecker:
    """Kronecker factors of whole linear layers and convolutions; no m × m matrix.

    The subset must consist of whole layers, such as
    `subsets.named(denoiser, ["blocks.*.linear.*", "out.*"])`.

    >>> last_layer = flare.subsets.last_layer(denoiser)
    >>> flare.posteriors.kronecker(denoiser, last_layer, pairs).draw(4).shape
    torch.Size([4, 330])

    Args:
        denoiser: The network.
        subset: The uncertain parameters.
        pairs: The training pairs.
        prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
        scale: s: a number (1 in the paper), or "calibrated" for N/σ².
        probes: The number of random probes per pair, None for all rows of the Jacobian, or "auto" for 8 rows
            per uncertain parameter in all.
        validation: Held-out pairs, for prior_precision="validation".
        resume: A directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
        progress: Wraps the batches of pairs.
    """
    check_request(prior_precision, scale, validation)
    wide, resume = denoiser.wide(), Resume.of(resume)
    layers = _find_layers(wide, subset)
    sums = {"weight": torch.zeros((), dtype=torch.float64)}  # the sum of the weights, / n
    for name, bias in layers.items():
        weight = wide.params[f"{name}.weight"]
        i, o = weight[0].numel() + bias, len(weight)
        sums |= {f"A {name}": torch.zeros(i, i).double(), f"G {name}": torch.zeros(o, o).double()}
    if resume is not None:
        resume = resume.for_job("kronecker", wide.fingerprint(), subset, pairs, probes)
    for index, batch in accumulate(batch_source(wide, pairs), len(pairs), sums, resume, progress):
        u = draw_probes(probes, pairs, subset.size, batch.x, index)
        u = u * column(batch.weight.sqrt(), u)
        sums["weight"] += batch.weight.double().sum().cpu() / pairs.n
        for name, a, g in _backpropagate(wide, subset, layers, batch, u):
            sums[f"A {name}"] += torch.einsum("b,bli,blj->ij", batch.weight.double(), a, a).cpu() / pairs.n
            sums[f"G {name}"] += torch.einsum("kblo,kblp->op", g, g).cpu() / (pairs.n * g.shape[2])
    factors = {
        name: Factors(*spectrum(sums[f"A {name}"] / sums["weight"]), *spectrum(sums[f"G {name}"]), bias=bias)
        for name, bias in layers.items()
    }
    origin = Origin.of(denoiser, subset, residual_statistics(denoiser, pairs), pairs.schedule)
    fitted = Kronecker(origin, 1.0, 1.0, factors)
    return choose(fitted, denoiser, prior_precision, scale, validation)


def _find_layers(denoiser: Denoiser, subset: Subset) -> dict[str, bool]:
    """The layers that make up the subset, and whether it includes their biases."""
    if not subset.whole:
        raise ValueError(
            f"a kronecker posterior needs whole layers, but the {subset.kind} has other coordinates: "
            f"{subset!r}. Choose layers with subsets.named or subsets.last_layer, or use dense, diagonal or "
            "low_rank."
        )
    found: dict[str, bool] = {}
    owners: dict[int, list[str]] = {}
    for name, p in denoiser.module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(p), []).append(name)
    for name in subset.indices:
        if len(tied := owners[id(denoiser.params[name])]) > 1:
            raise ValueError(
                f"{' and '.join(tied)} are one tensor, whose curvature is not a Kronecker product. Leave it "
                "out, or use a dense posterior."
            )
        owner, _, tensor = name.rpartition(".")
        module = denoiser.module.get_submodule(owner)
        plain = isinstance(module, nn.Linear) or (
            is_dense_convolution(module) and isinstance(module, (nn.Conv1d, nn.Conv2d))
        )
        if not (plain and is_plain(module)):
            raise ValueError(
                "a kronecker posterior needs the linear layers and plain convolutions of torch.nn, but "
                f"{name!r} belongs to a {type(module).__name__} that may differ. Leave it out with "
                "subsets.named(denoiser, patterns), or use a dense posterior."
            )
        if tensor == "weight":
            found[owner] = f"{owner}.bias" in subset.indices
        elif owner not in found:
            raise ValueError(f"the subset has {name!r} without its weight; include the whole layer.")
    return found


def _backpropagate(
    denoiser: Denoiser, subset: Subset, layers: Mapping[str, bool], batch: Batch, u: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The inputs a (B, L, i) and the pulled-back probes g (k, B, L, o) of each layer, in float64."""
    by_layer = ByLayer(denoiser, subset, batch.x, batch.t, batch.cond)
    run = by_layer.run(batch.x, batch.t, batch.cond)
    if not isinstance(run, Pass):
        raise ValueError(
            "a kronecker posterior needs a network that runs under torch.func.vmap with the same gradients; "
            f"{denoiser.name} does not: {by_layer.problem or 'it fails on a batch'}. Use a dense or diagonal "
            "posterior."
        )
    if by_layer.loose:
        raise ValueError(
            f"{', '.join(sorted(by_layer.loose))}: used outside the layer that owns it, so its curvature is "
            "not a Kronecker product. Leave it out, or use a dense posterior."
        )
    times = Counter(call.layer.name for call in run.calls)
    for name in layers:
        if times[name] != 1:
            raise ValueError(
                f"layer {name!r} is called {times[name]} times per pass, so its curvature is not a Kronecker "
                "product. Leave it out, or use a dense posterior."
            )
    pulled = [run.gradients(one) for one in u.unbind(1)]  # per probe, by call
    for place, call in enumerate(run.calls):
        blank = u.new_zeros(call.shape)  # if f does not depend on the layer
        g = torch.stack([blank if (own := grads[place]) is None else own for grads in pulled])
        a, module = call.inputs, call.layer.module
        if not isinstance(module, nn.Linear):
            a, g = _unfold(a, module), g.flatten(3).transpose(2, 3)
        a = a.reshape(len(batch.x), -1, a.shape[-1])
        if layers[call.layer.name]:
            a = torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1)
        yield call.layer.name, a.double(), g.reshape(len(g), len(batch.x), -1, g.shape[-1]).double()


def _unfold(x: Tensor, conv: Any) -> Tensor:
    """Extract the patches that a convolution multiplies, (B, L, in·kernel)."""
    options = {key: getattr(conv, key) for key in ("kernel_size", "dilation", "padding", "stride")}
    if isinstance(conv, nn.Conv1d):
        x = x.unsqueeze(2)
        neutral = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {key: (neutral[key], *value) for key, value in options.items()}
    return F.unfold(x, **options).transpose(1, 2)

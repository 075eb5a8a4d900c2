"""The Kronecker posterior: H ≈ A ⊗ G per layer, for whole linear layers and convolutions.

For a layer y = W a, A is the mean of a aᵀ over the pairs, weighted by w (with a 1 appended for the bias), and
G the mean of w·g gᵀ with g = (∂f/∂y)ᵀ u for probes u. If the last layer of a network is linear, it has g = u,
and A ⊗ G is H itself. For a layer that is applied at L places (a convolution, or a linear layer on
sequences), A is summed and G averaged over the places. The factors are diagonalized, so that
(s·A ⊗ G + δI)⁻¹ is exact for any s and δ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.noise_streams import mix_seed
from ..network.denoiser import Denoiser
from .accumulate import accumulate, batch_source, column
from .base import Posterior, normal
from .curvature import Curvature
from .ggn import Probes, probe, probe_count, residual_statistics
from .layers import Layer, backpropagate, find_layers
from .spectral import spectrum
from .structure import STRUCTURES, FitInputs, Structure

if TYPE_CHECKING:
    from .files import Saved

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


@dataclass(eq=False)
class KroneckerCurvature(Curvature["Kronecker"]):
    """H as the Kronecker factors of each layer.

    Attributes:
        layers: the factors by layer, in the order of the subset.
    """

    structure = "kronecker"

    layers: Mapping[str, Factors]

    def posterior(self, prior_precision: float, scale: float) -> Kronecker:
        """The posterior with this H."""
        return Kronecker(self, prior_precision, scale)

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
    def restore(cls, saved: Saved) -> KroneckerCurvature:
        """Rebuild the factors of each layer."""
        layers = {
            name: Factors(**{part: saved.tensors[f"{name}:{part}"] for part in _PARTS}, bias=bias)
            for name, bias in saved.meta["layers"].items()
        }
        return cls(saved.origin, layers)


class Kronecker(Posterior):
    """Σ of a layer = (Q_A ⊗ Q_G)(s·a ⊗ g + δ)⁻¹(Q_A ⊗ Q_G)ᵀ; layers are independent."""

    curvature: KroneckerCurvature

    def _precision(self, layer: Factors) -> Tensor:
        return self.scale * layer.g[:, None] * layer.a + self.prior_precision  # (o, i)

    def _split(self, v: Tensor) -> Iterator[tuple[Factors, Tensor]]:
        """The layers with their parts of v (..., m) in the coordinates of their eigenvectors, (..., o, i)."""
        layers = self.curvature.layers.values()
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

    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀΣv."""
        parts = [
            (inside.square() / self._precision(layer)).sum((-1, -2))
            for layer, inside in self._split(v.double())
        ]
        return torch.stack(parts).sum(0).to(v.dtype)

    def exact_directions(self) -> Tensor:
        """The symmetric square root of Σ, (m, m)."""
        return self._apply(torch.eye(self.size, dtype=torch.float64), -0.5)

    def log_det_precision(self) -> float:
        """The sum over the layers of log(s·a·g + δ)."""
        return float(sum(self._precision(layer).log().sum() for layer in self.curvature.layers.values()))


def compute_kronecker(inputs: FitInputs, *, probes: Probes = 1) -> KroneckerCurvature:
    """Kronecker factors of whole linear layers and convolutions; no m × m matrix.

    The subset must consist of whole layers, such as
    `subsets.named(denoiser, ["blocks.*.linear.*", "out.*"])`.

    >>> last_layer = flare.subsets.last_layer(denoiser)
    >>> flare.posteriors.kronecker(denoiser, last_layer, pairs).draw(4).shape
    torch.Size([4, 330])

    Args:
        inputs: the network, the subset and the pairs.
        probes: the number of random probes per pair; see `curvature.ggn`.
    """
    denoiser = inputs.denoiser.wide()
    layers = find_layers(denoiser, inputs.subset)
    A, G = _sum_factors(inputs, denoiser, layers, probes)
    factors = {
        name: Factors(*spectrum(A[name]), *spectrum(G[name]), bias=layer.bias)
        for name, layer in layers.items()
    }
    return KroneckerCurvature(inputs.origin(residual_statistics(denoiser, inputs.pairs)), factors)


kronecker = STRUCTURES.register(Structure(KroneckerCurvature, compute_kronecker))


def _sum_factors(
    inputs: FitInputs, denoiser: Denoiser, layers: Mapping[str, Layer], probes: Probes
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute A and G of each layer in one pass over the pairs, in float64."""
    pairs, subset, resume = inputs.pairs, inputs.subset, inputs.resume
    A, G = {}, {}
    for name, layer in layers.items():
        A[name] = torch.zeros(layer.inputs, layer.inputs, dtype=torch.float64)
        G[name] = torch.zeros(layer.outputs, layer.outputs, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)  # of the weights, / n
    sums = {f"A {name}": A[name] for name in layers} | {f"G {name}": G[name] for name in layers}
    sums["weight"] = total
    if resume is not None:
        resume = resume.for_job("kronecker", denoiser.fingerprint(), subset, pairs, probes)
    source = batch_source(denoiser, pairs)
    for index, batch in accumulate(source, len(pairs), sums, resume, inputs.progress):
        k = probe_count(probes, pairs.n, subset.size, batch.x[0].numel())
        u = probe(batch.x, k, mix_seed(mix_seed(pairs.seed, 1), index))
        u = u * column(batch.weight.sqrt(), u)
        total += batch.weight.double().sum().cpu() / pairs.n
        for name, (a, g) in backpropagate(denoiser, subset, layers, batch, u).items():
            a, g = a.double(), g.double()
            A[name] += torch.einsum("b,bli,blj->ij", batch.weight.double(), a, a).cpu() / pairs.n
            G[name] += torch.einsum("kblo,kblp->op", g, g).cpu() / (pairs.n * g.shape[2])
    for factor in A.values():
        factor /= total
    return A, G

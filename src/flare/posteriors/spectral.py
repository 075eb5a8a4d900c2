"""Curvatures that are stored as eigenpairs, and the posteriors that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Posterior
from .curvature import Curvature, P


@dataclass(eq=False)
class SpectralCurvature(Curvature[P]):
    """H as eigenpairs.

    Attributes:
        eigenvalues: (r,), float64.
        eigenvectors: (m, r), float64.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The eigenpairs."""
        return {"eigenvalues": self.eigenvalues, "eigenvectors": self.eigenvectors}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """(r,) and (m, r)."""
        rank = self.eigenvalues.numel()
        return {"eigenvalues": (rank,), "eigenvectors": (self.size, rank)}


class Spectral(Posterior):
    """A posterior whose curvature is stored as eigenpairs."""

    curvature: SpectralCurvature[Any]

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of H, (r,)."""
        return self.curvature.eigenvalues

    @property
    def eigenvectors(self) -> Tensor:
        """The eigenvectors of H, (m, r)."""
        return self.curvature.eigenvectors

    @property
    def precision(self) -> Tensor:
        """s·λ + δ, (r,)."""
        return self.scale * self.eigenvalues + self.prior_precision


def spectrum(H: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues of a curvature (ascending, rounding below 0 set to 0) and its eigenvectors."""
    if not torch.isfinite(H).all():
        raise ValueError("H has NaN or infinity: the curvature is not usable.")
    values, vectors = torch.linalg.eigh(H)
    if values[0] < -1e-4 * values[-1].abs():
        raise ValueError(
            f"H is indefinite: its eigenvalues go from {values[0]:.3g} to {values[-1]:.3g}, but a GGN has "
            "none below 0. Check how it was computed."
        )
    # contiguous, like tensors read from a file: products are then equal to the last bit
    return values.clamp(min=0), vectors.contiguous()

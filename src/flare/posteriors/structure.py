"""The registry of structures: each is one file that says how to compute, store and use its curvature.

A structure is called to fit a posterior: `flare.posteriors.dense(denoiser, subset, pairs)`. The arguments
that all structures share are defined here, once; a file adds its own options.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from ..core.progress import Progress
from ..core.registry import Registry
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import Subset
from ..storage.resume import Resume
from .curvature import Curvature, Origin, P, Statistics
from .tuning import PriorPrecision, Scale, check_request, tune

if TYPE_CHECKING:
    from .files import Saved


@dataclass(frozen=True)
class FitInputs:
    """The inputs of every structure.

    Attributes:
        denoiser: the network.
        subset: the uncertain parameters.
        pairs: the training pairs.
        resume: where to keep checkpoints.
        progress: wraps the long loop.
    """

    denoiser: Denoiser
    subset: Subset
    pairs: Pairs
    resume: Resume | None = None
    progress: Progress | bool | None = None

    def origin(self, statistics: Statistics) -> Origin:
        """The origin of a curvature that is computed from these inputs."""
        return Origin.of(self.denoiser, self.subset, statistics, self.pairs.schedule)


class Structure(Generic[P]):
    """A structure of H; calling it fits a posterior.

    Attributes:
        name: what users call it.
        summary: one line for help texts and tables.
        options: the names of its own options.
        stores_matrix: whether it stores an m × m matrix, so that memory grows with m².
    """

    def __init__(
        self,
        curvature: type[Curvature[P]],
        compute: Callable[..., Curvature[P]],
        stores_matrix: bool = False,
    ) -> None:
        self._curvature, self._compute, self.stores_matrix = curvature, compute, stores_matrix
        self.name = self.__name__ = curvature.structure
        _, *own = inspect.signature(compute).parameters.values()
        self.options = tuple(option.name for option in own)
        shared = list(inspect.signature(self.__call__).parameters.values())[:-1]
        positional = [p for p in shared if p.kind is not p.KEYWORD_ONLY]
        keywords = [p for p in shared if p.kind is p.KEYWORD_ONLY]
        self.__signature__ = inspect.Signature([*positional, *own, *keywords])
        self.__doc__ = _merge_arguments(inspect.getdoc(compute) or "", inspect.getdoc(self.__call__) or "")
        self.summary = self.__doc__.partition("\n")[0]

    def __call__(
        self,
        denoiser: Denoiser,
        subset: Subset,
        pairs: Pairs,
        prior_precision: PriorPrecision = "marglik",
        scale: Scale = "calibrated",
        *,
        validation: Pairs | None = None,
        resume: Resume | str | os.PathLike[str] | None = None,
        progress: Progress | bool | None = None,
        **options: Any,
    ) -> P:
        """Fit a posterior: compute the curvature, then choose δ and s.

        Args:
            denoiser: the network.
            subset: the uncertain parameters.
            pairs: the training pairs.
            prior_precision: δ: a number (1e-6 in the paper), "marglik" or "validation".
            scale: s: a number (1 in the paper), or "calibrated" for N/σ².
            validation: held-out pairs, for prior_precision="validation".
            resume: a directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
            progress: wraps the long loop: batches of pairs, or passes over all of them.
            **options: those of the structure.
        """
        self._check_options(options)
        check_request(prior_precision, scale, validation)
        curvature = self._compute(FitInputs(denoiser, subset, pairs, Resume.of(resume), progress), **options)
        return tune(curvature, denoiser, prior_precision, scale, validation, progress)

    def compute_curvature(
        self,
        denoiser: Denoiser,
        subset: Subset,
        pairs: Pairs,
        *,
        resume: Resume | str | os.PathLike[str] | None = None,
        progress: Progress | bool | None = None,
        **options: Any,
    ) -> Curvature[P]:
        """Compute the curvature alone; `curvature.posterior(δ, s)` and `tune` make posteriors of it.

        Args:
            denoiser: the network.
            subset: the uncertain parameters.
            pairs: the training pairs.
            resume: a directory for checkpoints, or a `flare.Resume`; an identical call resumes from them.
            progress: wraps the long loop: batches of pairs, or passes over all of them.
            **options: those of the structure.
        """
        self._check_options(options)
        return self._compute(FitInputs(denoiser, subset, pairs, Resume.of(resume), progress), **options)

    def restore(self, saved: Saved) -> Curvature[P]:
        """Rebuild the curvature that a file stores."""
        return self._curvature.restore(saved)

    def _check_options(self, options: dict[str, Any]) -> None:
        for name in options:
            if name not in self.options:
                raise TypeError(
                    f"{self.name} has no option {name!r}; its options: {', '.join(self.options)}."
                )

    def __repr__(self) -> str:
        return f"flare.posteriors.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:  # pickled by name, as a function is
        return find_structure, (self.name,)


def _merge_arguments(own: str, shared: str) -> str:
    """Replace `inputs`, the first argument that a docstring describes, with the shared arguments."""
    head, _, arguments = own.partition("Args:\n")
    common = shared.partition("Args:\n")[2].partition("    **options")[0]
    _, _, rest = arguments.partition("\n")
    return f"{head}Args:\n{common}{rest}" if arguments else own


#: every structure by name
STRUCTURES: Registry[Structure[Any]] = Registry("structure")


def find_structure(name: str) -> Structure[Any]:
    """Find a structure by name."""
    return STRUCTURES.find(name)

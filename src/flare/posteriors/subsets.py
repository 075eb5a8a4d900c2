"""`flare.subsets`: the choices of uncertain parameters, with `sensitive`, which needs the curvature."""

from __future__ import annotations

from ..core.progress import Progress
from ..diffusion.noising import Pairs
from ..network.denoiser import Denoiser
from ..network.subsets import (
    Sketch,
    Subset,
    choose_count,
    everything,
    last_layer,
    named,
    pick_flat,
    random,
    sketch,
)
from ..storage.resume import Resume
from .ggn import Probes, ggn

__all__ = ["Sketch", "Subset", "everything", "last_layer", "named", "random", "sensitive", "sketch"]


def sensitive(
    denoiser: Denoiser,
    pairs: Pairs,
    count: int | None = None,
    fraction: float | None = None,
    *,
    probes: Probes = 1,
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Subset:
    """The parameters to which the output is most sensitive: the m largest diagonal entries of H.

    An entry is the weighted mean over the pairs of the squared gradient of the output. Ties are broken by the
    order of the parameters.

    >>> flare.subsets.sensitive(denoiser, pairs, count=50).size
    50

    Args:
        denoiser: the network.
        pairs: the training pairs; a few hundred are enough to rank the parameters.
        count: m, the number of parameters.
        fraction: m/p, the fraction of all parameters; give either `count` or `fraction`.
        probes: the number of random probes per pair, or None for all rows of the Jacobian; see
            `curvature.ggn`.
        resume: where to keep checkpoints; an identical call resumes from them.
        progress: wraps the batches of pairs.
    """
    all_parameters = everything(denoiser)
    m = choose_count(denoiser, count, fraction)
    diagonal, _ = ggn(
        denoiser, all_parameters, pairs, probes=probes, diagonal=True, resume=resume, progress=progress
    )
    return pick_flat(denoiser, diagonal.argsort(descending=True, stable=True)[:m])

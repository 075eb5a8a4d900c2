"""One pass over the training pairs: sums over batches, divided among the processes, with checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from ..core import distributed
from ..core.progress import Progress, watch
from ..diffusion.noising import Batch, Pairs
from ..network.denoiser import Denoiser
from ..network.probing import call
from ..storage.resume import Resume

Draw = Callable[[int], Batch]


def batch_source(denoiser: Denoiser, pairs: Pairs) -> Draw:
    """Return a function from an index to its batch, in the network's dtype and on its device."""
    draw = pairs.batch_source(denoiser.prediction, denoiser.dtype)
    first = draw(0).to(denoiser.device)
    call(denoiser, first.x, first.t, first.cond)  # fail early
    return lambda index: draw(index).to(denoiser.device)


def batches(denoiser: Denoiser, pairs: Pairs) -> Iterator[Batch]:
    """All batches of pairs, in the network's dtype and on its device."""
    return map(batch_source(denoiser, pairs), range(len(pairs)))


def accumulate(
    draw: Draw,
    count: int,
    sums: Mapping[str, Tensor],
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Yield this process's batches as (index, batch), then add the sums of all processes.

    The caller adds the term of each batch to `sums` in place. When the iterator is exhausted, `sums` hold the
    totals over all processes.

    Args:
        draw: returns the batch of an index.
        count: the number of batches.
        sums: the running sums, initially zero.
        resume: where to keep checkpoints of the sums; an identical call resumes from them.
        progress: wraps the batches.
    """
    mine, start = distributed.own_items(range(count)), 0
    if resume is not None:
        resume = resume.for_job(distributed.rank(), distributed.size())
        start = resume.restore("sums", sums)
    left = ((index, draw(index)) for index in mine[start:])
    for done, item in enumerate(watch(left, len(mine) - start, progress), start + 1):
        yield item
        if resume is not None:
            resume.save_if_due("sums", sums, done)
    distributed.sum_over_processes(*sums.values())


def column(weight: Tensor, x: Tensor) -> Tensor:
    """One weight per sample, (B,), reshaped to multiply x (B, ...)."""
    return weight.view(-1, *[1] * (x.ndim - 1))

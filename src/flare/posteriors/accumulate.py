"""One pass over the training pairs: sums over batches, shared by the processes and kept as they grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from ..core import distributed
from ..core.conditions import take_rows
from ..core.progress import Progress, watch
from ..diffusion.noising import Batch, Pairs
from ..network.denoiser import Denoiser
from ..network.probing import call
from ..storage.resume import Resume

Draw = Callable[[int], Batch]


def batch_source(denoiser: Denoiser, pairs: Pairs) -> Draw:
    """A function that gives the batch of an index, in the network's dtype and on its device."""
    draw = pairs.batch_source(denoiser.prediction, denoiser.dtype)
    first, few = draw(0).to(denoiser.device), slice(0, 2)
    call(denoiser, first.x[few], first.t[few], take_rows(first.cond, few))  # a wrong width is told at once
    return lambda index: draw(index).to(denoiser.device)


def batches(denoiser: Denoiser, pairs: Pairs) -> Iterator[Batch]:
    """All pairs in the network's dtype and on its device."""
    return map(batch_source(denoiser, pairs), range(len(pairs)))


def accumulate(
    draw: Draw,
    count: int,
    sums: Mapping[str, Tensor],
    resume: Resume | None = None,
    progress: Progress | bool | None = None,
) -> Iterator[tuple[int, Batch]]:
    """This process's batches (index, batch); when the last is through, `sums` are those of all processes.

    Whoever walks them adds what each batch gives to the sums, in place.

    Args:
        draw: gives the batch of an index.
        count: how many batches there are.
        sums: the sums, zero at first.
        resume: where they are kept; those of an earlier process like this one are taken up.
        progress: wraps the batches.
    """
    mine, start = distributed.own_items(range(count)), 0
    if resume is not None:
        resume = resume.of(distributed.rank(), distributed.size())
        start = resume.restore("sums", sums)
    left = ((index, draw(index)) for index in mine[start:])
    for done, item in enumerate(watch(left, len(mine) - start, progress), start + 1):
        yield item
        if resume is not None:
            resume.save_if_due("sums", sums, done)
    distributed.sum_over_processes(*sums.values())

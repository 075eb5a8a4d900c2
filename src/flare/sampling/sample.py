"""`flare.sample` and `flare.trajectories`: samples with their epistemic variance and scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from typing_extensions import Unpack

from ..core.progress import Progress, watch
from ..diffusion.samplers import Steps
from ..network.denoiser import Denoiser
from ..posteriors import Posterior
from ..results.result import Result
from .batches import Trajectories
from .options import SampleOptions, Settings, show_options
from .plan import make_plan


@show_options(Settings)
@torch.no_grad()
def sample(
    denoiser: Denoiser,
    steps: Steps | None = None,
    posterior: Posterior | None = None,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[SampleOptions],
) -> Result:
    """Draw n samples, each with its epistemic variance if a posterior is given.

    The noise of sample i depends on the seed and i alone: the same seed gives the same samples and scores, up
    to rounding, for every batch size and number of processes. The directions are drawn once and shared by
    all samples of a call.

    With a posterior, a wider copy of the network is differentiated (`autodiff.jvp.prepare`), float64 by
    default. This copy also moves the samples: they equal those without a posterior up to rounding. A network
    in half precision moves its samples in that precision, with the state in float32.

    A sample with NaN or infinity in its trajectory, its variance or its scores is lost; other samples are
    unaffected. All numbers of a lost sample are NaN (`Result.lost` is the mask), and a warning and
    `about["lost"]` name the step and the index. If every sample is lost, that is an error.

    >>> result = flare.sample(denoiser, steps, posterior, n=20, shape=(10,), directions=4, seed=0)
    >>> result.samples.shape, result.variance.shape, result.score.shape
    (torch.Size([20, 10]), torch.Size([20, 10]), torch.Size([20]))

    Args:
        denoiser: the network.
        steps: a sampler's table, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: over the parameters; None for plain sampling.
        n: how many samples; with `start` it follows from it.
        shape: the shape of one sample, (d,), (C, L) or (C, H, W); with `start` it follows from it.
        progress: True for a progress bar, or a function such as `tqdm.tqdm` that wraps the frames.
        **options: as follows.

            rule: how the posterior becomes variance, by name (`flare.propagation.RULES`). The default is
                "tangent", which is exact to first order. Or a rule of your own (`flare.trajectory.Rule`).
            coefficients: of the rule "decoupled", the paper's recursion: "main" (the sampler's own, as in its
                main text) or "appendix" (as in its Appendix A).
            directions: how many draws from the posterior to push through, 16 by default; "exact" for a square
                root of Σ; or a matrix D (m, k) with Σ ≈ D Dᵀ.
            score: one or several names (`flare.scores.SCORES`). The default is `expected_residual` for the
                tangent rule and a calibrated posterior, and `trace` otherwise. `influence` and
                `error_profile` look at finished samples: with these alone no uncertainty is propagated, and
                there is no variance. `error_profile` needs no posterior.
            levels: the levels of the scores as fractions of T, averaged over; or a single one. By default
                those of each score.
            repeats: noise draws per level, for `influence` and `error_profile`; 2 by default.
            covariance: whether to return the (n, d, d) covariances.
            observe: a function φ of the samples, (B, *shape) -> (B, *out), such as a decoder or a feature.
                The result has φ(x_0) and its epistemic variance. The derivative of φ is exact if torch has
                one; otherwise it is a difference quotient in the precision of φ, which is off by about 1%.
            derivative: how changes of the network are computed. "exact" is forward-mode differentiation,
                "compiled" the same by torch.compile (for long runs of small networks: it takes half a
                minute per batch size and needs a C++ compiler), "secant" a difference quotient of a float64
                copy. "auto", the default, follows `denoiser.by(...)`; if that says nothing, it is secant
                for float32 on a CPU and exact elsewhere. `result.about` says which was used.
            start: x_T, (n, *shape), instead of noise from the seed.
            noise: a function that gives the noise of a step, (n, *shape), instead of noise from the seed. All
                samples are then one batch.
            cond: keyword arguments of the network; tensors, nested ones too, have one row per sample.
            unconditional: the same arguments without the condition, such as the label of no class.
                `error_profile` then subtracts the profile under these.
            seed: of all the noise, and of the directions.
            first: the index of the first sample, to draw samples first..first+n−1 of a seed by themselves.
            batch_size: how many samples go through the network at once. "auto", the default, takes as many as
                fit into the memory, measured on the first steps of a few, and at most 1000. A batch that runs
                out of memory is retried in halves, with a warning; `about["batch_size"]` then has the size.
            memory: bytes that "auto" may use; half of the free memory by default.
            device: where to compute; by default where the network is.
    """
    run = Trajectories(make_plan(denoiser, steps, posterior, n, shape, options))
    deque(watch(iter(run), len(run), progress), maxlen=0)
    return run.result


@show_options(Settings)
def trajectories(
    denoiser: Denoiser,
    steps: Steps | None = None,
    posterior: Posterior | None = None,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    **options: Unpack[SampleOptions],
) -> Trajectories:
    """Iterate over the steps of `sample`: one `flare.trajectory.Frame` per step and batch.

    The arguments are checked and the batch size is measured at once; the steps run as you iterate.

    >>> run = flare.trajectories(denoiser, steps, n=4, shape=(10,))
    >>> path = [frame.x0 for frame in run]
    >>> len(path), run.result.samples.shape
    (5, torch.Size([4, 10]))

    Args:
        denoiser: the network.
        steps: a sampler's table.
        posterior: over the parameters; None for plain sampling.
        n: how many samples.
        shape: of one sample.
        **options: of `sample`.
    """
    with torch.no_grad():
        return Trajectories(make_plan(denoiser, steps, posterior, n, shape, options))

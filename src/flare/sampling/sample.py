"""`flare.sample` and `flare.trajectories`: samples with their epistemic variance and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core import DIRECTIONS
from ..core.conditions import Cond, check_conditions
from ..core.memory import BatchSize
from ..core.precision import no_autocast
from ..core.progress import Progress
from ..core.validation import require_instance, require_positive_int, require_samples
from ..diffusion.samplers import Steps
from ..model import Model
from ..network.denoiser import Denoiser, require_denoiser
from ..network.forward_mode import Derivative
from ..posteriors import Posterior
from ..propagation import Rule
from ..propagation.observables import Observable
from ..results.result import Result
from .batches import Trajectories
from .finished import Levels
from .plan import Directions, make_plan


@no_autocast()
def sample(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior | None = None,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    rule: str | Rule | type[Rule] = "tangent",
    directions: Directions = DIRECTIONS,
    score: str | Sequence[str] | None = None,
    levels: Levels | None = None,
    covariance: bool = False,
    observe: Observable | None = None,
    derivative: str | Derivative = Derivative.AUTO,
    start: Tensor | None = None,
    noise: Callable[[], Tensor] | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
    batch_size: BatchSize = "auto",
    memory: int | None = None,
    progress: Progress | bool | None = None,
) -> Result:
    """Draw n samples, each with its epistemic variance if a posterior is given.

    The noise of sample i depends only on the seed and i, so the same seed gives the same samples and scores,
    up to rounding, for every batch size and number of processes. The directions are drawn once and shared by
    all samples of a call.

    With a posterior, a copy of the network in higher precision is differentiated, float64 by default
    (`autodiff.jvp.prepare`). This copy also draws the samples, which equal those without a posterior up to
    rounding. A network in half precision draws samples in that precision, with the state in float32.

    A sample with NaN or infinity in its trajectory, its variance or its scores is lost. Other samples are
    unaffected. All values of a lost sample are NaN (`Result.lost` is the mask), and a warning and
    `about["lost"]` name the step and the index. If all samples are lost, an error is raised.

    >>> result = flare.sample(denoiser, steps, posterior, n=20, shape=(10,), directions=4, seed=0)
    >>> result.samples.shape, result.variance.shape, result.score.shape
    (torch.Size([20, 10]), torch.Size([20, 10]), torch.Size([20]))

    Args:
        denoiser: The network.
        steps: A sampler's table, such as `flare.samplers.ddim(schedule, 50)`.
        posterior: A posterior over the parameters; None for plain sampling.
        n: The number of samples; derived from `start` if that is given.
        shape: The shape of one sample, (d,), (C, L) or (C, H, W); derived from `start` if that is given.
        rule: The rule that turns the posterior into variance: a name (`flare.propagation.RULES`) or a custom
            `flare.propagation.Rule`. The default is "tangent", which is exact to first order.
        directions: The number of posterior draws to propagate; "exact" for a square root of Σ; or a matrix
            D (m, k) with Σ ≈ D Dᵀ.
        score: One or several names (`flare.scores.SCORES`). The default is `expected_residual` for the
            tangent rule and a calibrated posterior, and `trace` otherwise. `flare.score` computes scores that
            need no trajectory.
        levels: The noise levels that a score averages over, as fractions of T, or a single level. The default
            depends on the score.
        covariance: Whether to return the (n, d, d) covariances.
        observe: A function φ of the samples, (B, *shape) -> (B, *out), such as a decoder or a feature. The
            result includes φ(x_0) and its epistemic variance. If torch cannot differentiate φ, a difference
            quotient in the precision of φ is used, which is off by about 1%.
        derivative: The method of differentiation. "exact" is forward-mode differentiation, "compiled" is the
            same through torch.compile (for long runs of small networks: it takes half a minute per batch
            size, needs a C++ compiler, and fails with torch 2.6), and "secant" is a difference quotient of a
            float64 copy. "auto" follows `denoiser.by(...)` if set. Otherwise, it is secant for float32 on a
            CPU, unless 4 or more directions go through convolutions, and exact elsewhere. `result.about`
            records the method.
        start: x_T, (n, *shape), instead of noise from the seed.
        noise: A function that gives the noise of a step, (n, *shape), instead of noise from the seed. All
            samples are then one batch.
        cond: Keyword arguments of the network; tensors, also nested ones, have one row per sample.
        seed: Random seed for the noise and the directions.
        first: The index of the first sample, to draw samples first..first+n−1 of a seed.
        batch_size: The number of samples per network call. "auto" measures the memory of a few samples and
            uses as many as fit, at most 1000. If a batch runs out of memory, it is retried in halves with a
            warning, and `about["batch_size"]` records the size.
        memory: Bytes that "auto" may use; half of the free memory by default.
        progress: True for a progress bar, or a function such as `tqdm.tqdm` that wraps the frames.
    """
    run = trajectories(
        denoiser, steps, posterior, n, shape, rule=rule, directions=directions, score=score, levels=levels,
        covariance=covariance, observe=observe, derivative=derivative, start=start, noise=noise, cond=cond,
        seed=seed, first=first, batch_size=batch_size, memory=memory,
    )  # fmt: skip
    return run.finish(progress)


@torch.no_grad()
@no_autocast()
def trajectories(
    denoiser: Denoiser,
    steps: Steps,
    posterior: Posterior | None = None,
    n: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    rule: str | Rule | type[Rule] = "tangent",
    directions: Directions = DIRECTIONS,
    score: str | Sequence[str] | None = None,
    levels: Levels | None = None,
    covariance: bool = False,
    observe: Observable | None = None,
    derivative: str | Derivative = Derivative.AUTO,
    start: Tensor | None = None,
    noise: Callable[[], Tensor] | None = None,
    cond: Cond | None = None,
    seed: int = 0,
    first: int = 0,
    batch_size: BatchSize = "auto",
    memory: int | None = None,
) -> Trajectories:
    """Iterate over the steps of `sample`: one `Frame` per step and batch. The arguments are the same.

    The call checks the arguments and measures the batch size. The steps run as you iterate.

    >>> run = flare.trajectories(denoiser, steps, n=4, shape=(10,))
    >>> path = [frame.x0 for frame in run]
    >>> len(path), run.result.samples.shape
    (5, torch.Size([4, 10]))
    """
    require_denoiser(denoiser)
    require_instance(
        "steps", steps, Steps, "give a sampler's table, such as flare.samplers.ddim(schedule, 50)"
    )
    if posterior is not None:
        require_instance(
            "posterior", posterior, Posterior, "fit one, for instance with flare.posteriors.dense"
        )
        posterior.check(denoiser, steps.schedule)
    count, axes, start = _check_size(n, shape, start)
    if noise is not None:
        if batch_size != "auto" and count > batch_size:
            raise ValueError(f"noise= needs all samples in one batch; give batch_size={count}.")
        batch_size = count
    plan = make_plan(
        Model(denoiser, steps.schedule), steps, posterior, count, axes, rule=rule, directions=directions,
        score=score, levels=levels, covariance=covariance, observe=observe, derivative=derivative,
        start=start, noise=noise, cond=check_conditions(cond, count), seed=seed, first=first,
    )  # fmt: skip
    return Trajectories(plan, batch_size, memory)


def _check_size(
    n: int | None, shape: Sequence[int] | None, start: Tensor | None
) -> tuple[int, tuple[int, ...], Tensor | None]:
    """The number of samples, their shape, and the x_T that was given."""
    if start is not None:
        start = require_samples("start", start)
        if n not in (None, len(start)):
            raise ValueError(f"start has {len(start)} samples but n = {n}; leave n out.")
        if shape is not None and tuple(shape) != tuple(start.shape[1:]):
            raise ValueError(
                f"start has samples of shape {tuple(start.shape[1:])} but shape = {tuple(shape)}; "
                "leave shape out."
            )
        return len(start), tuple(start.shape[1:]), start
    if n is None or shape is None:
        raise ValueError("give n and shape, for instance n=1000, shape=(80,), or start=x_T.")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    axes = tuple(require_positive_int("each axis of shape", size) for size in sizes)
    return require_positive_int("n", n), axes, None

"""Gradients of losses, from the calls of the network that scores read."""

from __future__ import annotations

from flare.autodiff import vjp


def loss_gradients(denoiser, subset, x, t, target, weight, cond=None):
    """∇_θ Σ_k ½w_k‖f(x_k, t_k) − y_k‖² of every sample, (B, m).

    The states x are (B, K, *shape), their times t and weights w (K,), and the targets y (B, K, *shape).
    """
    found = x.new_zeros(len(x), subset.size)
    for here, some, run in vjp.iterate_states(denoiser, subset, x, t, cond):
        count = here.stop - here.start
        y = target[here, some].flatten(0, 1)
        w = weight[some].repeat(count).view(-1, *[1] * (y.ndim - 1))
        found[here] += run.pull(w * (run.f - y), count)
    return found

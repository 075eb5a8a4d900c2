"""The curvature as a preconditioner: the step is the damped solve, and the steps to a loss are counted."""

from __future__ import annotations

import math

import torch

import flare
from experiments import preconditioner


def test_steps_to_a_loss_are_counted():
    assert preconditioner.steps_to([3.0, 2.0, 1.0], 2.0) == preconditioner.EVERY
    assert preconditioner.steps_to([3.0, 2.0, 1.0], 0.5) is None
    curves = {"AdamW, 1": [1.0, 0.3], "AdamW, 2": [1.0, 0.2], "preconditioned, 1": [1.0, math.inf]}
    assert preconditioner.best(curves, "AdamW") == "AdamW, 2"


def test_the_step_solves_with_the_damped_curvature():
    model = flare.bench.load("sines")
    net = flare.bench.build(model.config)[0]
    advance = preconditioner._Preconditioned(net, model, rate=0.5, damping=10.0)
    advance._renew(0)
    before = {name: p.detach().clone() for name, p in advance.linear.items()}
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    advance(1)
    moved = advance.subset.gather({name: p.detach() - before[name] for name, p in advance.linear.items()})
    gradient = advance.subset.gather({name: p.grad for name, p in advance.linear.items()})
    # −(H + δI) moved = rate · gradient, both multiplied by (H + I)⁻¹
    delta, other = advance.posterior.prior_precision, advance.posterior.refit(1.0)
    restored = (1.0 - delta) * other.covariance(moved) - moved
    assert torch.allclose(restored, 0.5 * other.covariance(gradient), rtol=1e-2, atol=1e-4)

"""Training pairs: their data and their schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

import flare
from flare.diffusion.noising import pairs

SCHEDULE = flare.schedules.cosine(10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_become_tensors_of_the_same_type(dtype):
    data = np.linspace(-1, 1, 12, dtype=dtype).reshape(4, 3)
    made = pairs(data, SCHEDULE, n=5)
    assert torch.equal(made.data, torch.from_numpy(data))
    assert next(made.batches("epsilon")).x.dtype == made.data.dtype == torch.from_numpy(data).dtype


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64])
def test_integers_are_refused(kind):
    data = torch.ones(4, 3, dtype=kind)
    for given in (data, data.numpy()):
        with pytest.raises(TypeError, match=rf"must be floating point, got {kind}"):
            pairs(given, SCHEDULE)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            DDPMScheduler(10),
            r"got DDPMScheduler, a diffusers scheduler; use flare\.from_diffusers\(.*\)\.schedule",
        ),
        (600, r"got int: 600; .*flare\.schedules\.cosine\(600\)"),
        (None, r"got NoneType: None; .*flare\.schedules\.cosine\(600\)"),
        ("cosine", r"got str: 'cosine'; "),
    ],
)
def test_what_is_no_schedule_is_refused(schedule, message):
    with pytest.raises(TypeError, match=message):
        pairs(torch.rand(4, 3), schedule)

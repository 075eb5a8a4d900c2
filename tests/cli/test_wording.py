"""Messages of the library reach the user of the command line in the words of the command line."""

from __future__ import annotations

import pytest

from flare.cli.app import list_flags
from flare.cli.wording import name_flags, use_flags


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("needs a one-step sampler. Use rule='tangent'.", "needs a one-step sampler. Use --rule tangent."),
        (
            "use rule='tangent' or 'monte_carlo', or score='trace'.",
            "use --rule tangent or monte_carlo, or --score trace.",
        ),
        ("Use derivative='exact', which needs none", "Use --derivative exact, which needs none"),
        ("give directions=2 or more.", "give --directions 2 or more."),
        ("Give batch_size=250 to begin so.", "Give --batch-size 250 to begin so."),
        ("or give n=32.", "or give -n 32."),
        ("Clip x̂0 in the sampler (clip=...), or", "Clip x̂0 (with --clip when the run is made), or"),
        ("Raise prior_precision (now 1e-06)", "Raise --prior (now 1e-06)"),
        ("Fit with prior_precision=1e-3, or", "Fit with --prior 1e-3, or"),
        ("prior_precision='validation' needs", "--prior validation needs"),
        ("use schedules.flow(T), or prediction='v'", "use --schedule flow, or --prediction v"),
        ("for instance with flare.posteriors.dense.", "for instance with --structure dense."),
        ("Use flare.sample with rule='monte_carlo'", "Use `flare sample` with --rule monte_carlo"),
        (
            "flare.check_model(denoiser, data, schedule) looks for the cause.",
            "`flare fit --check` looks for the cause.",
        ),
        ("name it with last_layer(denoiser, name=...) or", "name it with --subset 'NAME.*' or"),
        ("steps must be an integer of at least 1", "--steps must be an integer of at least 1"),
    ],
)
def test_python_words_become_flags(message, told):
    assert use_flags(message, name_flags(list_flags())) == told


@pytest.mark.parametrize(
    "message",
    [
        "no posterior at runs/seed=1/posterior.safetensors; fit one with `flare fit`.",
        "no file at seed=1/x.npy.",
        "no file at n=3.npy.",
        "lr=0.1,seed=1 is not a run directory",
        "no file at posteriors.npz.",
        "prior_precision.npy has samples of shape (3,), the model's are (10,).",
        "seed=1 is a file; give a directory with --out.",
        "--model samplers.net:make: calling make() failed: KeyError: 'rank=3 and n=4 missing'",
        "score must end in .safetensors, .npz or .csv.",
        "no posterior at schedules.flow.safetensors; fit one.",
        "the steps must be fewer than the levels",
        "unknown rule 'tangents'; did you mean 'tangent'?",
    ],
)
def test_paths_and_plain_words_stay(message):
    assert use_flags(message, name_flags(list_flags())) == message

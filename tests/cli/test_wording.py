"""Messages of the library reach the user of the command line in the words of the command line."""

from __future__ import annotations

import pytest

from flare.cli.app import list_flags, use_flags


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("needs a one-step sampler. Use rule='tangent'.", "needs a one-step sampler. Use --rule tangent."),
        (
            "use rule='tangent' or 'monte_carlo', or score='trace'.",
            "use --rule tangent or monte_carlo, or --score trace.",
        ),
        ("give directions=2 or more.", "give --directions 2 or more."),
        ("Give batch_size=250 to begin so.", "Give --batch-size 250 to begin so."),
        ("or give n=32.", "or give -n 32."),
        ("Fit with prior_precision=1e-3, or", "Fit with --prior-precision 1e-3, or"),
        ("prior_precision='validation' needs", "--prior-precision validation needs"),
        ("give at least 12, or held_out=.", "give at least 12, or --held-out."),
        (
            "schedule comes with the model; leave schedule= out.",
            "schedule comes with the model; leave --schedule out.",
        ),
        ("rank= is for structure='low_rank'", "--rank is for --structure low_rank"),
        ("use prediction='v'", "use --prediction v"),
        ("steps must be an integer of at least 1", "--steps must be an integer of at least 1"),
        ("prior_precision must be a number", "--prior-precision must be a number"),
    ],
)
def test_python_words_become_flags(message, told):
    assert use_flags(message, list_flags()) == told


@pytest.mark.parametrize(
    "message",
    [
        "no scorer at runs/seed=1/scorer; fit one with `flare fit`.",
        "no file at seed=1/x.npy.",
        "no file at n=3.npy.",
        "lr=0.1,seed=1 is not a scorer",
        "prior_precision.npy has samples of shape (3,); the model's are (10,).",
        "seed=1 is a file; give a directory with --out.",
        "samplers.net:make: calling make() failed: KeyError: 'rank=3 and n=4 missing'",
        "score must end in .safetensors, .npz or .csv.",
        "the steps must be fewer than the levels",
        "unknown rule 'tangents'; did you mean 'tangent'?",
    ],
)
def test_paths_and_plain_words_stay(message):
    assert use_flags(message, list_flags()) == message

"""The flags of `flare fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .fit_choices import PRIORS
from .own_runs import DEFAULTS

_NEW = "For a new run of --model:"
SubsetName = Annotated[
    str,
    typer.Option(
        help="random, sensitive (the largest gradients), sketch (random sums of all parameters), last_layer, "
        "everything, or patterns of names such as 'out.*'; auto: 1,000 at random, or everything in a "
        "smaller network."
    ),
]
HeldOut = Annotated[
    Path | None,
    typer.Option(
        help="Data that the network was not trained on, to compare samples with and for --prior validation; "
        "by default a tenth of the training data, at most 1,000, which the curvature then leaves out."
    ),
]
NewSchedule = Annotated[
    str | None,
    typer.Option(
        help=f"{_NEW} one of {{schedules}}, with options as in edm:sigma_min=0.01,sigma_max=50,rho=5 or "
        f"cosine:time=fraction (the network receives one of {{times}}); {DEFAULTS['schedule']} by default."
    ),
]
NewLevels = Annotated[
    int | None,
    typer.Option(help=f"{_NEW} its number of noise levels, T; {DEFAULTS['levels']} by default."),
]
NewPrediction = Annotated[
    str | None, typer.Option(help=f"{_NEW} one of {{predictions}}; {DEFAULTS['prediction']} by default.")
]
NewClip = Annotated[float | None, typer.Option(help=f"{_NEW} clip x̂0 to ±this; the data's range by default.")]
NewWeighting = Annotated[
    str | None,
    typer.Option(help=f"{_NEW} loss weights, one of {{weightings}}; {DEFAULTS['weighting']} by default."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the configuration and posterior of a run of --model.")
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Check that the model fits the data.")]
Truncation = Annotated[
    str | None,
    typer.Option(
        help="For low_rank, one of {truncations}: keep only the leading eigenpairs of H or of Σ, "
        "without the prior on the others."
    ),
]
Prior = Annotated[
    str, typer.Option(help=f"Prior precision: a positive number, or how to tune it: {', '.join(PRIORS)}.")
]
Amount = Annotated[
    float | None,
    typer.Option(help="Fraction of the parameters, for random, sensitive and sketch; 0.1 by default."),
]
PairCount = Annotated[
    int | None,
    typer.Option(
        help="Number of training pairs for the curvature; by default 20,000, or 4,000 if the network has "
        "over a million parameters."
    ),
]
KeepData = Annotated[
    bool,
    typer.Option(
        "--keep-data/--no-data",
        help="Keep at most 20,000 training samples beside the posterior, for distances to the data; without "
        "them samples are judged by their influence alone.",
    ),
]
SaveEvery = Annotated[
    float, typer.Option(min=0, help="Seconds between two checkpoints, from which a fit is resumed.")
]

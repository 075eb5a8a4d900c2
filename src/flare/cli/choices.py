"""The choices that help texts list, read from the registries when help is shown.

A help text names a registry in braces, as in "One of {samplers}."; a new sampler appears in it by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args


def list_choices() -> dict[str, Iterable[str]]:
    """List the registered names by what help texts call their registry."""
    from .. import bench
    from ..diffusion.noising import LEVEL_SAMPLINGS, WEIGHTINGS
    from ..diffusion.parameterizations import PREDICTIONS
    from ..diffusion.samplers import SAMPLERS
    from ..diffusion.schedules import TIMES
    from ..network.derivative import Derivative
    from ..posteriors import STRUCTURES
    from ..posteriors.low_rank import TRUNCATIONS
    from ..propagation import RULES, Coefficients
    from ..scores import SCORES
    from .named import list_schedules

    return {
        "coefficients": get_args(Coefficients),
        "derivatives": [each.value for each in Derivative],
        "existing_scores": [score.name for score in SCORES.values() if score.of_existing],
        "level_samplings": LEVEL_SAMPLINGS,
        "models": bench.NAMES,
        "predictions": PREDICTIONS,
        "rules": RULES,
        "samplers": SAMPLERS,
        # the others are made from tables of numbers, which no flag takes
        "schedules": list_schedules(),
        "scores": SCORES,
        "structures": STRUCTURES,
        "times": TIMES,
        "truncations": TRUNCATIONS,
        "weightings": WEIGHTINGS,
    }


def fill_choices(text: str) -> str:
    """Replace each registry in braces by its names; a text without braces imports nothing."""
    if "{" not in text:
        return text
    choices = list_choices()
    return re.sub(r"{(\w+)}", lambda found: ", ".join(choices[found[1]]), text)


def drop_choices(text: str) -> str:
    """Replace each registry in braces by its own name, which imports nothing.

    >>> drop_choices("One of {samplers}.")
    'One of samplers.'
    """
    return re.sub(r"{(\w+)}", r"\1", text)

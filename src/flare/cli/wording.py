"""Messages in the words of the command line: the library says `batch_size=8`, users type `--batch-size 8`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Python words whose flag has another name
ALIASES = {"prior_precision": "--prior"}
# modules whose functions are the values of a flag
MODULES = {"samplers": "--sampler", "schedules": "--schedule", "posteriors": "--structure"}

_NOT_INSIDE = r"(?<![\w/.=,-])"  # a path such as runs/seed=1/x.npy is not a message
_ENDS = r"(?=[\s,;:)]|\.\s|\.?$)"


def name_flags(options: Iterable[str]) -> dict[str, str]:
    """Map Python words to flags: `--batch-size` is what Python calls `batch_size`."""
    return {option.lstrip("-").replace("-", "_"): option for option in options} | ALIASES


def use_flags(message: str, flags: Mapping[str, str]) -> str:
    """Rewrite keyword arguments, functions and leading parameter names of a message as flags.

    >>> use_flags("decoupled needs a one-step sampler. Use rule='tangent'.", {"rule": "--rule"})
    'decoupled needs a one-step sampler. Use --rule tangent.'
    """
    words = "|".join(sorted(flags, key=len, reverse=True))
    modules = "|".join(MODULES)
    aliases = "|".join(ALIASES)
    message = re.sub(
        rf"{_NOT_INSIDE}({words})='(\w+)'((?: or '\w+')*)",
        lambda found: f"{flags[found[1]]} {found[2]}{found[3].replace(chr(39), '')}",
        message,
    )
    message = re.sub(rf"{_NOT_INSIDE}({words})=\.\.\.", lambda found: flags[found[1]], message)
    message = re.sub(
        rf"{_NOT_INSIDE}({words})=(-?\d[\d.e+-]*?){_ENDS}",
        lambda found: f"{flags[found[1]]} {found[2]}",
        message,
    )
    message = re.sub(
        rf"{_NOT_INSIDE}(?:flare\.)?({modules})\.(\w+)(?:\([^()]*\))?{_ENDS}",
        lambda found: f"{MODULES[found[1]]} {found[2]}",
        message,
    )
    message = re.sub(rf"\A({words})(?= must )", lambda found: flags[found[1]], message)
    return re.sub(rf"{_NOT_INSIDE}({aliases})\b(?!=)", lambda found: ALIASES[found[1]], message)

"""Messages in the words of the command line: the library says `batch_size=8`, users type `--batch-size 8`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Python words whose flag has another name
ALIASES = {"prior_precision": "--prior"}
# modules whose functions are the values of a flag
MODULES = {"samplers": "--sampler", "schedules": "--schedule", "posteriors": "--structure"}
# functions that are commands
COMMANDS = {
    "sample": "flare sample",
    "score": "flare score",
    "check_model": "flare fit --check",
    "check_linearization": "flare check",
}
# calls that are values of a flag
CALLS = {
    "last_layer(denoiser, name=...)": "--subset 'NAME.*'",
    "named(denoiser, patterns)": "--subset PATTERNS",
}

_NOT_INSIDE = r"(?<![\w/.=,-])"  # a path such as runs/seed=1/x.npy is not a message
_ENDS = r"(?=[\s,;:)]|\.\s|\.?$)"


def name_flags(options: Iterable[str]) -> dict[str, str]:
    """Map Python words to flags: `--batch-size` is what Python calls `batch_size`."""
    return {option.lstrip("-").replace("-", "_"): option for option in options} | ALIASES


def use_flags(message: str, flags: Mapping[str, str]) -> str:
    """Rewrite keyword arguments, functions and leading parameter names of a message as flags and commands.

    >>> use_flags("decoupled needs a one-step sampler. Use rule='tangent'.", {"rule": "--rule"})
    'decoupled needs a one-step sampler. Use --rule tangent.'
    """
    for call, flag in CALLS.items():
        message = message.replace(call, flag)
    message = _rewrite(message, r"NAME='(\w+)'", flags, "{} {}")
    message = re.sub(r"(--[\w-]+ \w+ or )'(\w+)'", r"\1\2", message)  # rule='tangent' or 'monte_carlo'
    message = _rewrite(message, r"NAME=\.\.\.", flags, "{}")
    message = _rewrite(message, rf"NAME=(-?\d[\d.e+-]*?){_ENDS}", flags, "{} {}")
    message = _rewrite(message, rf"(?:flare\.)?NAME\.(\w+)(?:\([^()]*\))?{_ENDS}", MODULES, "{} {}")
    message = _rewrite(message, rf"flare\.NAME(?:\([^()]*\))?{_ENDS}", COMMANDS, "`{}`")
    message = _rewrite(message, r"\ANAME(?= must )", flags, "{}")
    return _rewrite(message, r"NAME\b(?!=)", ALIASES, "{}")


def _rewrite(message: str, pattern: str, names: Mapping[str, str], form: str) -> str:
    """Replace a pattern, in which NAME is one of `names`, by what that name maps to and the other groups."""
    choices = "|".join(sorted(names, key=len, reverse=True))
    return re.sub(
        _NOT_INSIDE + pattern.replace("NAME", f"({choices})"),
        lambda found: form.format(names[found[1]], *found.groups()[1:]),
        message,
    )

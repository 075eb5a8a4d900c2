"""Messages in the words of the command line: the library says `batch_size=8`, users type `--batch-size 8`.

Messages also quote file names and errors of foreign code. Only phrases in the forms that the library itself
uses are rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# phrases without a pattern
PHRASES = {
    "last_layer(denoiser, name=...)": "--subset 'NAME.*'",
    "named(denoiser, patterns)": "--subset PATTERNS",
    "in the sampler (clip=...)": "(with --clip when the run is made)",
    "Raise prior_precision (": "Raise --prior (",
    "flare.check_model(denoiser, data, schedule)": "`flare fit --check`",
    "flare.sample with": "`flare sample` with",
}
# Python words whose flag has another name
ALIASES = {"prior_precision": "--prior"}
# modules whose functions are the values of a flag
MODULES = {"samplers": "--sampler", "schedules": "--schedule", "flare.posteriors": "--structure"}


def name_flags(options: Iterable[str]) -> dict[str, str]:
    """Map Python words to flags: `--batch-size` is what Python calls `batch_size`."""
    return {option.lstrip("-").replace("-", "_"): option for option in options} | ALIASES


def use_flags(message: str, flags: Mapping[str, str]) -> str:
    """Rewrite keyword arguments, functions and leading parameter names of a message as flags and commands.

    >>> use_flags("decoupled needs a one-step sampler. Use rule='tangent'.", {"rule": "--rule"})
    'decoupled needs a one-step sampler. Use --rule tangent.'
    """
    for phrase, words in PHRASES.items():
        message = message.replace(phrase, words)
    for pattern, names, form in (
        (r"(?<![\w./'\"=-])NAME='(\w+)'", flags, "{} {}"),  # rule='tangent'
        (r"(?<=[Gg]ive )NAME=(\d+)\b(?![.\w]*\w)", flags, "{} {}"),  # give directions=2
        (r"(?<=Fit with )NAME=([\d.e+-]*\d)", flags, "{} {}"),  # Fit with prior_precision=1e-3
        (r"(?<![\w./'\"=-])NAME\.(\w+)\([\w=, ]*\)", MODULES, "{} {}"),  # schedules.flow(T)
        (r"(?<=with )NAME\.(\w+)(?=\.(?:\s|$))", MODULES, "{} {}"),  # with flare.posteriors.dense.
        (r"\ANAME(?= must (?:be an integer of|lie in))", flags, "{}"),
    ):
        message = _rewrite(message, pattern, names, form)
    return re.sub(r"(--[\w-]+ \w+ or )'(\w+)'", r"\1\2", message)  # --rule tangent or 'monte_carlo'


def _rewrite(message: str, pattern: str, names: Mapping[str, str], form: str) -> str:
    """Replace a pattern, in which NAME is one of `names`, by what that name maps to and the other groups."""
    choices = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(
        pattern.replace("NAME", f"({choices})"),
        lambda found: form.format(names[found[1]], *found.groups()[1:]),
        message,
    )

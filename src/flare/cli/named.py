"""A name with options in one flag: `--schedule edm:T=40,sigma_max=50`, `--sampler heun:churn=40`.

The options are the keyword arguments of the registered function, so new ones need no flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core.registry import Registry
from ..core.validation import one_of
from ..diffusion.samplers import SAMPLERS, Churn, Steps
from ..diffusion.schedules import SCHEDULES, Schedule
from .flags import SCHEDULES as NAMED

Maker = Callable[..., Any]
#: arguments with a separate flag, or without a meaning on the command line
ELSEWHERE = {"n": "--steps", "clip": "", "schedule": "", "spec": ""}


def parse_schedule(text: str) -> Schedule:
    """The schedule of a name with options, such as cosine:T=1000."""
    name = text.partition(":")[0]
    if text.endswith(".npy") or (name in SCHEDULES and name not in NAMED):
        raise ValueError(
            f"--schedule takes a name and its options, got {text!r}. For custom betas, let the function of "
            "MODEL return (network, flare.schedules.from_betas(betas))."
        )
    maker, options = _parse("--schedule", text, SCHEDULES)
    if "T" not in options:
        separator = "," if ":" in text else ":"
        raise ValueError(
            f"--schedule {text} lacks the number of noise levels: write {text}{separator}T=1000 for 1,000."
        )
    return _make("--schedule", text, maker, (), options)


def make_sampler(text: str, schedule: Schedule, n: int | None, clip: float | None) -> Steps:
    """The table of a sampler from a name with options."""
    maker, options = _parse("--sampler", text, SAMPLERS)
    if "churn" in options:
        churn = options["churn"]
        options["churn"] = Churn(*churn) if isinstance(churn, tuple) else Churn(churn)
    return _make("--sampler", text, maker, (schedule, n), {"clip": clip, **options})


def parse_value(text: str, separator: str) -> Any:
    """A number, several with a separator in between, true or false, or a word."""
    if text in ("true", "false"):
        return text == "true"
    try:
        numbers = tuple(
            int(word) if word.strip().lstrip("+-").isdecimal() else float(word)
            for word in text.split(separator)
        )
    except ValueError:
        return text
    return numbers if len(numbers) > 1 else numbers[0]


def _parse(flag: str, text: str, registry: Registry[Maker]) -> tuple[Maker, dict[str, Any]]:
    """The registered function and its options."""
    name, _, rest = text.partition(":")
    maker, found = registry.find(name), {}
    allowed = inspect.signature(maker).parameters.keys() - ELSEWHERE
    for part in rest.split(",") if rest else []:
        key, sign, value = part.partition("=")
        if not (sign and value):
            raise ValueError(f"{flag} takes options as {name}:option=value,option=value, got {text!r}.")
        if ELSEWHERE.get(key):
            raise ValueError(f"{flag} {name} takes no {key}=; give {ELSEWHERE[key]} {value} instead.")
        found[one_of(f"option of {flag} {name}", key, sorted(allowed))] = parse_value(value, "/")
    return maker, found


def _make(flag: str, text: str, maker: Maker, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return maker(*given, **options)
    except TypeError as error:
        raise ValueError(f"{flag} {text} cannot be made: {error}.") from error

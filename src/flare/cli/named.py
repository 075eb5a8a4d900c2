"""A name with options in one flag: `--schedule edm:sigma_max=50,time=log_sigma`, `--sampler heun:churn=40`.

The options are the keyword arguments of the registered function, so new ones need no flag of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.registry import Maker, Registry
    from ..diffusion.samplers import Steps
    from ..diffusion.schedules import Schedule

#: arguments with a flag of their own, or without a meaning on the command line
ELSEWHERE = {"T": "--levels", "n": "--steps", "clip": "--clip", "schedule": "--schedule", "spec": ""}


def parse_schedule(text: str, levels: int) -> dict[str, Any]:
    """The description of a schedule, for `schedules.build`, from a name with options."""
    from ..diffusion.schedules import SCHEDULES

    name = text.partition(":")[0]
    if text.endswith(".npy") or (name in SCHEDULES and name not in list_schedules()):
        raise ValueError(
            f"--schedule takes a name and its options, got {text!r}. For betas of your own, let the function "
            "of --model return (network, flare.schedules.from_betas(betas))."
        )
    maker, options = _parse("--schedule", text, SCHEDULES)
    return {"name": maker.name, "T": levels, **options}


def list_schedules() -> list[str]:
    """The schedules that a name and a number of levels describe; the others are made of arrays."""
    from ..diffusion.schedules import SCHEDULES

    return [name for name, maker in SCHEDULES.items() if "T" in inspect.signature(maker.make).parameters]


def make_sampler(text: str, schedule: Schedule, n: int | None, clip: float | None) -> Steps:
    """The table of a sampler from a name with options."""
    from ..diffusion.samplers import SAMPLERS, Churn

    maker, options = _parse("--sampler", text, SAMPLERS)
    if "churn" in options:
        churn = options["churn"]
        options["churn"] = Churn(*churn) if isinstance(churn, tuple) else Churn(churn)
    try:
        return maker(schedule, n, clip=clip, **options)
    except TypeError as error:
        if not options:
            raise
        raise ValueError(f"--sampler {text} cannot be made: {error}.") from error


def describe_schedule(spec: Mapping[str, Any]) -> str:
    """The name of a schedule with the options that are not the defaults, as `parse_schedule` reads them."""
    from ..diffusion.schedules import SCHEDULES

    name = spec.get("name", "its own")
    if name not in SCHEDULES:
        return str(name)
    defaults = _options(SCHEDULES[name].make)
    other = {
        key: spec[key] for key, value in defaults.items() if key in spec and not _equal(spec[key], value)
    }
    shown = ",".join(f"{key}={_show(value)}" for key, value in other.items())
    return f"{name}:{shown}" if shown else str(name)


def _parse(flag: str, text: str, registry: Registry[Maker[Any]]) -> tuple[Maker[Any], dict[str, Any]]:
    """The registered function and its options."""
    from ..core.validation import one_of

    name, _, rest = text.partition(":")
    maker, found = registry.find(name), {}
    allowed = _options(maker.make)
    for part in rest.split(",") if rest else []:
        key, sign, value = part.partition("=")
        if not (sign and value):
            raise ValueError(f"{flag} takes options as {name}:option=value,option=value, got {text!r}.")
        if ELSEWHERE.get(key):
            raise ValueError(f"{flag} {name} takes no {key}=; give {ELSEWHERE[key]} {value} instead.")
        found[one_of(f"option of {flag} {name}", key, allowed)] = _read(value)
    return maker, found


def _options(make: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function with their defaults."""
    parameters = inspect.signature(make).parameters.values()
    return {
        each.name: each.default
        for each in parameters
        if each.name not in ELSEWHERE and each.default is not each.empty
    }


def _read(value: str) -> Any:
    """A number, several with slashes in between, true or false, or a word."""
    if value in ("true", "false"):
        return value == "true"
    try:
        numbers = tuple(
            int(word) if word.lstrip("+-").isdecimal() else float(word) for word in value.split("/")
        )
    except ValueError:
        return value
    return numbers if len(numbers) > 1 else numbers[0]


def _show(value: Any) -> str:
    if isinstance(value, (bool, str)):
        return str(value).lower() if isinstance(value, bool) else value
    numbers = value if isinstance(value, (list, tuple)) else [value]
    return "/".join(repr(float(number)).removesuffix(".0") for number in numbers)


def _equal(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    return bool(value == default)

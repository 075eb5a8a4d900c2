"""The user's own networks: --model package.module:function.

Code runs only if the command line names it; a configuration file that mentions it is not enough.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..diffusion.schedules import Schedule
    from ..network.denoiser import Denoiser


def load_network(model: str, prediction: str) -> tuple[Denoiser, Schedule | None]:
    """Call package.module:function, and return the network, and its schedule if it brings one along.

    Args:
        model: names a function that returns a module, a `Denoiser`, a pair of one of these and a `Schedule`,
            or a diffusers pipeline or pair (model, scheduler).
        prediction: of a module.
    """
    from torch import nn

    from ..diffusion.schedules import Schedule
    from ..network.denoiser import Denoiser
    from ..scorer.inputs import as_denoiser, open_model

    module, separator, function = model.partition(":")
    if not separator or not module or not function:
        raise ValueError(f"--model must be package.module:function, got {model!r}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    made, schedule = _call(model, module, function), None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Schedule):
        made, schedule = made
    if isinstance(made, Denoiser):
        return made, schedule
    if isinstance(made, nn.Module):
        return as_denoiser(made, prediction), schedule
    try:
        opened = open_model(None if isinstance(made, str) else made)  # a name of a directory is no network
    except TypeError as error:
        raise ValueError(
            f"--model {model} must return a torch.nn.Module, a flare.Denoiser, a pair of one of these and a "
            f"schedule, or a diffusers pipeline, got {type(made).__name__}."
        ) from error
    if opened.is_latent:
        raise ValueError(
            f"--model {model} returns a latent diffusion model, which the command line does not take: use "
            "flare.fit in Python."
        )
    return opened.denoiser, opened.schedule


def _call(model: str, module: str, function: str) -> Any:
    """Import and call the function of --model; every error in the user's code becomes a ValueError."""
    from torch import nn

    from ..network.denoiser import Denoiser

    try:
        make = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        hint = f"; leave out .py: {module[:-3]}:{function}" if module.endswith(".py") else ""
        raise ValueError(
            f"--model {model}: {error}{hint}; is it installed, or in the current directory?"
        ) from error
    except AttributeError as error:
        raise ValueError(f"--model {model}: {error}.") from error
    except Exception as error:  # the user's module may raise anything
        raise ValueError(f"--model {model}: importing {module} failed: {_describe(error)}") from error
    if isinstance(make, (nn.Module, Denoiser)):
        return make
    if not callable(make):
        raise ValueError(
            f"--model {model} must name a function that returns the network, got {type(make).__name__}."
        )
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ValueError(
            f"--model {model} must be callable without arguments, but {function}{inspect.signature(make)} "
            "needs some. Name a function that builds the network, loads its weights and returns it."
        ) from error
    except ValueError:  # some callables have no signature
        pass
    try:
        return make()
    except Exception as error:
        raise ValueError(f"--model {model}: calling {function}() failed: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """Describe an error of the user's code in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first} ({place.filename}, line {place.lineno})."

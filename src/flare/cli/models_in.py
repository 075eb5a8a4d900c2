"""MODEL and its options: a function, a pipeline or a shipped model, schedules and samplers; and scorers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from .. import bench
from ..bench.tasks import describe_error, import_named
from ..core.distributed import broadcast, is_main
from ..core.progress import warn
from ..core.registry import Registry
from ..core.validation import one_of
from ..diffusion.samplers import SAMPLERS, Churn, Steps
from ..diffusion.schedules import SCHEDULES, Schedule
from ..integrations.diffusers import from_diffusers
from ..model import Model
from ..network.denoiser import Denoiser
from ..results.verdict import Reference
from ..sampling.plan import draw_directions
from ..scorer import directory as directory
from ..scorer.inputs import open_gaussian_diffusion, open_model
from ..scorer.scorer import Scorer
from ..storage import checkpoint
from .app import remark
from .flags import SCHEDULES as NAMED

FORMS = (
    "package.module:function, the directory of a diffusers pipeline, or a shipped model "
    f"({', '.join(bench.NAMES)})"
)
Maker = Callable[..., Any]
#: arguments with a separate flag, or without a meaning on the command line
ELSEWHERE = {"n": "--steps", "clip": "", "schedule": "", "spec": ""}
_NETWORKS = (nn.Module, Denoiser, Model)


def open_network(
    name: str, schedule: str | None = None, prediction: str | None = None, device: str | None = None
) -> Model:
    """Open MODEL for a fit.

    Args:
        name: MODEL.
        schedule: Value of --schedule; needed if MODEL is a network without its noise levels.
        prediction: Value of --prediction.
        device: Where to put the network; by default it stays where it is.
    """
    made = find_network(name, device)
    if isinstance(made, (nn.Module, Denoiser)) and schedule is None:
        raise ValueError(
            f"{name} is a network without its noise levels: give those that it was trained on, such as "
            "--schedule cosine:T=1000, or let the function return a pair (network, schedule)."
        )
    model = open_model(made, None if schedule is None else parse_schedule(schedule), prediction)
    model.source = str(Path(name).resolve()) if Path(name).is_dir() else name
    return model


def open_scorer(path: Path, name: str | None, device: str | None, quiet: bool) -> Scorer:
    """Load a scorer with the network that it was fitted to; warn of its problems.

    Args:
        path: Directory of the scorer.
        name: MODEL; by default what the scorer remembers.
        device: Where to put the network; by default it stays where it is.
        quiet: Whether to load remembered code without a remark.
    """
    directory.refuse_old_run(path)
    if not directory.is_scorer(path):
        raise ValueError(f"there is no scorer at {path}; make one: `flare fit MODEL --data FILE --out DIR`.")
    source = name or directory.read_main(path).source
    if source is None:
        raise ValueError(f"{path} does not record its network: name it with --model, {FORMS}.")
    if name is None and _is_function(source) and is_main() and not quiet:
        remark("", f"importing {source}, the network that {path} was fitted to.")
    net, schedule = find_network(source, device), None
    if isinstance(net, tuple) and isinstance(net[1], Schedule):  # the scorer knows what a module predicts
        net, schedule = net
    scorer = directory.load(path, net, schedule=schedule)
    warn_of_problems(scorer.problems())
    return scorer


def warn_of_problems(problems: Sequence[str]) -> None:
    """Warn of the problems of a model, once for all processes."""
    for problem in problems if is_main() else []:
        warn(f"do not trust these p-values yet: {problem}", UserWarning)


def find_network(name: str, device: str | None = None) -> Any:
    """Open MODEL: a module, a `Denoiser`, a `Model`, a pair, or a pipeline."""
    path = Path(name)
    directory.refuse_old_run(path)
    if _is_function(name):
        made = open_gaussian_diffusion(_call(name))
    elif (path / "model_index.json").is_file():
        made = from_diffusers(path)
    elif path.exists() and not (path / "config.json").is_file():
        raise ValueError(f"{name} is not a model: give {FORMS}.")
    else:
        made = bench.load(name)
    return made if device is None else _move(made, device)


def share_directions(scorer: Scorer, count: int | Literal["exact"], seed: int) -> Any:
    """Draw the directions once for all parts and processes; a matrix-free posterior solves for them once."""
    return count if count == "exact" else broadcast(draw_directions(scorer.posterior, count, seed))


def describe_scorer(path: Path, scorer: Scorer, with_data: bool) -> dict[str, Any]:
    """The facts that `flare fit` prints about the saved scorer."""
    posterior, reference = scorer.posterior, scorer.reference
    set_aside = "samples set aside from the training data (better: --held-out)"
    kind = "held-out samples" if reference.held_out else set_aside
    return {
        "scorer": str(path),
        "structure": posterior.structure,
        "parameters": posterior.size,
        "of": scorer.model.denoiser.parameter_count,
        "prior_precision": posterior.prior_precision,
        "scale": posterior.scale,
        "residual_variance": posterior.origin.statistics.residual_variance,
        "compared_with": f"{len(reference):,} {kind}",
        "kept_training_samples": len(scorer.data) if with_data and scorer.data is not None else 0,
        **{name: found for name in ("remarks", "problems") if (found := scorer.about[name])},
    }


def describe(name: str) -> dict[str, Any]:
    """The facts that `flare info` prints about a scorer directory or a shipped model."""
    path = Path(name)
    if directory.is_scorer(path):
        stored, reference = directory.read_main(path), Reference.load(path / directory.REFERENCE)
        posterior = checkpoint.metadata(path / directory.POSTERIOR)
        kind = "held-out" if reference.held_out else "training"
        facts = {
            "kind": "scorer",
            "model": stored.source,
            "shape": list(stored.shape),
            **{key: posterior[key] for key in ("structure", "prior_precision", "scale")},
            "compared_with": f"{len(reference):,} {kind} samples",
        }
        return facts | {key: each for key, each in stored.about.items() if key != "checked" and each != []}
    directory.refuse_old_run(path)
    if name not in bench.NAMES and not path.exists():
        known = ", ".join(bench.NAMES)
        raise FileNotFoundError(f"nothing at {path}; give a scorer, a file of samples or a model: {known}.")
    model = bench.load(name)
    count = model.denoiser.parameter_count
    return {"kind": "model", "shape": list(model.shape), "parameters": count, **flatten(model.config, "_")}


def flatten(config: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """The values of a two-level configuration, by their joined keys."""
    found: dict[str, Any] = {}
    for part, value in config.items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{part}{separator}{key}" if key else part: each for key, each in inner.items()}
    return found


def _is_function(name: str) -> bool:
    return ":" in name and not Path(name).exists()


def _move(made: Any, device: str) -> Any:
    if isinstance(made, Model):
        return made.with_denoiser(made.denoiser.to(device))
    return (_move(made[0], device), *made[1:]) if isinstance(made, tuple) else made.to(device)


def _call(name: str) -> Any:
    """Import and call package.module:function; every error in the user's code becomes a ValueError."""
    made = import_named("MODEL", name)
    try:
        if not isinstance(made, _NETWORKS):
            made = made()
    except Exception as error:  # the user's code may raise anything
        called = name.partition(":")[2]
        raise ValueError(f"{name}: calling {called}() failed: {describe_error(error)}") from error
    is_pair = isinstance(made, tuple) and len(made) == 2
    if not isinstance(made, _NETWORKS) and not is_pair and not hasattr(made, "scheduler"):
        raise ValueError(
            f"{name} must return a torch.nn.Module, a flare.Denoiser, a pair of one of these and a schedule, "
            f"a flare.Model or a diffusers pipeline, got {type(made).__name__}."
        )
    return made


def parse_schedule(text: str) -> Schedule:
    """The schedule of a name with options, such as cosine:T=1000."""
    name = text.partition(":")[0]
    if text.endswith(".npy") or (name in SCHEDULES and name not in NAMED):
        raise ValueError(
            f"--schedule takes a name and its options, got {text!r}. For custom betas, let the function "
            "of MODEL return (network, flare.schedules.from_betas(betas))."
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

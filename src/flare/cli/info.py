"""`flare info`: describe a run, a posterior or a file of samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .app import command
from .output import show_facts

if TYPE_CHECKING:
    from ..results.result import Result


@command()
def info(
    what: Annotated[
        str,
        typer.Argument(
            help="A run directory, a shipped model ({models}), a posterior, or a file of samples."
        ),
    ],
    json: options.Json = False,
) -> None:
    """Show what a run, a posterior or a file of samples holds.

    Example: `flare info sines`
    """
    from ..results.formats import SUFFIXES

    path = Path(what)
    is_file = path.is_file() or (path.suffix in SUFFIXES and not path.is_dir())
    facts = _describe_file(path) if is_file else _describe_run(what)
    show_facts(json, False, facts)


def _describe_file(path: Path) -> dict[str, Any]:
    from ..results.formats import SUFFIXES
    from ..results.result import Result
    from ..storage import checkpoint

    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path} must be a .safetensors, .npz or .csv file, a run directory or a shipped model."
        )
    tensors, header = checkpoint.load(path) if path.suffix == ".safetensors" else ({}, {})
    if "structure" in header:
        shown = ("structure", "prior_precision", "scale")
        size = sum(len(index) for name, index in tensors.items() if name.startswith("subset."))
        return {
            "kind": "posterior",
            "parameters": size,
            **{key: header[key] for key in shown},
            **header["statistics"],
        }
    result = Result.load(path)
    facts = {
        "n": len(result),
        "shape": str(tuple(result.samples.shape[1:])),
        "scores": ", ".join(result.scores),
        **_describe_verdict(result),
        **({"lost": lost} if (lost := int(result.lost.sum())) else {}),
    }
    # the counts of this file come first: `about` still has those from before a filter
    return {
        "kind": "samples",
        **facts,
        **{k: v for k, v in result.about.items() if k not in (*facts, "lost", "names")},
    }


def _describe_verdict(result: Result) -> dict[str, Any]:
    if result.verdict is None:
        return {}
    kind = "held-out" if result.verdict.held_out else "training"
    return {
        "suspicious": int((result.p_value <= 0.05).sum()),
        "compared_with": f"{result.verdict.reference_size:,} {kind} samples",
    }


def _describe_run(what: str) -> dict[str, Any]:
    from .. import bench
    from ..bench.shipped import CONFIG_FILE
    from ..scorer.directory import is_scorer, read_main
    from ..storage import checkpoint

    path = Path(what) / CONFIG_FILE
    config = checkpoint.load_json(path) if path.is_file() else {}
    if isinstance(config, dict) and "own" in config:
        return {
            "kind": "run of your own network",
            **config["own"],
            **{f"schedule_{k}": v for k, v in config["schedule"].items() if not isinstance(v, list)},
        }
    if is_scorer(Path(what)):
        stored = read_main(Path(what))
        facts = {"kind": "scorer", "shape": list(stored.shape), "prediction": stored.prediction}
        return facts | {key: value for key, value in stored.about.items() if key != "checked"}
    model = bench.load(what)
    dataset, network = model.config["dataset"], model.config["network"]
    return {
        "kind": "run",
        "data": f"{dataset['name']}, {dataset['n']:,} samples of shape {model.shape}, seed {dataset['seed']}",
        "network": f"{network['name']}, width {network['width']}",
        "parameters": f"{model.denoiser.parameter_count:,}",
        "predicts": model.config["prediction"],
        "schedule": f"{model.config['schedule']['name']}, T = {model.schedule.T}",
        "clip": model.clip,
        **{f"training_{key}": value for key, value in model.config["training"].items()},
    }

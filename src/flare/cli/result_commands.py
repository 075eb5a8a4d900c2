"""The commands that read results: filter, calibrate, report and info."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from torch import Tensor

from .. import bench
from ..report import write
from ..results.calibration import calibrate
from ..results.result import Result
from ..results.result_files import SUFFIXES, check_suffix, save_npy
from ..scorer import directory
from .claims import claim_new, refuse_existing
from .models_in import refuse_old_run
from .output import show_facts
from .samples_in import read_array
from .tables import is_table, read_verdicts, write_rows

WORDS = {"1": True, "true": True, "0": False, "false": False}  # what labels may say about `bad`


@dataclass(frozen=True)
class Scored:
    """A file of scored samples, or a table of verdicts.

    Attributes:
        file: The file.
        result: The samples with their scores; those of a table have no coordinates.
        names: Names of the samples; row numbers if they have none.
        p_value: (n,); None if the samples were not compared with real data.
        rows: The rows of a table; None for a file with samples.
    """

    file: Path
    result: Result
    names: Sequence[str]
    p_value: Tensor | None
    rows: list[list[str]] | None = None

    @classmethod
    def read(cls, file: Path) -> Scored:
        """Read a file of `flare sample`, `flare score` or `flare filter`."""
        if is_table(file):
            rows, p_value, result = read_verdicts(file)
            return cls(file, result, [row[0] for row in rows], p_value, rows)
        result = Result.load(file)
        if not result.scores and result.verdict is None:
            raise ValueError(f"{file} has samples without scores; score them with `flare score`.")
        names = result.about.get("names") or [str(row) for row in range(len(result))]
        return cls(file, result, names, None if result.verdict is None else result.p_value)

    def choose_target(self, target: Path | None, overwrite: bool) -> Path:
        """Check the file to write, by default kept.safetensors, or kept.csv for a table."""
        if target is None:
            target = Path("kept.safetensors" if self.rows is None else "kept.csv")
        if self.rows is not None and target.suffix != ".csv":
            raise ValueError(
                f"{self.file} is a table without samples: the kept rows are a .csv file, got {target}."
            )
        if target.suffix != ".npy":
            check_suffix(target)
        refuse_existing(target, overwrite)
        return target

    def find_trusted(self, p_value: float) -> Tensor:
        """Mask of the samples with a larger p-value, (n,) bool; raise if there is none."""
        if self.p_value is None:
            raise ValueError(
                f"{self.file} has no p-values, because its samples were not compared with real data; score "
                "them with `flare score`, or use --keep."
            )
        mask = self.p_value > p_value
        if not mask.any():
            best = float(self.p_value.nan_to_num().max())
            raise ValueError(f"no sample has a p-value above {p_value:g}; the largest is {best:.3g}.")
        return mask

    def save(self, mask: Tensor, target: Path, about: dict[str, Any]) -> None:
        """Write the samples of a mask (n,), or their rows of a table, in their order."""
        chosen = mask.nonzero().flatten().tolist()
        if self.rows is not None:
            write_rows(target, [self.rows[row] for row in chosen])
        elif target.suffix == ".npy":
            save_npy(target, self.result.samples[mask].cpu().numpy())
        else:
            if self.result.about.get("names"):
                about = about | {"names": [self.names[row] for row in chosen]}
            self.result.select(mask).save(target, **about)


def run_filter(
    file: Path,
    target: Path | None,
    *,
    keep: float | None,
    by: str | None,
    p_value: float | None,
    overwrite: bool,
    json: bool,
    quiet: bool,
) -> None:
    """`flare filter`."""
    if (keep is None) == (p_value is None):
        raise ValueError("give --keep SHARE or --p-value P, one of them.")
    if keep is None and by is not None:
        raise ValueError("--by goes with --keep SHARE.")
    scored = Scored.read(file)
    target = scored.choose_target(target, overwrite)
    chosen: Any = by or "region"  # the library checks it
    mask = scored.result.keep(keep or 1.0, chosen) if p_value is None else scored.find_trusted(p_value)
    about = {"filtered_by": "p-value" if keep is None else chosen, "p_value": p_value, "keep": keep}
    facts = {"kept": str(target), "by": about["filtered_by"], "n": int(mask.sum()), "of": len(mask)}
    with claim_new(target):
        scored.save(mask, target, about)
        show_facts(json, quiet, facts, last=str(target))


def run_calibrate(
    file: Path,
    labels: Path,
    target: Path | None,
    *,
    risk: float,
    confidence: float,
    overwrite: bool,
    json: bool,
    quiet: bool,
) -> None:
    """`flare calibrate`; exit with 3 if no threshold has the guarantee."""
    scored = Scored.read(file)
    if target is not None:
        target = scored.choose_target(target, overwrite)
    bad = _read_labels(labels, scored)
    rule = calibrate(scored.result, bad, risk, confidence)
    mask = rule.keep(scored.result)
    facts: dict[str, Any] = {
        "threshold": rule.threshold if math.isfinite(rule.threshold) else None,  # JSON has no infinity
        "kept": float(mask.double().mean()),
        "n": int(mask.sum()),
        "of": len(mask),
        "labeled": len(bad),
        "labeled_bad": sum(bad.values()),
        "guarantee": str(rule),
    }
    if target is None or not mask.any():
        show_facts(json, quiet, facts, last=repr(rule.threshold))
    else:
        with claim_new(target):
            scored.save(mask, target, {"filtered_by": "calibration", "risk": risk, "confidence": confidence})
            show_facts(json, quiet, facts, last=str(target))
    if not rule.guaranteed:
        raise typer.Exit(3)


def run_report(
    file: Path,
    target: Path,
    *,
    keep: float,
    p_value: float,
    data: Path | None,
    title: str | None,
    overwrite: bool,
    json: bool,
    quiet: bool,
) -> None:
    """`flare report`."""
    refuse_existing(target, overwrite)
    scored = Scored.read(file)
    if scored.rows is not None:
        raise ValueError(f"{file} is a table of verdicts without samples: score into a .safetensors file.")
    result = scored.result
    settings = {key: value for key, value in result.about.items() if key != "names"}
    timings = {"seconds": settings.pop("seconds")} if "seconds" in settings else None
    with claim_new(target):
        write(
            target, result, keep=keep, alpha=p_value, title=title or file.stem, settings=settings,
            timings=timings, data=None if data is None else read_array(data),
        )  # fmt: skip
        show_facts(json, quiet, {"report": str(target), "bytes": target.stat().st_size}, last=str(target))


def run_info(what: str, json: bool) -> None:
    """`flare info`."""
    path = Path(what)
    if path.is_file() or (path.suffix in SUFFIXES and not path.is_dir()):
        facts: dict[str, Any] = _describe_file(path)
    elif directory.is_scorer(path):
        stored = directory.read_main(path)
        facts = {"kind": "scorer", "model": stored.source, "shape": list(stored.shape)}
        facts |= {key: value for key, value in stored.about.items() if key != "checked"}
    else:
        facts = _describe_model(what)
    show_facts(json, False, facts)


def _read_labels(path: Path, scored: Scored) -> dict[int, bool]:
    """Whether samples are bad, by their rows."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}.")
    with path.open(encoding="utf-8", newline="") as file:
        try:
            table = list(csv.DictReader(file))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a table: {error}.") from error
    columns = set(table[0]) if table else set()
    if "bad" not in columns or not columns & {"index", "name"}:
        raise ValueError(
            f"{path} must be a csv file with the columns index (or name) and bad (0 or 1), and at least one "
            f"row, got {', '.join(map(str, columns)) or 'no rows'}."
        )
    key = "index" if "index" in columns else "name"
    names = [str(row) for row in range(len(scored.names))] if key == "index" else scored.names
    places = {name: row for row, name in enumerate(names)}
    found: dict[int, bool] = {}
    for line in table:
        name, word = str(line[key] or "").strip(), str(line["bad"] or "").strip().lower()
        if name not in places:
            raise ValueError(f"{path} labels the {key} {name!r}, which {scored.file} does not have.")
        if word not in WORDS:
            raise ValueError(f"{path} must have 0 or 1 as bad, got {line['bad']!r}.")
        if places[name] in found:
            raise ValueError(f"{path} labels the {key} {name!r} twice.")
        found[places[name]] = WORDS[word]
    return found


def _describe_file(path: Path) -> dict[str, Any]:
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path} must be a .safetensors, .npz or .csv file, a scorer directory or a shipped model."
        )
    if is_table(path):
        _, p_value, result = read_verdicts(path)
        return {"kind": "table of verdicts", "n": len(result), "suspicious": int((p_value <= 0.05).sum())}
    result = Result.load(path)
    shape, scores = str(tuple(result.samples.shape[1:])), ", ".join(result.scores)
    facts = {"kind": "samples", "n": len(result), "shape": shape, "scores": scores}
    if result.verdict is not None:
        kind = "held-out" if result.verdict.held_out else "training"
        facts["suspicious"] = int((result.p_value <= 0.05).sum())
        facts["compared_with"] = f"{result.verdict.reference_size:,} {kind} samples"
    if lost := int(result.lost.sum()):
        facts["lost"] = lost
    # the counts of this file come first: `about` still has those from before a filter
    return facts | {k: v for k, v in result.about.items() if k not in (*facts, "lost", "names")}


def _describe_model(what: str) -> dict[str, Any]:
    refuse_old_run(Path(what))
    model = bench.load(what)
    facts = {"kind": "model", "shape": list(model.shape), "parameters": model.denoiser.parameter_count}
    for part, value in model.config.items():
        own = value if isinstance(value, dict) else {"": value}
        facts |= {f"{part}_{key}".rstrip("_"): each for key, each in own.items()}
    return facts

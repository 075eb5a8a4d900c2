"""The commands that read results: filter, calibrate, report and info."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from . import flags
from .app import command, or_none, show_facts
from .flags import MODELS, join


@command("filter")
def filter_(
    file: flags.ScoredFile,
    keep: Annotated[
        float | None,
        Option(
            callback=flags.check_keep, help="Keep this share of every region, the most plausible samples."
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(help="With --keep: region by default; rank ranks all samples together and drops rare kinds."),
    ] = None,
    p_value: Annotated[
        float | None,
        Option(
            callback=flags.check_p_value,
            help="Or keep all samples with a p-value above this: 0.05 keeps about 95% of real data.",
        ),
    ] = None,
    out: flags.KeptFile = None,
    overwrite: flags.Overwrite = False,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Keep the most plausible samples; writes kept.safetensors, or kept.csv for a table.

    Example: `flare filter samples.safetensors --keep 0.5 --out kept.npz`

    Everything that looks like real data: `flare filter samples.safetensors --p-value 0.05`
    """
    from . import scored, writing

    if (keep is None) == (p_value is None):
        raise ValueError("give either --keep SHARE or --p-value P.")
    if keep is None and by is not None:
        raise ValueError("--by goes with --keep SHARE.")
    read = scored.Scored.read(file)
    target = read.choose_target(out, overwrite)
    chosen: Any = by or "region"  # the library checks it
    mask = read.result.keep(keep or 1.0, chosen) if p_value is None else read.find_trusted(p_value)
    about = {"filtered_by": "p-value" if keep is None else chosen, "p_value": p_value, "keep": keep}
    facts = {"kept": str(target), "by": about["filtered_by"], "n": int(mask.sum()), "of": len(mask)}
    if p_value is not None and read.result.verdict is not None:
        limit = read.result.verdict.describe_limit(read.result.about.get("repeatability"), p_value)
        facts |= {"note": limit} if limit else {}
    with writing.claim_new(target):
        read.save(mask, target, about)
        show_facts(json, quiet, facts, last=str(target), then=("flare", "calibrate", file))


@command("calibrate")
def calibrate_(
    file: flags.ScoredFile,
    labels: Annotated[
        Path | None,
        Argument(
            metavar="LABELS",
            help="A csv file with the columns index or name, and label (good or bad), one row per label. "
            "Without it, labels.csv is written with the samples to label.",
        ),
    ] = None,
    risk: Annotated[float, Option(help="Largest accepted share of bad samples among the kept.")] = 0.05,
    confidence: Annotated[float, Option(help="Probability that the guarantee holds.")] = 0.9,
    design: Annotated[
        str,
        Option(
            help="proposed: the samples of labels.csv are labeled; random: a random selection of all samples."
        ),
    ] = "proposed",
    out: flags.KeptFile = None,
    overwrite: flags.Overwrite = False,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Find a threshold with a guarantee from about 60 labels, and write the kept samples.

    Without LABELS, write labels.csv: the samples to label. Exit with 3 if no threshold has the guarantee.

    Example: `flare calibrate samples.safetensors` writes labels.csv

    With the labels filled in: `flare calibrate samples.safetensors labels.csv --out kept.npz`
    """
    from .. import calibrate
    from ..core.progress import warn
    from ..results.calibration import design_labels
    from . import scored, writing

    read = scored.Scored.read(file)
    if labels is None:
        if out is not None:
            raise ValueError("--out names the file of the kept samples: it goes with LABELS.")
        plan = design_labels(read.result.ranking, risk, confidence)
        rows, half, needed = plan.order.tolist(), len(plan.members[0]), plan.needed[0]
        if half < needed:
            few = f"the best half has {half} samples, and a guarantee needs {needed} without a bad one"
            warn(f"{few}: draw more samples, or accept a larger --risk.", UserWarning)
        scored.write_template(Path("labels.csv"), read.names, rows)
        goal = f"--risk {risk:g} --confidence {confidence:g}"
        again = f"flare calibrate {shlex.quote(str(file))} labels.csv {goal}"
        to_do = f"write good or bad into the column label of every row, then run {again}"
        show_facts(json, quiet, {"labels": "labels.csv", "n": len(rows), "to_do": to_do}, last="labels.csv")
        return
    target = read.choose_target(out, overwrite)
    bad = scored.read_labels(labels, read.names, file)
    chosen: Any = design  # the library checks it
    rule = calibrate(read.result, bad, risk, confidence, chosen)
    mask = rule.keep(read.result)
    facts: dict[str, Any] = {
        "threshold": or_none(rule.threshold),
        "share": float(mask.double().mean()),
        "kept": int(mask.sum()),
        "of": len(mask),
        "labeled": len(bad),
        "labeled_bad": sum(bad.values()),
        "bound": rule.bound,
        "guarantee": str(rule),
    }
    if not rule.guaranteed:
        show_facts(json, quiet, facts, last="")
        raise Exit(3)
    with writing.claim_new(target):
        read.save(mask, target, {"filtered_by": "calibration", "risk": risk, "confidence": confidence})
        show_facts(json, quiet, facts, last=str(target), then=("flare", "info", target))


@command()
def report(
    file: flags.ScoredFile,
    out: Annotated[Path, Option("--out", help="The HTML file to write.")] = Path("report.html"),
    keep: flags.Keep = 0.5,
    p_value: flags.PValue = 0.05,
    data: Annotated[
        Path | None, Option(help="Training data, to show the training sample nearest to each sample.")
    ] = None,
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    overwrite: flags.Overwrite = False,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Write one self-contained HTML page to look at samples, label them and filter them.

    Example: `flare report samples.safetensors --out report.html`
    """
    from ..report import write
    from . import samples_in, scored, writing

    writing.refuse_existing(out, overwrite)
    read = scored.Scored.read(file)
    if read.rows is not None:
        raise ValueError(
            f"{file} is a table, and a report needs a .safetensors file: run `flare sample` or `flare score` "
            "again with --out NAME.safetensors."
        )
    with writing.claim_new(out):
        write(
            out, read.result, keep=keep, alpha=p_value, title=title or file.stem,
            data=None if data is None else samples_in.read_array(data),
        )  # fmt: skip
        facts = {"report": str(out), "bytes": out.stat().st_size}
        show_facts(json, quiet, facts, last=str(out), then=("flare", "filter", file, "--keep", keep))


@command()
def info(
    path: Annotated[str, Argument(help=f"A scorer, a file of samples, or a shipped model: {join(MODELS)}.")],
    json: flags.Json = False,
) -> None:
    """Show what a scorer, a file of samples or a shipped model holds.

    Example: `flare info scorer`
    """
    from . import models_in, scored

    file = Path(path)
    is_file = file.is_file() or (file.suffix and not file.is_dir())
    show_facts(json, False, scored.describe_file(file) if is_file else models_in.describe(path))

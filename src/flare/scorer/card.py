"""A scorer in words: how it prints, and the card of a shared one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..core.version import __version__
from ..diffusion.schedules import Summary
from .choosing import SCORE_PASSES

if TYPE_CHECKING:
    from .scorer import Scorer

_HEADER = "---\nlibrary_name: flare\ntags:\n- flare\n- diffusion\n- uncertainty-estimation\n---\n"


def summarize(scorer: Scorer) -> str:
    """What a scorer prints: what it judges by, what it was fitted on, and what it costs."""
    about, posterior, real = scorer.about, scorer.posterior, scorer.reference
    if scorer.training is None:
        judges = "influence alone: it was saved without training data"
    else:
        judges = f"influence, and neighbors among {len(scorer.training):,} training samples"
    kind = "held-out samples"
    if not real.held_out:
        kind = "training samples (the network may have seen them; held_out= is better)"
    lines = [
        f"Scorer of {scorer.denoiser.name}, {about['network_parameters']:,} parameters, samples of shape "
        f"{scorer.shape}",
        f"  judges by {judges}",
        f"  compared with {len(real):,} {kind}",
        f"  posterior: {posterior.structure} over {posterior.size:,} parameters ({about['subset']}), "
        f"prior precision {posterior.prior_precision:.3g}, scale {posterior.scale:.3g}",
        f"  cost: {about['passes']:,} forward and backward passes to fit; {SCORE_PASSES} per sample to "
        "score, besides drawing it",
    ]
    lines += [f"  note: {remark}" for remark in about["remarks"]]
    lines += [f"  PROBLEM: {_shorten(problem)}" for problem in about["problems"]]
    return "\n".join(lines)


def _shorten(text: str) -> str:
    """The first sentence of a problem, and its cause if that is known."""
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", text)
    return " ".join([first, *(each for each in others if " seems to " in each)])


def write_card(scorer: Scorer, repository: str, data: bool) -> str:
    """The card of a shared scorer, as Markdown with the header that the Hub reads.

    Args:
        scorer: the scorer.
        repository: owner/name.
        data: whether its training samples are shared, too.
    """
    rows = "\n".join(f"| {name} | {fact} |" for name, fact in _facts(scorer, data).items())
    about = scorer.about
    notes = [f"- **Problem:** {problem}" for problem in about["problems"]]
    notes += [f"- {remark}" for remark in about["remarks"]]
    known = "\n## Known limits\n\n" + "\n".join(notes) + "\n" if notes else ""
    return f"""{_HEADER}
# {repository}

A scorer of FLARE: it says which samples of a diffusion model can be trusted. It belongs to the weights
that it was fitted to, which are not in this repository, and refuses all others.

```python
import flare

scorer = flare.load("hf://{repository}", net)  # net: the network, or its diffusers pipeline
result = scorer.score(samples)  # or scorer.sample(1000)
good = result.samples[result.keep(0.5)]
```

## What it was fitted on

| | |
|---|---|
{rows}
{known}
## What is inside

{_contents(scorer, data)} All files are safetensors and JSON; nothing is unpickled.
"""


def _facts(scorer: Scorer, data: bool) -> dict[str, str]:
    """What the card says in its table."""
    about, posterior, real = scorer.about, scorer.posterior, scorer.reference
    statistics = posterior.origin.statistics
    low, high = about["range"]
    kept = _count_kept(scorer, data)
    judged = "influence, and neighbors in the training data" if data else "influence alone"
    return {
        "network": f"{scorer.denoiser.name}, {about['network_parameters']:,} parameters, predicts "
        f"{scorer.denoiser.prediction}",
        "its weights": f"`{posterior.origin.fingerprint['weights'][:16]}` (start of a SHA-256)",
        "samples": f"shape {scorer.shape}, training data in [{low:.3g}, {high:.3g}]",
        "conditions": ", ".join(about["conditions"]) or "none",
        "noise schedule": str(Summary.of(scorer.schedule)),
        "training data": f"{statistics.data_size:,} samples, {statistics.pairs:,} training pairs",
        "posterior": f"{posterior.structure} over {posterior.size:,} uncertain parameters "
        f"({about['subset']} {posterior.subset.kind})",
        "scale s, prior precision δ": f"{posterior.scale:.4g}, {posterior.prior_precision:.4g}",
        "judges by": judged,
        "compares with": f"{len(real):,} {'held-out' if real.held_out else 'training'} samples",
        "training samples inside": f"{kept:,}" if kept else "none",
        "written by": f"flare {__version__}",
    }


def _contents(scorer: Scorer, data: bool) -> str:
    if kept := _count_kept(scorer, data):
        return (
            f"**This repository holds {kept:,} training samples**, with which new samples are "
            "compared, the curvature of the training loss, and the scores of real samples."
        )
    return (
        "**This repository holds no training sample.** It holds the curvature of the training loss (sums "
        "over training samples) and the scores of real samples. Both are computed from the data, without a "
        "formal guarantee of privacy."
    )


def _count_kept(scorer: Scorer, data: bool) -> int:
    """How many training samples are shared."""
    return 0 if scorer.data is None or not data else len(scorer.data)

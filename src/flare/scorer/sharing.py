"""A scorer on the Hugging Face Hub: its files, and a card that describes its fit."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..core import __version__
from ..diffusion.schedules import Summary
from ..integrations import hub
from ..scores.neighbors import NEIGHBORS
from ..storage import checkpoint
from .directory import NAMES, save
from .scorer import Scorer

CARD = "README.md"
_HEADER = "---\nlibrary_name: flare\ntags:\n- flare\n- diffusion\n- uncertainty-estimation\n---\n"


def push(
    scorer: Scorer,
    repository: str,
    *,
    data: bool,
    private: bool | None,
    token: str | bool | None,
    revision: str | None,
) -> str:
    """Write a scorer and its card into a repository; see `Scorer.push_to_hub`."""
    data = data and NEIGHBORS in scorer.training.spaces
    if data and private is None:
        raise ValueError(
            "data=True uploads training samples: set visibility with private=True or private=False."
        )
    if not scorer.posterior.tensors():
        raise ValueError(
            f"a {scorer.posterior.structure} posterior needs its training pairs again wherever it is loaded, "
            "so it cannot be shared; fit with structure='dense' or 'low_rank'."
        )
    with tempfile.TemporaryDirectory(prefix="flare-") as folder:
        place = Path(folder) / "scorer"
        save(scorer, place, data, source=None)
        with checkpoint.atomic(place / CARD) as partial:
            partial.write_text(write_card(scorer, repository, data), encoding="utf-8")
        return hub.upload(place, repository, NAMES, private=private, token=token, revision=revision)


def write_card(scorer: Scorer, repository: str, data: bool) -> str:
    """The card of a shared scorer, as Markdown with the header that the Hub reads.

    Args:
        scorer: The scorer.
        repository: owner/name.
        data: Whether its training samples are also shared.
    """
    rows = "\n".join(f"| {name} | {fact} |" for name, fact in _facts(scorer, data).items())
    about = scorer.about
    notes = [f"- **Problem:** {problem}" for problem in about["problems"]]
    notes += [f"- {remark}" for remark in about["remarks"]]
    known = "\n## Known limits\n\n" + "\n".join(notes) + "\n" if notes else ""
    return f"""{_HEADER}
# {repository}

This FLARE scorer tells you which samples of a diffusion model to trust. It works only with the weights
that it was fitted to, which are not in this repository.

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
    """The rows of the table on the card."""
    about, posterior, real = scorer.about, scorer.posterior, scorer.reference
    statistics = posterior.origin.statistics
    low, high = about["range"]
    kept = _count_kept(scorer, data)
    names = [name for name in real.scores if data or name != NEIGHBORS]
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
        "witnesses": ", ".join(names),
        "compares with": f"{len(real):,} {'held-out' if real.held_out else 'training'} samples",
        "training samples inside": f"{kept:,}" if kept else "none",
        "written by": f"flare {__version__}",
    }


def _contents(scorer: Scorer, data: bool) -> str:
    if kept := _count_kept(scorer, data):
        return (
            f"**This repository holds {kept:,} training samples**, which FLARE compares with new samples. It "
            "also holds the curvature of the training loss and the scores of real samples."
        )
    return (
        "**This repository holds no training sample.** It holds the curvature of the training loss (sums "
        "over training samples), activations and gradients of training samples in random order, projected to "
        "few numbers, and the scores of real samples. All are computed from the data, without a formal "
        "privacy guarantee: anyone who has the network can test whether a sample was in the training data."
    )


def _count_kept(scorer: Scorer, data: bool) -> int:
    """How many training samples are shared."""
    return len(scorer.training.rows) if data else 0

"""A scorer on the Hugging Face Hub: its files, and a card that says what it was fitted on."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..integrations import hub
from ..storage import checkpoint
from .card import write_card
from .directory import NAMES, save
from .scorer import Scorer

CARD = "README.md"


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
    data = data and scorer.data is not None
    if data and private is None:
        raise ValueError(
            "data=True uploads training samples: set visibility with private=True or private=False."
        )
    if not scorer.posterior.curvature.tensors():
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

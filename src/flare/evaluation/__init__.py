"""What the truth says of samples, where it is known."""

from __future__ import annotations

from . import metrics, oracles

__all__ = ["metrics", "oracles"]

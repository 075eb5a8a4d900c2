"""What the truth says of samples, where it is known."""

from __future__ import annotations

from . import oracles

__all__ = ["oracles"]

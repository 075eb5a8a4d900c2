"""What the truth says of samples, where it is known, and a judge where it is not."""

from __future__ import annotations

from . import discriminator, filters, metrics, oracles

__all__ = ["discriminator", "filters", "metrics", "oracles"]

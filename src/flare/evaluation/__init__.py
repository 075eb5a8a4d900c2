"""Evaluation of scores and filters: against the known truth of the benchmarks, or by a discriminator."""

from __future__ import annotations

from . import discriminator, filters, metrics, oracles

__all__ = ["discriminator", "filters", "metrics", "oracles"]

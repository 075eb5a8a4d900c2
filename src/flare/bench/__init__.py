"""Data sets with a known truth, shipped models, judges, metrics and published baselines.

No other part of the library imports this room.
"""

from __future__ import annotations

from ..network.scorenet import ConvNet, ScoreNet
from . import baselines, datasets, discriminator, metrics, oracles, shapes
from .shipped import NAMES, Benchmark, build, configure, load, save, train_config

__all__ = [
    "NAMES",
    "Benchmark",
    "ConvNet",
    "ScoreNet",
    "baselines",
    "build",
    "configure",
    "datasets",
    "discriminator",
    "load",
    "metrics",
    "oracles",
    "save",
    "shapes",
    "train_config",
]

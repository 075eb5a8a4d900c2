"""Data sets with a known truth, shipped models, judges, metrics and published baselines.

No other part of the library imports this room.
"""

from __future__ import annotations

from ..network.scorenet import ConvNet, ScoreNet
from . import baselines, datasets, discriminator, metrics, oracles, shapes
from .contest import run
from .shipped import NAMES, Benchmark, build, configure, load, save, train_config
from .tasks import Conditions, Task, make_task

__all__ = [
    "NAMES",
    "Benchmark",
    "Conditions",
    "ConvNet",
    "ScoreNet",
    "Task",
    "baselines",
    "build",
    "configure",
    "datasets",
    "discriminator",
    "load",
    "make_task",
    "metrics",
    "oracles",
    "run",
    "save",
    "shapes",
    "train_config",
]

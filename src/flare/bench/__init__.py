"""Data sets with a known truth, shipped models, judges, metrics and published baselines.

No other part of the library imports this room.
"""

from __future__ import annotations

from ..network.scorenet import ConvNet, ScoreNet
from . import baselines, datasets, metrics, oracles, shapes
from .contest import read_results, run
from .entries import ENTRIES, fit_scorer, make_entry
from .shipped import NAMES, Benchmark, build, configure, load, save, train_config
from .tasks import Conditions, Task, build_model, find_tasks, make_task, round_samples, start_noise

__all__ = [
    "ENTRIES",
    "NAMES",
    "Benchmark",
    "Conditions",
    "ConvNet",
    "ScoreNet",
    "Task",
    "baselines",
    "build",
    "build_model",
    "configure",
    "datasets",
    "find_tasks",
    "fit_scorer",
    "load",
    "make_entry",
    "make_task",
    "metrics",
    "oracles",
    "read_results",
    "round_samples",
    "run",
    "save",
    "shapes",
    "start_noise",
    "train_config",
]

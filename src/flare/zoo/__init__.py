"""The benchmark models: four data sets, the network of the paper, and one trained checkpoint per data set."""

from __future__ import annotations

from . import datasets
from .models import NAMES, Model, build, configure, load, save, train_config
from .scorenet import ScoreNet

__all__ = [
    "NAMES",
    "Model",
    "ScoreNet",
    "build",
    "configure",
    "datasets",
    "load",
    "save",
    "train_config",
]

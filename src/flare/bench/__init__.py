"""The shipped models: the four data sets of the paper and one of real images, each with a checkpoint."""

from __future__ import annotations

from ..network.scorenet import ScoreNet
from . import datasets
from .convnet import ConvNet
from .shipped import NAMES, Model, build, configure, load, save, train_config

__all__ = [
    "NAMES",
    "ConvNet",
    "Model",
    "ScoreNet",
    "build",
    "configure",
    "datasets",
    "load",
    "save",
    "train_config",
]

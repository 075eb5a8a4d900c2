"""The command line: parse, call, draw bars, write files. Commands import torch when they start to work."""

from __future__ import annotations

from . import baseline, check, demo, evaluate, filter, fit, info, report, sample, score, train
from .app import app, main

__all__ = [
    "app", "baseline", "check", "demo", "evaluate", "filter", "fit", "info", "main", "report", "sample",
    "score", "train",
]  # fmt: skip

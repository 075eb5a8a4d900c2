"""The command line: parse, call, draw bars, write files. Commands import torch when they start to work."""

from __future__ import annotations

from . import check, demo, filter, fit, info, report, sample, score
from .app import app, main

__all__ = [
    "app", "check", "demo", "filter", "fit", "info", "main", "report", "sample", "score",
]  # fmt: skip

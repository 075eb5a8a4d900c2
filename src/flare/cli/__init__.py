"""The command line: parse, call, draw bars, write files. torch is imported when work starts."""

from __future__ import annotations

from . import demo, info, sample, train
from .app import app, main

__all__ = ["app", "demo", "info", "main", "sample", "train"]

"""The command line: parse, call, save. Help imports no torch; a command does when it starts to work."""

from __future__ import annotations

from . import result_commands as result_commands
from . import scorer_commands as scorer_commands
from .app import app, main
from .bench import bench_app

app.add_typer(bench_app, name="bench", short_help="Train benchmarks, run baselines, evaluate.")

__all__ = ["app", "main"]

"""`flare bench`: a placeholder until the branch `bench` is merged."""

from __future__ import annotations

import typer

bench_app = typer.Typer(help="Train, sample and judge the models of the benchmarks.", no_args_is_help=True)


@bench_app.callback()
def _bench() -> None:
    pass

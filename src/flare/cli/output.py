"""What commands print: answers on standard output, remarks on standard error."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def console(stderr: bool) -> Console:
    """A console for standard error (remarks) or standard output (answers); rich is imported on first use."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def remark(label: str, text: str) -> None:
    """Print a remark on standard error; only the label may contain markup."""
    from rich.markup import escape

    console(stderr=True).print(f"{label} {escape(text)}".strip())


def answer(text: str) -> None:
    """Print the answer of a command on standard output, for a person or the next command."""
    typer.echo(text)


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_show, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def show_facts(json: bool, quiet: bool, facts: Mapping[str, Any], last: str | None = None) -> None:
    """Print facts as JSON, or as a table of remarks followed by `last`, usually the path that was written.

    Without `last`, the table itself is the answer and goes to standard output. Only the main process prints.
    """
    from ..core.distributed import is_main

    if not is_main():
        return
    if json:
        answer(jsonlib.dumps(facts, indent=2))
        return
    if not quiet:
        from rich.table import Table

        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for key, value in facts.items():
            table.add_row(key.replace("_", " "), _show(value))
        console(stderr=last is not None).print(table)
    if last:
        answer(last)

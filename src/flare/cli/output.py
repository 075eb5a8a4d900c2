"""What commands print: answers on standard output, remarks on standard error."""

from __future__ import annotations

import json as jsonlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: control characters, and how Python reads bytes of a file name that are not UTF-8
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def console(stderr: bool) -> Console:
    """A console for standard error (remarks) or standard output (answers)."""
    return Console(stderr=stderr, highlight=False, emoji=False)  # module:make: is no emoji


def escape_controls(text: str) -> str:
    r"""Show control characters and bytes that are not UTF-8 as escapes, such as \x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


def plain(text: str) -> str:
    """Text without markup, and without control characters except line breaks."""
    return escape("\n".join(map(escape_controls, text.split("\n"))))


def remark(label: str, text: str) -> None:
    """Print a remark on standard error; only the label may contain markup."""
    console(stderr=True).print(f"{label} {plain(text)}".strip())


def answer(text: str) -> None:
    """Print the answer of a command on standard output, for a person or the next command."""
    typer.echo(text)


def show_facts(
    json: bool, quiet: bool, facts: Mapping[str, Any], last: str | None = None, then: Sequence[object] = ()
) -> None:
    """Print facts as JSON, or as a table of remarks followed by `last`, usually the path that was written.

    `then` has the words of the command to run next, which is a remark at the end.

    Without `last`, the table itself is the answer and goes to standard output. Only the main process prints.
    """
    from ..core.distributed import is_main

    if not is_main():
        return
    if json:
        answer(jsonlib.dumps(facts, indent=2))
        return
    if not quiet:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for key, value in facts.items():
            table.add_row(plain(key.replace("_", " ")), plain(_show(value)))
        console(stderr=last is not None).print(table)
    if last:
        answer(last)
    if then and not quiet:
        remark("next:", shlex.join(map(str, then)))


def or_none(value: float) -> float | None:
    """A number, or None if it is not finite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_show, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)

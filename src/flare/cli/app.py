"""The application: its commands, its entry point, and what it prints: answers, remarks and errors."""

from __future__ import annotations

import json as jsonlib
import math
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import __version__
from .launch import LOST, is_one_of_several, launch

TOGETHER = ("fit", "sample", "score")  # the commands that several processes can share
MOVED = ("train", "baseline", "evaluate")  # commands of 0.4 that belong to `flare bench`

ORDER = ("demo", "fit", "sample", "report", "filter", "calibrate", "score", "check", "info", "bench")
EXAMPLE = """\b
Example:
  flare fit shapes --out scorer                   # a shipped model, or package.module:function
  flare sample scorer --out samples.safetensors   # samples with p-values and reasons
  flare report samples.safetensors                # one page: look, label, filter"""

#: headings in the help of commands with many options, in order; Options has those of no other group
GROUPS = {
    "Data": ("data", "held_out", "cond", "held_out_cond", "null_cond"),
    "Sampling": ("n", "steps", "sampler", "batch_size"),
    "Network": ("model", "schedule", "prediction", "weighting", "check", "device"),
    "Posterior": ("subset", "structure", "pairs", "prior_precision", "scale", "rank"),
    "Variance": ("directions", "rule", "score"),
    "Options": (),
    "Output": ("out", "no_data", "overwrite", "json", "quiet", "help"),
}
GROUPED = ("fit", "sample")
#: facts for files and --json, which the table of a command leaves out
DETAILS = ("repeatability", "score_seed", "copy_distance", "flare", "columns")

#: control characters, and how Python reads bytes of a file name that are not UTF-8
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# What a user can fix; anything else is a bug and keeps its traceback.
EXPECTED = (ValueError, TypeError, OSError, FloatingPointError, NotImplementedError, RuntimeError)


class Commands(typer.core.TyperGroup):
    """The group of all commands; it reports Ctrl-C, which typer would ignore silently."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of use."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands, then the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            remark("", f"stopped. {error}".strip())
            raise typer.Exit(130) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command. Commands of 0.4 that have moved raise an error with their new name."""
        if ctx.parent is None and args[0] in MOVED:
            raise ValueError(f"flare {args[0]} is now flare bench {args[0]}.")
        return super().resolve_command(ctx, args)


class Command(typer.core.TyperCommand):
    """A command that knows whether several processes can share it."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        if is_one_of_several() and self.name not in TOGETHER:
            raise ValueError(
                f"{ctx.command_path} runs in one process, but it was started in {os.environ['WORLD_SIZE']}. "
                f"Start it alone; several processes can share: {', '.join(TOGETHER)}."
            )
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, then the options, in groups if there are many."""
        _write_parameters(self, ctx, formatter)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole first sentence: typer would cut it."""
        return super().get_short_help_str(limit=1000)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    found: dict[str, list[Any]] = {heading: [] for heading in ("Arguments", *GROUPS)}
    for each in command.get_params(ctx):
        known = [heading for heading, names in GROUPS.items() if each.name in names]
        own = known[0] if known and command.name in GROUPED else "Options"
        if record := each.get_help_record(ctx):
            found["Arguments" if each.param_type_name == "argument" else own].append(record)
    for heading, records in found.items():
        if records:
            with formatter.section(typer.style(heading, bold=True)):
                formatter.write_dl([(typer.style(name, fg="cyan"), text) for name, text in records])


app = typer.Typer(
    name="flare",
    cls=Commands,
    help=f"Which samples of a diffusion model can you trust?\n\n{EXAMPLE}",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts at once
    pretty_exceptions_enable=False,
)
command = partial(app.command, cls=Command)


def main() -> None:
    """Run the application; exit with 2 on bad input, 75 if another process is lost, 130 on Ctrl-C."""
    warnings.showwarning = lambda message, *_, **__: tell("[yellow]warning:[/yellow]", message)
    try:
        app()
    except EXPECTED as error:
        tell("[red]error:[/red]", error)
        sys.exit(LOST if isinstance(error, ConnectionError) else 2)
    finally:
        if is_one_of_several():
            from ..core.distributed import stop

            stop()


def start(device: str | None = None, processes: int = 1) -> None:
    """Start the requested processes, or join those that were started; check the device."""
    if processes > 1 and not is_one_of_several():
        raise typer.Exit(launch(processes, sys.argv[1:]))
    from ..core import distributed, validation

    if is_one_of_several():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which `launch` holds back until here
    distributed.start()
    if device is not None:
        validation.require_device("--device", device)


def tell(label: str, message: object) -> None:
    """Print an error or a warning of the library in the words of the command line."""
    remark(label, translate(str(message)))


def translate(message: str) -> str:
    """A message of the library in the words of the command line."""
    return use_flags(message, list_flags())


def list_flags() -> list[str]:
    """All flags of all commands, the long form if there is one."""

    def collect(command: Any) -> list[str]:
        own = [max(each.opts, key=len) for each in command.params if each.param_type_name == "option"]
        return own + [flag for each in getattr(command, "commands", {}).values() for flag in collect(each)]

    return sorted(set(collect(typer.main.get_command(app))))


def use_flags(message: str, flags: list[str]) -> str:
    """Rewrite the keyword arguments in a message as flags; paths and other words are not changed.

    >>> use_flags("decoupled needs a one-step sampler. Use rule='tangent'.", ["--rule"])
    'decoupled needs a one-step sampler. Use --rule tangent.'

    Args:
        message: Error or warning of the library, such as "prior_precision must be a positive number".
        flags: All flags, such as "--prior-precision".
    """
    names = {flag.lstrip("-").replace("-", "_"): flag for flag in flags}
    name = f"(?P<name>{'|'.join(sorted(names, key=len, reverse=True))})"
    for pattern in (
        rf"(?<![\w./'\"=,-]){name}=(?:'(?P<value>\w+)'|(?=[\s.,;)]|\Z))",  # rule='tangent', held_out=
        rf"(?:(?<=[Gg]ive )|(?<=with )){name}=(?P<value>[\d.e+-]*\d)(?![\w/]|\.\w)",  # give directions=2
        rf"\A{name}(?= must (?:be|have|lie in) )(?P<value>)",
    ):
        message = re.sub(
            pattern, lambda found: f"{names[found['name']]} {found['value'] or ''}".rstrip(), message
        )
    return re.sub(r"(--[\w-]+ \w+ or )'(\w+)'", r"\1\2", message)  # --rule tangent or 'monte_carlo'


def _show_version(asked: bool) -> None:
    if asked:
        answer(f"flare {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


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
            if value not in ({}, None) and (last is None or key not in DETAILS):
                table.add_row(f"[dim]{plain(key.replace('_', ' '))}[/dim]", plain(_show(value)))
        console(stderr=last is not None).print(table)
    if last:
        answer(last)
    if then and not quiet:
        remark("next:", shlex.join(map(str, then)))


def or_none(value: float) -> float | None:
    """A number, or None if it is not finite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def _show(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{key} {_show(each)}" for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_show, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)

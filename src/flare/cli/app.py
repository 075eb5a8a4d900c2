"""The application: its commands, its entry point, and what an error looks like."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from typing import Annotated, Any

import typer
import typer.core

from .bench import bench_app
from .choices import drop_choices, fill_choices
from .output import answer, remark
from .wording import name_flags, use_flags


class _Commands(typer.core.TyperGroup):
    """The group of commands; it reports Ctrl-C, which typer would pass over in silence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            remark("", f"stopped. {error}".strip())
            raise typer.Exit(130) from None


class _Command(typer.core.TyperCommand):
    """A command whose help lists the choices of the registries."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            if isinstance(parameter, (typer.core.TyperOption, typer.core.TyperArgument)):
                parameter.help = fill_choices(parameter.help or "")
        super().format_help(ctx, formatter)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The whole first sentence: typer would cut it."""
        return super().get_short_help_str(limit=1000)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        items = super().shell_complete(ctx, incomplete)
        for item in items:  # filling in the choices would take seconds
            item.help = drop_choices(item.help or "")
        return items


app = typer.Typer(
    name="flare",
    cls=_Commands,
    help="Which samples of a diffusion model can you trust?",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts at once
    pretty_exceptions_enable=False,
)
command = partial(app.command, cls=_Command)
app.add_typer(bench_app, name="bench")

TOGETHER = ("fit", "sample", "score", "bench")  # the commands that several processes can share

# What a user can fix; anything else is a bug and keeps its traceback.
EXPECTED = (ValueError, TypeError, OSError, FloatingPointError, NotImplementedError, RuntimeError)


def main() -> None:
    """Run the application; exit with 2 on bad input, with 130 on Ctrl-C."""
    warnings.showwarning = lambda message, *_, **__: tell("[yellow]warning:[/yellow]", message)
    try:
        app()
    except EXPECTED as error:
        tell("[red]error:[/red]", error)
        sys.exit(2)
    finally:
        if _is_one_of_several():
            from ..core.distributed import stop

            stop()


def start(threads: int) -> None:
    """Set the number of torch threads, unless 0, and join the processes started with this one."""
    import torch

    from ..core import distributed

    if threads:
        torch.set_num_threads(threads)
    distributed.start()


def tell(label: str, message: object) -> None:
    """Print an error or a warning of the library in the words of the command line."""
    remark(label, use_flags(str(message), name_flags(list_flags())))


def list_flags() -> list[str]:
    """All flags of all commands, the long form if there is one."""
    group: Any = typer.main.get_command(app)
    commands = [*group.commands.values(), *group.commands["bench"].commands.values()]
    options = [p for each in commands for p in each.params if p.param_type_name == "option"]
    return sorted({max(option.opts, key=len) for option in options})


def _is_one_of_several() -> bool:
    """Whether torchrun or accelerate started this process together with others."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _show_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        answer(f"flare {__version__}")
        raise typer.Exit


@app.callback()
def _check_processes(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if _is_one_of_several() and context.invoked_subcommand not in TOGETHER:
        raise ValueError(
            f"flare {context.invoked_subcommand} runs in one process, but it was started in "
            f"{os.environ['WORLD_SIZE']}. Start it alone; several processes can share: {', '.join(TOGETHER)}."
        )

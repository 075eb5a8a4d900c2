"""Help lists what is registered, shows an example, and starts without torch."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flare import bench
from flare.cli import app, flags
from flare.cli.app import ORDER
from flare.diffusion.noising import WEIGHTINGS
from flare.diffusion.parameterizations import PREDICTIONS
from flare.diffusion.samplers import SAMPLERS
from flare.diffusion.schedules import SCHEDULES, TIMES
from flare.posteriors import STRUCTURES
from flare.propagation import RULES
from flare.scores import SCORES

COMMANDS = ["fit", "sample", "score", "filter", "calibrate", "report", "check", "info", "demo"]
LISTED = {
    "fit": ["MODELS", "PREDICTIONS", "SCHEDULES", "STRUCTURES", "TIMES", "WEIGHTINGS", "READABLE"],
    "sample": ["RULES", "SAMPLERS", "SCORES"],
    "score": ["READABLE"],
    "info": ["MODELS"],
}


def show_help(command: str) -> str:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    return " ".join(done.stdout.split())


def test_the_names_in_help_are_those_of_the_registries():
    assert tuple(bench.NAMES) == flags.MODELS
    assert tuple(PREDICTIONS) == flags.PREDICTIONS
    assert tuple(RULES) == flags.RULES
    assert tuple(SAMPLERS) == flags.SAMPLERS
    assert tuple(SCORES) == flags.SCORES
    assert tuple(STRUCTURES) == flags.STRUCTURES
    assert tuple(TIMES) == flags.TIMES
    assert tuple(WEIGHTINGS) == flags.WEIGHTINGS
    # the others are made from tables of numbers, which no flag takes
    by_name = [name for name, maker in SCHEDULES.items() if "T" in inspect.signature(maker).parameters]
    assert tuple(by_name) == flags.SCHEDULES


@pytest.mark.parametrize("command", LISTED)
def test_help_lists_the_names(command):
    text = show_help(command)
    for kind in LISTED[command]:
        assert flags.join(getattr(flags, kind)) in text, kind


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command):
    assert f"Example: `flare {command} " in show_help(command)


def test_help_does_not_import_torch_or_numpy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from flare.cli import app\n"
        f"for command in {COMMANDS} + ['bench']:\n"
        "    assert CliRunner().invoke(app, [command, '--help']).exit_code == 0, command\n"
        "print(CliRunner().invoke(app, ['--help']).stdout)\n"
        "assert not {'torch', 'numpy', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "Which samples of a diffusion model can you trust?" in done.stdout
    assert all(f"  {command} " in done.stdout for command in [*COMMANDS, "bench"])


@pytest.mark.parametrize("command", ["train", "baseline", "evaluate"])
def test_commands_that_have_moved_are_named(command):
    done = CliRunner().invoke(app, [command, "sines", "--out", "x"])
    assert str(done.exception) == f"flare {command} is now flare bench {command}."


def test_without_arguments_there_is_an_example_whose_commands_exist():
    done = CliRunner().invoke(app, [])
    lines = [line.split("#")[0].split() for line in done.output.splitlines() if line.startswith("    flare ")]
    assert [words[1] for words in lines] == ["fit", "sample", "report"]
    listed = [line.split()[0] for line in done.output.splitlines() if line.strip() and line[:3] != "   "]
    assert [name for name in listed if name in COMMANDS] == [name for name in ORDER if name != "bench"]


@pytest.mark.parametrize("command", [[], ["fit"], ["bench"], ["bench", "train"]])
def test_help_has_a_short_flag(command):
    long, short = (CliRunner().invoke(app, [*command, flag]).output for flag in ("--help", "-h"))
    assert long == short
    assert "-h, --help" in short

"""Help texts list what is registered, and `flare --help` starts at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flare.cli import app
from flare.cli.choices import list_choices
from flare.core.registry import Maker
from flare.diffusion.samplers import SAMPLERS, ddpm
from flare.scores import SCORES, Score

LISTED = {
    "baseline": ["baselines", "densities", "models", "rules", "samplers", "variants"],
    "check": ["models", "samplers", "scores"],
    "evaluate": ["benchmarks", "judges"],
    "fit": ["models", "predictions", "schedules", "structures", "times", "truncations", "weightings"],
    "info": ["models"],
    "sample": ["coefficients", "derivatives", "models", "rules", "samplers", "scores"],
    "score": ["existing_scores", "models"],
    "train": ["level_samplings", "models", "predictions", "schedules", "weightings"],
}


def show_help(command: str) -> str:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("command", LISTED)
def test_help_lists_every_registered_name(command):
    text, choices = show_help(command), list_choices()
    for kind in LISTED[command]:
        assert ", ".join(choices[kind]) in " ".join(text.split()), kind
        assert f"{{{kind}}}" not in text


def test_every_registry_is_listed_by_some_command():
    assert {kind for kinds in LISTED.values() for kind in kinds} == set(list_choices())


def test_what_is_registered_appears_by_itself(monkeypatch):
    monkeypatch.setattr(SCORES, "_entries", {**SCORES})
    SCORES.register(Score("my_score", "a score of mine", of_existing=True))
    monkeypatch.setattr(SAMPLERS, "_entries", {**SAMPLERS})
    SAMPLERS.register(Maker("my_sampler", "a sampler of mine", ddpm))
    assert all("my_score" in show_help(command) for command in ("sample", "check", "score"))
    assert all("my_sampler" in show_help(command) for command in ("sample", "check"))
    monkeypatch.undo()
    assert "my_" not in show_help("sample")


def test_help_of_all_commands_does_not_import_torch():
    code = (
        "import sys; from flare.cli import main; sys.argv = ['flare', '--help']\n"
        "try: main()\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "Which samples of a diffusion model can you trust?" in done.stdout

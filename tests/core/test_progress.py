"""A progress bar by default in a terminal, on stderr, and silence elsewhere."""

from __future__ import annotations

import sys

import pytest

from flare.core.progress import show_by_default, watch


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_the_default_in_a_terminal_only(monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert show_by_default(None) is terminal
    assert show_by_default(False) is False
    assert show_by_default(list) is list


def test_the_bar_leaves_stdout_alone(capsys):
    assert list(watch(iter("abc"), 3, True)) == ["a", "b", "c"]
    assert capsys.readouterr().out == ""


def test_a_notebook_without_widgets_shows_no_warnings(monkeypatch, capsys):
    """rich draws bars with ipywidgets, and without it prints a warning for each of them."""
    from flare.core import progress

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert show_by_default(None) is True
    assert list(watch(iter("abc"), 3, True)) == ["a", "b", "c"]
    shown = capsys.readouterr()
    assert shown.out + shown.err == ""

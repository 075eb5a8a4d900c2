"""The examples in the docstrings of the scorer run, and print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

from flare.scoring import choices


@pytest.mark.parametrize("name", ["scoring.fit", "scoring.scorer", "scoring.estimator", "results.result"])
def test_the_examples_of_the_docstrings_run(name, monkeypatch):
    monkeypatch.setattr(choices, "SUBSET_SIZE", 50)  # faster
    found = doctest.testmod(importlib.import_module(f"flare.{name}"))
    assert found.attempted > 0
    assert found.failed == 0

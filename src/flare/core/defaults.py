"""Defaults shared by the library and the command line; this module imports nothing."""

from __future__ import annotations

DIRECTIONS = 16  # posterior directions that are propagated
LEVELS = (0.05, 0.1, 0.2)  # reference levels of the scores, as fractions of T
ENDPOINT_LEVELS = (0.02, 0.05, 0.1)  # levels of the endpoint rule, as fractions of T
REPEATS = 1  # noise draws per level of the endpoint rule

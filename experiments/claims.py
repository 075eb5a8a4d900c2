"""A claim of the paper beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A line of the table; the verdict begins with: holds, holds with a correction, or does not hold."""

    claim: str
    paper: str
    ours: str
    verdict: str

"""A claim of the paper, compared with the measurement."""

from __future__ import annotations

from dataclasses import dataclass

#: how a verdict begins, the longer beginnings first
KINDS = ("holds with a correction", "holds in part", "holds", "does not hold")


@dataclass(frozen=True)
class Claim:
    """A line of the table; the verdict begins with one of `KINDS`, or says why it cannot be judged."""

    claim: str
    paper: str
    ours: str
    verdict: str

    @property
    def kind(self) -> str:
        """Which of `KINDS` the verdict is; empty if the claim cannot be judged."""
        return next((kind for kind in KINDS if self.verdict.startswith(kind)), "")

    @property
    def short(self) -> str:
        """The first words of the verdict."""
        return self.kind or self.verdict.partition(":")[0]

    @property
    def rest(self) -> str:
        """What the verdict says after its first words."""
        rest = self.verdict.removeprefix(self.short)
        return rest if rest.startswith((":", ";", ",")) or not rest else f" {rest.strip()}"

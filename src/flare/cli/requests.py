"""Which scores the flags of `flare sample` ask for: the verdict, with or without variance, or others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import DIRECTIONS
from . import options

if TYPE_CHECKING:
    from ..posteriors import Posterior
    from .runs import Run


@dataclass(frozen=True)
class Request:
    """Which scores the flags ask for.

    Attributes:
        rule: --rule.
        coefficients: --coefficients.
        directions: --directions; None if it is not given.
        derivative: --derivative.
        score: --score; empty if it is not given.
        levels: --levels.
        repeats: --repeats.
        seed: --seed.
    """

    rule: str
    coefficients: str
    directions: str | None
    derivative: str
    score: str
    levels: list[float] | None
    repeats: int | None
    seed: int

    @property
    def wants_verdict(self) -> bool:
        """Whether nothing asks for plain samples or for other scores."""
        return self.rule != "none" and not self.score and self.levels is None and self.repeats is None

    @property
    def wants_variance(self) -> bool:
        """Whether directions are propagated beside the verdict."""
        return self.directions is not None or self.rule != "auto"

    def trajectory(self, posterior: Posterior) -> dict[str, Any]:
        """The arguments that propagate directions."""
        from .runs import draw_shared_directions

        count = options.parse_directions(self.directions or str(DIRECTIONS))
        return {
            "rule": "tangent" if self.rule == "auto" else self.rule,
            "coefficients": self.coefficients,
            "derivative": self.derivative,
            "directions": draw_shared_directions(posterior, count, self.seed),
        }

    def describe(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """The rule and the directions that were chosen, with the keys of the written file."""
        if "directions" not in keywords:
            return {"rule": "none"}
        count = options.parse_directions(self.directions or str(DIRECTIONS))
        return {"rule": keywords["rule"], "directions": count}

    def scores(
        self, opened: Run, posterior: Path | None, run: str
    ) -> tuple[Posterior | None, dict[str, Any], dict[str, Any]]:
        """Without a verdict: the posterior, the arguments of `flare.sample`, and the settings of the file."""
        from ..scores import SCORES, check_names

        names = check_names(self.score.split(",")) if self.score else None
        keywords: dict[str, Any] = {} if names is None else {"score": names}
        about: dict[str, Any] = {"rule": "none"}
        fitted = None
        if _choose_rule(self.rule, opened, posterior) == "none":
            _refuse_without_posterior(run, names, self.levels)
        else:
            fitted = opened.posterior(posterior)
            needed = names is None or any(SCORES[name].needs_directions for name in names)
            found = self.trajectory(fitted)
            if not needed:
                del found["directions"]  # nothing is propagated
            keywords = {**found, "score": names}
            about = {"scores": names, **self.describe(keywords)}
        extra = {"levels": self.levels, "repeats": self.repeats}
        extra = {name: value for name, value in extra.items() if value is not None}
        return fitted, keywords | extra, about | extra


def _choose_rule(rule: str, opened: Run, posterior: Path | None) -> str:
    """The rule itself, or for auto what the posterior allows: tangent if there is one, otherwise none."""
    from .runs import POSTERIOR_FILE

    if rule != "auto":
        return rule
    own = opened.directory / POSTERIOR_FILE if opened.directory else None
    return "tangent" if posterior or (own and own.is_file()) else "none"


def _refuse_without_posterior(run: str, names: list[str] | None, levels: list[float] | None) -> None:
    from ..scores import SCORES

    needy = [name for name in names or () if SCORES[name].needs_posterior]
    if needy or (levels and not names):
        asked = f"--score {','.join(needy)}" if needy else f"--levels {','.join(map(str, levels or ()))}"
        raise ValueError(
            f"{asked} needs a posterior: fit one (`flare fit {run}`) or name one with --posterior, and leave "
            "out --rule none. Plain samples are drawn without one."
        )

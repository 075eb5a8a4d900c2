"""`flare score`: score existing samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.defaults import DIRECTIONS
from . import options
from .app import command, start
from .files import READABLE
from .output import show_facts
from .parts import run_in_parts

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.progress import Progress
    from ..posteriors import Posterior
    from ..results.result import Result
    from .runs import Run

PART = 1000  # samples per part


@command()
def score(
    run: options.Run,
    samples: Annotated[Path, typer.Option(help=f"The samples ({', '.join(READABLE)}).")],
    posterior: options.Posterior = None,
    score: Annotated[
        str | None,
        typer.Option(help="One of {existing_scores}; by default the same as that of `flare sample`."),
    ] = None,
    levels: options.Levels = "",
    directions: options.Directions = str(DIRECTIONS),
    repeats: options.Repeats = None,
    file: options.ResultFile = Path("scored.safetensors"),
    model: options.Model = None,
    data: options.Data = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score existing samples, real data included, by the same score as `flare sample`.

    Example: `flare score runs/sines --samples mine.npy --out scored.safetensors`
    """
    from ..results.formats import check_suffix
    from ..sampling.existing import default_score
    from ..scores import SCORES
    from .runs import draw_shared_directions, open_run, read_samples

    start(threads)
    check_suffix(file)
    opened = open_run(run, model, data, device)
    existing = read_samples(samples, opened.shape)
    spec = SCORES.find(score) if score else None
    fitted = None if spec and not spec.needs_posterior else opened.posterior(posterior)
    spec = spec or SCORES[default_score(fitted)]
    keywords: dict[str, Any] = {
        "score": spec.name,
        "levels": options.parse_levels(levels),
        "repeats": repeats,
        "seed": seed,
    }
    about: dict[str, Any] = {"run": run, "samples": str(samples), "seed": seed, "score": spec.name}
    if spec.needs_directions and fitted is not None:
        about["directions"] = count = options.parse_directions(directions)
        keywords["directions"] = draw_shared_directions(fitted, count, seed)
    job = ScoreJob(file, opened, fitted, existing, about, keywords)
    facts = run_in_parts(job, quiet or json)
    show_facts(json, quiet, facts, last=str(file))


@dataclass(frozen=True)
class ScoreJob:
    """Scores of existing samples, made in parts.

    Attributes:
        file: the file to write.
        opened: the run.
        posterior: over the parameters of its network; None if the score needs none.
        existing: the samples, (n, *shape).
        about: the settings, with the keys of the written file.
        keywords: what `flare.score` takes besides.
    """

    file: Path
    opened: Run
    posterior: Posterior | None
    existing: Tensor
    about: dict[str, Any]
    keywords: dict[str, Any]
    part_size: int = PART
    items_per_part: int = 1

    @property
    def name(self) -> str:
        """The name of the score."""
        return str(self.keywords["score"])

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.existing)

    @property
    def title(self) -> str:
        """The title of the progress bar."""
        return f"scoring by {self.opened.name}"

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        from .. import __version__

        return self.keywords | {
            "samples": self.existing,
            "weights": self.opened.denoiser.fingerprint(),
            "schedule": self.opened.schedule,
            "version": __version__,
        }

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Score samples first..first+count−1."""
        from ..results.result import Result

        here = self.existing[first : first + count]
        (values,) = progress(self._score(here, first) for _ in range(self.items_per_part))
        bad = (values.isnan().nonzero().flatten() + first).tolist()
        lost = {"lost": {f"the {self.name} of existing samples": bad}} if bad else {}
        return Result(here, scores={self.name: values.cpu()}, about={**self.about, **lost})

    def make_lost(self, first: int, count: int) -> Result:
        """Make a part whose scores are NaN."""
        import torch

        from ..results.result import Result

        scores = {self.name: torch.full((count,), torch.nan)}
        return Result(self.existing[first : first + count], scores=scores, about=self.about)

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the scored samples; return quantiles of the score and the number of lost samples."""
        import torch

        at = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        quantiles = whole.score.double().nanquantile(at).tolist()
        lost = int(whole.score.isnan().sum())
        whole.save(self.file)
        return {
            "scored": str(self.file),
            "n": self.n,
            "score": self.name,
            **dict(zip(("10%", "median", "90%"), quantiles, strict=True)),
            **({"lost": lost} if lost else {}),
        }

    def _score(self, samples: Tensor, first: int) -> Tensor:
        from .. import score as score_samples

        denoiser, schedule = self.opened.denoiser, self.opened.schedule
        return score_samples(denoiser, self.posterior, schedule, samples, first=first, **self.keywords)

"""`Scorer`: draws samples, scores new and existing samples, and reports which ones to trust."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import report
from ..core import __version__
from ..core.conditions import Cond, check_conditions, take_rows
from ..core.memory import BatchSize
from ..core.nonfinite import name_samples
from ..core.precision import no_autocast
from ..core.progress import Progress, show_by_default, warn
from ..core.validation import require_positive_int
from ..diagnostics.linearization import Linearization, compare_rules
from ..diagnostics.model_check import ModelCheck, inspect_model
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Schedule
from ..model import STEPS, Model
from ..network.denoiser import Denoiser
from ..network.forward_mode import Derivative
from ..posteriors import Posterior
from ..propagation import Rule
from ..propagation.observables import Observable
from ..results.filters import assign_regions
from ..results.result import Result
from ..results.verdict import Reference, decide
from ..sampling.batches import Trajectories
from ..sampling.plan import Directions, make_plan
from ..scores import check_names
from ..scores.encoder import Encoder
from ..scores.neighbors import NEIGHBORS, TrainingData
from ..scores.space import compute_distances
from .condition_fit import CONDITION, compare_conditions
from .inputs import check_existing
from .tables import DataTable, open_table, read_existing, shorten


@dataclass(frozen=True)
class ScorerCheck:
    """The findings of `Scorer.check`.

    Attributes:
        model: How the network and its samples fit the training data; None if the scorer has no data, or if
            the network needs conditions, which a scorer does not keep.
        linearization: Whether first order is enough for the variances of `sample(..., directions=16)`.
    """

    model: ModelCheck | None
    linearization: Linearization

    @property
    def problems(self) -> list[str]:
        """Problems, as sentences; empty if there are none."""
        found = [] if self.model is None else list(self.model.problems)
        return found if self.linearization.trusted else [*found, self.linearization.verdict]

    def __str__(self) -> str:
        first = "The model was not checked: the scorer has no training data, or not its conditions."
        return f"{first if self.model is None else self.model}\n{self.linearization}"


@dataclass(frozen=True, eq=False, repr=False)
class Scorer:
    """Scores samples of a diffusion model and reports which ones to trust; `flare.fit` returns it.

    >>> model = flare.bench.load("grid")
    >>> scorer = flare.fit(model, model.data, subset=100, pairs=500, check=False)
    >>> result = scorer.sample(20, seed=0, steps=20)
    >>> result[result.keep(0.5)].samples.shape
    torch.Size([10, 2])
    >>> scorer.score(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).trusted(0.05)  # a center; between four
    tensor([ True, False])

    Attributes:
        model: The network with its noise levels.
        posterior: The posterior over its parameters.
        encoder: Maps samples to features. Distances are measured between features.
        reference: The scores of real data.
        training: The training samples in the space of each score.
        centers: The centers of the regions of the data, (k, d); None without training samples.
        shape: The shape of one sample.
        clip: The largest absolute value of the training data. The default sampler clips to it.
        seed: Random seed for the noise of the scores.
        about: Settings and costs of the fit, as JSON values.
    """

    model: Model
    posterior: Posterior
    encoder: Encoder
    reference: Reference
    training: TrainingData
    centers: Tensor | None
    shape: tuple[int, ...]
    clip: float
    seed: int
    about: dict[str, Any]

    @property
    def denoiser(self) -> Denoiser:
        """The network."""
        return self.model.denoiser

    @property
    def schedule(self) -> Schedule:
        """The noise levels that the network was trained on."""
        return self.model.schedule

    @property
    def data(self) -> Tensor | None:
        """The stored training samples, (K, *shape); None if they are large, or were not saved."""
        return self.training.samples

    def steps(self, steps: int | Steps = STEPS) -> Steps:
        """The table that `sample` uses: the given table, or this many steps of the default sampler."""
        if isinstance(steps, Steps):
            return steps
        if isinstance(steps, bool) or not hasattr(steps, "__index__"):
            raise TypeError(
                "steps must be a number of steps or a sampler's table, such as "
                f"flare.samplers.ddpm(schedule), got {type(steps).__name__}."
            )
        return self.model.steps(steps, clip=self.clip)

    @torch.no_grad()
    @no_autocast()
    def sample(
        self,
        n: int,
        seed: int = 0,
        *,
        steps: int | Steps = STEPS,
        directions: Directions | None = None,
        best_of: int = 1,
        cond: Cond | None = None,
        score: str | Sequence[str] | None = None,
        rule: str | Rule | type[Rule] = "tangent",
        covariance: bool = False,
        observe: Observable | None = None,
        derivative: str | Derivative = Derivative.AUTO,
        first: int = 0,
        batch_size: BatchSize = "auto",
        memory: int | None = None,
        progress: Progress | bool | None = None,
    ) -> Result:
        """Draw samples and score them.

        Without `directions`, scoring adds 8 or more network calls per sample to plain sampling, with one
        backward pass each, and a search for the nearest training samples. The same seed gives the same
        samples and scores for every batch size.

        >>> result = scorer.sample(20, seed=0)
        >>> len(result[result.keep(0.5)])
        10

        Args:
            n: The number of samples.
            seed: Random seed for the noise.
            steps: The number of steps of the default sampler (DDIM, Euler's method for a flow, or the
                sampler of the pipeline), or a sampler's table.
            directions: The number of posterior draws to propagate through the sampler, such as 16. The
                result then includes the variance of the samples.
            best_of: The number of candidates per sample. The most plausible candidate is kept, so p-values
                are larger than for plain samples.
            cond: Keyword arguments of the network; tensors have one row per sample.
            score: With `directions`, names of additional scores; see `flare.sample`.
            rule: With `directions`, the propagation rule; see `flare.sample`.
            covariance: With `directions`, whether to return the (n, d, d) covariances.
            observe: A function of the samples. The result includes its values and their variance; see
                `flare.sample`. By default the decoder of a latent diffusion model.
            derivative: With `directions`, the method of differentiation; see `flare.sample`.
            first: The index of the first sample, to draw samples first..first+n−1 of a seed.
            batch_size: The number of samples that go through the network at once, or "auto".
            memory: Bytes that "auto" may use; half of the free memory by default.
            progress: True for a progress bar, or a function such as `tqdm.tqdm`; by default a bar in a
                terminal or a notebook. False is silent.
        """
        n, k = require_positive_int("n", n), require_positive_int("best_of", best_of)
        given, table = self._check_cond(cond, n), self.steps(steps)
        if given and k > 1:
            given = take_rows(given, torch.arange(n).repeat_interleave(k))
        if observe is None and self.model.codec is not None:
            observe = self.model.decode
        if directions is None and (score is not None or covariance or rule != "tangent"):
            raise ValueError(
                "score=, rule= and covariance= need directions of the posterior; give directions=16."
            )
        if score is not None:  # those of the verdict come with it
            score = [name for name in check_names(score) if name not in self.reference.scores] or None
        other = None if table.schedule is self.model.schedule else table.schedule
        self.posterior.check(self.model.denoiser, other)
        plan = make_plan(
            self.model, table, None if directions is None else self.posterior, n * k, self.shape,
            rule=rule, directions=1 if directions is None else directions, score=score, covariance=covariance,
            observe=observe, derivative=derivative, cond=given, seed=seed, first=first,
        )  # fmt: skip
        drawn = Trajectories(plan, batch_size, memory)
        result = self._judge(drawn.finish(show_by_default(progress)), given, batch_size, memory, table)
        return _pick_best(result, k) if k > 1 else result

    @torch.no_grad()
    @no_autocast()
    def score(
        self,
        existing: Any,
        cond: Cond | str | None = None,
        *,
        batch_size: BatchSize = "auto",
        memory: int | None = None,
    ) -> Result:
        """Score existing samples, on the same scale as the samples of `sample`.

        Samples with NaN or infinity are not scored: their p-value is NaN and they are not trusted.

        >>> scorer.score(data[:3]).p_value.shape
        torch.Size([3])

        Args:
            existing: The samples, (n, *shape), a tensor or an array, scaled like the training data; or a
                table with the columns of the training data, as in `flare.fit`. A latent diffusion model
                takes images in [−1, 1], or latents.
            cond: Keyword arguments of the network; tensors have one row per sample. Or names of table
                columns, as in `flare.fit`; by default the columns named in the fit.
            batch_size: The number of samples that go through the network at once, or "auto".
            memory: Bytes that "auto" may use; half of the free memory by default.
        """
        existing = open_table("the table", existing)
        if is_table := isinstance(existing, DataTable):
            existing, cond = read_existing(existing, self.about, cond)
        x = check_existing(self.model, existing, self.shape, self.about["range"])
        given = self._check_cond(cond, len(x))
        self.posterior.check(self.model.denoiser)
        result = Result(x)
        if lost := result.lost.nonzero().flatten().tolist():
            result = replace(result, about={"lost": {"the given samples": lost}})
            if not is_table:  # a table has named its columns
                warn(
                    f"existing has NaN or infinity in {name_samples(lost, len(x))}: they are not scored.",
                    UserWarning,
                )
        else:
            self.model.try_on(x, given)
        return self._judge(result, given, batch_size, memory)

    def check(
        self, n: int = 32, draws: int = 64, *, steps: int | Steps = STEPS, cond: Cond | None = None
    ) -> ScorerCheck:
        """Check that the model fits its data, and that first order is enough for variances.

        Args:
            n: The number of samples for the second check.
            draws: The number of models that are drawn and rerun for it.
            steps: The number of steps of the default sampler, or a sampler's table.
            cond: Keyword arguments of the network, n rows.
        """
        table, given = self.steps(steps), self._check_cond(cond, n)
        found = None
        if self.data is not None and not given:
            found = inspect_model(self.model, self.data, steps=table)
        linear = compare_rules(self.model, table, self.posterior, n, self.shape, draws=draws, cond=given)
        return ScorerCheck(found, linear)

    def report(
        self,
        path: str | os.PathLike[str],
        result: Result,
        *,
        keep: float = 0.5,
        alpha: float = 0.05,
        title: str = "FLARE",
    ) -> None:
        """Write a report of a result; see `flare.report.write`.

        It shows the nearest training sample of each sample if the scorer has the training data.

        Args:
            path: The HTML file.
            result: A result of `sample` or `score`.
            keep: The share of the samples to keep when the page opens.
            alpha: The largest p-value of doubtful samples.
            title: The title of the page.
        """
        shown: dict[str, Any] = {}
        known = result.verdict is not None and result.verdict.nearest is not None
        if self.data is not None and known and self.model.codec is None:
            shown = {"data": self.data, "rows": self.training.rows}
        report.write(path, result, keep=keep, alpha=alpha, title=title, **shown)

    def save(self, path: str | os.PathLike[str], data: bool = True) -> None:
        """Write a directory that `flare.load` reads, and replace an existing scorer.

        Args:
            path: The directory.
            data: Whether to include the stored training samples, at most 20,000, and distances to them.
                Without them, the scorer uses only activations and gradients of training samples, and has no
                regions.
        """
        from .directory import save

        save(self, path, data, self.model.source)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        data: bool = False,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
    ) -> str:
        """Upload the scorer to the Hugging Face Hub, with a model card that describes the fit.

        Training samples are not uploaded unless `data=True`. The network is not uploaded. A scorer works only
        with the weights that it was fitted to. An existing scorer and card are replaced, but remain in
        earlier commits of the repository.

        >>> commit = scorer.push_to_hub("owner/sines-scorer", private=True)
        >>> flare.load("hf://owner/sines-scorer", denoiser).reference
        Reference: activations, epistemic_distance of 500 training samples

        Args:
            repo_id: owner/name of a repository, which is created if it does not exist.
            data: Whether to upload the stored training samples. Without them, the scorer uses only
                activations and gradients. With them, `private` is required.
            private: Whether a new repository is private; by default the owner's settings decide.
            token: An access token with write permission; by default the token of `hf auth login`.
            revision: The branch to write to; main by default.

        Returns:
            The address of the commit.
        """
        from .sharing import push

        return push(self, repo_id, data=data, private=private, token=token, revision=revision)

    def identity(self) -> dict[str, Any]:
        """Everything that the verdicts depend on, to recognize results of an interrupted run."""
        return {
            "weights": self.denoiser.fingerprint(),
            "schedule": self.schedule,
            "reference": dict(self.reference.scores),
            "held_out": self.reference.held_out,
            "prior": [self.posterior.prior_precision, self.posterior.scale],
            "training": [self.training.rows, self.training.copy_distance],
            "noises": [self.encoder.seed, self.encoder.pairs, dict(self.encoder.layers)],
            "version": __version__,
        }

    def problems(self, steps: Steps | None = None) -> list[str]:
        """The problems of the model that concern existing samples, or samples of a sampler's table."""
        limited = self.about.get("limited") or {}  # scorers of earlier versions do not know it

        def concerns(problem: str) -> bool:
            if problem not in limited or steps is None:
                return problem not in limited
            return not limited[problem] or (
                steps.name == limited[problem][0] and len(steps) < limited[problem][1]
            )

        return [problem for problem in self.about["problems"] if concerns(problem)]

    def _judge(
        self,
        result: Result,
        cond: Cond,
        batch_size: BatchSize,
        memory: int | None,
        steps: Steps | None = None,
    ) -> Result:
        """The same result with its scores, its verdict, and how they were made."""
        judged = self._compare(result, cond, batch_size, memory)
        facts = {
            "posterior": f"{self.posterior.structure} over {self.posterior.origin.subset.size} parameters",
            "prior_precision": self.posterior.prior_precision,
            "scale": self.posterior.scale,
            "score_seed": self.seed,
            "repeatability": self.about["repeatability"],
            "flare": __version__,
            **({"problems": problems} if (problems := self.problems(steps)) else {}),
        }
        if self.centers is not None:  # scorers of earlier versions do not know these counts
            facts["region_counts"] = self.about.get("region_counts", [])
        if self.training.samples is not None and self.training.features is None:
            facts["copy_distance"] = self.training.copy_distance
        facts |= {name: self.about[name] for name in ("columns", "scaling") if self.about.get(name)}
        return replace(judged, about={**judged.about, **facts})

    def _compare(self, result: Result, cond: Cond, batch_size: BatchSize, memory: int | None) -> Result:
        """The same result with scores, verdict and regions; lost samples are not scored."""
        n, rows = len(result), (~result.lost.cpu()).nonzero().flatten()

        def spread(values: Tensor, fill: float) -> Tensor:
            """Values of the finite samples, with `fill` for the others, (n,)."""
            return torch.full((n,), fill, dtype=values.dtype).index_put((rows,), values)

        scores = {name: torch.full((n,), torch.nan) for name in self.reference.scores}
        copies = nearest = None
        regions = None if self.centers is None else torch.full((n,), -1)
        if len(rows):
            x, training = result.samples[rows.to(result.samples.device)], self.training
            near = training.find(x) if NEIGHBORS in training.spaces else None
            encoded = self.encoder.encode(x, take_rows(cond, rows), batch_size, memory, self.model.learned)
            found = compute_distances(training.spaces, encoded)
            if null := self.about.get("null_cond"):
                own = take_rows(cond, rows)
                found[CONDITION] = compare_conditions(self.model, x, own, null, self.seed, batch_size, memory)
            if near is not None:
                found[NEIGHBORS] = near.score
                copies = spread(near.distances[:, 0] < training.copy_distance, fill=False)
                nearest = spread(training.rows[near.indices[:, 0]], fill=-1)
            for name, values in found.items():
                if lost := rows[values.isnan()].tolist():
                    warn(f"{name} is not finite for {name_samples(lost, n)}: they have no verdict.")
            scores = {name: spread(found[name], torch.nan) for name in self.reference.scores}
            if self.centers is not None:  # those of the samples, unless the training samples are not kept
                placed = x if training.samples is not None else training.locate(x)
                regions = spread(assign_regions(placed, self.centers), fill=-1)
        else:
            warn(f"all {n} samples have NaN or infinity: none of them is scored.")
        return replace(
            result,
            scores=scores | dict(result.scores),
            verdict=decide(self.reference, scores, copies, nearest),
            reference=self.reference,
            regions=regions,
        )

    def _check_cond(self, cond: Any, n: int) -> dict[str, Any]:
        needed = self.about.get("conditions", [])
        if needed and not cond:
            raise ValueError(
                f"the scorer was fitted with conditions ({', '.join(needed)}): give cond= with {n} rows."
            )
        given = check_conditions(cond, n)
        for name in needed:
            if isinstance(value := given.get(name), (int, float)):
                raise TypeError(
                    f"cond[{name!r}] must be a tensor with {n} rows, got {value!r}; for the same value in "
                    f"all rows give torch.full(({n},), {value!r})."
                )
        return given

    def __repr__(self) -> str:
        return _summarize(self)


def _summarize(scorer: Scorer) -> str:
    """The printed form of a scorer: its scores, its data, its posterior and its cost."""
    about, posterior, real = scorer.about, scorer.posterior, scorer.reference
    repeats = ", ".join(
        name if name not in about["repeatability"] else f"{name} ({about['repeatability'][name]:.2f})"
        for name in real.scores
    )
    known = "" if NEIGHBORS in scorer.training.spaces else "; it was saved without training data"
    kind = "held-out samples"
    if not real.held_out:
        kind = "training samples (the network may have seen them; held_out= is better)"
    lines = [
        f"Scorer of {scorer.denoiser.name}, {about['network_parameters']:,} parameters, samples of shape "
        f"{scorer.shape}",
        f"  witnesses: {repeats}{known}",
        "    in parentheses: how well a witness repeats with other noise, as a rank correlation",
        f"  compared with {len(real):,} {kind}",
        f"  posterior: {posterior.structure} over {posterior.size:,} parameters ({about['subset']}), "
        f"prior precision {posterior.prior_precision:.3g}, scale {posterior.scale:.3g}",
        f"  cost: {about['passes']:,} forward and backward passes to fit; {scorer.encoder.states} more per "
        "sample to score",
    ]
    if columns := about.get("columns"):
        lines.insert(1, f"  columns: {shorten(columns)}")
    lines += [f"  note: {remark}" for remark in about["remarks"]]
    lines += [f"  PROBLEM: {_shorten(problem)}" for problem in about["problems"]]
    return "\n".join(lines)


def _shorten(text: str) -> str:
    """The first sentence of a problem, and its cause if that is known."""
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", text)
    return " ".join([first, *(each for each in others if " seems to " in each)])


def _pick_best(result: Result, k: int) -> Result:
    """The most plausible of every k samples, in order; a group of lost samples gives a lost one."""
    assert result.verdict is not None
    z = result.verdict.z.nan_to_num(nan=torch.inf).view(-1, k)
    chosen = z.argmin(1) + k * torch.arange(len(z))
    # where candidates were lost is of no use for those that are kept
    about = {name: value for name, value in result.about.items() if name != "lost"}
    return replace(result[chosen], about={**about, "best_of": k})

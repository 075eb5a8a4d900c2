"""`Scorer`: draws samples of a diffusion model, scores them and existing ones, and says which to trust."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from .. import report
from ..core.conditions import Cond, check_conditions, take_rows
from ..core.memory import BatchSize
from ..core.nonfinite import name_samples
from ..core.progress import Progress
from ..core.validation import one_of, require_positive_int
from ..core.version import __version__
from ..core.warn import warn
from ..diagnostics.linearization import check_linearization
from ..diagnostics.model_check import check_model
from ..diffusion.samplers import Steps
from ..diffusion.schedules import Schedule
from ..integrations.hub import HubOptions
from ..network.denoiser import Denoiser
from ..network.forward_mode import Derivative
from ..posteriors import Posterior
from ..propagation import Coefficients, Rule, RuleSpec
from ..propagation.observables import Observable
from ..results.filtering import strata
from ..results.reference import Reference
from ..results.result import Result
from ..sampling.options import Directions, SampleOptions
from ..sampling.sample import sample
from ..scores.neighbors import Features
from .card import summarize
from .check import ScorerCheck
from .choosing import DATA_PER_REGION, REGIONS, SAMPLES_PER_REGION, STEPS, default_steps
from .inputs import OpenModel, check_existing
from .judge import Judge


class DrawOptions(TypedDict, total=False):
    """The options of `flare.sample` that `Scorer.sample` takes."""

    cond: Cond | None
    score: str | Sequence[str] | None
    rule: str | Rule | RuleSpec
    coefficients: Coefficients
    covariance: bool
    observe: Observable | None
    derivative: str | Derivative
    first: int
    batch_size: BatchSize
    memory: int | None
    device: torch.device | str | None


@dataclass(frozen=True, eq=False, repr=False)
class Scorer:
    """Says which samples of a diffusion model can be trusted; `flare.fit` makes it.

    >>> model = flare.bench.load("grid")
    >>> grid = (model.denoiser, model.data, model.schedule)
    >>> scorer = flare.fit(*grid, subset=100, pairs=500, check=False)
    >>> kept = scorer.sample(20, seed=0, steps=20)
    >>> kept[kept.keep(0.5)].samples.shape
    torch.Size([10, 2])
    >>> scorer.score(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).trusted(0.05)  # a center; between four
    tensor([ True, False])

    Attributes:
        model: the network with its noise levels.
        judge: computes the scores.
        reference: the scores of real data.
        shape: of one sample.
        clip: the largest absolute value of the training data, to which the default sampler clips.
        about: what was chosen and what it cost, as JSON values.
    """

    model: OpenModel
    judge: Judge
    reference: Reference
    shape: tuple[int, ...]
    clip: float
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
    def posterior(self) -> Posterior:
        """The posterior over the parameters."""
        return self.judge.posterior

    @property
    def data(self) -> Tensor | None:
        """The kept training samples, (K, *shape); None if the scorer was saved without them."""
        return None if self.judge.training is None else self.judge.training.samples

    def steps(self, steps: int | Steps = STEPS) -> Steps:
        """The sampler's table that `sample` uses: as given, or so many steps of the default sampler."""
        if self.model.diffusers is not None and not isinstance(steps, Steps):
            return self.model.diffusers.steps(require_positive_int("steps", steps))
        return default_steps(self.schedule, steps, self.clip)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        seed: int = 0,
        *,
        steps: int | Steps = STEPS,
        directions: Directions | None = None,
        best_of: int = 1,
        progress: Progress | bool | None = None,
        **options: Unpack[DrawOptions],
    ) -> Result:
        """Draw samples and judge them.

        Without `directions`, this costs plain sampling, and per sample 8 backward passes and a search for its
        neighbors. The same seed gives the same samples and scores, whatever the batch size.

        >>> result = scorer.sample(20, seed=0)
        >>> len(result[result.keep(0.5)])
        10

        Args:
            n: how many samples.
            seed: of the noise.
            steps: how many steps of the default sampler (DDIM, Euler's method for a flow, or that of the
                pipeline), or a sampler's table.
            directions: how many draws from the posterior to push through the sampler by the tangent rule, 16
                for instance; the result then has the variance of the samples.
            best_of: draws this many candidates per sample and keeps the most plausible one. The p-values are
                those of the candidates that are kept, so they are larger than those of plain samples.
            progress: True for a progress bar, or a function such as `tqdm.tqdm`.
            **options: of `flare.sample`: cond (one row per sample), batch_size, memory, device, first and
                observe; with `directions` also score, rule, coefficients, covariance and derivative.
        """
        n, k = require_positive_int("n", n), require_positive_int("best_of", best_of)
        _check_options(options)
        cond = self._check_cond(options.get("cond"), n)
        table = self.steps(steps)
        self.posterior.check(self.denoiser, table.schedule)
        if cond:
            cond = take_rows(cond, torch.arange(n).repeat_interleave(k))
            options["cond"] = cond
        if self.model.diffusers is not None and self.model.is_latent:
            options.setdefault("observe", self.model.diffusers.decode)
        given = cast("SampleOptions", {**options, "seed": seed})
        if directions is not None:
            given["directions"] = directions
        posterior = None if directions is None else self.posterior
        drawn = sample(self.denoiser, table, posterior, n * k, self.shape, progress=progress, **given)
        size, memory = options.get("batch_size", "auto"), options.get("memory")
        result = self.judge(self._sign(drawn), self.reference, cond, size, memory)
        return _pick_best(result, k) if k > 1 else result

    @torch.no_grad()
    def score(
        self,
        existing: Any,
        cond: Cond | None = None,
        *,
        batch_size: BatchSize = "auto",
        memory: int | None = None,
    ) -> Result:
        """Judge samples that exist already, on the same scale as those of `sample`.

        Samples with NaN or infinity are not scored: their p-value is NaN and they are not trusted.

        >>> scorer.score(data[:3]).p_value.shape
        torch.Size([3])

        Args:
            existing: the samples, (n, *shape), a tensor or an array, scaled as the training data. A latent
                diffusion model takes images in [−1, 1], or latents.
            cond: keyword arguments of the network; tensors have one row per sample.
            batch_size: how many samples go through the network at once.
            memory: bytes that "auto" may use; half of the free memory by default.
        """
        x = check_existing(self.model, existing, self.shape, self.about["range"])
        cond = self._check_cond(cond, len(x))
        result = self._sign(Result(x))
        if lost := result.lost.nonzero().flatten().tolist():
            warn(
                f"existing has NaN or infinity in {name_samples(lost, len(x))}: they are not scored.",
                UserWarning,
            )
        return self.judge(result, self.reference, cond, batch_size, memory)

    def keep(self, result: Result, share: float = 0.5, *, regions: int = REGIONS) -> Tensor:
        """Mask of the most plausible samples of every region of the data, (n,) bool: the recommended filter.

        Ranking alone narrows every mode and changes their shares. Keeping an equal share of every region
        hardly changes them, and keeps a few more bad samples (docs/real-data.md).

        >>> scorer.keep(scorer.sample(20), 0.5).sum()
        tensor(10)

        Args:
            result: from `sample` or `score`.
            share: of the samples of each region to keep, in (0, 1].
            regions: how many, at most one per ten samples. Those of the training data, as far as the scorer
                has kept it, else of the samples.
        """
        data = None if self.model.is_latent else self.data
        require_positive_int("regions", regions)
        if data is not None and len(data) > DATA_PER_REGION * regions:
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
            data = data[order[: DATA_PER_REGION * regions]]
        known = len(result) if data is None else len(data)
        count = max(1, min(regions, known, len(result) // SAMPLES_PER_REGION))
        return result.keep(share, strata=strata(result.samples, count, like=data))

    def check(
        self, n: int = 32, draws: int = 64, *, steps: int | Steps = STEPS, cond: Cond | None = None
    ) -> ScorerCheck:
        """Check the model against its data, and whether first order is enough for variances.

        Args:
            n: how many samples for the second check.
            draws: how many models are drawn and rerun for it.
            steps: of the sampler.
            cond: keyword arguments of the network, n rows.
        """
        table = self.steps(steps)
        cond = self._check_cond(cond, n)
        found = None
        if self.data is not None and not cond:
            found = check_model(self.denoiser, self.data, self.schedule, steps=table)
        linear = check_linearization(
            self.denoiser, table, self.posterior, n, self.shape, draws=draws, cond=cond or None
        )
        return ScorerCheck(found, linear)

    def report(self, path: str | os.PathLike[str], result: Result, **options: Any) -> None:
        """Write a page about a result; see `flare.report.write`.

        It shows the nearest training sample of each sample, as far as the scorer has kept the training data.

        Args:
            path: the HTML file.
            result: from `sample` or `score`.
            **options: of `flare.report.write`.
        """
        kept = self.judge.training
        known = result.verdict is not None and result.verdict.nearest is not None
        if "data" not in options and kept is not None and known and not self.model.is_latent:
            options |= {"data": kept.samples, "rows": kept.rows}
        report.write(path, result, **options)

    def save(self, path: str | os.PathLike[str], data: bool = True) -> None:
        """Write a directory that `flare.load` reads; a scorer that is there already is replaced.

        Args:
            path: the directory.
            data: whether to include the kept training samples, at most 20,000. Without them the scorer judges
                by the influence alone.
        """
        from .directory import save

        save(self, path, data)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        data: bool = False,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
    ) -> str:
        """Share the scorer on the Hugging Face Hub, with a card that says what it was fitted on.

        Training samples stay here unless `data=True`. The network is not uploaded: a scorer refuses other
        weights than those that it was fitted to. A scorer and a card that are there already are replaced;
        earlier commits of the repository keep them.

        >>> commit = scorer.push_to_hub("owner/sines-scorer", private=True)
        >>> flare.Scorer.from_pretrained("owner/sines-scorer", denoiser).reference
        Reference: influence, neighbors of 500 training samples

        Args:
            repo_id: owner/name of a repository, which is created if it is not there.
            data: whether to upload the kept training samples, too. Without them the scorer judges by the
                influence alone. With them, `private` must be given.
            private: whether a new repository is private; by default its owner's settings decide.
            token: of an account that may write there; by default that of `hf auth login`.
            revision: the branch to write to; main by default.

        Returns:
            The address of the commit.
        """
        from .sharing import push

        return push(self, repo_id, data=data, private=private, token=token, revision=revision)

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        net: Any,
        *,
        schedule: Schedule | None = None,
        features: Features | None = None,
        **options: Unpack[HubOptions],
    ) -> Scorer:
        """Read a scorer from a directory, or from the Hugging Face Hub.

        >>> scorer.save("scorer")
        >>> len(flare.Scorer.from_pretrained("scorer", denoiser).reference)
        500

        Args:
            source: a directory that `save` wrote, or else owner/name of a repository of `push_to_hub`.
            net: as in `flare.load`: the network, in any form that `flare.fit` takes.
            schedule: as in `flare.load`.
            features: as in `flare.load`.
            **options: of the Hub: revision (a branch, a tag or a commit), token, cache_dir and
                local_files_only.
        """
        from .directory import fetch, load

        return load(fetch(source, **options), net, schedule=schedule, features=features)

    def _sign(self, result: Result) -> Result:
        """The same result with what its scores come from."""
        posterior = self.posterior
        facts = {
            "posterior": f"{posterior.structure} over {posterior.size} parameters",
            "prior_precision": posterior.prior_precision,
            "scale": posterior.scale,
            "score_seed": self.judge.seed,
            "flare": __version__,
            **({"problems": problems} if (problems := self.about["problems"]) else {}),
        }
        return replace(result, about={**result.about, **facts})

    def _check_cond(self, cond: Cond | None, n: int) -> dict[str, Any]:
        needed = self.about.get("conditions", [])
        if needed and not cond:
            raise ValueError(
                f"the scorer was fitted with conditions ({', '.join(needed)}): give cond= with {n} rows."
            )
        return check_conditions(cond, n)

    def __repr__(self) -> str:
        return summarize(self)


def _check_options(options: DrawOptions) -> None:
    try:
        for name in options:
            one_of("option of Scorer.sample", name, DrawOptions.__annotations__)
    except ValueError as error:
        raise TypeError(str(error)) from None  # as Python does for an unknown keyword


def _pick_best(result: Result, k: int) -> Result:
    """The most plausible of every k samples, in order; a group of lost samples gives a lost one."""
    assert result.verdict is not None
    z = result.verdict.z.nan_to_num(nan=torch.inf).view(-1, k)
    chosen = z.argmin(1) + k * torch.arange(len(z))
    # where candidates were lost is of no use for those that are kept
    about = {name: value for name, value in result.about.items() if name != "lost"}
    return replace(result[chosen], about={**about, "best_of": k})

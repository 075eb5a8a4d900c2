"""`TrustEstimator`: a scorer with the interface of a scikit-learn outlier detector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..core.validation import require_positive_int
from ..diffusion import schedules
from ..diffusion.noising import split
from ..diffusion.schedules import Schedule
from ..network.denoiser import Denoiser
from ..network.scorenet import ScoreNet
from ..network.training import TrainConfig, Training, train
from ..scores.space import NEAREST
from .choosing import reference_size
from .fit import fit
from .scorer import Scorer

LEVELS, WIDTH = 100, 32  # noise levels, and width of the network that is trained if none is given
_BATCH = 256


class TrustEstimator(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """An outlier detector with the scikit-learn interface: `fit`, `predict`, `score_samples`.

    It scores samples with a `flare.Scorer`. `predict` returns −1 if the p-value is at most `alpha`, else 1.

    Without a network, `fit` trains a small one on the standardized data, for tables of up to a few dozen
    columns. It holds out a part of the data from this training as the reference for p-values. With a network,
    pass its training data to `fit`, as to `flare.fit`. A fitted `Scorer` is used without changes.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(400, 2))
    >>> estimator = TrustEstimator(train_steps=100, pairs=200).fit(X)
    >>> estimator.predict([[0.0, 0.0], [6.0, 6.0]])
    array([ 1, -1])

    Attributes:
        scorer_: The scorer.
        offset_: The lowest score of an inlier; `decision_function` is `score_samples` minus it.
        n_features_in_: The number of columns.

    Args:
        net: A network called as net(x, t), a `flare.Denoiser`, or a fitted `flare.Scorer`; None to train one.
        schedule: The noise levels of a network.
        alpha: The level of `predict`. About this share of real data gets −1.
        train_steps: Optimizer steps, if `fit` trains a network.
        pairs: Training pairs of the posterior; as in `flare.fit` by default.
        random_state: Seed of the training and of everything that is drawn.
    """

    def __init__(
        self,
        net: Any = None,
        schedule: Schedule | None = None,
        *,
        alpha: float = 0.05,
        train_steps: int = 2000,
        pairs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.net = net
        self.schedule = schedule
        self.alpha = alpha
        self.train_steps = train_steps
        self.pairs = pairs
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> TrustEstimator:
        """Fit a scorer to data; y is ignored.

        Args:
            X: Real samples, (n, columns). Samples of a network for images or series are flattened.
            y: ignored; present for pipelines.
        """
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie in (0, 1), got {self.alpha}.")
        x = self._validate(X, reset=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.center_, self.spread_ = np.zeros(x.shape[1]), np.ones(x.shape[1])
        if isinstance(self.net, Scorer):
            self.scorer_ = self.net
            self._shaped(x)  # a scorer of other samples is refused here
        elif self.net is None:
            self.center_, self.spread_ = x.mean(0).numpy(), _positive(x.std(0, correction=0)).numpy()
            self.scorer_ = self._train(self._standardize(x), seed)
        else:
            options: Any = {"pairs": self.pairs, "seed": seed}
            self.scorer_ = fit(self.net, x.float(), self.schedule, **options)
        self.offset_ = -_threshold(self.scorer_, self.alpha)
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """How plausible samples are, (n,): minus the verdict's z, higher for inliers."""
        check_is_fitted(self)
        x = self._standardize(self._validate(X, reset=False))
        verdict = self.scorer_.score(self._shaped(x), batch_size=_BATCH).verdict
        assert verdict is not None
        return -verdict.z.nan_to_num(nan=math.inf, posinf=math.inf).numpy()

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """`score_samples` minus `offset_`, (n,): negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int_]:
        """1 for inliers and −1 for outliers, (n,)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def _validate(self, X: Any, reset: bool) -> Tensor:
        least = 2 * NEAREST if reset and self.net is None else 1
        return torch.tensor(validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=least))

    def _standardize(self, x: Tensor) -> Tensor:
        return (x - torch.as_tensor(self.center_)) / torch.as_tensor(self.spread_)

    def _shaped(self, x: Tensor) -> Tensor:
        """Rows (n, columns) as samples (n, *shape)."""
        shape = self.scorer_.shape
        if x.shape[1] != math.prod(shape):
            raise ValueError(
                f"X must have {math.prod(shape)} columns, the flattened samples of shape {shape} of the "
                f"scorer, got {x.shape[1]}."
            )
        return x.view(len(x), *shape)

    def _train(self, x: Tensor, seed: int) -> Scorer:
        """Train a network on a part of the data, and compare with the other part."""
        rest, held_out = split(x, reference_size(len(x)) / len(x), seed)
        schedule = schedules.cosine(LEVELS)
        steps = require_positive_int("train_steps", self.train_steps)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            net = ScoreNet(x.shape[1], WIDTH, schedule).double()
            decay = 1 - 1 / max(2, steps // 20)  # the average forgets the beginning
            config = TrainConfig(steps, learning_rate=2e-3, warmup=max(1, steps // 20), ema=decay, seed=seed)
            run = Training(net, rest, schedule, config)
            for _ in train(run):
                pass
        net.load_state_dict(run.weights())
        return fit(
            Denoiser(net), rest, schedule,
            held_out=held_out, weighting="min_snr", pairs=self.pairs, seed=seed, check=False,
        )  # fmt: skip


def _positive(spread: Tensor) -> Tensor:
    """Standard deviations, with 1 for constant columns."""
    return torch.where(spread > 0, spread, 1.0)


def _threshold(scorer: Scorer, alpha: float) -> float:
    """The largest z with a p-value above alpha: the k-th largest z of the reference, k = ⌊alpha·(n + 1)⌋."""
    real = scorer.reference.verdict(scorer.reference.scores).z
    count = max(1, math.floor(alpha * (len(real) + 1) + 1e-9))
    return float(real.sort(descending=True).values[count - 1])

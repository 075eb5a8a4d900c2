"""Who says which samples of real data are bad: a classifier that was trained on real data alone.

It judges a sample twice: by the entropy of its answer (is this any class at all?) and by the distance of the
sample's features from those of the nearest training samples (does any real sample look like this?). A sample
is bad if either is beyond what 97.5% of held-out real samples keep. The classifier of images is shown blends
of two samples, too, with both labels (mixup): without them it is sure of what lies between two digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .realdata import Real

QUANTILE = 0.975
NEIGHBOURS = 5
_STEPS, _BATCH = 2_000, 128


@dataclass(frozen=True)
class Judge:
    """A classifier with what it knows of real data.

    Attributes:
        body: samples to features, (n, *shape) -> (n, 64).
        head: features to logits, (n, classes).
        known: the features of the training data, (N, 64).
        entropy: what 97.5% of held-out samples stay below.
        distance: the same, of the features.
        accuracy: on held-out samples.
    """

    body: nn.Module
    head: nn.Module
    known: Tensor
    entropy: float
    distance: float
    accuracy: float

    @classmethod
    def of(cls, real: Real, seed: int = 0) -> Judge:
        """Trained on the training data; its limits are those of held-out data."""
        body, head = train_classifier(_network(real.train.shape[1:]), real, seed)
        judge = cls(body, head, body(real.train), 0.0, 0.0, 0.0)
        entropy, distance, label = judge.look(real.test)
        return cls(
            body,
            head,
            judge.known,
            float(entropy.quantile(QUANTILE)),
            float(distance.quantile(QUANTILE)),
            float((label == real.test_labels).double().mean()),
        )

    def logits(self, x: Tensor) -> Tensor:
        """(n, classes)."""
        return self.head(self.body(x))

    @torch.no_grad()
    def look(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Entropy (n,), distance in feature space (n,) and class (n,)."""
        features = self.body(x)
        p = self.head(features).softmax(1)
        near = torch.cdist(features, self.known).topk(NEIGHBOURS, largest=False).values.mean(1)
        return _entropy(p), near, p.argmax(1)

    def bad(self, x: Tensor) -> Tensor:
        """Which samples no real one looks like, (n,) bool."""
        entropy, distance, _ = self.look(x)
        return (entropy > self.entropy) | (distance > self.distance)

    def strangeness(self, x: Tensor) -> Tensor:
        """The larger of the two, each in units of its limit, (n,): above 1 is bad."""
        entropy, distance, _ = self.look(x)
        return torch.maximum(entropy / self.entropy, distance / self.distance)


@dataclass(frozen=True)
class Panel:
    """A second judge of images that shares nothing with the first, and measures no distance to any data.

    Perceptrons that were trained on the held-out data alone, which neither the models nor the first judge
    nor `neighbors` have seen. A sample is bad if the entropy of their mean answer, or their disagreement
    (the entropy of the mean minus the mean of the entropies), is beyond what 97.5% of the training data keep.

    Attributes:
        members: samples to logits.
        entropy: what 97.5% of the training data stay below.
        disagreement: the same.
        accuracy: on the training data.
    """

    members: tuple[nn.Module, ...]
    entropy: float
    disagreement: float
    accuracy: float

    @classmethod
    def of(cls, real: Real, count: int = 3) -> Panel:
        """Trained on the held-out data; its limits are those of the training data."""
        turned = Real(real.test, real.test_labels, real.train, real.labels, real.classes)
        members = tuple(
            nn.Sequential(*train_classifier(_perceptron(real.train.shape[1:]), turned, 20 + k))
            for k in range(count)
        )
        entropy, disagreement, label = cls(members, 0.0, 0.0, 0.0).look(real.train)
        return cls(
            members,
            float(entropy.quantile(QUANTILE)),
            float(disagreement.quantile(QUANTILE)),
            float((label == real.labels).double().mean()),
        )

    @torch.no_grad()
    def look(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Entropy (n,), disagreement (n,) and class (n,)."""
        p = torch.stack([member(x).softmax(1) for member in self.members])
        whole, each = _entropy(p.mean(0)), _entropy(p).mean(0)
        return whole, whole - each, p.mean(0).argmax(1)

    def bad(self, x: Tensor) -> Tensor:
        """Which samples the members do not know, (n,) bool."""
        entropy, disagreement, _ = self.look(x)
        return (entropy > self.entropy) | (disagreement > self.disagreement)


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp(min=1e-12).log()).sum(-1)


def blends(real: Real, seed: int = 0) -> Tensor:
    """Half-way between two held-out samples of different classes: what a judge must call bad."""
    other = torch.randperm(len(real.test), generator=torch.Generator().manual_seed(seed))
    apart = real.test_labels != real.test_labels[other]
    return (0.5 * (real.test + real.test[other]))[apart]


def _network(shape: torch.Size) -> nn.Module:
    if len(shape) == 3:
        side = -(-shape[1] // 4)
        return nn.Sequential(
            nn.Conv2d(shape[0], 16, 3, 2, padding=1), nn.SiLU(),
            nn.Conv2d(16, 32, 3, 2, padding=1), nn.SiLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * side * side, 64), nn.SiLU(),
        )  # fmt: skip
    return _perceptron(shape)


def _perceptron(shape: torch.Size) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape.numel(), 128), nn.SiLU(), nn.Dropout(0.3), nn.Linear(128, 64), nn.SiLU()
    )


def train_classifier(body: nn.Module, real: Real, seed: int) -> tuple[nn.Module, nn.Module]:
    """A body with 64 features and a head with the classes, trained on the training data from a new start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in body.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                layer.reset_parameters()
        head = nn.Linear(64, len(real.classes))
        _train(nn.Sequential(body, head), real)
    return body.eval().requires_grad_(False), head.eval().requires_grad_(False)


def _train(net: nn.Module, real: Real) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / _STEPS)
        rows = torch.randint(len(real.train), (_BATCH,))
        x, target = real.train[rows], nn.functional.one_hot(real.labels[rows], len(real.classes)).float()
        if x.ndim == 4:
            share = torch.rand(_BATCH) * (torch.rand(_BATCH) < 0.5)
            x, target = (v + share.view(-1, *[1] * (v.ndim - 1)) * (v.flip(0) - v) for v in (x, target))
        loss = nn.functional.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

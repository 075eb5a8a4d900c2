"""Compare our curvature and posteriors with laplace-torch on the same pairs; run by `make crosscheck`.

laplace-torch sums over the pairs and takes one input tensor; we average over the pairs and take (x, t).
"""

from __future__ import annotations

import pytest
import torch
from laplace import Laplace
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import flare

torch.set_num_threads(1)
D, N = 4, 60
DELTA = 0.7


class Net(nn.Module):
    """A network with our signature, net(x, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(D + 1, 7)
        self.out = nn.Linear(7, D)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, D), t (B,) -> (B, D)."""
        time = (t.to(x.dtype) / 20).reshape(-1, 1)
        return self.out(torch.tanh(self.first(torch.cat([x, time], dim=1))))


class Joined(nn.Module):
    """The same network with the signature of laplace-torch, net(joined): the time is the last column."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.first, self.out = net.first, net.out

    def forward(self, joined: Tensor) -> Tensor:
        """joined (B, D + 1) -> (B, D)."""
        time = joined[:, -1:] / 20
        return self.out(torch.tanh(self.first(torch.cat([joined[:, :-1], time], dim=1))))


@pytest.fixture
def problem():
    torch.manual_seed(0)
    net = Net().double()
    denoiser = flare.Denoiser(net)
    data = torch.randn(40, D, dtype=torch.float64)
    pairs = flare.noising.pairs(data, flare.schedules.cosine(20), n=N, batch_size=N)
    (batch,) = pairs.batches("epsilon")
    joined = torch.cat([batch.x, batch.t[:, None].double()], dim=1)
    loader = DataLoader(TensorDataset(joined, batch.target), batch_size=20)
    return net, denoiser, pairs, loader


def theirs(net, loader, weights, structure, **options):
    la = Laplace(
        Joined(net), "regression", subset_of_weights=weights, hessian_structure=structure,
        prior_precision=DELTA, sigma_noise=1.0, **options,
    )  # fmt: skip
    la.fit(loader)
    return la


def curvature(posterior):
    """H of a dense posterior, (m, m)."""
    return (posterior.eigenvectors * posterior.eigenvalues) @ posterior.eigenvectors.T


def close(ours, theirs):
    """Equal to float32 precision, because laplace-torch keeps some of its sums in float32."""
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-5)


def test_full(problem):
    net, denoiser, pairs, loader = problem
    subset = flare.subsets.everything(denoiser)
    la = theirs(net, loader, "all", "full")
    # s = N turns our mean into their sum
    ours = flare.posteriors.dense(denoiser, subset, pairs, DELTA, float(N), probes=None)
    close(N * curvature(ours), la.H)
    eye = torch.eye(subset.size, dtype=torch.float64)
    torch.testing.assert_close(ours.covariance(eye), la.posterior_covariance.double(), rtol=1e-4, atol=1e-5)


def test_subnetwork(problem):
    net, denoiser, pairs, loader = problem
    subset = flare.subsets.random(denoiser, count=20, seed=1)
    flat, offset = [], 0
    for name, p in net.named_parameters():
        if name in subset.indices:
            flat.append(subset.indices[name] + offset)
        offset += p.numel()
    ours = flare.posteriors.dense(denoiser, subset, pairs, DELTA, float(N), probes=None)
    la = theirs(net, loader, "subnetwork", "full", subnetwork_indices=torch.cat(flat))
    close(N * curvature(ours), la.H)


def test_diagonal(problem):
    net, denoiser, pairs, loader = problem
    subset = flare.subsets.everything(denoiser)
    ours = flare.posteriors.diagonal(denoiser, subset, pairs, DELTA, float(N), probes=None)
    la = theirs(net, loader, "all", "diag")
    close(N * ours.diagonal, la.H)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_last_layer(problem, structure):
    net, denoiser, pairs, loader = problem
    subset = flare.subsets.last_layer(denoiser)
    la = theirs(net, loader, "last_layer", structure)
    fit = flare.posteriors.diagonal if structure == "diag" else flare.posteriors.dense
    ours = fit(denoiser, subset, pairs, DELTA, float(N), probes=None)
    close(N * (ours.diagonal if structure == "diag" else curvature(ours)), la.H)


def test_kronecker(problem):
    """The weights of both layers, without biases, which laplace-torch factors separately."""
    net, denoiser, pairs, loader = problem
    subset = flare.subsets.named(denoiser, "*.weight")
    ours = flare.posteriors.kronecker(denoiser, subset, pairs, DELTA, float(N), probes=None)
    la = theirs(net, loader, "all", "kron")
    first, out = 7 * (D + 1), D * 7
    index = torch.cat([torch.arange(first), torch.arange(first + 7, first + 7 + out)])
    v = torch.zeros(first + 7 + out + D)
    v[index] = torch.randn(len(index))
    precision = la.posterior_precision
    expected = (
        precision.bmm(v[None].to(precision.eigenvalues[0][0].dtype), exponent=-1).flatten().double()[index]
    )
    torch.testing.assert_close(ours.covariance(v[index].double()), expected, rtol=1e-4, atol=1e-6)


def test_marginal_likelihood(problem):
    """The same evidence up to a constant: differences between two δ agree."""
    net, denoiser, pairs, loader = problem
    subset = flare.subsets.everything(denoiser)
    ours = flare.posteriors.dense(denoiser, subset, pairs, DELTA, float(N), probes=None)
    la = theirs(net, loader, "all", "full")
    gap = ours.refit(5.0).log_marginal_likelihood() - ours.refit(0.2).log_marginal_likelihood()
    evidence = [la.log_marginal_likelihood(prior_precision=torch.tensor(d)).item() for d in (5.0, 0.2)]
    assert gap == pytest.approx(evidence[0] - evidence[1], rel=1e-4)

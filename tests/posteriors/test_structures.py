"""Every structure against the plain matrix (s·H + δ·I)⁻¹ that it represents."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import pytest
import torch
from reference import TinyNet, flat_index, naive_ggn, small_problem
from torch import nn

import flare
from flare import posteriors, subsets
from flare.posteriors.products import PROBES

DELTA, SCALE = 0.3, 5.0


def compare(posterior, sigma, *, draws=20_000, tolerance=1e-8, exact=True):
    """One oracle for all: products, square roots, draws and the determinant against a matrix."""
    v = torch.randn(3, len(sigma), dtype=torch.float64)
    torch.testing.assert_close(posterior.covariance(v), v @ sigma, rtol=tolerance, atol=tolerance)
    if exact:
        D = posterior.exact_directions()
        torch.testing.assert_close(D @ D.T, sigma, rtol=tolerance, atol=tolerance)
        assert posterior.log_det_precision() == pytest.approx(-torch.logdet(sigma).item(), rel=1e-6)
    k = draws
    D = posterior.directions(k, torch.Generator().manual_seed(0))
    assert D.shape == (len(sigma), k)
    # a sample covariance of k draws is off by about sqrt((1 + m)/k) in this norm
    error = (D @ D.T - sigma).norm() / sigma.norm()
    assert error < 2.5 * ((1 + len(sigma)) / k) ** 0.5, f"draws are off by {error:.3f}"


@pytest.fixture
def problem():
    net, denoiser, pairs = small_problem((3,), width=5)
    subset = subsets.random(denoiser, count=25, seed=2)
    index = flat_index(subset, net)
    H = naive_ggn(net, pairs)[0][index][:, index]
    return denoiser, subset, pairs, H


def inverse(H, delta=DELTA, scale=SCALE):
    return torch.linalg.inv(scale * H + delta * torch.eye(len(H), dtype=H.dtype))


def test_dense(problem):
    denoiser, subset, pairs, H = problem
    posterior = posteriors.dense(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    compare(posterior, inverse(H))
    compare(posterior.refit(prior_precision=2.0, scale=0.1), inverse(H, 2.0, 0.1))


def test_draws_of_the_same_covariance_are_the_same_draws(problem):
    """Rounding chooses the basis of a null space of H, so fits by one and two processes may differ in it."""
    denoiser, subset, pairs, H = problem
    fitted = posteriors.dense(denoiser, subset, pairs, DELTA, SCALE)
    values, Q = torch.linalg.eigh(H)
    values[:10] = 0.0
    turned = Q.clone()
    turned[:, :10] = Q[:, :10] @ torch.linalg.qr(torch.randn(10, 10, dtype=H.dtype)).Q
    own = [dataclasses.replace(fitted, eigenvalues=values, eigenvectors=basis) for basis in (Q, turned)]
    draws = [posterior.draw(3, torch.Generator().manual_seed(1)) for posterior in own]
    torch.testing.assert_close(draws[0], draws[1], rtol=1e-9, atol=1e-9)


def test_kronecker_draws_do_not_depend_on_the_basis(problem):
    denoiser, _, pairs, _ = problem
    fitted = posteriors.kronecker(denoiser, subsets.named(denoiser, "second.*"), pairs, DELTA, SCALE)
    name, layer = next(iter(fitted.layers.items()))
    flat = dataclasses.replace(layer, a=torch.ones_like(layer.a))
    basis = torch.linalg.qr(torch.randn(len(layer.a), len(layer.a), dtype=torch.float64)).Q
    draws = [
        dataclasses.replace(fitted, layers={name: own}).draw(3, torch.Generator().manual_seed(1))
        for own in (flat, dataclasses.replace(flat, QA=layer.QA @ basis))
    ]
    torch.testing.assert_close(draws[0], draws[1], rtol=1e-9, atol=1e-9)


def test_diagonal(problem):
    denoiser, subset, pairs, H = problem
    posterior = posteriors.diagonal(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    compare(posterior, inverse(H.diagonal().diag()))


@pytest.mark.parametrize("truncation", ["none", "curvature"])
def test_the_matrix_and_the_iteration_give_the_same_eigenpairs(problem, truncation, monkeypatch):
    denoiser, subset, pairs, _ = problem
    options = {"rank": 6, "passes": 200, "truncation": truncation, "probes": None}
    exact = posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, **options)
    monkeypatch.setattr(import_module("flare.posteriors.low_rank"), "MATRIX", 24)  # the subset has 25
    iterated = posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, **options)
    assert not torch.equal(iterated.eigenvalues, exact.eigenvalues)
    torch.testing.assert_close(iterated.eigenvalues, exact.eigenvalues, rtol=1e-8, atol=0)
    eye = torch.eye(25, dtype=torch.float64)
    torch.testing.assert_close(iterated.covariance(eye), exact.covariance(eye), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("truncation", ["none", "curvature", "covariance"])
def test_low_rank_without_probes_has_the_eigenpairs_of_the_dense_curvature(truncation):
    _, denoiser, pairs = small_problem((3,), width=5, n=160)  # 25 parameters: "auto" takes 2 of the 3 rows
    subset = subsets.random(denoiser, count=25, seed=2)
    for probes in (None, "auto", 1):
        dense = posteriors.dense(denoiser, subset, pairs, DELTA, SCALE, probes=probes)
        low = posteriors.low_rank(
            denoiser, subset, pairs, DELTA, SCALE, rank=6, truncation=truncation, probes=probes
        )
        kept = dense.eigenvalues[:6] if truncation == "covariance" else dense.eigenvalues[-6:].flip(0)
        assert torch.equal(low.eigenvalues, kept)


def test_low_rank_with_full_rank_is_dense(problem):
    denoiser, subset, pairs, H = problem
    posterior = posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, rank=25)
    compare(posterior, inverse(H))


def test_low_rank_keeps_the_prior_on_the_complement(problem):
    denoiser, subset, pairs, H = problem
    values, vectors = torch.linalg.eigh(H)
    r = 6
    leading = vectors[:, -r:] @ values[-r:].diag() @ vectors[:, -r:].T
    posterior = posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, rank=r)
    compare(posterior, inverse(leading), tolerance=1e-6)
    bare = vectors[:, -r:] @ (1 / (SCALE * values[-r:] + DELTA)).diag() @ vectors[:, -r:].T
    assert bare.trace() < 0.2 * inverse(H).trace(), "a bare rank-r inverse drops what matters"
    assert posterior.covariance(torch.eye(25, dtype=H.dtype)).trace() >= inverse(H).trace() - 1e-9


def truncate(H, kept, delta=DELTA, scale=SCALE):
    """Σ over the eigenpairs `kept` of H alone, as a sum of r terms."""
    values, vectors = torch.linalg.eigh(H)
    terms = [torch.outer(vectors[:, i], vectors[:, i]) / (scale * values[i] + delta) for i in kept]
    return torch.stack(terms).sum(0)


@pytest.mark.parametrize(
    ("truncation", "kept"), [("curvature", range(19, 25)), ("covariance", range(6))], ids=lambda v: str(v)
)
def test_a_truncated_low_rank_has_r_terms_and_no_complement(problem, tmp_path, truncation, kept):
    denoiser, subset, pairs, H = problem
    fitted = posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, rank=6, truncation=truncation)
    fitted.save(tmp_path / "p.safetensors")
    for posterior in (fitted, posteriors.load(tmp_path / "p.safetensors")):
        compare(posterior, truncate(H, kept), tolerance=1e-6, exact=False)
        D = posterior.exact_directions()
        assert D.shape == (25, 6)
        torch.testing.assert_close(D @ D.T, truncate(H, kept), rtol=1e-6, atol=1e-6)
        wide = posterior.refit(prior_precision=2.0, scale=0.1)
        eye = torch.eye(25, dtype=H.dtype)
        torch.testing.assert_close(wide.covariance(eye), truncate(H, kept, 2.0, 0.1), rtol=1e-6, atol=1e-6)


def test_the_two_truncations_drop_the_largest_and_the_smallest_variances(problem):
    denoiser, subset, pairs, H = problem
    traces = {
        name: posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, rank=6, truncation=name)
        .exact_directions()
        .square()
        .sum()
        .item()
        for name in ("curvature", "covariance")
    }
    variances = torch.linalg.eigvalsh(inverse(H))  # ascending
    assert traces["curvature"] == pytest.approx(variances[:6].sum().item(), rel=1e-6)
    assert traces["covariance"] == pytest.approx(variances[-6:].sum().item(), rel=1e-6)
    assert traces["curvature"] < 0.2 * traces["covariance"]


def test_truncation_leaves_the_evidence_as_it_is(problem):
    denoiser, subset, pairs, H = problem
    fits = {
        name: posteriors.low_rank(denoiser, subset, pairs, rank=6, truncation=name)
        for name in ("none", "curvature", "covariance")
    }
    assert fits["curvature"].prior_precision == fits["none"].prior_precision
    dense = posteriors.dense(denoiser, subset, pairs, probes=None)
    assert fits["covariance"].prior_precision == pytest.approx(dense.prior_precision, rel=1e-6)
    values = torch.linalg.eigvalsh(H)
    leading = torch.cat([torch.zeros(19, dtype=H.dtype), values[-6:]])
    for name, known in (("curvature", leading), ("covariance", values)):
        found = fits[name].refit(DELTA, SCALE).log_det_precision()
        assert found == pytest.approx((SCALE * known + DELTA).log().sum().item(), rel=1e-6)


def test_a_rule_pushes_the_r_vectors_of_a_truncated_posterior(problem):
    denoiser, subset, pairs, H = problem
    posterior = posteriors.low_rank(denoiser, subset, pairs, DELTA, SCALE, rank=6, truncation="curvature")
    values, vectors = torch.linalg.eigh(H)
    D = vectors[:, -6:] / (SCALE * values[-6:] + DELTA).sqrt()
    steps = flare.samplers.ddim(pairs.schedule, 4)
    exact, given = (
        flare.sample(
            denoiser,
            steps,
            posterior,
            n=3,
            shape=(3,),
            rule="decoupled",
            directions=directions,
            score="trace",
        )
        for directions in ("exact", D)
    )
    torch.testing.assert_close(exact.score, given.score, rtol=1e-5, atol=0)


def test_a_null_space_larger_than_the_rank_is_warned_of(problem):
    denoiser, subset, pairs, _ = problem
    few = flare.noising.pairs(pairs.data, pairs.schedule, n=5, seed=1)
    with pytest.warns(RuntimeWarning, match=r"eigenvalues of H are 0, more than the rank of 4"):
        posteriors.low_rank(denoiser, subset, few, DELTA, SCALE, rank=4, truncation="covariance")
    with pytest.raises(ValueError, match="unknown truncation 'covarianc'; did you mean 'covariance'"):
        posteriors.low_rank(denoiser, subset, pairs, rank=4, truncation="covarianc")


def test_matrix_free(problem):
    denoiser, subset, pairs, H = problem
    for precondition in (True, False):
        posterior = posteriors.matrix_free(
            denoiser, subset, pairs, DELTA, SCALE, tolerance=1e-10, precondition=precondition
        )
        compare(posterior, inverse(H), exact=False, draws=4_000)
    assert posterior.residual <= 1e-10
    assert 1 <= posterior.iterations <= 60
    g = torch.randn(25, dtype=torch.float64)
    assert (g @ posterior.covariance(g)).item() == pytest.approx((g @ inverse(H) @ g).item(), rel=1e-8)
    with pytest.raises(NotImplementedError, match="no square root"):
        posterior.exact_directions()


def test_the_determinant_of_a_matrix_free_posterior_is_estimated(problem):
    denoiser, subset, pairs, H = problem
    dense = posteriors.dense(denoiser, subset, pairs, probes=None)
    free = posteriors.matrix_free(denoiser, subset, pairs)
    assert free.scale == pytest.approx(dense.scale, rel=1e-6), "the same defaults as the others"
    assert 0.3 < free.prior_precision / dense.prior_precision < 3
    for delta in (1e-3, 1.0, 1e3):
        exact = -torch.logdet(inverse(H, delta)).item()
        spread = (SCALE * torch.linalg.eigvalsh(H) + delta).log().std().item()
        found = free.refit(delta, SCALE).log_det_precision()
        # Lanczos with as many steps as parameters is exact per probe; the error is that of the random probes
        assert found == pytest.approx(exact, abs=3 * len(H) ** 0.5 * spread)


def test_the_quadrature_is_exact_for_its_probes():
    """With 400 parameters in float32, the only error is the randomness of the probes."""
    model = flare.bench.load("sines")
    subset = subsets.random(model.denoiser, count=400, seed=0)
    pairs = flare.noising.pairs(model.data, model.schedule, n=200, seed=0, weighting=model.weighting)
    free = posteriors.matrix_free(model.denoiser, subset, pairs, 10.0)
    dense = posteriors.dense(model.denoiser, subset, pairs, 10.0, probes=None)
    coins = torch.randint(0, 2, (PROBES, 400), generator=torch.Generator().manual_seed(0))
    signs = (2 * coins - 1).double()
    along = (signs @ dense.eigenvectors).square()  # vᵀ log(sH + δ) v by the eigenpairs
    expected = (along * dense.precision.log()).sum() / PROBES
    assert free.log_det_precision() == pytest.approx(expected.item(), rel=0.01)
    free, dense = free.refit(1e4), dense.refit(1e4)
    v = torch.randn(2, 400, dtype=torch.float64)
    iterations = {}
    for precondition in (False, True):
        free.precondition = precondition
        torch.testing.assert_close(free.covariance(v), dense.covariance(v), rtol=0.05, atol=1e-6)
        iterations[precondition] = free.iterations
    assert iterations[True] < 0.7 * iterations[False], iterations


def test_a_solve_that_does_not_converge_is_an_error_with_its_residual(problem):
    denoiser, subset, pairs, _ = problem
    posterior = posteriors.matrix_free(
        denoiser, subset, pairs, 1e-9, SCALE, tolerance=1e-12, max_iterations=3, precondition=False
    )
    with pytest.raises(RuntimeError, match=r"relative residual .* after 3 iterations"):
        posterior.directions(2)
    assert posterior.iterations == 3


class Stack(nn.Module):
    """A convolution, a linear layer on sequences, a norm, a linear head; called once each."""

    def __init__(self, channels=2, length=4):
        super().__init__()
        self.conv = nn.Conv1d(channels, 3, 3, padding=1, stride=1)
        self.mix = nn.Linear(length, length, bias=False)
        self.norm = nn.GroupNorm(1, 3)
        self.head = nn.Conv1d(3, channels, 1)

    def forward(self, x, t):
        hidden = torch.tanh(self.conv(x)) + t.view(-1, 1, 1) / 20
        return self.head(self.norm(torch.tanh(self.mix(hidden))))


def recorded_pass(net, layers, x, t):
    """f of one sample, and the input and output of each layer on the way."""
    seen = {}

    def record(name):
        return lambda module, inputs, output: seen.__setitem__(name, (inputs[0], output))

    hooks = [net.get_submodule(name).register_forward_hook(record(name)) for name in layers]
    f = net(x, t).flatten()
    for hook in hooks:
        hook.remove()
    return f, seen


def naive_factors(net, layers, pairs):
    """Kronecker factors by plain loops over pairs, outputs and places."""
    A, G = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    total = sum(float(batch.weight.sum()) for batch in pairs.batches("epsilon", torch.float64))
    for batch in pairs.batches("epsilon", torch.float64):
        for i in range(len(batch)):
            f, seen = recorded_pass(net, layers, batch.x[i : i + 1], batch.t[i : i + 1])
            for name, (a, y) in seen.items():
                module = net.get_submodule(name)
                conv = isinstance(module, nn.Conv1d)
                if conv:
                    padded = nn.functional.pad(a[0], (module.padding[0],) * 2)
                    k = module.kernel_size[0]
                    places = [padded[:, j : j + k].flatten() for j in range(y.shape[-1])]
                else:
                    places = list(a.flatten(0, -2))
                for place in places:
                    row = torch.cat([place, place.new_ones(1)]) if module.bias is not None else place
                    A[name] = A[name] + batch.weight[i] * torch.outer(row, row).detach() / total
                for o in f:
                    (g,) = torch.autograd.grad(o, y, retain_graph=True)
                    for row in g[0].T if conv else g.flatten(0, -2):
                        weight = batch.weight[i] / (pairs.n * len(places))
                        G[name] = G[name] + weight * torch.outer(row, row)
    return {name: (A[name], G[name]) for name in layers}


def kron_matrix(A, G, bias):
    """A ⊗ G in the order of the parameters: weights row by row, then the bias."""
    H = torch.einsum("op,ij->oipj", G, A)
    o, i = len(G), len(A)
    order = [(r, c) for r in range(o) for c in range(i - bias)] + [(r, i - 1) for r in range(o) if bias]
    rows, columns = (torch.tensor(v) for v in zip(*order, strict=True))
    return H[rows, columns][:, rows, columns]


def test_kronecker_equals_plain_loops():
    torch.manual_seed(0)
    net = Stack().double()
    denoiser = flare.Denoiser(net)
    pairs = flare.noising.pairs(
        torch.randn(20, 2, 4, dtype=torch.float64),
        flare.schedules.cosine(10),
        n=13,
        weighting="min_snr",
        batch_size=5,
    )
    layers = ["conv", "mix", "head"]
    subset = subsets.named(denoiser, [f"{name}.*" for name in layers])
    blocks = []
    for name, (A, G) in naive_factors(net, layers, pairs).items():
        blocks.append(kron_matrix(A, G, int(net.get_submodule(name).bias is not None)))
    posterior = posteriors.kronecker(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    compare(posterior, inverse(torch.block_diag(*blocks)))


def test_kronecker_is_exact_for_one_linear_layer():
    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 4)

        def forward(self, x, t):
            return self.out(x)

    net = Affine().double()
    denoiser = flare.Denoiser(net)
    pairs = flare.noising.pairs(
        torch.randn(20, 4, dtype=torch.float64), flare.schedules.cosine(10), n=50, weighting="min_snr"
    )
    subset = subsets.everything(denoiser)
    exact = posteriors.dense(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    factored = posteriors.kronecker(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    eye = torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(factored.covariance(eye), exact.covariance(eye), rtol=1e-8, atol=1e-10)


def test_kronecker_refuses_what_it_cannot_factor():
    _, denoiser, pairs = small_problem((3,))
    with pytest.raises(ValueError, match="whole layers"):
        posteriors.kronecker(denoiser, subsets.random(denoiser, count=5), pairs)
    stack = flare.Denoiser(Stack().double())
    own = flare.noising.pairs(torch.randn(9, 2, 4, dtype=torch.float64), pairs.schedule, n=4)
    with pytest.raises(ValueError, match=r"'norm.weight' belongs to a GroupNorm"):
        posteriors.kronecker(stack, subsets.everything(stack), own)
    with pytest.raises(ValueError, match="without its weight"):
        posteriors.kronecker(denoiser, subsets.named(denoiser, "second.bias"), pairs)

    class Twice(TinyNet):
        def forward(self, x, t):
            return super().forward(super().forward(x, t), t)

    twice = flare.Denoiser(Twice((3,)).double())
    with pytest.raises(ValueError, match="called 2 times per pass"):
        posteriors.kronecker(twice, subsets.everything(twice), pairs)


class Five(nn.Linear):
    """A subclass that multiplies its weight."""

    def forward(self, x):
        return nn.functional.linear(x, 5 * self.weight, self.bias)


class Tokens(nn.Module):
    """A linear layer on sequences, whose rows come in several layouts."""

    def __init__(self, layout: str, kind: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.mix, self.layout = kind(2, 2), layout

    def forward(self, x, t):
        if self.layout == "batch first":
            return torch.tanh(self.mix(x))
        if self.layout == "sequence first":
            return torch.tanh(self.mix(x.transpose(0, 1))).transpose(0, 1)
        if self.layout == "flat":
            return torch.tanh(self.mix(x.flatten(0, 1))).view_as(x)
        if self.layout == "past the layer":
            return torch.tanh(nn.functional.linear(x, self.mix.weight)) + self.mix(x)
        if self.layout == "hook":
            return hook(self.mix(x))
        return self.mix(x) if float(x.sum()) < 1e9 else x  # a branch


def hook(h):
    if h.requires_grad:
        h.register_hook(lambda g: 3 * g)
    return h


def tokens(layout, kind=nn.Linear):
    torch.manual_seed(0)
    denoiser = flare.Denoiser(Tokens(layout, kind).double())
    pairs = flare.noising.pairs(torch.randn(9, 5, 2, dtype=torch.float64), flare.schedules.cosine(10), n=7)
    return posteriors.kronecker(denoiser, subsets.everything(denoiser), pairs, DELTA, SCALE, probes=None)


@pytest.mark.parametrize("layout", ["sequence first", "flat"])
def test_kronecker_takes_rows_in_any_layout(layout):
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(tokens(layout).covariance(eye), tokens("batch first").covariance(eye))


def test_kronecker_refuses_layers_that_compute_something_else():
    with pytest.raises(ValueError, match=r"'mix.weight' belongs to a Five"):
        tokens("batch first", Five)
    with pytest.raises(ValueError, match=r"mix.weight: used outside the layer that owns it"):
        tokens("past the layer")
    with pytest.raises(ValueError, match="a network that runs under"):
        tokens("branch")
    with pytest.raises(ValueError, match="gradients under vmap differ"):
        tokens("hook")


@pytest.mark.parametrize("k", [1, 7])
def test_directions_are_draws_divided_by_the_root_of_k(problem, k):
    denoiser, subset, pairs, _ = problem
    posterior = posteriors.dense(denoiser, subset, pairs, DELTA, SCALE)
    draw = posterior.draw(k, torch.Generator().manual_seed(3))
    directions = posterior.directions(k, torch.Generator().manual_seed(3))
    torch.testing.assert_close(directions, draw.T / k**0.5)


def test_errors_name_bad_matrices_and_numbers(problem):
    from flare.posteriors.curvature import spectrum

    denoiser, subset, pairs, _ = problem
    eye = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="NaN or infinity"):
        spectrum(eye * torch.nan)
    with pytest.raises(ValueError, match="indefinite: its eigenvalues go from -1 to 1"):
        spectrum(torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)))
    for delta in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="prior_precision must be a positive number"):
            posteriors.dense(denoiser, subset, pairs, delta)
    with pytest.raises(ValueError, match="scale must be a positive number"):
        posteriors.dense(denoiser, subset, pairs, 1.0, 0.0)
    with pytest.raises(ValueError, match="'marglik' or 'validation'"):
        posteriors.dense(denoiser, subset, pairs, "marklig")
    with pytest.raises(ValueError, match="'calibrated'"):
        posteriors.dense(denoiser, subset, pairs, 1.0, "calibrate")
    with pytest.raises(ValueError, match=r"validation=flare\.noising\.pairs"):
        posteriors.dense(denoiser, subset, pairs, "validation")
    with pytest.raises(ValueError, match="at most 25"):
        posteriors.low_rank(denoiser, subset, pairs, rank=26)


@pytest.mark.parametrize("inplace", [False, True])
def test_kronecker_of_a_strided_2d_convolution_before_an_activation_in_place(inplace):
    """Against the dense diagonal block: exact, since a single place is convolved."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 2, stride=2)
            self.act = nn.SiLU(inplace=inplace)

        def forward(self, x, t):
            return self.act(self.conv(x)).reshape(x.shape)

    net = Net().double()
    denoiser = flare.Denoiser(net)
    pairs = flare.noising.pairs(torch.randn(9, 1, 2, 2, dtype=torch.float64), flare.schedules.cosine(5), n=1)
    subset = subsets.everything(denoiser)
    factored = posteriors.kronecker(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    exact = posteriors.dense(denoiser, subset, pairs, DELTA, SCALE, probes=None)
    # one pair and one place: H = aaᵀ ⊗ G with nothing averaged
    eye = torch.eye(subset.size, dtype=torch.float64)
    torch.testing.assert_close(factored.covariance(eye), exact.covariance(eye), rtol=1e-8, atol=1e-10)


def test_kronecker_refuses_tied_and_unused_layers():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(3, 3, bias=False) for _ in range(3))
            self.b.weight = self.a.weight

        def forward(self, x, t):
            return self.b(torch.tanh(self.a(x)))

    denoiser = flare.Denoiser(Tied().double())
    pairs = flare.noising.pairs(torch.randn(9, 3, dtype=torch.float64), flare.schedules.cosine(5), n=4)
    with pytest.raises(ValueError, match=r"a\.weight and b\.weight are one tensor"):
        posteriors.kronecker(denoiser, subsets.named(denoiser, "a.*"), pairs)
    with pytest.raises(ValueError, match="'c' is called 0 times per pass"):
        posteriors.kronecker(denoiser, subsets.named(denoiser, "c.*"), pairs)
    full = posteriors.dense(denoiser, subsets.named(denoiser, "a.*"), pairs, DELTA, probes=None)
    assert full.size == 9


def test_half_precision_can_be_fitted_densely():
    torch.manual_seed(0)
    denoiser = flare.Denoiser(TinyNet((4,), 12).bfloat16())
    pairs = flare.noising.pairs(torch.randn(50, 4), flare.schedules.cosine(10), n=200)
    posterior = posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 1e-3)
    assert posterior.directions(2).isfinite().all()


def test_kronecker_factors_do_not_depend_on_gradients_of_the_conditions():
    """Conditions that a text encoder made carry its graph."""
    torch.manual_seed(0)
    denoiser = flare.Denoiser(TinyNet((3,), 5).double())
    data, schedule = torch.randn(20, 3, dtype=torch.float64), flare.schedules.cosine(20)
    encoder = nn.Linear(2, 1).double()
    shift = encoder(torch.randn(20, 2, dtype=torch.float64))[:, 0]
    found = []
    for given in (shift, shift.detach()):
        pairs = flare.noising.pairs(data, schedule, n=40, cond={"shift": given})
        found.append(posteriors.kronecker(denoiser, subsets.everything(denoiser), pairs, DELTA, SCALE))
    v = torch.randn(3, denoiser.parameter_count, dtype=torch.float64)
    torch.testing.assert_close(found[0].covariance(v), found[1].covariance(v))
    assert encoder.weight.grad is None

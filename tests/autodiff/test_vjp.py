from __future__ import annotations

import pytest
import torch
from reference import TinyNet, flat_index, naive_jacobian

import flare
from flare import subsets
from flare.autodiff import by_layer, vjp
from flare.autodiff.jvp import Push

SHAPES = [(5,), (2, 3), (2, 3, 2)]


@pytest.fixture(params=SHAPES, ids=str)
def problem(request):
    net = TinyNet(request.param, 6).double()
    denoiser = flare.Denoiser(net)
    x, t = torch.randn(4, *request.param, dtype=torch.float64), torch.arange(4)
    shift = torch.randn(4, dtype=torch.float64)
    subset = subsets.random(denoiser, fraction=0.4, seed=3)
    J = naive_jacobian(net, x, t, shift=shift)[..., flat_index(subset, net)]
    return denoiser, subset, x, t, {"shift": shift}, J


def test_push_is_J_v(problem):
    denoiser, subset, x, t, cond, J = problem
    v = torch.randn(3, subset.size, dtype=torch.float64)
    f, df = Push(denoiser, subset, v.T)(x, None, t, cond)
    torch.testing.assert_close(f, denoiser(x, t, cond))
    torch.testing.assert_close(df.flatten(2), torch.einsum("bdm,km->kbd", J, v))


def test_push_in_theta_and_x_jointly_is_the_difference_quotient(problem):
    denoiser, subset, x, t, cond, _ = problem
    v, dx = torch.randn(2, subset.size, dtype=torch.float64), torch.randn(2, *x.shape, dtype=torch.float64)
    _, df = Push(denoiser, subset, v.T)(x, dx, t, cond)
    _, only_x = Push(denoiser)(x, dx, t, cond)
    h = 1e-6
    for k in range(2):

        def f(sign, theta=1.0, k=k):
            moved = subset.scatter(sign * h * theta * v[k])
            params = {name: denoiser.params[name] + moved[name] for name in moved}
            return denoiser.call(params, x + sign * h * dx[k], t, cond)

        torch.testing.assert_close(df[k], (f(1) - f(-1)) / (2 * h), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(only_x[k], (f(1, 0) - f(-1, 0)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_pull_is_the_sum_of_Jt_u(problem):
    denoiser, subset, x, t, cond, J = problem
    u = torch.randn(3, *x.shape, dtype=torch.float64)
    torch.testing.assert_close(
        vjp.pull(denoiser, subset, x, t, u, cond), torch.einsum("bdm,kbd->km", J, u.flatten(2))
    )


@pytest.mark.parametrize("memory", [1, 2_000, 2**30])
def test_the_jacobian_does_not_depend_on_the_memory(problem, memory, monkeypatch):
    denoiser, subset, x, t, cond, J = problem
    monkeypatch.setattr(vjp, "MEMORY", memory)
    by_theta, by_x = vjp.jacobian(denoiser, subset, x, t, cond)
    torch.testing.assert_close(by_theta, J)
    d = x[0].numel()
    eye = torch.eye(d, dtype=torch.float64).view(d, 1, *x.shape[1:]).expand(d, *x.shape)
    _, columns = Push(denoiser)(x, eye, t, cond)
    torch.testing.assert_close(by_x, columns.flatten(2).permute(1, 2, 0))


@pytest.mark.parametrize("memory", [1, 3_000, 10**9])
@pytest.mark.parametrize("way", [by_layer.Pass, by_layer.RowByRow])
def test_rows_do_not_depend_on_the_memory_or_the_way(problem, memory, way, monkeypatch):
    denoiser, subset, x, t, cond, J = problem
    monkeypatch.setattr(vjp, "MEMORY", memory)
    monkeypatch.setattr(by_layer.ByLayer, "run", lambda *given: way(*given))
    probes = torch.randn(len(x), 3, *x.shape[1:], generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    found = [[] for _ in x]
    for here, f, g in vjp.iterate_rows(denoiser, subset, x, t, probes, cond):
        torch.testing.assert_close(f, denoiser(x, t, cond)[here])
        for row, own in zip(range(len(x))[here], g, strict=True):
            found[row].append(own)
    expected = torch.einsum("bdm,bkd->bkm", J, probes.flatten(2))
    torch.testing.assert_close(torch.stack([torch.cat(rows) for rows in found]), expected)


@pytest.mark.parametrize("memory", [1, 30_000, 100_000, 10**9])
def test_chunks_of_rows_fit_and_every_sample_runs_once(problem, memory, monkeypatch):
    denoiser, subset, x, t, cond, _ = problem
    monkeypatch.setattr(vjp, "MEMORY", memory)
    x, t, cond = x.repeat(10, *[1] * (x.ndim - 1)), t.repeat(10), {"shift": cond["shift"].repeat(10)}
    layers = by_layer.ByLayer(denoiser, subset, x, t, cond)
    real, runs = by_layer.ByLayer.run, []
    monkeypatch.setattr(
        by_layer.ByLayer, "run", lambda self, x, t, cond: runs.append(len(x)) or real(self, x, t, cond)
    )
    probes = torch.ones(len(x), 12, *x.shape[1:]).double()
    for *_, g in vjp.iterate_rows(denoiser, subset, x, t, probes, cond):
        assert g.shape[1] == 1 or 5 * 8 * g.numel() <= memory
    assert sum(runs) == len(x)  # once for all probes
    assert all(rows == 1 or 8 * rows * layers.row_size <= memory for rows in runs)
    assert len(runs) == 1 or memory < 10**9


def test_chunks_cover_everything_and_fit():
    denoiser = flare.Denoiser(TinyNet((5,), 6))
    subset = subsets.everything(denoiser)
    for memory in (1, 500, 5_000, 10**9):
        old, vjp.MEMORY = vjp.MEMORY, memory
        try:
            seen = torch.zeros(7, 11)
            for here, some in vjp.split_chunks(denoiser, subset, 7, 11):
                seen[here, some] += 1
                rows = (here.stop - here.start) * (some.stop - some.start)
                assert rows == 1 or rows * subset.size * 4 <= memory
            assert (seen == 1).all()
        finally:
            vjp.MEMORY = old

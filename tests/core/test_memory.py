"""Batch sizes are measured, halved when they do not fit, and do not change the samples."""

from __future__ import annotations

import weakref

import pytest
import torch
from reference import TinyNet

import flare
from flare import posteriors, samplers, schedules, subsets
from flare.autodiff.jvp import Push
from flare.bench.baselines import last_iterates
from flare.core import memory
from flare.posteriors import curvature

SCHEDULE = schedules.linear(12, 0.02, 0.3)
STEPS = samplers.ddim(SCHEDULE, 6, eta=0.5)
CPU = torch.device("cpu")
FULL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"


class Small(TinyNet):
    """A network that runs out of memory on batches larger than `most`."""

    most, error = 10**9, RuntimeError(FULL)
    seen: list[int] = []  # noqa: RUF012

    def forward(self, x, t, shift=None):
        self.seen.append(len(x))
        if len(x) > self.most:
            raise self.error
        return super().forward(x, t, shift)


@pytest.fixture(autouse=True)
def _plenty():
    Small.most, Small.error = 10**9, RuntimeError(FULL)
    Small.seen.clear()


def made():
    torch.manual_seed(1)
    denoiser = flare.Denoiser(Small((3,)))
    subset = subsets.named(denoiser, "second.*")
    origin = curvature.Origin.of(denoiser, subset, curvature.Statistics(1, 1, 1, 1.0))
    return denoiser, posteriors.Diagonal(origin, 1.0, 1.0, torch.ones(subset.size).double())


def test_peak_counts_what_is_alive_at_once():
    def work():
        a = torch.ones(1000)  # 4,000 bytes
        b = a.reshape(10, 100).T + 1  # 8,000
        del a
        c = (b * 2).mul_(3)  # 8,000 again: a is gone
        d = torch.empty(0) + c.sum()
        return torch.ones(500) + d[:0].sum()  # 12,000

    assert 12_000 <= memory.measure_peak(work, CPU) < 12_100
    assert memory.measure_peak(lambda: None, CPU) == 0


def test_peak_leaves_no_finalizers_and_skips_tensors_without_a_storage():
    weights, sparse = torch.ones(4, 4), torch.eye(4).to_sparse()
    before = len(weakref.finalize._registry)
    for _ in range(5):
        memory.measure_peak(lambda: (weights @ weights, torch.sparse.mm(sparse, weights)), CPU)
    assert len(weakref.finalize._registry) <= before


def test_free_memory_is_what_the_system_and_the_cgroup_leave(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)  # there is no cgroup
    free = memory.free_memory(CPU)
    assert 2**20 < free < 2**50
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 300\n")
    assert memory.free_memory(CPU) == 400  # caches count as free
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory(CPU) > 2**20


def test_peak_sees_through_the_transforms_that_differentiate():
    denoiser, posterior = made()
    D = posterior.directions(8)
    push = Push(denoiser, posterior.subset, D)

    def run(count):
        x = torch.zeros(count, 3)
        return push(x, torch.zeros(8, count, 3), torch.full((count,), 5))

    small, large = (memory.measure_peak(lambda n=n: run(n), CPU) for n in (8, 64))
    assert large > 8 * 64 * 3 * 4  # at least δf
    assert 4 < large / small < 9  # about eight times as much


@pytest.mark.parametrize(
    ("n", "budget", "size"),
    [(5000, 10**9, 1000), (30, 10**9, 30), (5000, 70_000, 64), (5000, 10, 1), (1, 1, 1)],
)
def test_the_chosen_batch_fits(n, budget, size):
    """Each sample takes 1,000 bytes, and each batch another 100."""
    ran = []

    def run(count):
        ran.append(count)
        torch.empty(1000 * count + 100, dtype=torch.uint8)

    assert memory.plan_batches(n, "auto", budget, run, CPU) == size
    assert max(ran, default=0) <= max(size, memory.PROBE)


def test_memory_that_grows_slower_than_the_batch_is_used():
    def run(count):
        torch.empty(1000 * min(count, 10) + 10 * count, dtype=torch.uint8)

    assert memory.plan_batches(5000, "auto", 25_000, run, CPU) == 256  # larger sizes have not been measured


def test_processes_share_the_memory(monkeypatch):
    assert memory.memory_budget(123, CPU) == 123
    before = memory.memory_budget(None, CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert memory.memory_budget(None, CPU) < before / 10
    with pytest.raises(ValueError, match="memory must be an integer of at least 1"):
        memory.memory_budget(0, CPU)


@pytest.mark.parametrize(
    "error", [RuntimeError(FULL), MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried …")]
)
def test_out_of_memory_is_recognized_and_other_errors_are_not(error):
    assert memory.is_out_of_memory(error)
    wrapped = flare.network.forward_mode.ForwardModeError("cannot be differentiated")
    wrapped.__cause__ = error
    assert memory.is_out_of_memory(wrapped)
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))


def test_a_batch_that_does_not_fit_is_retried_in_halves():
    denoiser, posterior = made()
    options = {"n": 30, "shape": (3,), "seed": 3, "directions": 4, "derivative": "exact"}
    options["cond"] = {"shift": torch.randn(30)}
    whole = flare.sample(denoiser, STEPS, posterior, **options)
    assert "batch_size" not in whole.about
    for error in (RuntimeError(FULL), MemoryError()):
        Small.most, Small.error = 10, error
        with pytest.warns(RuntimeWarning, match="ran out of memory .* in batches of") as caught:
            result = flare.sample(denoiser, STEPS, posterior, batch_size=30, **options)
        assert [str(w.message).split(" samples")[0] for w in caught] == ["a batch of 30", "a batch of 15"]
        assert result.about["batch_size"] == 8
        for name in ("samples", "variance", "score", "profile"):
            torch.testing.assert_close(getattr(result, name), getattr(whole, name), rtol=1e-4, atol=1e-6)


def test_finished_batches_are_not_repeated():
    denoiser, _ = made()
    frames = []

    def watch(items):
        for frame in items:
            if frame.first == 8 and frame.index == 3:
                Small.most = 4
            frames.append((frame.first, frame.index, len(frame.x)))
            yield frame

    with pytest.warns(RuntimeWarning, match="a batch of 8 samples .* from sample 8 in batches of 4"):
        result = flare.sample(denoiser, STEPS, n=20, shape=(3,), batch_size=8, progress=watch)
    assert [f for f in frames if f[1] == 0] == [(0, 0, 8), (8, 0, 8), (8, 0, 4), (12, 0, 4), (16, 0, 4)]
    Small.most = 10**9
    expected = flare.sample(denoiser, STEPS, n=20, shape=(3,)).samples
    torch.testing.assert_close(result.samples, expected, rtol=1e-5, atol=1e-6)


def test_work_after_the_last_step_is_halved_too():
    denoiser, posterior = made()
    calls = []

    def decode(x):
        calls.append(len(x))
        if len(x) > 5:
            raise MemoryError
        return 2 * x

    with pytest.warns(RuntimeWarning, match="a batch of 9 samples ran out of memory"):
        result = flare.sample(
            denoiser, STEPS, posterior, n=9, shape=(3,), directions=2, observe=decode, batch_size=9
        )
    torch.testing.assert_close(result.observed, 2 * result.samples)
    assert len(result) == 9


def test_auto_respects_the_given_memory():
    denoiser, posterior = made()
    options = {"n": 200, "shape": (3,), "seed": 3, "directions": 16}
    whole = flare.sample(denoiser, STEPS, posterior, **options)
    assert "batch_size" not in whole.about
    Small.seen.clear()
    result = flare.sample(denoiser, STEPS, posterior, memory=2_000_000, **options)
    size = result.about["batch_size"]
    assert 4 <= size < 200
    torch.testing.assert_close(result.samples, whole.samples, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.score, whole.score, rtol=1e-3, atol=1e-6)
    took = memory.measure_peak(
        lambda: flare.sample(denoiser, STEPS, posterior, batch_size=size, **(options | {"n": size})), CPU
    )
    assert took <= 2_000_000


def test_scores_and_baselines_too():
    denoiser, posterior = made()
    x = torch.randn(30, 3)
    whole = flare.score(denoiser, posterior, SCHEDULE, x, directions=4)
    small = flare.score(denoiser, posterior, SCHEDULE, x, directions=4, memory=100_000)
    torch.testing.assert_close(small, whole, rtol=1e-3, atol=1e-6)
    last = last_iterates(denoiser, STEPS, 30, (3,), last=[4])
    Small.most = 10
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        halved = flare.score(denoiser, posterior, SCHEDULE, x, directions=4, batch_size=30)
    torch.testing.assert_close(halved, whole, rtol=1e-3, atol=1e-6)
    with pytest.warns(RuntimeWarning, match="ran out of memory"):
        again = last_iterates(denoiser, STEPS, 30, (3,), last=[4], batch_size=30)
    torch.testing.assert_close(again.score, last.score, rtol=1e-4, atol=1e-6)


def test_batches_that_cannot_be_halved_raise():
    denoiser, _ = made()
    Small.most = 0
    with pytest.raises(RuntimeError, match="can't allocate memory"):  # not even one sample fits
        flare.sample(denoiser, STEPS, n=3, shape=(3,), batch_size=3)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        flare.sample(denoiser, STEPS, start=torch.zeros(3, 3), noise=lambda: torch.zeros(3, 3))
    Small.most = 10**9
    for bad in ("large", 0, 1.5):
        with pytest.raises(ValueError, match="batch_size must be"):
            flare.sample(denoiser, STEPS, n=3, shape=(3,), batch_size=bad)

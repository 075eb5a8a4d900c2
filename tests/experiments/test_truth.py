from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from experiments.truth import Judged, Truth, _measure_spread, mode_shares, random_score, within_mode_variance
from flare import bench
from flare.bench import metrics, oracles

CENTERS = torch.cartesian_prod(torch.arange(-1.0, 2), torch.arange(-1.0, 2))


def everything(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


def test_the_floor_knows_nothing():
    score = random_score(5000, seed=1)
    assert stats.kstest(score.numpy(), "uniform").pvalue > 0.001
    assert torch.equal(score, random_score(5000, seed=1))
    assert not torch.equal(score, random_score(5000, seed=2))
    assert metrics.keep_lowest(score, 0.3).sum() == 1500


def test_the_ceiling_finds_every_hallucination():
    data = bench.datasets.make("grid", 900, seed=2)
    x = torch.cat([data[:450], data[450:] + 0.4])
    truth = Truth("grid", data, data).judge(x)
    assert torch.equal(oracles.distance("grid", x), truth.distance)
    assert torch.equal(truth.bad, oracles.find_hallucinations("grid", x, data))
    assert metrics.auroc(truth.distance, truth.bad) == 1
    kept = metrics.keep_lowest(truth.distance, 0.4)
    assert truth.assess(kept)["hallucination_rate"] == 0


def test_the_figures_of_a_mixture_by_hand():
    held_out = bench.datasets.make("grid", 1800, seed=1)
    # mode k has 2 samples, 0.01·(k + 1) to both sides of its center, and mode 0 has two hallucinations more
    width = 0.01 * torch.arange(1.0, 10)[:, None] * torch.tensor([[1.0, 0.0]])
    far = CENTERS[:1] + torch.tensor([[-0.45, 0.0], [0.0, 0.45]])
    x = torch.cat([CENTERS + width, CENTERS - width, far])
    truth = Truth("grid", held_out, held_out).judge(x)
    assert truth.bad.tolist() == [False] * 18 + [True] * 2
    before = truth.assess(everything(20))
    assert before["hallucination_rate"] == pytest.approx(0.1)
    assert before["mode_change"] == 0
    assert (before["smallest_mode"], before["largest_mode"]) == pytest.approx((2 / 20, 4 / 20))
    kept = ~truth.bad
    kept[0] = kept[9] = False  # all of mode 0
    after = truth.assess(kept)
    assert after["hallucination_rate"] == 0
    assert (after["smallest_mode"], after["largest_mode"]) == pytest.approx((0, 1 / 8))
    assert after["mode_change"] == pytest.approx(20)  # points: mode 0 had 4 of 20
    # two samples at ±w have the variance 2w² along one coordinate and 0 along the other
    expected = np.mean([(0.01 * k) ** 2 for k in range(2, 10)]) / 0.05**2
    assert after["within_mode_variance"] == pytest.approx(expected, rel=0.05)
    clouds = x[kept].double(), held_out.double()
    assert after["energy_distance"] == pytest.approx(
        2 * torch.cdist(*clouds).mean().item()
        - torch.pdist(clouds[0]).mean().item()
        - torch.pdist(clouds[1]).mean().item()
    )


@pytest.mark.parametrize("name", ["grid", "sines", "chirp", "damped"])
def test_real_data_passes_for_real(name):
    n = 360
    real, held_out, x = (bench.datasets.make(name, n, seed=seed) for seed in (1, 2, 3))
    figures = Truth(name, real, held_out).judge(x).assess(everything(n))
    assert figures["hallucination_rate"] < 0.02
    assert abs(figures["energy_distance"]) < 0.08  # its deviation at this n is up to 0.016
    diversity = "within_mode_variance" if name in ("grid", "sines") else "parameter_spread"
    assert figures[diversity] == pytest.approx(1, abs=0.1)
    assert ("mode_change" in figures) == (name in ("grid", "sines"))


def test_the_spread_of_curves_by_hand():
    """Of uniform parameters, those in the middle half of the first one's range have half its deviation."""
    curve = oracles.CURVES["chirp"]
    g = torch.Generator().manual_seed(1)
    low, high = torch.tensor(curve.ranges, dtype=torch.float64).T
    unit = torch.rand(400, 3, generator=g, dtype=torch.float64)
    tau = torch.linspace(0, 1, 80, dtype=torch.float64)
    x = torch.stack([curve.shape(p, tau) for p in low + (high - low) * unit])
    truth = Truth("chirp", x, x).judge(x)
    kept = (unit[:, 0] - 0.5).abs() < 0.25
    ratios = unit[kept].numpy().std(axis=0, ddof=1) / unit.numpy().std(axis=0, ddof=1)
    assert ratios[0] == pytest.approx(0.5, abs=0.05)
    assert truth.assess(kept)["parameter_spread"] == pytest.approx(ratios.mean(), rel=1e-3)
    assert truth.assess(everything(400))["parameter_spread"] == pytest.approx(1)


def test_whole_turns_of_a_phase_do_not_count():
    """Phases that are 0.95, −0.05 or 1.05 turns are near each other, half a turn is not."""
    g = torch.Generator().manual_seed(1)
    others = torch.rand(400, 3, generator=g, dtype=torch.float64)
    phase = torch.rand(400, generator=g, dtype=torch.float64)
    what = torch.cat([others, phase[:, None]], dim=1)
    turned = what + torch.tensor([0, 0, 0, 1.0]) * torch.randint(-1, 2, (400, 1), generator=g)
    held_out = bench.datasets.make("damped", 400, seed=1)
    truth = Truth("damped", held_out, held_out)

    def spread(params: torch.Tensor, kept: torch.Tensor) -> float:
        truth.spread = _measure_spread("damped", held_out, what)
        return Judged(truth, held_out, torch.zeros(400), params).assess(kept)["parameter_spread"]

    assert spread(turned, everything(400)) == pytest.approx(1)
    # a quarter of a turn around 0, wherever the circle is cut
    kept = (phase < 1 / 8) | (phase > 7 / 8)
    length = stats.circstd(2 * np.pi * phase[kept].numpy())  # √(−2 ln R)
    whole = stats.circstd(2 * np.pi * phase.numpy())
    ratio = np.sqrt((1 - np.exp(-(length**2))) / (1 - np.exp(-(whole**2))))  # √(1 − R²)
    linear = others[kept].numpy().std(0, ddof=1) / others.numpy().std(0, ddof=1)
    assert spread(turned, kept) == pytest.approx((linear.sum() + ratio) / 4, rel=0.01)


def test_mode_shares_and_variance_by_hand():
    modes = torch.tensor([0, 0, 2, 2, 2, 3])
    assert mode_shares(modes, 5).tolist() == pytest.approx([1 / 3, 0, 1 / 2, 1 / 6, 0])
    x = torch.tensor([[0.0, 1.0], [2.0, 1.0], [5.0, 0.0], [6.0, 3.0], [7.0, 6.0], [9.0, 9.0]])
    # mode 0: variances 2 and 0, mode 2: 1 and 9; modes 1, 3 and 4 have no two samples
    assert within_mode_variance(x, modes, 5) == pytest.approx(((2 + 0) / 2 + (1 + 9) / 2) / 2)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=30),
    st.floats(0.1, 10),
)
def test_laws_of_modes(rows, scale):
    modes = torch.tensor([mode for mode, _, _ in rows])
    x = torch.tensor([[a, b] for _, a, b in rows], dtype=torch.float64)
    shares = mode_shares(modes, 4)
    assert shares.sum().item() == pytest.approx(1)
    assert shares.tolist() == [float(np.mean(modes.numpy() == mode)) for mode in range(4)]
    groups = [x[modes == mode].numpy() for mode in range(4)]
    naive = [np.var(group, axis=0, ddof=1).mean() for group in groups if len(group) > 1]
    assume(naive)
    variance = within_mode_variance(x, modes, 4)
    assert variance == pytest.approx(np.mean(naive), abs=1e-9)
    moved = scale * x + 5.0 * modes[:, None]  # where a mode stands does not matter
    assert within_mode_variance(moved, modes, 4) == pytest.approx(scale**2 * variance, abs=1e-6)

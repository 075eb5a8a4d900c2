"""NaN and infinity cost the samples that have them, and none of the others."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import matplotlib as mpl
import pytest
import torch
from reference import TinyNet

import flare
from flare import posteriors, samplers, schedules, subsets
from flare.bench.baselines import bayesdiff, last_iterates
from flare.results.result import join

mpl.use("Agg")
from matplotlib import pyplot as plt

from flare.posteriors import curvature

SCHEDULE = schedules.cosine(30)
BAD = [1, 4]
N = 6


class Spoilt(TinyNet):
    """Below time 20 the flagged samples get NaN, infinity, or a derivative that is not a number."""

    def forward(self, x, t, nan=None, inf=None, slope=None):
        out = super().forward(x, t)
        late = (t < 20).to(x.dtype)
        for flag, value in ((nan, torch.nan), (inf, torch.inf)):
            if flag is not None:
                hit = (flag * late > 0).view(-1, *[1] * (x.ndim - 1))
                out = out * torch.where(hit, value, 1.0)
        if slope is not None:
            # √0 has an infinite slope, times 0: the value is fine and the derivative is NaN
            shielded = (1 - slope * late).view(-1, *[1] * (x.ndim - 1))
            out = out + 0 * (shielded * x.square()).sqrt()
        return out


def made(shape=(3,), delta=1.0, scale=1.0):
    torch.manual_seed(3)
    denoiser = flare.Denoiser(Spoilt(shape))
    subset = subsets.random(denoiser, count=12, seed=1)
    origin = curvature.Origin.of(denoiser, subset, curvature.Statistics(1, 1, 1, 1.0))
    H = torch.randn(12, 12, dtype=torch.float64)
    return denoiser, posteriors.Dense(origin, delta, scale, *torch.linalg.eigh(H @ H.T))


def flags(name, which=BAD):
    flag = torch.zeros(N)
    flag[which] = 1.0
    return {name: flag}


TABLES = {
    "ddpm": samplers.ddpm(SCHEDULE),
    "clipped": samplers.ddpm(SCHEDULE, clip=1.0),
    "2m": samplers.dpmpp_2m(SCHEDULE, 15, clip=1.0),
    "heun": samplers.heun(SCHEDULE, 8, clip=1.0),
}
RULES = {
    "plain": {},
    "tangent": {
        "rule": "tangent",
        "derivative": "exact",
        "score": ["trace", "off_manifold", "expected_residual"],
    },
    "secant": {"rule": "tangent", "derivative": "secant"},
    "exact": {"rule": "tangent", "directions": "exact", "covariance": True},
    "monte_carlo": {"rule": "monte_carlo", "score": "trace"},
    "decoupled": {"rule": "decoupled"},
    "released": {"rule": "released"},
    "endpoint": {"rule": "endpoint"},
}


def draw(name, table, cond, **options):
    denoiser, posterior = made()
    options = {"directions": 3, **RULES[name], **options}
    fitted = None if name == "plain" else posterior
    return flare.sample(denoiser, TABLES[table], fitted, N, (3,), seed=5, cond=cond, **options)


def equal_but_for(got, want, bad, tolerance=0.0):
    """All of the bad samples is NaN; all of the others is what it is without them."""
    mask = torch.zeros(N, dtype=torch.bool)
    mask[bad] = True
    assert got.lost.tolist() == mask.tolist()
    tensors = [(got.samples, want.samples)]
    tensors += [(getattr(got, k), getattr(want, k)) for k in ("variance", "covariance", "profile")]
    tensors += [(got.scores[k], want.scores[k]) for k in want.scores]
    for ours, theirs in tensors:
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours[mask].isnan().all()
            torch.testing.assert_close(ours[~mask], theirs[~mask], rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", RULES)
def test_only_the_samples_that_have_it_are_lost(name, table, kind):
    multistep = table in ("2m", "heun")
    if multistep and name in ("decoupled", "released"):
        pytest.skip("one-step samplers only")
    whole = draw(name, table, flags(kind, []))
    where = r"step 11 of 30 \(time 19\)" if not multistep else r"step \d+ of 15 \(time \d+\)"
    message = where + r" has NaN or infinity in 2 of 6 samples \(first: \[1, 4\]\); they are returned as NaN"
    with pytest.warns(RuntimeWarning, match=message):
        result = draw(name, table, flags(kind))
    # the step of a secant is the mean over the batch
    equal_but_for(result, whole, BAD, 0.05 if name == "secant" else 0.0)
    assert list(result.about["lost"].values()) == [BAD]


@pytest.mark.parametrize("name", ["tangent", "exact"])
def test_a_derivative_that_is_not_a_number_is_caught_at_its_step(name):
    whole = draw(name, "clipped", flags("slope", []))
    with pytest.warns(RuntimeWarning, match=r"step 11 of 30 .* 2 of 6 samples \(first: \[1, 4\]\)"):
        result = draw(name, "clipped", flags("slope"))
    equal_but_for(result, whole, BAD)


def test_a_rerun_model_that_blows_up_counts_too():
    denoiser, posterior = made(delta=1e-90, scale=1e-90)  # draws of a size that no float32 holds
    with pytest.raises(ValueError, match=r"step 1 of 30 \(time 29\) has NaN or infinity in 6 of 6 samples"):
        flare.sample(denoiser, TABLES["ddpm"], posterior, N, (3,), rule="monte_carlo", score="trace")


def test_a_score_that_overflows_is_a_loss_at_the_end():
    def far(x):
        return torch.where(x.sum(1, keepdim=True) > 0, torch.inf, 0.0) + x

    class Rule(flare.propagation.Tangent):
        def finish(self, state, x, noise):
            spread = super().finish(state, x, noise)
            return replace(spread, variance=far(spread.x))

    denoiser, posterior = made()
    rule = Rule(denoiser, posterior.subset, posterior.directions(2))
    with pytest.warns(RuntimeWarning, match="the result of the last step has NaN"):
        result = flare.sample(denoiser, TABLES["clipped"], posterior, N, (3,), rule=rule, score="trace")
    assert result.lost.any()
    assert result.score[~result.lost].isfinite().all()


@pytest.mark.parametrize("size", [1, 4, 6])
def test_the_batch_does_not_matter_and_indices_count_from_the_first(size):
    with pytest.warns(RuntimeWarning, match="2 of 6"):
        result = draw("tangent", "clipped", flags("nan"), batch_size=size, first=100)
    assert result.lost.nonzero().flatten().tolist() == BAD
    assert result.about["lost"] == {"step 11 of 30 (time 19)": [101, 104]}


@pytest.mark.parametrize("size", [1, 6])
def test_only_if_every_sample_is_lost_is_it_an_error(size):
    with pytest.raises(ValueError, match=r"step 11 of 30 \(time 19\) .* 6 of 6 samples .*Clip x̂0"):
        draw("plain", "clipped", flags("nan", range(N)), batch_size=size)


def test_frames_show_a_lost_sample_as_nan_from_its_step_on():
    seen = []

    def watch(frames):
        for frame in frames:
            seen.append((frame.x.isnan().all(1), frame.x0.isnan().all(1), frame.lost))
            yield frame

    with pytest.warns(RuntimeWarning):
        draw("plain", "clipped", flags("nan"), progress=watch)
    for index, (x, x0, lost) in enumerate(seen):
        assert (
            x.nonzero().flatten().tolist() == x0.nonzero().flatten().tolist() == (BAD if index >= 10 else [])
        )
        assert (lost is None) == (index < 10)


def test_baselines_lose_the_same_samples():
    denoiser, posterior = made()
    with pytest.warns(RuntimeWarning):
        last = last_iterates(denoiser, TABLES["clipped"], N, (3,), cond=flags("nan"))
    with pytest.warns(RuntimeWarning):
        total = bayesdiff(denoiser, TABLES["clipped"], posterior, N, (3,), cond=flags("nan"), directions=2)
    for result in (last, total):
        assert result.score.isnan().nonzero().flatten().tolist() == BAD
        assert result.about["lost"]


def test_scores_of_existing_samples():
    denoiser, posterior = made()
    x = torch.randn(N, 3)
    whole = flare.score(denoiser, posterior, SCHEDULE, x, score="trace", cond=flags("nan", []))
    with pytest.warns(RuntimeWarning, match="the trace of existing samples has NaN or infinity in 2 of 6"):
        scores = flare.score(denoiser, posterior, SCHEDULE, x, score="trace", cond=flags("nan"))
    assert scores.isnan().nonzero().flatten().tolist() == BAD
    found = ~scores.isnan()
    assert torch.equal(scores[found], whole[found])


def test_results_with_losses_are_kept_joined_and_shown(tmp_path):
    with pytest.warns(RuntimeWarning):
        a = draw("tangent", "clipped", flags("nan"))
    with pytest.warns(RuntimeWarning):
        b = draw("tangent", "clipped", flags("nan", [0]), first=6)
    a.save(tmp_path / "a.safetensors")
    both = join([flare.Result.load(tmp_path / "a.safetensors"), b])
    assert both.about["lost"] == {"step 11 of 30 (time 19)": [1, 4, 6]}
    assert both.lost.nonzero().flatten().tolist() == [1, 4, 6]
    kept = both.select(both.keep(0.5))
    assert len(kept) == 4  # of the nine that are left
    assert not kept.lost.any()
    flare.report.write(tmp_path / "r.html", both)
    lost = '"title":"Lost to NaN or infinity","amount":"3 of 12 samples","note":"1, 4, 6."'
    assert lost in (tmp_path / "r.html").read_text(encoding="utf-8")
    mask = both.keep(0.5)
    for ax in (
        flare.plot.samples(both, mask),
        flare.plot.histogram(both),
    ):
        assert ax.has_data()
    plt.close("all")


def test_the_ends_of_a_report_are_numbered_as_the_samples_are(tmp_path):
    with pytest.warns(RuntimeWarning):
        result = draw("tangent", "clipped", flags("nan"))
    order = result.score.nan_to_num(nan=torch.inf).argsort()[:4]
    flare.report.write(tmp_path / "r.html", result)
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])
    assert [data["indices"][row] for row in data["rows"][:2]] == order[:2].tolist()


def test_first_order_is_judged_by_the_samples_that_are_left():
    denoiser, posterior = made(delta=100.0)
    with pytest.warns(RuntimeWarning):
        found = flare.check_linearization(
            denoiser, TABLES["clipped"], posterior, N, (3,), draws=16, cond=flags("nan")
        )
    assert len(found.tangent) == len(found.monte_carlo) == 4
    assert found.ratio > 0

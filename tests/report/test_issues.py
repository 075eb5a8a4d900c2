from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest
import torch
from judged import fake, judge

import flare
from flare.report.issues import CLOSE, find_issues, find_twins


def find(result, lost=()):
    """The issues of a result by their titles; sample i is the sample 10·i of the caller."""
    places = 10 * torch.arange(len(result))
    return {issue.title: issue for issue in find_issues(result, result.ranking, 0.05, places, None, lost)}


def test_every_doubtful_sample_has_one_reason_and_the_worst_come_first():
    result = judge(fake(n=200))
    found = find(result)
    titles = {"influence": "It surprises the network", "neighbors": "Far from the training data"}
    for reason, title in titles.items():
        rows = [i for i in range(200) if result.p_value[i] <= 0.05 and result.reason[i] == reason]
        assert sorted(found[title].samples) == [10 * row for row in rows]
        assert found[title].amount == f"{len(rows)} of 200 samples"
        z = result.verdict.z[torch.tensor(found[title].samples) // 10]
        assert (z.diff() <= 0).all()
    assert set(found["Near copies of training data"].samples) == set(range(0, 2000, 200))


def test_what_does_not_occur_is_listed_without_samples():
    result = judge(fake())
    result = replace(result, verdict=replace(result.verdict, copies=torch.zeros(60, dtype=torch.bool)))
    found = find(result)
    assert found["Near copies of training data"].amount == ""
    assert found["Lost to NaN or infinity"].amount == ""
    unknown = find(replace(result, verdict=replace(result.verdict, copies=None)))
    assert "Near copies of training data" not in unknown
    assert list(find(fake())) == ["Lost to NaN or infinity"]


def test_lost_samples_are_named():
    issue = find(fake(), [str(k) for k in range(8)])["Lost to NaN or infinity"]
    assert issue.amount == "8 of 68 samples"
    assert issue.note == "0, 1, 2, 3, 4, 5, …."


@pytest.mark.parametrize("shape", [(2,), (3, 12, 12)])
def test_twins_are_the_pairs_that_a_double_loop_finds(shape):
    draw = torch.Generator().manual_seed(3)
    samples = torch.randn(60, *shape, generator=draw)
    samples[10] = samples[40] + 1e-3
    samples[50] = samples[20]
    places = torch.arange(60)[torch.arange(60) != 30]
    result = flare.Result(samples, about={"copy_distance": 0.3})
    near = {}
    for i, j in combinations(places.tolist(), 2):
        distance = float((samples[i] - samples[j]).double().norm())
        for a, b in ((i, j), (j, i)):
            if distance < CLOSE * 0.3 and distance < near.get(a, (0.3, None))[0]:
                near[a] = distance, b
    expected = [near.get(i, (0, -1))[1] for i in places.tolist()]
    assert find_twins(result, places).tolist() == expected
    assert expected[10] == 40
    assert find_twins(result, places[:1]).tolist() == [-1]
    assert find_twins(flare.Result(samples), places) is None


def test_duplicates_are_an_issue():
    twins = torch.full((60,), -1)
    twins[[2, 5]] = torch.tensor([50, 20])
    issues = find_issues(fake(), torch.arange(60.0), 0.05, 10 * torch.arange(60), twins, ())
    assert issues[0].amount == "2 of 60 samples"
    assert issues[0].samples == [50, 20]


def tail(most, members, n, size):
    """P(at most `most` of a region's members are among the n samples), counted one by one."""
    return sum(comb(members, k) * comb(n + size - members, n - k) for k in range(most + 1)) / comb(
        n + size, n
    )


@pytest.mark.parametrize("counts", [[25, 25, 25, 25], [60, 10, 22, 8], [10, 40, 10, 40]])
def test_regions_with_too_few_and_too_many_samples(counts):
    own = [2, 100, 48, 50]
    regions = torch.repeat_interleave(torch.arange(4), torch.tensor(own))
    result = fake(n=200, regions=regions, about={"region_counts": counts})
    found = find(result)
    few, many = (found[f"Regions with too {word} samples"] for word in ("few", "many"))
    for issue, is_few in ((few, True), (many, False)):
        named = []
        for k in range(4):
            expected = 200 * counts[k] / 100
            members = own[k] + counts[k]
            below, beyond = tail(own[k], members, 200, 100), 1 - tail(own[k] - 1, members, 200, 100)
            p, factor = (below, expected / own[k]) if is_few else (beyond, own[k] / expected)
            if p < 0.01 / 8 and factor > 1.5:
                named.append(k)
                assert f"region {k}: {own[k]} samples, {expected:.0f} expected" in issue.note
        assert issue.amount == (f"{len(named)} of 4 regions" if named else "")
        assert set(issue.samples) == {10 * i for i in range(200) if int(regions[i]) in named}
    assert few.amount


def test_a_region_without_samples_is_missed():
    regions = torch.zeros(60, dtype=torch.long)
    found = find(fake(regions=regions, about={"region_counts": [50, 50]}))
    issue = found["Regions with too few samples"]
    assert issue.note.startswith("region 1: 0 samples, 30 expected. ")
    assert issue.samples == []


def test_chance_rarely_names_a_region():
    draw = torch.Generator().manual_seed(0)
    named = 0
    for _ in range(200):
        regions = torch.randint(16, (400,), generator=draw)
        real = torch.randint(16, (300,), generator=draw).bincount(minlength=16).tolist()
        found = find(fake((2,), n=400, regions=regions, about={"region_counts": real}))
        named += bool(
            found["Regions with too few samples"].amount or found["Regions with too many samples"].amount
        )
    assert named <= 6  # 2 are expected at most

"""A result with a verdict: selected, joined, saved, compared and shown with its samples."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from judged import fake, judge

import flare
from flare.results.result import fill_lost, join
from flare.results.result_files import is_scored, load_table
from flare.storage import checkpoint


@pytest.fixture(scope="module")
def judged():
    """Eight samples with a verdict; the sixth could not be scored, the last is doubtful."""
    generator = torch.Generator().manual_seed(0)
    real = {name: torch.rand(99, generator=generator) + 0.5 for name in ("influence", "neighbors")}
    reference = flare.Reference(real)
    scores = {name: torch.linspace(0.5, 1.4, 8) for name in real}
    scores["neighbors"][7] = 30.0
    scores["influence"][5] = torch.nan
    samples = torch.randn(8, 3, generator=generator)
    samples[5] = torch.nan
    copies = torch.tensor([True] + [False] * 7)
    nearest = torch.tensor([4, 3, 2, 1, 0, -1, 9, 8])
    verdict = replace(reference.verdict(scores), copies=copies, nearest=nearest)
    return flare.Result(samples, scores=scores, verdict=verdict, reference=reference, about={"seed": 1})


def test_trusted_and_keep_are_masks_by_the_verdict(judged):
    assert torch.equal(judged.trusted(0.05), judged.verdict.p_value > 0.05)
    assert judged.trusted().tolist()[5:] == [False, True, False]
    assert judged.reason[5] == "not scored"
    assert judged.reason[7] == "neighbors"
    assert judged.p_value[5].isnan()
    z = judged.verdict.z
    order = [row for row in z.argsort().tolist() if not z[row].isnan()]
    assert sorted(judged.keep(3 / 7).nonzero().flatten().tolist()) == sorted(order[:3])


def test_without_a_verdict_keep_ranks_by_the_score_and_trusted_says_what_to_do():
    plain = flare.Result(torch.zeros(4, 2), scores={"trace": torch.tensor([3.0, 1.0, 2.0, 4.0])})
    assert plain.keep(0.5).tolist() == [False, True, True, False]
    for ask in (lambda: plain.p_value, lambda: plain.reason, plain.trusted):
        with pytest.raises(ValueError, match=r"have no verdict.*flare\.fit\(net, data, schedule=schedule\)"):
            ask()
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\], got 50; did you mean 0.5"):
        plain.keep(50)


@pytest.mark.parametrize("which", [3, slice(None, None, -1), [7, 0, 0], np.arange(8) > 4], ids=str)
def test_a_selection_takes_the_verdict_along(judged, which):
    some = judged[which]
    rows = np.arange(8)[which].reshape(-1).tolist()
    assert len(some.verdict) == len(some) == len(rows)
    for name in ("p_value", "z", "copies", "nearest"):
        assert torch.equal(
            getattr(some.verdict, name).nan_to_num(-5), getattr(judged.verdict, name)[rows].nan_to_num(-5)
        )
    assert list(some.reason) == [judged.reason[row] for row in rows]
    assert some.verdict.p_values["influence"].shape == (len(rows),)
    assert some.reference is judged.reference
    assert some.verdict.reference_size == 99


def test_parts_are_joined_with_their_verdicts(judged):
    assert join([judged[:3], judged[3:]]) == judged
    other = replace(judged[3:], verdict=replace(judged[3:].verdict, reference_size=5))
    with pytest.raises(ValueError, match="verdicts use different references"):
        join([judged[:3], other])


def test_a_part_without_usable_samples_is_not_scored(judged):
    lost = flare.Result(torch.full((2, 3), torch.nan), about={"lost": {"step 1": [0, 1]}})
    whole = join([lost, judged])
    assert whole.verdict.labels()[:2] == ["not scored"] * 2
    assert whole[2:] == judged
    assert whole.verdict.nearest[:2].tolist() == [-1, -1]


def test_lost_rows_lose_their_verdict_too(judged):
    lost = torch.tensor([True] + [False] * 7)
    filled = fill_lost(judged, lost)
    assert filled.p_value.isnan().tolist() == [True] + [False] * 4 + [True] + [False] * 2
    assert filled.reason[0] == "not scored"
    assert not filled.verdict.copies[0]
    assert filled[1:] == judged[1:]


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_a_saved_verdict_comes_back(tmp_path, judged, suffix):
    path = tmp_path / f"r.{suffix}"
    judged.save(path)
    again = flare.Result.load(path)
    assert again == judged
    assert list(again.reason) == list(judged.reason)
    assert again.verdict.copies.dtype == torch.bool
    assert (again.verdict.reference_size, again.verdict.held_out) == (99, True)
    assert again.verdict.nearest.tolist() == judged.verdict.nearest.tolist()
    assert torch.equal(again.reference.scores["neighbors"], judged.reference.scores["neighbors"])
    found = again.reference.verdict({k: v.double() for k, v in judged.scores.items()})
    assert torch.equal(found.p_value.nan_to_num(-1), judged.p_value.nan_to_num(-1))


def test_a_verdict_without_copies_or_neighbors_comes_back(tmp_path, judged):
    bare = replace(judged, verdict=replace(judged.verdict, copies=None, nearest=None), reference=None)
    bare.save(tmp_path / "r.npz")
    again = flare.Result.load(tmp_path / "r.npz")
    assert again == bare
    assert again.verdict.copies is again.verdict.nearest is again.reference is None


def test_files_without_a_verdict_still_load(tmp_path, judged):
    # the header of a file of an earlier version has neither a verdict nor a reference
    checkpoint.save(
        tmp_path / "old.safetensors",
        {"samples": judged.samples, "score.influence": judged.scores["influence"]},
        {"format": 1, "scores": ["influence"], "about": {}},
    )
    assert flare.Result.load(tmp_path / "old.safetensors").verdict is None


@pytest.mark.parametrize(
    ("change", "header"),
    [
        ({"p_value": None}, {}),
        ({"z": torch.zeros(7)}, {}),
        ({"reason": torch.full((8,), 3)}, {}),
        ({"reason": torch.zeros(8)}, {}),
        ({"p_value.influence": None}, {}),
        ({"reference.influence": None}, {}),
        ({}, {"verdict": {"scores": ["influence"]}}),
        ({}, {"verdict": 5}),
        ({}, {"verdict": {"scores": [], "reference_size": 0, "held_out": True}}),
        ({}, {"reference": {"scores": ["neighbors"], "held_out": 1, "log_scores": []}}),
    ],
    ids=range(10),
)
def test_a_damaged_verdict_names_the_file(tmp_path, judged, change, header):
    judged.save(tmp_path / "r.safetensors")
    tensors, meta = checkpoint.load(tmp_path / "r.safetensors")
    tensors = {name: value for name, value in (tensors | change).items() if value is not None}
    checkpoint.save(tmp_path / "d.safetensors", tensors, meta | header)
    with pytest.raises(ValueError, match=r"d\.safetensors is damaged: its verdict or reference"):
        flare.Result.load(tmp_path / "d.safetensors")


@pytest.mark.filterwarnings("ignore:.*csv holds samples")
def test_csv_has_columns_for_other_programs(tmp_path, judged):
    judged.save(tmp_path / "r.csv")
    names, *rows = (line.split(",") for line in (tmp_path / "r.csv").read_text().splitlines())
    assert names[-5:] == ["score", "p_value", "verdict", "reason", "region"]
    assert is_scored(names)
    assert rows[0][-3:-1] == ["trusted", ""]
    assert rows[5][-3:-1] == ["not scored", "not scored"]
    assert [float(row[-5]) for row in rows[:5]] == judged.verdict.z[:5].tolist()
    assert [float(row[-4]) for row in rows[:5]] == judged.p_value[:5].tolist()
    columns, samples, scores = load_table(tmp_path / "r.csv")
    assert (len(columns), list(scores)) == (judged.samples.shape[1], list(judged.scores))
    np.testing.assert_array_equal(samples.astype(np.float32), judged.samples)


def test_columns_of_data_with_the_same_names_are_kept(tmp_path):
    (tmp_path / "d.csv").write_text("p_value,x\n1,2\n3,4\n")
    assert load_table(tmp_path / "d.csv")[1].tolist() == [[1, 2], [3, 4]]
    (tmp_path / "z.csv").write_text("x,y,z,score_a\n1,2,3,4\n")
    assert load_table(tmp_path / "z.csv")[1].tolist() == [[1, 2, 3]]


def test_results_with_other_verdicts_differ(judged):
    twin = replace(judged, verdict=judged[:].verdict, about={})
    assert twin == judged
    changed = [
        replace(judged, verdict=None),
        replace(judged, reference=None),
        replace(judged, verdict=replace(judged.verdict, held_out=False)),
        replace(judged, verdict=replace(judged.verdict, reason=["neighbors"] * 8)),
        replace(judged, verdict=replace(judged.verdict, z=judged.verdict.z + 1)),
    ]
    assert not any(other == judged for other in changed)


def test_to_numpy_and_to_pandas_say_it_in_words(judged, monkeypatch):
    arrays = judged.to_numpy()
    assert arrays["reason"].tolist() == list(judged.reason)
    assert arrays["verdict"].tolist() == judged.verdict.labels()
    assert arrays["copy"].dtype == bool
    np.testing.assert_array_equal(arrays["p_value"], judged.p_value)
    np.testing.assert_array_equal(arrays["reference_influence"], judged.reference.scores["influence"])
    fake = SimpleNamespace(DataFrame=lambda columns, index: columns, RangeIndex=range)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    columns = judged.to_pandas()
    assert list(columns)[-4:] == ["p_value", "verdict", "reason", "region"]
    assert columns["verdict"][7] == "doubtful"


def test_the_verdict_comes_first_in_words(judged):
    lines = repr(judged).splitlines()
    assert lines[0] == (
        "Result: 1 of 8 samples look less plausible than 95% of real data; 1 could not be scored; "
        "1 look like copies of training data"
    )
    text = repr(judged)
    assert "8 samples of shape (3,), float32 on cpu" in text
    assert "compared with: 99 held-out samples" in text
    assert "doubtful because of: neighbors 1" in text
    assert len(lines) < 12


@pytest.mark.parametrize(
    ("n", "doubtful", "said"), [(1000, 47, True), (1000, 90, False), (1000, 10, False), (60, 3, False)]
)
def test_a_result_says_when_its_scores_cannot_tell_samples_from_real_data(n, doubtful, said):
    result = judge(fake(n=n), size=999)
    p = torch.full((n,), 0.5, dtype=torch.float64)
    p[:doubtful] = 0.01
    verdict = replace(result.verdict, p_value=p, reference_size=999)
    about = {"repeatability": {"activations": 0.97, "epistemic_distance": 0.86}}
    text = repr(replace(result, verdict=verdict, about=about))
    assert ("cannot tell the samples and real data apart" in text) is said
    if said:
        assert "95.3% of 1,000 samples are trusted, compared with 95% of 999 held-out samples." in text
        assert "rank correlation of 0.86 or more. Some samples may still be bad" in text
        assert "Label about 60 (result.propose_labels(), flare calibrate)" in text

"""A saved scorer comes back with the same verdicts, and refuses other weights and schedules."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from points import QUICK, Net, T, ring, trained

import flare
from flare.storage import checkpoint

SCHEDULE = flare.schedules.cosine(T)
WITHOUT_DATA = ["activations", "epistemic_distance"]


def radius(x):
    return x.norm(dim=1, keepdim=True)


@pytest.fixture(scope="module")
def net():
    return trained(ring(), 100)


@pytest.fixture(scope="module")
def scorer(net):
    return flare.fit(net, ring(), SCHEDULE, prediction="epsilon", held_out=ring(60, seed=5), **QUICK)


@pytest.fixture
def saved(scorer, tmp_path):
    scorer.save(tmp_path / "scorer")
    return tmp_path / "scorer"


def test_a_saved_scorer_comes_back(scorer, net, saved):
    again = flare.load(saved, net)
    assert again.sample(20, steps=5) == scorer.sample(20, steps=5)
    assert repr(again) == repr(scorer)
    assert again.about == scorer.about
    new = ring(5, seed=2)
    assert again.score(new) == scorer.score(new)
    assert torch.equal(again.score(new).verdict.copies, scorer.score(new).verdict.copies)
    assert flare.load(saved, flare.Denoiser(net), schedule=SCHEDULE).score(new) == scorer.score(new)


def test_without_data_features_decide_and_no_training_sample_is_written(scorer, net, tmp_path):
    scorer.save(tmp_path / "private", data=False)
    names = sorted(path.name for path in (tmp_path / "private").iterdir())
    assert names == ["features.safetensors", "posterior.safetensors", "reference.safetensors", "scorer.json"]
    again = flare.load(tmp_path / "private", net)
    assert "witnesses: activations (" in repr(again)
    assert "; it was saved without training data" in repr(again)
    assert again.data is None
    new = ring(20, seed=2)
    found, full = again.score(new), scorer.score(new)
    assert list(found.scores) == list(again.reference.scores) == WITHOUT_DATA
    for name in WITHOUT_DATA:
        assert torch.equal(found.scores[name], full.scores[name])
        assert torch.equal(found.verdict.p_values[name], full.verdict.p_values[name])
    alone = scorer.reference.verdict({name: full.scores[name] for name in WITHOUT_DATA})
    assert torch.equal(found.p_value, alone.p_value)
    assert (found.verdict.copies, found.verdict.nearest, found.regions) == (None, None, None)
    assert again.check(n=3, draws=2, steps=5).model is None
    again.save(tmp_path / "twice")
    assert flare.load(tmp_path / "twice", net).score(new) == found


def test_no_stored_number_is_one_of_the_training_data_without_data(scorer, tmp_path):
    scorer.save(tmp_path / "private", data=False)
    known = scorer.data.double().flatten()
    for path in (tmp_path / "private").glob("*.safetensors"):
        for name, tensor in checkpoint.load(path)[0].items():
            assert not torch.isin(tensor.double(), known[known != 0]).any(), (path.name, name)


def test_a_scorer_is_replaced_as_a_whole_and_nothing_else_is(scorer, net, saved, monkeypatch):
    scorer.save(saved, data=False)
    assert flare.load(saved, net).data is None
    assert [path.name for path in saved.parent.iterdir()] == ["scorer"]

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("flare.storage.checkpoint.save_json", fail)
    with pytest.raises(OSError, match="disk full"):
        scorer.save(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["scorer"]
    assert flare.load(saved, net).data is None
    monkeypatch.undo()
    for place in (saved.parent / "file", saved.parent / "folder" / "inner"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("precious")
    for place in (saved.parent / "file", saved.parent / "folder"):
        with pytest.raises(FileExistsError, match="exists and is not a scorer; choose another path"):
            scorer.save(place)
    assert (saved.parent / "file").read_text() == "precious"
    scorer.save(saved.parent / "new" / "deep")
    assert flare.load(saved.parent / "new" / "deep", net).data is not None


def test_other_weights_another_network_and_another_schedule_are_refused(net, saved):
    other = Net()
    with pytest.raises(ValueError, match=r"fitted to other weights of Net: they have changed since"):
        flare.load(saved, other)
    with pytest.raises(ValueError, match="fitted to another network: Linear has other parameters"):
        flare.load(saved, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="fitted for another schedule"):
        flare.load(saved, net, schedule=flare.schedules.linear(T))
    with pytest.raises(ValueError, match=r"predicts epsilon, this denoiser predicts v; make it with"):
        flare.load(saved, flare.Denoiser(net, "v"))
    with pytest.raises(TypeError, match="net must be a torch module"):
        flare.load(saved, 5)


def test_features_must_be_those_of_the_fit(net, saved, tmp_path):
    scorer = flare.fit(net, ring(), SCHEDULE, features=radius, **QUICK)
    scorer.save(tmp_path / "featured")
    new = ring(5, seed=2)
    assert flare.load(tmp_path / "featured", net, features=radius).score(new) == scorer.score(new)
    with pytest.raises(ValueError, match="was fitted with features; give the same function"):
        flare.load(tmp_path / "featured", net)
    with pytest.raises(ValueError, match="features differs from the function that the scorer at"):
        flare.load(tmp_path / "featured", net, features=lambda x: x[:, :1])
    with pytest.raises(ValueError, match="was fitted without features; leave features= out"):
        flare.load(saved, net, features=radius)
    scorer.save(tmp_path / "bare", data=False)
    with pytest.raises(ValueError, match="saved without training data: features= has no effect"):
        flare.load(tmp_path / "bare", net, features=radius)


def test_levels_without_a_description_are_given_again(scorer, net, tmp_path):
    bare = replace(SCHEDULE, spec={})
    nameless = replace(scorer, model=flare.Model(scorer.denoiser, bare))
    nameless.save(tmp_path / "s")
    with pytest.raises(ValueError, match="does not describe its noise levels; give schedule="):
        flare.load(tmp_path / "s", net)
    assert flare.load(tmp_path / "s", net, schedule=SCHEDULE).data is not None


def rewrite(saved, change, sealed=True):
    """Change values of the main file, with a checksum that fits or with the old one."""
    meta = json.loads((saved / "scorer.json").read_text()) | change
    old = meta.pop(checkpoint.CHECKSUM)
    (saved / "scorer.json").write_text(
        json.dumps(meta | {checkpoint.CHECKSUM: checkpoint.digest(meta) if sealed else old})
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "is not a scorer of format 2, its format is 9"),
        ({"format": 1}, "a scorer of version 0.4, which used other scores. Fit it again with flare.fit"),
        ({"schedule": {"name": "cosinus"}}, "unknown schedule 'cosinus'"),
    ],
)
def test_files_that_do_not_fit_are_named(net, saved, change, message):
    rewrite(saved, change)
    with pytest.raises(ValueError, match=message):
        flare.load(saved, net)


@pytest.mark.parametrize(
    "change",
    [{"noise_pairs": 0}, {"about": []}, {"shape": None}, {"copy_distance": -1.0}, {"seed": 1}, {"more": 1}],
)
def test_a_damaged_file_is_named(net, saved, change):
    rewrite(saved, change, sealed=False)
    with pytest.raises(ValueError, match=r"scorer\.json is damaged: its content does not match its checksum"):
        flare.load(saved, net)


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows.float(), lambda rows: -1 - rows, lambda rows: rows[1:], lambda rows: rows[:, None]],
)
def test_rows_must_be_rows_of_the_data(net, saved, change):
    tensors, _ = checkpoint.load(saved / "data.safetensors")
    checkpoint.save(saved / "data.safetensors", tensors | {"rows": change(tensors["rows"])})
    with pytest.raises(ValueError, match=r"data\.safetensors belongs to another scorer than"):
        flare.load(saved, net)


def test_scores_of_the_reference_must_be_finite_float64(net, saved):
    tensors, meta = checkpoint.load(saved / "reference.safetensors")
    for change in (
        tensors["score.epistemic_distance"].bool(),
        tensors["score.epistemic_distance"] * torch.nan,
    ):
        checkpoint.save(saved / "reference.safetensors", tensors | {"score.epistemic_distance": change}, meta)
        with pytest.raises(ValueError, match=r"reference\.safetensors is damaged: its scores"):
            flare.Reference.load(saved / "reference.safetensors")
        with pytest.raises(ValueError, match=r"reference\.safetensors belongs to another scorer than"):
            flare.load(saved, net)


@pytest.mark.parametrize(
    "change",
    [
        lambda points: {"points.epistemic_distance": points * torch.nan},
        lambda points: {"points.epistemic_distance": points[0]},
        lambda points: {"points.epistemic_distance": points[:0]},
        lambda points: {"points.something": points},
        lambda points: {"scale.epistemic_distance": torch.ones(1)},
        lambda points: {"scale.epistemic_distance": torch.full(points.shape[1:], torch.inf)},
    ],
    ids=["nan", "vector", "empty", "unknown", "short scale", "infinite scale"],
)
def test_features_must_be_finite_points_of_known_scores(net, saved, change):
    tensors, _ = checkpoint.load(saved / "features.safetensors")
    tensors |= change(tensors["points.epistemic_distance"])
    checkpoint.save(saved / "features.safetensors", tensors)
    with pytest.raises(ValueError, match=r"features\.safetensors belongs to another scorer than"):
        flare.load(saved, net)


def test_features_and_reference_must_be_of_the_same_scores(net, saved):
    tensors, _ = checkpoint.load(saved / "features.safetensors")
    del tensors["points.epistemic_distance"]
    checkpoint.save(saved / "features.safetensors", tensors)
    with pytest.raises(ValueError, match=r"features\.safetensors belongs to another scorer than"):
        flare.load(saved, net)


@pytest.mark.parametrize("part", ["reference", "features", "data"])
def test_files_of_another_scorer_of_the_same_network_are_refused(net, saved, tmp_path, part):
    other = flare.fit(net, 2 * ring(seed=3), SCHEDULE, prediction="epsilon", held_out=ring(60, 4), **QUICK)
    other.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / f"{part}.safetensors", saved / f"{part}.safetensors")
    with pytest.raises(ValueError, match=rf"{part}\.safetensors belongs to another scorer than"):
        flare.load(saved, net)


def test_eigenvectors_that_are_not_orthonormal_are_refused(net, saved):
    posterior = saved / "posterior.safetensors"
    tensors, meta = checkpoint.load(posterior)
    tensors["eigenvectors"] *= 0.1
    checkpoint.save(posterior, tensors, meta)
    rewrite(saved, {"posterior": checkpoint.metadata(posterior)["checksum"]})
    with pytest.raises(
        ValueError, match=r"posterior\.safetensors .* eigenvectors must have orthonormal columns"
    ):
        flare.load(saved, net)


def test_missing_and_broken_parts_are_named(net, saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no scorer at"):
        flare.load(tmp_path / "nowhere", net)
    raw = bytearray((saved / "data.safetensors").read_bytes())
    raw[-3] ^= 1
    (saved / "data.safetensors").write_bytes(raw)
    with pytest.raises(ValueError, match=r"data\.safetensors is damaged"):
        flare.load(saved, net)
    (saved / "reference.safetensors").unlink()
    (saved / "data.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        flare.load(saved, net)


def test_no_file_is_a_pickle(saved):
    for path in saved.iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)):
            pickle.loads(path.read_bytes())

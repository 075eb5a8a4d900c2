"""`flare.fit` takes networks and data as they come, says what it chose, and explains what it cannot take."""

from __future__ import annotations

import ast
import re
import sys
import warnings

import numpy as np
import pytest
import torch
from points import QUICK, Net, T, ring, trained
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import flare
from flare.scorer import choosing
from flare.scorer.fit import _collect
from flare.scorer.inputs import open_model

SCHEDULE = flare.schedules.cosine(T)


@pytest.fixture(scope="module")
def net():
    return trained(ring())


def quick(net, data, schedule=SCHEDULE, **options):
    return flare.fit(net, data, schedule, **QUICK | options)


@pytest.fixture(scope="module")
def plain(net):
    return quick(net, ring())


class Points(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, i):
        return ring()[i]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ring())


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.numpy(),
        lambda x: x.double().numpy(),
        lambda x: x.double(),
        lambda x: TensorDataset(x),
        lambda x: TensorDataset(x, torch.zeros(len(x), dtype=torch.long)),
        lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=37),
        lambda x: DataLoader(x, batch_size=100),
        lambda x: Stream(),
    ],
    ids=["numpy", "float64 numpy", "float64", "dataset", "tuples", "loader of tuples", "loader", "stream"],
)
def test_data_in_every_form_gives_the_same_scorer(net, plain, make):
    scorer = quick(net, make(ring()))
    assert torch.equal(scorer.data, plain.data)
    new = ring(5, seed=9)
    assert torch.equal(scorer.score(new).p_value, plain.score(new).p_value)


def test_labels_of_tuples_are_not_used_and_that_is_said(net):
    scorer = quick(net, TensorDataset(ring(), torch.zeros(600)))
    assert "note: data yields tuples: the first element is the sample, the others are not used" in repr(
        scorer
    )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_fit_and_check_model_are_one_check(factor, seed):
    """Betas half and twice as large as in training are told, those of the training are not."""
    model = flare.bench.load("grid")
    schedule = flare.schedules.from_alpha_bars(model.schedule.alpha[1:] ** (2 * factor))
    found = flare.check_model(model.denoiser, model.data, schedule, seed=seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scorer = flare.fit(model.denoiser, model.data, schedule, subset=20, pairs=50, seed=seed)
    assert scorer.about["problems"] == found.problems
    assert scorer.about["checked"] == {key: found.facts[key] for key in ("excess", "samples")}
    expected = [] if factor == 1 else [f"do not trust this scorer yet: {found.verdict}"]
    assert [str(w.message) for w in said] == expected


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([[1.0, 2.0]], TypeError, "data must be a tensor, an array, a table, .* got list"),
        (ring().long(), TypeError, "data must be floating point, got torch.int64"),
        (torch.zeros(0, 2), ValueError, "data is empty"),
        (ring(8), ValueError, "data has 8 samples, and a part of them is set aside.*at least 12"),
        (torch.cat([ring(), torch.full((1, 2), torch.nan)]), ValueError,
         r"data has NaN or infinity in 1 of 601 samples \(first rows: \[600\]\); remove or impute"),
        (DataLoader([{"x": torch.zeros(2)}]), TypeError, "yields dicts with x, and FLARE cannot tell which"),
        (DataLoader(["a", "b"]), TypeError, "must yield tensors.*got str"),
        (DataLoader([object()]), TypeError, "data cannot be read as tensors"),
        (DataLoader([torch.zeros(2), torch.zeros(3)]), ValueError, r"one shape, got \(2,\) and \(3,\)"),
        (torch.rand(600, 3), ValueError, "Net failed on x of shape.*It works on samples of shape"),
    ],
    ids=["list", "integers", "empty", "few", "nan", "dicts", "text", "objects", "shapes", "network"],
)  # fmt: skip
def test_data_that_cannot_be_used_is_explained(net, data, error, message):
    with pytest.raises(error, match=message):
        quick(net, data)


ROWS = TensorDataset(ring())


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(ROWS, shuffle=True),
        DataLoader(ROWS, sampler=range(599, -1, -1)),
        DataLoader(ROWS, batch_sampler=[[1, 0]] * 300),
        DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 10, False)),
        DataLoader(ROWS, batch_size=None, shuffle=True),
        Stream(),
        DataLoader(Stream()),
    ],
    ids=["shuffle", "sampler", "batches", "random batches", "no batches", "stream", "loader of a stream"],
)
def test_conditions_are_not_paired_with_rows_in_an_unknown_order(data):
    cond = {"label": torch.arange(600) % 2}
    model = open_model(Net(classes=2), SCHEDULE)
    with pytest.raises(ValueError, match=r"cond= .*order of data .*give loader\.dataset.* or a tensor"):
        _collect(model, data, None, cond, None, 0)
    held_out = {"held_out": data, "held_out_cond": cond}
    with pytest.raises(ValueError, match=r"held_out_cond= .*order of held_out"):
        _collect(model, ring(seed=1), held_out["held_out"], cond, held_out["held_out_cond"], 0)


@pytest.mark.parametrize(
    "options", [{"batch_size": 37}, {"sampler": SequentialSampler(ROWS)}], ids=["batches", "sampler"]
)
def test_conditions_go_with_the_rows_of_a_loader_in_order(options):
    labels = torch.arange(600)
    model = open_model(Net(classes=2), SCHEDULE)
    parts, _ = _collect(model, DataLoader(ROWS, **options), None, {"label": labels}, None, 0)
    assert torch.equal(parts.data[parts.rows], ring()[parts.cond["label"][parts.rows]])
    assert torch.equal(parts.real, ring()[parts.real_cond["label"]])
    shuffled = DataLoader(ROWS, shuffle=True)
    assert len(_collect(model, shuffled, None, None, None, 0)[0].rows) == 540, "without conditions, any order"


def test_the_same_seed_gives_the_same_scorer_and_another_one_another(net, plain):
    assert torch.equal(quick(net, ring()).data, plain.data)
    assert not torch.equal(quick(net, ring(), seed=1).data, plain.data)


@pytest.mark.parametrize(
    ("n", "size"), [(20_000, 1000), (3000, 300), (600, 60), (200, 50), (60, 30), (12, 6)]
)
def test_a_tenth_of_the_data_is_set_aside(n, size):
    assert choosing.reference_size(n) == size


def test_the_part_set_aside_counts_as_training_data_and_is_not_its_own_neighbor(plain):
    assert len(plain.reference) == 60
    assert not plain.reference.held_out
    assert plain.reference.scores["neighbors"].min() > 0
    assert "60 training samples (the network may have seen them; held_out= is better)" in repr(plain)
    assert len(plain.data) == 540
    rows = plain.training.rows
    assert torch.equal(ring()[rows], plain.data)


def test_held_out_data_is_the_reference(net):
    held_out = ring(80, seed=5)
    scorer = quick(net, ring(), held_out=DataLoader(TensorDataset(held_out, torch.zeros(80)), batch_size=30))
    assert scorer.reference.held_out
    assert len(scorer.reference) == 80
    assert len(scorer.data) == 600
    naive = torch.cdist(held_out.double(), ring().double()).sort(1).values[:, :5].mean(1)
    torch.testing.assert_close(scorer.reference.scores["neighbors"], naive)
    assert "held_out yields tuples" in repr(scorer)


def test_held_out_data_that_is_in_the_data_is_said_loudly(net):
    both = torch.cat([ring(80, seed=5), ring()[:7]])
    with pytest.warns(UserWarning, match="7 of 600 samples of data are also in held_out, exactly"):
        scorer = quick(net, ring(), held_out=both)
    assert not scorer.reference.held_out
    assert len(scorer.data) == 593
    with pytest.raises(ValueError, match="held_out has all but 0 of the 600 samples of data"):
        quick(net, ring(), held_out=ring())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"held_out": torch.zeros(50, 3)}, ValueError, r"must have samples of shape \(2,\).* got \(3,\)"),
        ({"held_out": ring()[0]}, ValueError, r"held_out must have shape \(n, \*shape\)"),
        ({"held_out_cond": {}}, ValueError, "belongs to held_out=, which is missing"),
        ({"features": lambda x: x.sum()}, ValueError, r"features must map a batch of 2.*\(2, d\), got \(\)"),
        ({"structure": "densest"}, ValueError, "unknown structure 'densest'; did you mean 'dense'"),
        ({"pairs": -1}, ValueError, "pairs must be an integer of at least 1"),
        ({"heldout": ring()}, TypeError, "unexpected keyword argument 'heldout'"),
        ({"rank": 5}, ValueError, "rank= is for structure='low_rank', got structure='dense'; leave it out"),
        ({"prior_precision": "marglick"}, ValueError, "must be a number, 'marglik' or 'validation', got"),
        ({"prior_precision": -1.0}, ValueError, "prior_precision must be a positive number, got -1.0"),
        ({"scale": "big"}, ValueError, "scale must be a number or 'calibrated', got 'big'"),
        ({"prediction": "eps"}, ValueError, "unknown prediction 'eps'"),
        ({"cond": {"label": torch.zeros(5)}}, ValueError, "600"),
        ({"schedule": None}, TypeError, "schedule must be the noise levels.*got None; give for instance"),
        ({"schedule": "cosine"}, TypeError, "got str"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_explained(net, options, error, message):
    with pytest.raises(error, match=message):
        quick(net, ring(), **options)


def test_the_options_of_the_posterior_are_passed_on(net, tmp_path, monkeypatch):
    given = quick(net, ring(), prior_precision=3.0, scale=2.0, structure="low_rank", rank=7).posterior
    assert (given.structure, given.prior_precision, given.scale) == ("low_rank", 3.0, 2.0)
    assert given.eigenvalues.shape == (7,)
    monkeypatch.setattr("flare.storage.resume._SAVING_FRACTION", 1e9)  # save after every batch
    kept = quick(net, ring(), resume=flare.Resume(tmp_path / "parts", every=0))
    assert len(list((tmp_path / "parts").rglob("sums.safetensors"))) == 1
    seen = []
    again = quick(net, ring(), resume=tmp_path / "parts", progress=lambda items: map(seen.append, items))
    assert not seen  # nothing is left to do
    assert torch.equal(again.posterior.eigenvalues, kept.posterior.eigenvalues)


def test_a_prior_is_validated_on_the_part_that_is_set_aside(net, plain, monkeypatch):
    def choose(posterior, denoiser, prior_precision, scale, validation):
        used.append((prior_precision, validation))
        return posterior

    used = []
    monkeypatch.setattr(sys.modules["flare.posteriors.dense"], "choose", choose)
    quick(net, ring(), prior_precision="validation")
    [(asked, validation)] = used
    assert asked == "validation"
    assert len(validation.data) == 60
    assert not torch.isin(validation.data, plain.data).any()


def test_the_advice_of_a_check_can_be_followed_word_for_word():
    model = flare.bench.load("grid")
    grid = (model.denoiser, model.data[:2000], model.schedule)
    options = {"subset": 100, "pairs": 500, "check": False}
    scorer = flare.fit(*grid, **options)
    few = {"n": 12, "draws": 12, "steps": 10}
    advice = scorer.check(**few).linearization.advice()
    named = dict(re.findall(r"(\w+)=(\S+[^\s.,])", advice))
    assert named.keys() == {"prior_precision", "rule"}
    rule = {"rule": ast.literal_eval(named.pop("rule"))}
    assert scorer.sample(4, steps=4, directions=2, **rule).variance is not None
    changed = {name: ast.literal_eval(value) for name, value in named.items()}
    assert flare.fit(*grid, **options, **changed).check(**few).linearization.trusted


@pytest.mark.parametrize("net", [lambda x, t: x, None, 5], ids=["function", "None", "number"])
def test_other_objects_than_networks_are_refused(net):
    with pytest.raises(
        TypeError, match=r"net must be a torch module called as net\(x, t, \*\*cond\), a flare.Denoiser"
    ):
        open_model(net, SCHEDULE)


@pytest.mark.parametrize(("net", "advice"), [(torch.nn.Linear, "an instance"), ({}, "net.load_state_dict")])
def test_a_class_and_a_state_dict_are_told_from_a_network(net, advice):
    with pytest.raises(TypeError, match=advice):
        open_model(net, SCHEDULE)


@pytest.mark.parametrize("path", ["n.pt", "grid"])
@pytest.mark.parametrize("schedule", [SCHEDULE, None])
def test_a_path_that_is_not_a_pipeline_is_told_what_to_do(path, schedule):
    with pytest.raises(
        ValueError, match=rf"a saved diffusers pipeline.*got '{path}', which does not exist"
    ) as caught:
        quick(path, ring(), schedule)
    assert "load_state_dict" in str(caught.value)
    assert "flare.bench.load" in str(caught.value)


def test_a_denoiser_knows_its_prediction(net):
    denoiser = flare.Denoiser(net, "v")
    assert open_model(denoiser, SCHEDULE).denoiser is denoiser
    with pytest.raises(ValueError, match="the denoiser predicts v, got prediction='sample'; leave it out"):
        open_model(denoiser, SCHEDULE, "sample")
    assert open_model((net, SCHEDULE), prediction="v").denoiser.prediction == "v"


def test_an_untrained_network_is_warned_of_loudly(tmp_path):
    with pytest.warns(UserWarning, match="do not trust this scorer yet: The network"):
        scorer = flare.fit(Net(), ring(), SCHEDULE, pairs=200)
    assert "PROBLEM: The network" in repr(scorer)
    assert "Likely causes" not in repr(scorer)  # the warning has said it
    result = scorer.sample(5, steps=5)
    assert "PROBLEM of the model: The network" in repr(result)
    scorer.report(tmp_path / "page.html", result)
    assert "Do not trust these p-values yet. The network" in (tmp_path / "page.html").read_text("utf-8")


def test_data_on_another_scale_than_in_training_is_warned_of(net):
    with pytest.warns(UserWarning, match="do not trust this scorer yet.*scale") as said:
        flare.fit(net, 127.5 * (ring() + 1), SCHEDULE, pairs=200)
    assert not [w for w in said if "does not fit these pairs" in str(w.message)]  # one warning per problem
    with pytest.warns(RuntimeWarning, match="Net does not fit these pairs"):
        flare.fit(net, 127.5 * (ring() + 1), SCHEDULE, pairs=200, check=False)


def test_a_good_model_is_left_in_peace():
    model = flare.bench.load("grid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scorer = flare.fit(model.denoiser, model.data, model.schedule, subset=100, pairs=500)
    assert scorer.about["problems"] == []
    assert len(scorer.data) == choosing.KEPT
    assert len(scorer.reference) == choosing.REFERENCE_MAX


def test_a_network_in_another_precision_is_scored_the_same(net, plain):
    wide, half = Net().double(), Net().bfloat16()
    wide.load_state_dict(net.state_dict())
    half.load_state_dict(net.state_dict())
    new = ring(40, seed=3)
    expected = plain.score(new)
    double = quick(wide, ring()).score(new)
    assert double.scores.keys() == expected.scores.keys()
    for name, score in expected.scores.items():
        torch.testing.assert_close(double.scores[name], score, rtol=0.02, atol=0)
    low = quick(half, ring())
    assert low.score(new.numpy().astype(np.float64)).p_value.isfinite().all()
    assert low.sample(10, steps=5).samples.dtype == torch.bfloat16


def test_the_choices_follow_the_size_of_the_network_and_the_memory():
    small = flare.Denoiser(nn.Linear(10, 10))
    large = flare.Denoiser(nn.Linear(1100, 1000))
    all_of_it = choosing.choose(small, None, "dense", None, 0, None, 100.0)
    assert (all_of_it.subset.size, all_of_it.subset_kind, all_of_it.pairs) == (110, "all", choosing.PAIRS)
    some = choosing.choose(large, None, "dense", None, 0, None, 1.1e9)
    assert (some.subset.size, some.pairs) == (choosing.SUBSET_SIZE, choosing.EXPENSIVE_PAIRS)
    between = choosing.choose(large, None, "dense", None, 0, None, choosing.TRAINING_WORK / 7000)
    assert between.pairs == 7000
    with pytest.warns(UserWarning, match="only 500 parameters are uncertain instead of 1,000"):
        tight = choosing.choose(large, None, "dense", None, 0, 8 * choosing._COPIES * 500**2, 1.1e6)
    assert tight.subset.size == 500
    given = choosing.choose(large, flare.subsets.sketch(large, 70), "diagonal", 9, 0, None, 1.1e6)
    assert (given.subset.size, given.structure, given.pairs, given.subset_kind) == (
        70,
        "diagonal",
        9,
        "given",
    )
    assert choosing.choose(small, "everything", "dense", None, 0, None, 100.0).subset.size == 110
    assert choosing.choose(small, "bias", "dense", None, 0, None, 100.0).subset.size == 10
    with pytest.raises(ValueError, match="no parameter of Linear matches 'nothing'"):
        choosing.choose(small, "bias,nothing", "dense", None, 0, None, 100.0)


def test_passes_count_what_the_fit_does(net, monkeypatch):
    states = []
    original = flare.scores.Encoder.encode

    def counting(self, x, cond, *args, rows, **options):
        states.append(len(rows) * 2 * len(self.levels) * self.pairs)
        return original(self, x, cond, *args, rows=rows, **options)

    monkeypatch.setattr(flare.scores.Encoder, "encode", counting)
    scorer = quick(net, ring())
    # both rows of the Jacobian of 500 pairs, and the states of training and real samples, twice
    passes = 500 * 2 + sum(states)
    assert scorer.about["passes"] == passes
    assert passes >= 1000 + 8 * (540 + 60 + 500 + 60)
    own = 8 * scorer.encoder.pairs
    assert f"cost: {passes:,} forward and backward passes to fit; {own} more per sample to score" in repr(
        scorer
    )


def test_progress_announces_the_choice_and_wraps_the_long_loop(net, capsys):
    seen = []

    def watch(items):
        for item in items:
            seen.append(item)
            yield item

    quick(net, ring(), progress=watch)
    assert seen
    assert capsys.readouterr().err == ""
    quick(net, ring(), progress=True)
    text = " ".join(capsys.readouterr().err.split())
    assert "flare.fit: a dense posterior over 194 of 194 parameters (all) from 500 training pairs" in text


def test_held_out_data_on_another_scale_is_warned_of():
    data = torch.linspace(-1, 1, 60 * 16).reshape(16, 60).T
    with pytest.warns(UserWarning, match=r"held_out lies in \[0, 1\], data in \[-1, 1\]: are they scaled"):
        _collect(open_model(Net(), SCHEDULE), data, (data + 1) / 2, None, None, 0)


def test_few_training_samples_are_told_with_held_out_data_too(net):
    held_out = ring(60, seed=5)
    with pytest.warns(UserWarning, match="data has only 15 samples.*at least 20"):
        quick(net, ring(15), held_out=held_out)
    with pytest.raises(ValueError, match="data has 4 samples; give at least 5"):
        quick(net, ring(4), held_out=held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _collect(open_model(net, SCHEDULE), ring(20), held_out, None, None, 0)

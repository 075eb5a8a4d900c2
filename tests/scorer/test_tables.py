"""Tables with named columns, their units, and conditions that data brings along."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import MinMaxScaler, PowerTransformer, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flare
from flare.results.filters import Mask
from flare.results.result import Result
from flare.results.result_files import to_columns
from flare.scorer.collecting import collect_samples
from flare.scorer.tables import Scaling, match_columns, open_table, open_training

SCHEDULE = flare.schedules.cosine(20)
QUICK = {"subset": 10, "pairs": 60, "check": False}
NAMES = ["age", "income", "height"]
MEAN, STD = np.array([40.0, 4e4, 170.0]), np.array([10.0, 1e4, 8.0])


class Net(nn.Module):
    def __init__(self, classes=0):
        super().__init__()
        self.classes = nn.Embedding(classes, 3) if classes else None
        self.out = nn.Linear(4, 3)

    def forward(self, x, t, class_labels=None):
        found = self.out(torch.cat([x, t[:, None].to(x) / 20], dim=1))
        return found if self.classes is None else found + self.classes(class_labels)


class Duck:
    """What polars and others have in common: names, and columns that become arrays."""

    def __init__(self, **columns):
        self.data = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return SimpleNamespace(to_numpy=lambda: np.asarray(self.data[name]))


def make_net(classes=0):
    torch.manual_seed(0)
    net = Net(classes)
    for parameter in net.parameters():
        parameter.data *= 0.1
    return net


def standard(n=200, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3))


def table(n=200, seed=0, **more):
    return Duck(**dict(zip(NAMES, (standard(n, seed) * STD + MEAN).T, strict=True)), **more)


def fit(data, classes=0, **options):
    return flare.fit(make_net(classes), data, SCHEDULE, **QUICK | options)


@pytest.fixture(scope="module")
def scorer():
    return fit(table(), scale=(MEAN, STD))


def test_a_table_is_scored_as_the_array_that_the_network_sees(scorer):
    plain = fit(torch.tensor((table_array() - MEAN) / STD))
    expected = plain.score(torch.tensor(standard(30, 1)).float())
    result = scorer.score(table(30, 1))
    torch.testing.assert_close(result.p_value, expected.p_value)
    torch.testing.assert_close(result.samples, expected.samples)
    assert scorer.about["columns"] == NAMES


def table_array(n=200, seed=0):
    return np.stack([table(n, seed).data[name] for name in NAMES], axis=1)


def test_names_and_units_come_back(scorer, tmp_path):
    given = table(30, 1)
    for result in (scorer.score(given), scorer.score(given)[torch.arange(30)]):
        columns = to_columns(result)
        assert list(columns)[:4] == [*NAMES, "score_neighbors"]
        for name in NAMES:
            np.testing.assert_allclose(columns[name], given.data[name], rtol=1e-5)
    drawn = scorer.sample(5, steps=3)
    assert list(to_columns(drawn))[:3] == NAMES
    with pytest.warns(UserWarning, match="csv holds samples"):
        drawn.save(tmp_path / "d.csv")
    torch.testing.assert_close(scorer.score(tmp_path / "d.csv").samples, drawn.samples, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "std"), [(1.2, 1.1), (-340.0, 0.02), (5e4, 3e3), (0.0, 7e-5)])
def test_numbers_of_a_table_return_without_the_rounding_of_float32(mean, std):
    values = np.round(mean + std * np.linspace(-2, 2, 41), 6)
    x = torch.from_numpy((values - mean) / std).float()[:, None]
    about = {"columns": ["a"], "scaling": {"mean": [mean], "std": [std]}}
    found = to_columns(Result(x, about=about))["a"]
    np.testing.assert_allclose(found, values, rtol=2e-7, atol=1e-6 * std)
    whole = values == np.round(values)
    assert (found[whole] == values[whole]).all()


def test_a_saved_scorer_remembers_names_and_units(scorer, tmp_path):
    scorer.save(tmp_path / "scorer")
    again = flare.load(tmp_path / "scorer", make_net())
    assert again.score(table(30, 1)) == scorer.score(table(30, 1))


def test_columns_of_a_verdict_do_not_replace_those_of_the_table():
    x, y, z = standard().T
    result = fit(Duck(x=x, y=y, score=z)).score(Duck(x=x[:5], y=y[:5], score=z[:5]))
    columns = to_columns(result)
    np.testing.assert_allclose(columns["score"], z[:5], rtol=1e-6)
    np.testing.assert_array_equal(columns["flare_score"], result.verdict.z)


def test_columns_are_reordered_by_name_and_others_are_not_used(scorer):
    given = table(30, 1)
    turned = Duck(**{name: given.data[name] for name in reversed(NAMES)}, note=["a"] * 30)
    with (
        pytest.warns(
            UserWarning, match=r"a different order \(height, income, age, not age, income, height\)"
        ),
        pytest.warns(
            RuntimeWarning, match=r"columns that the training data lacks, which are ignored: note\."
        ),
    ):
        assert scorer.score(turned) == scorer.score(given)
    with pytest.raises(ValueError, match="height missing, none unknown"):
        scorer.score(Duck(age=[1.0], income=[2.0]))
    assert match_columns("t", ["x0", "x1"], ["a", "b"]) == range(2)


def test_rows_with_missing_values_are_not_scored(scorer):
    given = table(6, 1)
    given.data["age"] = [*given.data["age"][:4], None, "NA"]
    with pytest.warns(
        UserWarning, match=r"the table lacks values in 2 of 6 rows, columns age \(2\): these rows"
    ):
        result = scorer.score(given)
    assert result.p_value.isnan().tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"city": ["Rome"] * 200}, "column 'city' holds 'Rome', but a network reads numbers. Encode categor"),
        ({"day": np.full(200, np.datetime64("2024-01-01"))}, "column 'day' holds '2024-01-01', but"),
        ({"age": [*[1.0] * 199, np.nan]}, r"lacks values in 1 of 200 rows, columns age \(1\): remove these"),
        ({"age": [*["1.0"] * 199, ""]}, r"lacks values in 1 of 200 rows, columns age \(1\)"),
    ],
    ids=["category", "date", "nan", "empty"],
)
def test_columns_that_cannot_be_used_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        fit(Duck(**table().data | changes))


def test_an_index_a_constant_and_whole_numbers_are_told():
    x, y, z = standard().T
    with pytest.warns(UserWarning, match=r"first column \('Unnamed: 0'\) numbers the rows, 0 to 199"):
        assert fit(Duck(**{"Unnamed: 0": range(200)}, x=x, y=y, z=z)).about["columns"] == ["x", "y", "z"]
    with pytest.raises(ValueError, match=r"'Unnamed: 0'\) looks like an index of rows"):
        fit(Duck(**{"Unnamed: 0": range(3, 203)}, x=x, y=y, z=z))
    with pytest.warns(UserWarning, match="data: z has one value in all rows; leave it out"):
        found = fit(Duck(x=x, y=(2 * y).round().astype(int), z=np.ones(200)))
    assert found.about["remarks"] == [
        "data has whole numbers in y: if they are codes of categories, encode them as in training"
    ]


def test_scalers_give_the_numbers_of_their_transform():
    x = table_array()
    for scaler in (StandardScaler().fit(x), MinMaxScaler((-1, 1)).fit(x)):
        found = Scaling.parse(scaler, NAMES).standardize(torch.tensor(x))
        np.testing.assert_allclose(found, scaler.transform(x), rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match=r"scale must be linear in every column.* got PowerTransformer"):
        Scaling.parse(PowerTransformer().fit(x), NAMES)
    named = SimpleNamespace(
        feature_names_in_=["b", "a"], n_features_in_=2, inverse_transform=lambda r: r * [2, 3] + [5, 7]
    )
    with pytest.warns(
        UserWarning, match="the scaler has the columns of the training data in a different order"
    ):
        assert Scaling.parse(named, ["a", "b"]) == ([7, 5], [3, 2])


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ((MEAN[:2], STD), r"one mean and one standard deviation per column, 3, got shape \(2,\)"),
        ((MEAN, [1, 0, 1]), "positive standard deviations, but does not for income"),
        ((MEAN, [1, 1, np.inf]), "positive standard deviations, but does not for height"),
    ],
)
def test_a_scale_that_does_not_fit_is_refused(scale, message):
    with pytest.raises(ValueError, match=message):
        fit(table(), scale=scale)
    with pytest.raises(
        TypeError, match=r"is for tables with named columns, got Tensor; standardize it yourself"
    ):
        fit(torch.tensor(standard()), scale=scale)


def all_good(result):
    """The threshold that labels guarantee if no sample is bad."""
    return flare.calibrate(result, {int(i): False for i in result.propose_labels(0.2)}, 0.2)


def test_a_mask_selects_rows_of_a_table_and_of_tensors(scorer):
    result = scorer.score(table(30, 1))
    for mask in (
        result.trusted(0.3),
        ~result.trusted(0.3),
        result.keep(0.5),
        result.trusted() & result.keep(0.5),
        all_good(result).keep(result),
    ):
        assert isinstance(mask, Mask)
        np.testing.assert_array_equal(mask(None), np.asarray(mask.tolist()))  # what pandas calls
        assert type(mask.double()) is torch.Tensor
        assert len(result.samples[mask]) == len(result[mask]) == int(mask.sum())
    assert repr(result.trusted()).startswith("tensor(")


def test_real_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table().data, index=range(7, 207))
    frame["age"] = frame["age"].astype("Float64")
    scorer = fit(frame, scale=StandardScaler().fit(frame.to_numpy(dtype=float)))
    result = scorer.score(frame)
    kept = frame[result.trusted(0.3)]
    assert kept.index.tolist() == [7 + i for i, p in enumerate(result.p_value.tolist()) if p > 0.3]
    assert len(frame[~result.trusted(0.3)]) == 200 - len(kept)
    assert len(frame.loc[result.keep(0.5)]) == 100
    frame.loc[9, "age"] = pandas.NA
    with pytest.warns(UserWarning, match=r"columns age \(1\)"):
        assert scorer.score(frame).p_value.isnan().nonzero().tolist() == [[2]]
    frame["city"] = pandas.Categorical(["a", "b"] * 100)
    with pytest.raises(ValueError, match="column 'city' holds 'a'"):
        fit(frame.dropna())


def test_files_are_tables(scorer, tmp_path):
    given = table(30, 1)
    rows = "\n".join(";".join(map(repr, row)) for row in table_array(30, 1).tolist())
    (tmp_path / "t.csv").write_text(f"{';'.join(NAMES)}\n{rows}\n", encoding="utf-8-sig")
    torch.testing.assert_close(scorer.score(str(tmp_path / "t.csv")).samples, scorer.score(given).samples)
    (tmp_path / "bare.csv").write_text("1,2,3\n4,5,6\n")
    assert open_table("", tmp_path / "bare.csv").tolist() == [[1, 2, 3], [4, 5, 6]]
    (tmp_path / "own.CSV").write_text("age,score_math,region\n1,2,3\n4,5,6\n")
    assert open_table("", tmp_path / "own.CSV").names == ["age", "score_math", "region"]
    (tmp_path / "holes.csv").write_text("1,2,3\n4,,6\n")
    with pytest.raises(ValueError, match=r"holes\.csv must have the same number of numeric columns"):
        open_table("", tmp_path / "holes.csv")
    with pytest.raises(FileNotFoundError, match=r"no file at .*none\.csv"):
        scorer.score(tmp_path / "none.csv")


LABELS = torch.arange(200) % 4


@pytest.fixture(scope="module")
def labeled():
    """A scorer of a network with classes, by the conditions that are given as they are."""
    return fit(torch.tensor(standard()).float(), classes=4, cond={"class_labels": LABELS})


@pytest.mark.parametrize(
    ("data", "cond"),
    [
        (TensorDataset(torch.tensor(standard()).float(), LABELS), "class_labels"),
        (TensorDataset(torch.tensor(standard()).float(), LABELS * 0, LABELS), {"class_labels": "2"}),
        (
            [{"input": x, "label": y} for x, y in zip(torch.tensor(standard()).float(), LABELS, strict=True)],
            {"class_labels": "label"},
        ),
        (Duck(**dict(zip("abc", standard().T, strict=True)), class_labels=LABELS), "class_labels"),
        (Duck(kind=LABELS, **dict(zip("abc", standard().T, strict=True))), {"class_labels": "kind"}),
    ],
    ids=["tuples", "third", "dicts", "column", "named column"],
)
def test_conditions_come_from_the_data(labeled, data, cond):
    found = fit(DataLoader(data, batch_size=64) if isinstance(data, list) else data, classes=4, cond=cond)
    for name, scores in labeled.reference.scores.items():
        torch.testing.assert_close(found.reference.scores[name], scores)
    assert found.about["conditions"] == ["class_labels"]
    if isinstance(data, Duck):  # the scorer remembers the column
        expected = labeled.score(torch.tensor(standard()).float(), {"class_labels": LABELS})
        torch.testing.assert_close(found.score(data).p_value, expected.p_value)


class Warm(nn.Module):
    """A network with a condition that is not a class."""

    def __init__(self):
        super().__init__()
        self.out, self.heat = nn.Linear(4, 3), nn.Linear(1, 3)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.01)

    def forward(self, x, t, heat):
        return self.out(torch.cat([x, t[:, None].to(x) / 20], dim=1)) + self.heat(heat[:, None])


@pytest.mark.parametrize("is_table", [True, False])
def test_conditions_that_are_whole_numbers_by_chance_are_numbers_as_in_training(is_table):
    def make(n, heat):
        if is_table:
            return Duck(**dict(zip("abc", standard(n, n).T, strict=True)), heat=heat)
        return TensorDataset(torch.tensor(standard(n, n)).float(), torch.tensor(heat).float())

    data, whole = make(200, np.linspace(0, 1, 200)), make(40, np.ones(40))
    options = {"prediction": "epsilon", "cond": "heat", **QUICK}
    scorer = flare.fit(Warm(), data, SCHEDULE, held_out=whole, **options)
    if is_table:
        assert scorer.score(whole).p_value.isfinite().all()


def test_dates_are_not_numbers():
    days = np.arange("2026-01-01", "2026-01-21", dtype="datetime64[D]").astype("datetime64[ns]")
    for column in (days, days - days[0]):
        with pytest.raises(ValueError, match=r"the column 'day' holds '[0-9]"):
            open_training("data", Duck(a=np.arange(20.0), day=column), None)


def test_a_loader_that_shuffles_keeps_samples_and_labels_together():
    data = TensorDataset(LABELS[:, None].float(), LABELS)
    loader = DataLoader(data, batch_size=50, shuffle=True)
    samples, _, cond, remarks = collect_samples("data", loader, cond="class_labels")
    assert torch.equal(samples[:, 0].long(), cond["class_labels"])
    assert not torch.equal(cond["class_labels"], LABELS)
    assert remarks == []


@pytest.mark.parametrize(
    ("data", "cond", "message"),
    [
        (torch.tensor(standard()), "class_labels", "cond names class_labels, but data is an array; give its"),
        (TensorDataset(torch.tensor(standard())), "class_labels", r"at 1, got 1 tensor\(s\) per batch"),
        (
            DataLoader([{"input": torch.zeros(3), "y": 0}] * 20),
            "class_labels",
            "got dicts with input, y; name",
        ),
        (
            table(),
            "class_labels",
            "has no column 'class_labels' for the condition class_labels; its columns are",
        ),
        (table(class_labels=[np.nan] * 200), "class_labels", "the condition class_labels lacks values"),
        (table(class_labels=["cat"] * 200), "class_labels", "column 'class_labels' holds 'cat'"),
    ],
    ids=["array", "tuples", "dicts", "table", "missing", "text"],
)
def test_conditions_that_are_not_there_are_explained(data, cond, message):
    with pytest.raises(ValueError, match=message):
        fit(data, classes=4, cond=cond)


def test_masks_are_copied_and_words_are_no_conditions(scorer):
    mask = scorer.score(table(30, 1)).trusted()
    assert isinstance(copy.deepcopy(mask), Mask)
    assert torch.equal(pickle.loads(pickle.dumps(mask)), mask)
    assert "columns: age, income, height" in repr(scorer)
    with pytest.raises(TypeError, match=r"class_labels must be numbers, got .*cat.*; give the codes"):
        fit(DataLoader([(torch.zeros(3), "cat")] * 20), classes=4, cond="class_labels")

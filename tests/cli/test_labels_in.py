"""`flare calibrate`: the samples to label, and labels as people and spreadsheets write them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import flare
from chaos.commands import run
from flare import Result
from flare.cli.scored import read_labels, write_template

pytestmark = pytest.mark.usefixtures("warm")
NAMES = ["a.png", "=b.png", "007", "d;e.png", "4"]
FILE = Path("samples.npz")


def read(tmp_path, text, names=NAMES):
    path = tmp_path / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_labels(path, names, FILE)


@pytest.mark.parametrize(
    "text",
    [
        "name,label\na.png,good\n'=b.png,bad\n007,ok\n",
        "name,index,label,verdict,p_value,reason,region\na.png,0,good,trusted,0.5,,3\n,1,bad,,,,\n007,2,g,x,,,",
        "index,label\n0,G\n1,B\n2,Ok\n3,\n",
        "index,label\n0, Good \n1,BAD\n2,good",
        "index,bad\n0,0\n1,1\n2,0\n",
        "index,bad\n0,FALSE\n1,TRUE\n2,false\n",
        "index,bad\n0,good\n1,bad\n2,good\n",
        "index,good\n0,1\n1,0\n2,true\n",
        "index,bad\n0.0,0.0\n1.0,1.0\n2,0\n",
        b"\xef\xbb\xbfindex;label;;\r\n0;good;;\r\n1;bad;;\r\n2;good;;\r\n;;;\r\n",
        "Index\tLabel\t\n0\tgood\t\n1\tbad\t\n2\tgood\n",
        '"index";"bad"\n"0,0";"0,0"\n"1,0";"1,0"\n"2";"0"\n',
        "name;label\na.png;good\n=b.png;bad\n007;ok\n",
        "index,label\r0,good\r1,bad\r2,good\r",
        "\n\nindex,label\n\n0,good\n1,bad\n2,good\n",
        "\n;;\nindex;label\n0;good\n1;bad\n2;good\n",
        '"note, if any, of mine";"index";"label"\n"a, b";0;good\n;1;bad\n;2;good\n',
    ],
)
def test_labels_are_read_as_they_were_meant(tmp_path, text):
    assert read(tmp_path, text) == {0: False, 1: True, 2: False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have a column index or name, and one column of labels: .* got no columns"),
        ("a,b\n1,2\n", r"label \(good or bad\), bad \(1 for bad\) or good \(1 for good\); got a, b"),
        ("index,bad,label\n1,1,good\n", "one column of labels: .* got index, bad, label"),
        ("index,label,label\n0,good,bad\n", "one column of labels: .* got index, label, label"),
        ("label\ngood\n", "must have a column index or name"),
        (
            "index,label\n1,1\n",
            r"has 1 under label, which could mean good or bad: write good or bad, or rename",
        ),
        ("index,label\n1,TRUE\n", "has TRUE under label, which could mean good or bad"),
        ("index,label\n1,maybe\n", "has the label 'maybe': write good or bad"),
        ("index,bad\n1,2\n", "has the label '2': write good or bad"),
        ("index,label\n5,good\n", "labels the index '5', but samples.npz has the samples 0 to 4"),
        ('index,label\n"1,000",good\n', "labels the index '1,000', but"),
        ("index,label\n1.000,good\n", r"labels the index '1\.000', but"),
        ("index,label\n-1,good\n", "labels the index '-1', but"),
        ("index,label\n1.5,good\n", "labels the index '1.5', but"),
        ("name,label\nz.png,good\n", "labels the name 'z.png', and samples.npz has no sample of this name"),
        ("name,label\n,good\n", "labels the name '', and samples.npz has no sample of this name"),
        ("name,index,label\na.png,1,good\n", r"labels 'a\.png' with the index 1, but .* this is '=b\.png'"),
        ("index,label\n1,good\n1,bad\n", "labels sample 1 twice, as good and as bad: remove one"),
        ("index,label\n1,bad\n1,bad\n", "labels sample 1 twice, both times as bad: remove one"),
        (
            "name,index,label\na.png,0,\n=b.png,1,\n",
            "has no labels yet: write good or bad into its column label",
        ),
        (b"index,label\n1,g\xf6\xf6d\n", "cannot be read as a table"),
    ],
)
def test_what_is_wrong_with_labels_is_said_in_one_sentence(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).count(". ") == 0


def test_a_name_of_two_samples_needs_an_index(tmp_path):
    with pytest.raises(ValueError, match=r"labels the name 'a', and samples\.npz has 2 samples of this name"):
        read(tmp_path, "name,label\na,good\n", ["a", "b", "a"])
    assert read(tmp_path, "name,index,label\na,2,good\n", ["a", "b", "a"]) == {2: False}


def test_the_template_is_read_back_and_never_replaced(tmp_path):
    path = tmp_path / "labels.csv"
    write_template(path, NAMES, [3, 1])
    assert path.read_text() == "name,index,label\nd;e.png,3,\n'=b.png,1,\n"
    with pytest.raises(FileExistsError, match=r"labels.csv exists, and may have labels: give it as LABELS"):
        write_template(path, NAMES, [0])
    path.write_text(path.read_text().replace(",3,", ",3,good"))
    assert read_labels(path, NAMES, FILE) == {3: False}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with 300 scored samples; those with the 60 highest scores are bad."""
    home = tmp_path_factory.mktemp("labels") / "home"
    home.mkdir()
    ranking = torch.randperm(300, generator=torch.Generator().manual_seed(0)).double()
    Result(torch.zeros(300, 2), scores={"a": ranking}).save(home / "samples.npz")
    return home


def fill(path, word):
    """Write a word into every row of a template; returns the indices."""
    with path.open() as file:
        header, *rows = csv.reader(file)
    path.write_text(
        "\n".join([";".join(header), *(f"{name};{index};{word(int(index))}" for name, index, _ in rows)])
    )
    return [int(row[1]) for row in rows]


def test_from_a_file_of_samples_to_a_guarantee(home):
    result = Result.load(home / "samples.npz")
    said, _ = run(["calibrate", "samples.npz"], home)
    assert "flare calibrate samples.npz labels.csv --risk 0.05 --confidence 0.9" in " ".join(said.split())
    said, _ = run(["calibrate", "samples.npz", "labels.csv"], home, code=2)
    assert "labels.csv has no labels yet" in said
    rows = fill(home / "labels.csv", lambda i: "bad" if result.score[i] >= 240 else "good")
    assert rows == result.propose_labels().tolist()
    said, _ = run(["calibrate", "samples.npz"], home, code=2)
    assert "labels.csv exists" in said
    said, _ = run(["calibrate", "samples.npz", "labels.csv", "--json"], home)
    facts = json.loads(said)
    rule = flare.calibrate(result, {i: bool(result.score[i] >= 240) for i in rows})
    assert (facts["threshold"], facts["kept"], facts["of"]) == (rule.threshold, 225, 300) == (224, 225, 300)
    assert (facts["guarantee"], facts["labeled"], facts["labeled_bad"]) == (str(rule), len(rows), 0)
    assert Result.load(home / "kept.safetensors") == result[rule.keep(result)]
    said, _ = run(["calibrate", "samples.npz", "labels.csv"], home, code=2)
    assert "kept.safetensors exists: choose another --out" in said


def test_too_few_samples_for_a_guarantee_are_told_before_anyone_labels_them(home):
    (home / "few").mkdir()
    Result.load(home / "samples.npz")[:20].save(home / "few" / "samples.npz")
    said, problems = run(["calibrate", "samples.npz"], home / "few")
    assert "the best half has 10 samples, and a guarantee needs 45" in " ".join(
        (said + str(problems)).split()
    )


def test_without_a_guarantee_it_exits_3_and_says_which_risk_can_be_met(home):
    (home / "some").mkdir()
    said, _ = run(["calibrate", "../samples.npz", "--risk", 0.2, "-q"], home / "some")
    assert said.split() == ["labels.csv"]
    last = Result.load(home / "samples.npz").propose_labels(risk=0.2)[-1]  # in the best half
    fill(home / "some" / "labels.csv", lambda i: "bad" if i == last else "good")
    again = ["calibrate", "../samples.npz", "labels.csv", "--out", "none.npz"]
    said, _ = run([*again, "--risk", 0.2], home / "some", code=3)
    assert "no threshold reaches at most 20% bad" in " ".join(said.split())
    assert "the best half has at most" in " ".join(said.split())
    assert not (home / "some" / "none.npz").exists()
    said, _ = run(again, home / "some", code=2)
    assert "labels are missing for" in " ".join(said.split())
    assert "use --design random if you labeled a random choice" in " ".join(said.split())
    run([*again, "--design", "random"], home / "some", code=3)
    said, _ = run([*again, "--design", "best"], home / "some", code=2)
    assert "unknown design 'best'" in said
    said, _ = run(["calibrate", "../samples.npz", "--out", "x.npz"], home / "some", code=2)
    assert "it goes with LABELS" in said


def test_labels_that_are_all_bad_are_warned_of(home):
    (home / "bad").mkdir()
    run(["calibrate", "../samples.npz", "-q"], home / "bad")
    count = len(fill(home / "bad" / "labels.csv", lambda _: "bad"))
    said, _ = run(["calibrate", "../samples.npz", "labels.csv"], home / "bad", code=3)
    assert f"all {count} labels are bad: are they inverted?" in " ".join(said.split())
    assert "-inf" not in said, "no file is written, so there is no path to print"


def test_a_table_of_verdicts_is_enough(home):
    rows = [f"'={i}.png,{i / 10},0.5,trusted,,0" for i in range(100)]
    (home / "table").mkdir()
    (home / "table" / "scores.csv").write_text("\n".join(["name,score,p_value,verdict,reason,region", *rows]))
    run(["calibrate", "scores.csv", "--risk", 0.1, "-q"], home / "table")
    rows = fill(home / "table" / "labels.csv", lambda i: "bad" if i >= 50 else "ok")
    assert any(i >= 50 for i in rows)
    run(["calibrate", "scores.csv", "labels.csv", "--risk", 0.1, "-q"], home / "table")
    with (home / "table" / "kept.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == [f"'={i}.png" for i in range(50)]

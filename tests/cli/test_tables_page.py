"""The guide for tables, docs/tables.md, whose commands and code run in order; and conditions of commands."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from running import call_here

import flare

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3)
        )

    def forward(self, x, t):
        return self.layers(torch.cat([x, t[:, None] / 100], dim=1))
"""
NEW = """id,height,age,income
p0,171.0,30,30000
p1,180.0,40,42000
p2,165.0,50,49000
p3,250.0,30,31000
p4,175.0,90,20000
p5,,40,41000
"""


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


def make_files(folder):
    """What a reader of the page has: a trained network, its table, how it was standardized, and new rows."""
    (folder / "mytraining.py").write_text(NET)
    (folder / "mymodel.py").write_text(next(each for each in blocks("python") if "def build" in each))
    (folder / "new.csv").write_text(NEW)
    rng = np.random.default_rng(0)
    age = 45 + 10 * rng.normal(size=2000)
    x = np.stack([age, 1000 * age + 4000 * rng.normal(size=2000), 170 + 8 * rng.normal(size=2000)], axis=1)
    np.savetxt(folder / "train.csv", x, "%.2f", ",", header="age,income,height", comments="")
    mean, std = x.mean(0), x.std(0)
    np.savez(folder / "scale.npz", mean=mean, std=std)
    space: dict[str, type] = {}
    exec(NET, space)
    torch.manual_seed(0)
    net, levels, data = space["Net"](), flare.schedules.cosine(100), torch.tensor((x - mean) / std).float()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(1500):
        t, noise = torch.randint(1, 101, (256,)), torch.randn(256, 3)
        alpha, sigma = (table.float()[t, None] for table in (levels.alpha, levels.sigma))
        noisy = alpha * data[torch.randint(0, 2000, (256,))] + sigma * noise
        optimizer.zero_grad()
        (net(noisy, t) - noise).square().mean().backward()
        optimizer.step()
    torch.save(net.state_dict(), folder / "net.pt")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mytraining", "mymodel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_the_page_gives_a_filtered_table_with_its_own_columns(here, monkeypatch, capsys):
    make_files(here)
    said = ""
    for command in (line for block in blocks("sh") for line in block.splitlines()):
        program, *words = shlex.split(command, comments=True)
        assert program == "flare"
        code, _, error = call_here(monkeypatch, capsys, *words)
        assert code == 0, error
        said += " ".join(error.split())
    for words in (
        "in a different order (height, age, income, not age, income, height)",
        "columns that the training data lacks, which are ignored: id.",
        "new.csv lacks values in 1 of 6 rows, columns height (1): these rows are not scored",
        "next: flare filter drawn.csv --keep 0.5",  # a report needs another file than a table
    ):
        assert words in said
    assert "scaling" not in said
    given, scored, kept = (read(here / f"{name}.csv") for name in ("new", "new-scored", "kept"))
    assert scored[0] == [*given[0], "score", "p_value", "verdict", "reason", "region"]
    assert [row[:4] for row in scored] == given
    words = {row[0]: row[6] for row in scored[1:]}
    assert [words[f"p{i}"] for i in range(6)] == [*["trusted"] * 3, *["doubtful"] * 2, "not scored"]
    assert kept == [row for row in scored if row[6] in ("verdict", "trusted")]
    names, *drawn = read(here / "drawn.csv")
    assert names[:3] == ["age", "income", "height"]
    assert 10_000 < np.median([float(row[1]) for row in drawn]) < 80_000


@pytest.mark.filterwarnings("ignore:do not trust this scorer yet", "ignore:the table ")
def test_the_python_of_the_page_runs(here):
    pytest.importorskip("pandas")
    make_files(here)
    names: dict[str, object] = {}
    for block in (each for each in blocks("python") if "def build" not in each):
        exec(compile(block, "docs/tables.md", "exec"), names)
    assert names["good"]["id"].tolist() == ["p0", "p1", "p2"]


CLASSES = """
import torch
from torch import nn
from flare import schedules

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds, self.out = nn.Embedding(3, {d}), nn.Linear({d}, {d})

    def forward(self, x, t, kind):
        return 0.1 * (self.out(x.flatten(1)) + self.kinds(kind)).view(x.shape)

def make():
    torch.manual_seed(0)
    return Net(), schedules.cosine(20)
"""
QUICK = ["--no-check", "--subset", 10, "--pairs", 60, "-q"]


@pytest.fixture
def run(here, monkeypatch, capsys):
    return lambda *words: call_here(monkeypatch, capsys, *words)


def test_conditions_are_a_file_or_a_column(here, run):
    (here / "mymodel.py").write_text(CLASSES.format(d=2))
    rng = np.random.default_rng(0)
    x, kinds = rng.normal(size=(100, 2)).astype(np.float32), rng.integers(0, 3, 100)
    np.save(here / "x.npy", x)
    np.save(here / "kinds.npy", kinds)
    np.savetxt(here / "x.csv", np.column_stack([x, kinds]), "%.9g", ",", header="a,b,species", comments="")
    code, _, said = run(
        "fit", "mymodel:make", "--data", "x.npy", "--cond", "kinds.npy", "--out", "files", *QUICK[:-1]
    )
    assert code == 0
    assert "next: flare sample files --cond FILE" in said
    assert (
        run("fit", "mymodel:make", "--data", "x.csv", "--cond", "species", "--out", "columns", *QUICK)[0] == 0
    )
    assert run("score", "files", "x.npy", "--cond", "kind=kinds.npy", "--out", "1.npz", "-q")[0] == 0
    assert run("score", "columns", "x.csv", "--out", "2.npz", "-q")[0] == 0
    assert run("score", "columns", "x.npy", "--cond", "kinds.npy", "--out", "3.npz", "-q")[0] == 0
    expected = flare.Result.load(here / "1.npz")
    assert flare.Result.load(here / "2.npz") == flare.Result.load(here / "3.npz") == expected
    assert (
        run("sample", "files", "-n", 100, "--steps", 3, "--cond", "kinds.npy", "--out", "4.npz", "-q")[0] == 0
    )
    scorer = flare.load(here / "files", sys.modules["mymodel"].make())
    drawn = scorer.sample(100, steps=3, cond={"kind": torch.tensor(kinds)})
    torch.testing.assert_close(flare.Result.load(here / "4.npz").samples, drawn.samples)
    for words, message in (
        (("score", "files", "x.npy"), "was fitted with conditions (kind): give --cond with 100 rows"),
        (("score", "files", "x.npy", "--cond", "none.npy"), "no file at none.npy"),
        (("score", "files", "x.npy", "--cond", "species"), "--cond species names a column, but x.npy has no"),
        (("score", "files", "x.npy", "--cond", "y=kinds.npy"), "the network takes kind"),
        (
            ("score", "files", "x.csv", "--cond", "kinds"),
            "x.csv has no column 'kinds' for the condition kind",
        ),
        (
            ("sample", "files", "-n", 7, "--cond", "kinds.npy"),
            "must have one row per sample, 7, got shape (100,)",
        ),
        (("sample", "files", "--cond", "species"), "must be an .npy file with one row per sample"),
    ):
        code, _, said = run(*words, "--out", "no.npz")
        assert code == 2
        assert message in " ".join(said.split())


def test_a_folder_has_one_subfolder_per_class(here, run):
    image = pytest.importorskip("PIL.Image")
    (here / "mymodel.py").write_text(CLASSES.format(d=16))
    rng = np.random.default_rng(0)
    pixels, kinds = rng.integers(0, 256, size=(100, 4, 4), dtype=np.uint8), rng.integers(0, 3, 100)
    np.save(here / "x.npy", (pixels[:, None] / 127.5 - 1).astype(np.float32))
    np.save(here / "kinds.npy", kinds)
    rows = []
    for number, name in enumerate(("ape", "bee", "cat")):
        (here / "images" / name).mkdir(parents=True)
        for row in np.flatnonzero(kinds == number)[:4]:
            image.fromarray(pixels[row]).save(here / "images" / name / f"{row:03}.png")
            rows.append(row)
    assert (
        run("fit", "mymodel:make", "--data", "x.npy", "--cond", "kinds.npy", "--out", "scorer", *QUICK)[0]
        == 0
    )
    code, _, said = run("score", "scorer", "images", "--out", "images.csv")
    assert code == 0, said
    assert "classes by subfolder: ape is 0, bee is 1, cat is 2." in " ".join(said.split())
    found = read(here / "images.csv")[1:]
    scorer = flare.load(here / "scorer", sys.modules["mymodel"].make())
    x, own = torch.tensor(np.load(here / "x.npy")[rows]), torch.tensor(kinds[rows])
    z = [scorer.score(x, {"kind": labels}).verdict.z.tolist() for labels in (own, (own + 1) % 3)]
    assert [float(row[1]) for row in found] == pytest.approx(z[0], rel=1e-3, abs=1e-3)
    assert [float(row[1]) for row in found] != pytest.approx(z[1], rel=1e-2, abs=1e-2)
    assert found[0][0] == f"ape/{rows[0]:03}.png"
    for path in (here / "images" / "ape").iterdir():
        path.rename(here / "images" / path.name)
    code, _, said = run("score", "scorer", "images", "--out", "no.csv")
    assert code == 2
    assert "one subfolder per class, or --cond labels.npy" in " ".join(said.split())

"""Tasks, runs of scores on them, and the leaderboard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import flare
from flare.bench import contest, entries, leaderboard, metrics, tasks
from flare.bench.entries import ENTRIES
from flare.storage import checkpoint
from tools.leaderboard import write_leaderboard

TASKS = Path(__file__).resolve().parents[2] / "tasks"
SHIPPED = sorted(path.parent for path in TASKS.glob("*/task.json"))
COUNT = 60


def absolute(model, samples, data, held_out, cond):
    return samples.abs().mean(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A task of sines; every third sample is bad: noise of three sizes."""
    directory = tmp_path_factory.mktemp("tasks") / "mine"
    x = flare.bench.datasets.sines(COUNT, seed=5)
    bad = torch.arange(COUNT) % 3 == 0
    sizes = torch.tensor([0.0, 0.25, 5.0])[torch.arange(COUNT) % 9 // 3]
    noise = torch.randn(COUNT, 10, generator=torch.Generator().manual_seed(0))
    x = torch.where(bad[:, None], x + sizes[:, None] * noise, x)
    flare.bench.make_task(
        directory, "sines", x, bad, flare.bench.datasets.sines(500, seed=6),
        flare.bench.datasets.sines(200, seed=7),
        seed=torch.arange(COUNT) // 20, mode=torch.arange(COUNT) % 2, title="Sines", truth="the noise.",
    )  # fmt: skip
    return directory


def test_a_task_is_read_as_it_was_made(made):
    task = flare.bench.Task(made)
    assert (task.name, len(task.samples), int(task.bad.sum())) == ("mine", COUNT, 20)
    assert task.kind[~task.bad].unique().tolist() == [-1]
    # without noise a bad sample looks like data; with much it is farther than every held-out sample
    far, subtle = task.kind[6::9], task.kind[0::9]
    assert (far == tasks.KINDS.index("far")).all()
    assert (subtle < tasks.KINDS.index("far")).all()
    assert "20 are bad" in (made / "card.md").read_text(encoding="utf-8")
    torch.testing.assert_close(
        task.model.denoiser.params["out.weight"], flare.bench.load("sines").denoiser.params["out.weight"]
    )


def test_the_kind_of_a_fault_follows_from_distances(made):
    task = flare.bench.Task(made)

    def distance(x):
        return torch.cdist(x, task.data).sort(1).values[:, :5].mean(1)

    own, real = distance(task.samples.double().float()), distance(task.held_out)
    for row in task.bad.nonzero().flatten():
        kind = 2 if own[row] > real.max() else 1 if own[row] > real.quantile(0.9) else 0
        assert task.kind[row] == kind


@pytest.mark.parametrize(
    ("stored_as", "error"), [("float32", 0), ("float16", 1e-3), ("uint8", 0.5 / 127.5 + 1e-6)]
)
def test_samples_are_stored_to_a_known_error(stored_as, error):
    x = torch.rand(5, 1, 4, 4) * 2 - 1
    stored = tasks.round_samples(x, stored_as)
    assert (stored - x).abs().max() <= error
    torch.testing.assert_close(tasks.round_samples(stored, stored_as), stored, rtol=0, atol=0)


def test_figures_are_those_of_the_metrics(made):
    task, found = flare.bench.Task(made), flare.bench.run(absolute, made)["tasks"]["mine"]
    score = task.samples.abs().mean(1)
    assert found["auroc"][0] == pytest.approx(metrics.auroc(score, task.bad))
    assert found["average_precision"][0] == pytest.approx(metrics.average_precision(score, task.bad))
    order = sorted(range(COUNT), key=lambda i: float(score[i]))[: COUNT // 2]
    assert found["kept_bad"] == pytest.approx(sum(bool(task.bad[i]) for i in order) / len(order))
    low, high = found["auroc"][1:]
    assert low < found["auroc"][0] < high
    assert found["calls"] == 0
    kept = [sum(task.mode[i] == mode for i in order) / 30 for mode in (0, 1)]
    assert found["rarest_mode_kept"] == pytest.approx(float(min(kept)))


def test_network_calls_are_counted(made):
    def twice(model, samples, data, held_out, cond):
        residual = flare.bench.baselines.Residual(model.denoiser, model.schedule)
        return residual.score(samples) + residual.score(samples)

    calls = flare.bench.run(twice, made)["tasks"]["mine"]["calls"]
    assert 2 <= calls < 3  # batches are tried first


def test_a_run_resumes(made, tmp_path):
    called = []

    def score(model, samples, data, held_out, cond):
        called.append(len(samples))
        return samples.abs().mean(1)

    out = tmp_path / "results.json"
    first = flare.bench.run(score, made, out)
    again = flare.bench.run(score, made, out)
    assert len(called) == 2  # once for all samples, once in another order
    assert json.loads(out.read_text(encoding="utf-8")) == first == again
    with pytest.raises(ValueError, match=r"has results of score 'score', not of 'absolute'"):
        flare.bench.run(absolute, made, out)


def test_an_edited_score_is_computed_again(made, tmp_path):
    def score(model, samples, data, held_out, cond):
        return -samples.abs().mean(1)

    out = tmp_path / "results.json"
    first, second = (
        contest.run(each, made, out, name="one", progress=False)["tasks"]["mine"]["auroc"][0]
        for each in (absolute, score)
    )
    assert second == pytest.approx(1 - first)


def test_two_processes_give_the_same(made, tmp_path):
    copy = tmp_path / "other"
    shutil.copytree(made, copy)
    # a function of a module that the processes can import
    found = flare.bench.run(ENTRIES["residual"], [made, copy], name="residual", processes=2)
    alone = flare.bench.run(ENTRIES["residual"], [made, copy], name="residual")
    assert found == alone


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda model, x, *_: x[:, 0].log(), r"returned NaN or infinity for \d+ of 60"),
        (lambda model, x, *_: x[:5, 0], r"one number per sample, \(60,\) on mine, got \(5,\)"),
        (lambda model, x, *_: torch.ones(len(x)), "the same number for all 60 samples"),
        (lambda model, x, *_: torch.arange(len(x)), "depends on the order of the samples"),
        (lambda model, x, *_: torch.arange(len(x)) % 3 == 0, "depends on the order of the samples"),
        (lambda model, x, *_: [0.0] * len(x), "must return a tensor of 60 numbers on mine, got list"),
    ],
)  # fmt: skip
def test_a_bad_score_is_refused(made, score, message):
    with pytest.raises((ValueError, TypeError), match=message):
        flare.bench.run(score, made, name="mine")


def test_noise_is_not_taken_for_the_order(made):
    def noisy(model, samples, data, held_out, cond):
        g = torch.Generator().manual_seed(0)
        return samples.abs().mean(1) + 0.05 * torch.randn(len(samples), generator=g)

    assert flare.bench.run(noisy, made)["tasks"]["mine"]["repeats"] < 1


@pytest.mark.parametrize("change", [{"files": {}}, {"files": None}, {"network": ...}])
def test_a_task_without_hashes_or_network_is_refused(made, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    about = json.loads((copy / tasks.MANIFEST).read_text(encoding="utf-8")) | change
    about = {key: value for key, value in about.items() if value is not ...}
    (copy / tasks.MANIFEST).write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(ValueError, match=r"task\.json is damaged: it must name the network, and the hashes"):
        flare.bench.Task(copy)


def test_a_damaged_task_is_refused(made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    content = bytearray((copy / tasks.SAMPLES).read_bytes())
    content[-1] ^= 1
    (copy / tasks.SAMPLES).write_bytes(content)
    with pytest.raises(
        ValueError, match=r"samples\.safetensors is missing or damaged: it does not match its hash"
    ):
        flare.bench.Task(copy)
    about = json.loads((copy / tasks.MANIFEST).read_text(encoding="utf-8"))
    (copy / tasks.MANIFEST).write_text(json.dumps(about | {"format": 9, "flare": "9.0"}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"made by another version of FLARE \(9\.0\); this one reads format 1"
    ):
        flare.bench.Task(copy)
    with pytest.raises(FileNotFoundError, match="is not a task"):
        flare.bench.Task(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"does not exist\. FLARE's tasks are in the directory tasks"):
        flare.bench.Task(tmp_path / "missing")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"bad": torch.zeros(20, dtype=torch.bool)}, "with 0 bad"),
     ({"seed": torch.arange(20, 0, -1)}, "increasing"),
     ({"group": "music"}, "music"), ({"stored_as": "int4"}, "int4")],
)  # fmt: skip
def test_a_task_that_cannot_be_made(tmp_path, change, message):
    x = flare.bench.datasets.sines(100)
    given = {"samples": x[:20], "bad": torch.arange(20) < 4, "data": x[20:80], "held_out": x[80:]}
    with pytest.raises(ValueError, match=message):
        flare.bench.make_task(tmp_path / "t", "sines", **given | change)


def test_samples_of_another_origin_have_no_trajectory(made):
    found = flare.bench.run(ENTRIES["last_iterates"], made, name="last_iterates")
    assert "x_T is unknown" in found["tasks"]["mine"]["skipped"]


# --- the leaderboard ----------------------------------------------------------------------------------------


def results(made: Path) -> dict:
    def worse(model, samples, data, held_out, cond):
        return -samples.abs().mean(1)

    return {score.__name__: flare.bench.run(score, made) for score in (worse, absolute)}


def test_the_leaderboard_ranks_and_finds_ties(made):
    rows = leaderboard.rank(results(made))
    assert [row["score"] for row in rows] == ["absolute", "worse"]
    assert rows[0]["auroc"] == pytest.approx(1 - rows[1]["auroc"])
    high, low = ({"replicates": torch.rand(200).numpy() / 10 + shift} for shift in (0.5, 0.1))
    assert not leaderboard.tie_with(high, low)
    assert leaderboard.tie_with(rows[0], rows[0])
    cells = leaderboard.table(rows)
    assert {len(row) for row in cells} == {len(cells[0])}
    assert leaderboard.rank(results(made), by="far")[0]["score"] == "absolute"
    with pytest.raises(ValueError, match="no task in common"):
        leaderboard.rank(results(made), ["other"])
    with pytest.raises(ValueError, match="there are no results of scores"):
        leaderboard.rank({})


def test_the_page_is_filled(made, tmp_path):
    for name, found in results(made).items():
        checkpoint.save_json(tmp_path / "results" / f"{name}.json", found)
    page, parts = tmp_path / "page.md", ("facts", "leaderboard", "tasks")
    page.write_text("".join(f"<!-- {each}:begin -->\n<!-- {each}:end -->\n" for each in parts))
    assert write_leaderboard(page, tmp_path / "results") == ["absolute", "worse"]
    assert "| 1 | absolute |" in page.read_text(encoding="utf-8")
    assert "absolute" in (tmp_path / "images" / "leaderboard.svg").read_text(encoding="utf-8")


def test_a_task_that_was_made_again_is_not_compared_with_its_old_results(made):
    both = results(made)
    figures = both["worse"]["tasks"]["mine"]
    both["absolute"]["tasks"]["again"] = figures
    both["worse"]["tasks"]["again"] = figures | {"task": "another hash"}
    assert list(leaderboard.rank(both)[0]["tasks"]) == ["mine"]
    with pytest.raises(ValueError, match="the scores have no task in common"):
        leaderboard.rank(both, ["again"])


@pytest.mark.parametrize("content", ["[]", '{"format": 1, "tasks": {}}'])
def test_results_of_another_format_are_refused(tmp_path, content):
    (tmp_path / "r.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="no results of `flare bench run`"):
        contest.read_results(tmp_path / "r.json")


# --- the shipped tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_task_is_whole_and_draws_its_samples_again(directory):
    task = flare.bench.Task(directory)
    assert task.about["title"]
    assert task.about["truth"]
    assert 0 < task.bad.double().mean() < 1
    cond = {key: value[:2] for key, value in task.cond.samples.items()}
    drawn = flare.sample(task.model.denoiser, task.model.steps(), start=task.start[:2], cond=cond).samples
    torch.testing.assert_close(drawn, task.samples[:2], rtol=0, atol=5e-3)


def test_the_shipped_tasks_are_small():
    assert len(SHIPPED) >= 13
    assert sum(path.stat().st_size for path in TASKS.rglob("*") if path.is_file()) < 27e6


def test_every_shipped_result_is_of_the_shipped_tasks():
    hashes = {path.name: flare.bench.Task(path).hash for path in SHIPPED}
    for name, found in leaderboard.read_leaderboard(TASKS / leaderboard.RESULTS).items():
        assert name in ENTRIES
        assert all(figures["task"] == hashes[task] for task, figures in found["tasks"].items())


def test_an_entry_is_fitted_once_per_task(made, tmp_path, monkeypatch):
    copy = Path(shutil.copytree(made, tmp_path / "other"))
    fits = []
    plain = entries.dense
    monkeypatch.setattr(
        entries, "dense", lambda *given, **options: fits.append(1) or plain(*given, **options)
    )
    first = flare.bench.run(ENTRIES["influence"], [made, copy], name="influence")["tasks"]
    assert len(fits) == 2  # each score is asked twice
    again = flare.bench.run(ENTRIES["influence"], made, name="influence")["tasks"]
    assert len(fits) == 3
    assert again["mine"] == first["mine"] == {**first["other"], "task": first["mine"]["task"]}

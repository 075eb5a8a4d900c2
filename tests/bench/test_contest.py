"""Tasks, runs of scores on them, and the leaderboard."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import flare
from flare.bench import contest, entries, leaderboard, metrics, tasks
from flare.bench.entries import ENTRIES
from flare.storage import checkpoint, locks
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


def test_a_killed_run_leaves_whole_results_and_resumes(made, tmp_path):
    others = [Path(shutil.copytree(made, tmp_path / name)) for name in ("a", "b")]
    out, deadly, called = tmp_path / "results.json", tmp_path / "deadly", []
    deadly.touch()

    def score(model, samples, data, held_out, cond):
        if deadly.is_file() and out.is_file():  # the first task is done
            os.kill(os.getpid(), signal.SIGKILL)
        called.append(len(samples))
        return samples.abs().mean(1)

    process = multiprocessing.get_context("fork").Process(target=flare.bench.run, args=(score, others, out))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list(contest.read_results(out)["tasks"]) == ["a"]
    deadly.unlink()
    with locks.lock(out), pytest.raises(BlockingIOError, match=r"results\.json is being written by"):
        flare.bench.run(score, others, out)
    found = flare.bench.run(score, others, out)
    assert len(called) == 2  # task b alone, twice
    assert found["tasks"] == flare.bench.run(score, others)["tasks"]


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
        (lambda model, x, *_: x[:, 0] * torch.inf, "returned NaN or infinity for 60 of 60"),
        (lambda model, x, *_: x[:5, 0], r"one number per sample, \(60,\) on mine, got \(5,\)"),
        (lambda model, x, *_: x[:, :1], r"one number per sample, \(60,\) on mine, got \(60, 1\)"),
        (lambda model, x, *_: torch.ones(len(x)), "the same number for all 60 samples"),
        (lambda model, x, *_: torch.arange(len(x)), "depends on the order of the samples"),
        (lambda model, x, *_: torch.arange(len(x)) % 3 == 0, "depends on the order of the samples"),
        (lambda model, x, *_: [0.0] * len(x), "must return a tensor of 60 numbers on mine, got list"),
        (lambda model, x, *_: x[:, 0] * 1j, "tensor of 60 numbers on mine, got torch.complex64"),
        (lambda model, x, *_: np.array(["a"] * len(x)), "tensor of 60 numbers on mine, got <U1"),
        (lambda model, x, *_: 1 / 0, r"failed on mine: ZeroDivisionError: division by zero \(.*line \d+\)"),
        (lambda model, x: x[:, 0], "failed on mine: TypeError: .*takes 2 positional arguments but 5"),
        (lambda model, x, data, held, cond: held.mul_(2).sum() * x[:, 0], "changes held_out in place"),
        (3, "score must be a function, got int"),
    ],
)  # fmt: skip
def test_a_bad_score_is_refused(made, score, message):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        flare.bench.run(score, made, name="mine")


@pytest.mark.parametrize(
    "change", [lambda s: s.numpy(), lambda s: s.half().double(), lambda s: s.clone().requires_grad_()]
)  # fmt: skip
def test_any_array_of_numbers_is_a_score(made, change):
    def score(model, samples, data, held_out, cond):
        return change(samples.half().float().abs().mean(1).half().float())

    found = flare.bench.run(score, made)["tasks"]["mine"]["auroc"][0]
    x = flare.bench.Task(made).samples
    bad = flare.bench.Task(made).bad
    assert found == pytest.approx(metrics.auroc(x.half().float().abs().mean(1).half().float(), bad))


def test_a_score_with_global_noise_or_settings_repeats(made):
    def noisy(model, samples, data, held_out, cond):
        noise = torch.rand(len(samples)) + torch.from_numpy(np.random.rand(len(samples))).float()  # noqa: NPY002
        torch.set_default_dtype(torch.float64)
        return samples.abs().mean(1) + 0.01 * noise

    first = flare.bench.run(noisy, made)["tasks"]
    torch.manual_seed(77)
    before = torch.get_rng_state()
    assert flare.bench.run(noisy, made)["tasks"] == first
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


def test_noise_is_not_taken_for_the_order(made):
    def noisy(model, samples, data, held_out, cond):
        g = torch.Generator().manual_seed(0)
        return samples.abs().mean(1) + 0.05 * torch.randn(len(samples), generator=g)

    assert flare.bench.run(noisy, made)["tasks"]["mine"]["repeats"] < 1


def test_figures_agree_with_an_independent_computation(made):
    """Pairs and thresholds one by one, and a bootstrap of seeds and samples with its own random numbers."""
    rng = np.random.default_rng(5)
    noise = torch.from_numpy(rng.integers(0, 6, COUNT)) / 4.0  # ties
    task = flare.bench.Task(made)
    score = task.samples.abs().mean(1).mul(4).round() + noise
    found = contest.evaluate(task, score.double())
    s, bad, seed = score.numpy(), task.bad.numpy(), task.seed.numpy()

    def auroc(rows):
        x, y = s[rows][bad[rows]], s[rows][~bad[rows]]
        return float((x[:, None] > y).mean() + (x[:, None] == y).mean() / 2)

    def precision(rows):
        total, recall = 0.0, 0.0
        for threshold in np.unique(s[rows])[::-1]:
            taken = s[rows] >= threshold
            now = (taken & bad[rows]).sum() / bad[rows].sum()
            total, recall = total + (now - recall) * bad[rows][taken].mean(), now
        return total

    everything = np.arange(COUNT)
    assert found["auroc"][0] == pytest.approx(auroc(everything))
    u = stats.mannwhitneyu(s[bad], s[~bad]).statistic / (bad.sum() * (~bad).sum())
    assert found["auroc"][0] == pytest.approx(u)
    assert found["average_precision"][0] == pytest.approx(precision(everything))
    drawn = []
    while len(drawn) < 4_000:
        seeds = rng.choice(3, 3)
        rows = np.concatenate([rng.choice(np.flatnonzero(seed == k), (seed == k).sum()) for k in seeds])
        if 0 < bad[rows].sum() < COUNT:
            drawn.append((auroc(rows), precision(rows)))
    for figure, own in zip(("auroc", "average_precision"), np.array(drawn).T, strict=True):
        low, high = np.quantile(own, [0.025, 0.975])
        # of 200 replicates, a quantile at 2.5% lies within those at 0.5% and 6% nearly always
        assert np.quantile(own, 0.002) <= found[figure][1] <= np.quantile(own, 0.07)
        assert np.quantile(own, 0.93) <= found[figure][2] <= np.quantile(own, 0.998)
        assert low < found[figure][0] < high


@pytest.mark.parametrize("change", [{"files": {}}, {"files": None}, {"network": ...}, {"group": ...}])
def test_a_task_without_hashes_or_network_is_refused(made, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    about = json.loads((copy / tasks.MANIFEST).read_text(encoding="utf-8")) | change
    about = {key: value for key, value in about.items() if value is not ...}
    (copy / tasks.MANIFEST).write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(ValueError, match=r"task\.json is damaged: it must name the network, the group"):
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
    ("file", "change", "message"),
    [
        (tasks.SAMPLES, lambda t: t | {"bad": torch.ones(COUNT).bool()}, "copy: bad must.*60 bad"),
        (tasks.SAMPLES, lambda t: t | {"bad": t["bad"][:5].clone()}, r"bad must be a mask of 60 samples"),
        (tasks.SAMPLES, lambda t: {k: v[:0].clone() for k, v in t.items()}, "a mask of 0 samples"),
        (tasks.SAMPLES, lambda t: t | {"seed": t["seed"][:5].clone()}, "one number for each of 60 samples"),
        (tasks.SAMPLES, lambda t: {k: v for k, v in t.items() if k != "kind"}, "damaged: it has no 'kind'"),
        (tasks.DATA, lambda t: {"data": t["data"]}, "damaged: it has no 'held_out'"),
        (tasks.DATA, lambda t: t | {"held_out": t["held_out"][:0].clone()}, r"held_out must have at least 2"),
        (tasks.DATA, lambda t: t | {"held_out": torch.zeros(9, 3)}, r"of shape \(10,\), got \(9, 3\)"),
    ],
)  # fmt: skip
def test_a_task_with_the_right_hashes_and_wrong_content_is_refused(made, tmp_path, file, change, message):
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    checkpoint.save(copy / file, change(dict(checkpoint.load(copy / file)[0])))
    about = json.loads((copy / tasks.MANIFEST).read_text(encoding="utf-8"))
    about["files"][file] = hashlib.sha256((copy / file).read_bytes()).hexdigest()
    (copy / tasks.MANIFEST).write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        flare.bench.Task(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"bad": torch.zeros(20, dtype=torch.bool)}, "with 0 bad"),
     ({"held_out": torch.full((9, 10), torch.nan)}, "held_out has NaN or infinity in 9 of 9"),
     ({"held_out": torch.zeros(0, 10)}, "held_out is empty"),
     ({"data": torch.zeros(9, 3)}, r"got data.*\(9, 3\)"),
     ({"mode": torch.zeros(3)}, "one number for each of 20"),
     ({"seed": torch.arange(20, 0, -1)}, "seed must increase"),
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
    page, parts = tmp_path / "page.md", ("facts", "leaderboard", "kinds", "tasks")
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

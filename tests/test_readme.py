"""The code of the README and of the documentation runs as it stands."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer
from torch.utils.data import DataLoader

import flare
from flare import cli
from flare.scorer import choosing

ROOT = Path(__file__).parent.parent
HARDLY = "ignore:.* hardly repeats"  # on random images, with a network of random weights


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def printed(page: str) -> str:
    """The output on a page."""
    return re.findall(r"```text\n(.*?)\n```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)[0]


def same_but_for_numbers(a: str, b: str) -> bool:
    """Whether two texts are equal; numbers may differ on another processor."""
    return re.sub(r"\d+", "0", a).split() == re.sub(r"\d+", "0", b).split()


def tiny_unet() -> torch.nn.Module:
    """A network of diffusers for images of 8 × 8."""
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip


def saved_pipeline(path: Path) -> dict[str, object]:
    """A tiny pipeline of diffusers in a directory, and images in its range."""
    from diffusers import DDPMPipeline, DDPMScheduler

    DDPMPipeline(tiny_unet(), DDPMScheduler(100)).save_pretrained(path / "model")
    return {"path": path / "model", "images": torch.rand(50, 1, 8, 8) * 2 - 1}


@pytest.mark.parametrize(
    "page",
    [
        "docs/index.md",
        "docs/trust.md",
        "docs/filter.md",
        "docs/your-model.md",
        "docs/problems.md",
        "docs/labels.md",
        "docs/coming-from.md",
        "docs/report.md",
        "docs/diffusers.md",
        "docs/big-jobs.md",
    ],
)
@pytest.mark.filterwarnings("ignore:prior_precision was tuned", "ignore:do not trust this scorer yet")
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = saved_pipeline(tmp_path) if page == "docs/diffusers.md" else {}
    assert blocks(page)
    if page == "docs/diffusers.md":
        warnings.filterwarnings("ignore", HARDLY.removeprefix("ignore:"))
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    if page == "docs/index.md":
        assert names["kept"].shape == (100, 2)
        assert same_but_for_numbers(repr(names["result"].verdict), printed(page))
    if page == "docs/diffusers.md":
        assert names["output"].uncertainty_maps.shape == (4, 1, 8, 8)
        assert names["result"].observed_variance.shape == (2,)
    if page == "docs/trust.md":
        assert names["judged"].trusted(0.05).tolist() == [True, False]
    if page == "docs/your-model.md":
        assert names["check"].excess < 0.1
        assert len(names["half"]) == 150
    if page == "docs/problems.md":
        assert 0.01 < (~names["fresh"].trusted(0.05)).double().mean() < 0.1
        assert names["misfit"].shape == (50,)
    if page == "docs/filter.md":
        assert names["mask"].sum() == 500
        assert len(names["removed"]) == 500
        assert len(flare.Result.load(tmp_path / "kept.safetensors")) == 500
    if page == "docs/labels.md":
        assert (names["rule"].guaranteed, names["rule"].counted) == (True, 45)
        assert len(names["safe"]) == names["rule"].kept
    if page == "docs/coming-from.md":
        assert names["result"].variance.shape == (50, 10)
    if page == "docs/big-jobs.md":
        assert names["result"].samples.shape == (40, 10)
        assert not (tmp_path / "parts").exists()


IMPORT = r"from (flare\.[\w.]+) import (\w+)"  # a part of a room that is not public
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_the_library_on_a_page_resolves(page):
    text = page.read_text(encoding="utf-8")
    for room, name in re.findall(IMPORT, text):
        assert hasattr(import_module(room), name), f"{page.name} imports {name} from {room}"
    text = re.sub(IMPORT, "", text)
    for name in sorted(set(re.findall(r"(?<![\w./-])flare((?:\.[A-Za-z_]\w*)+)", text))):
        value = flare
        # hasattr is not enough: a submodule becomes an attribute once anything imports it
        assert name.split(".")[1] in flare.__all__, f"{page.name} names flare{name}"
        for part in name[1:].split("."):
            assert hasattr(value, part), f"{page.name} names flare{name}"
            value = getattr(value, part)


def commands(page: Path) -> list[list[str]]:
    """The words of every `flare` command in the code of a page, continued lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    inline = re.findall(r"`(flare [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    lines = re.findall(r"(?:^|-m )(flare [^#\n]+)", blocks, flags=re.MULTILINE)
    return [line.split()[1:] for line in lines + inline]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_exists_with_its_flags(page):
    app = typer.main.get_command(cli.app)
    for words in commands(page):
        command = app
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: flare {' '.join(words)}"
            command, words = command.commands[words[0]], words[1:]
        known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
        flags = {word for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= known | {"--version"}, f"{page.name}: {command.name} {' '.join(words)}"


def test_the_code_of_the_page_on_the_parts_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("docs/uncertainty.md"):
        exec(compile(block, "docs/uncertainty.md", "exec"), names)
    assert "torch.Size([500, 10])" in capsys.readouterr().out
    assert int(names["kept"].sum()) == 250


@pytest.mark.filterwarnings("ignore:prior_precision was tuned")
def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"existing": flare.bench.datasets.grid(10, seed=1)}
    for block in blocks("README.md"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["kept"].shape == (100, 2)
    assert same_but_for_numbers(repr(names["result"].verdict), printed("README.md"))
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert flare.load(tmp_path / "scorer", names["model"].denoiser).shape == (2,)


@pytest.mark.filterwarnings("ignore:prior_precision was tuned", "ignore:do not trust this scorer yet", HARDLY)
def test_a_unet_with_a_loader_and_betas_of_its_own_is_fitted(monkeypatch):
    monkeypatch.setattr(choosing, "SUBSET_SIZE", 50)
    monkeypatch.setattr(choosing, "PAIRS", 50)
    schedule = flare.schedules.from_betas(torch.linspace(5e-4, 0.1, 200), time="fraction")
    loader = DataLoader(torch.rand(60, 1, 8, 8) * 2 - 1, batch_size=16)
    held_out = torch.rand(30, 1, 8, 8) * 2 - 1
    scorer = flare.fit(tiny_unet(), loader, schedule, prediction="v", held_out=held_out)
    result = scorer.sample(4)
    assert result.samples[result.keep(0.5)].shape == (2, 1, 8, 8)
    assert scorer.reference.held_out

"""A shared scorer comes back from the Hub with the same verdicts, and no training sample leaves unasked."""

from __future__ import annotations

import inspect
import sys

import huggingface_hub
import pytest
import torch
from local_hub import LocalHub, use_local_hub
from points import QUICK, Net, T, ring

import flare

NAME = "owner/ring-scorer"


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def scorer(net):
    return flare.fit(net, ring(), flare.schedules.cosine(T), held_out=ring(60, seed=5), **QUICK)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    return use_local_hub(monkeypatch, tmp_path / "hub")


@pytest.mark.parametrize("method", ["create_repo", "create_branch", "list_repo_files", "upload_folder"])
def test_the_stand_in_takes_what_the_real_hub_takes(method):
    real = inspect.signature(getattr(huggingface_hub.HfApi, method)).parameters
    assert set(inspect.signature(getattr(LocalHub, method)).parameters) <= set(real)


def test_a_shared_scorer_comes_back(scorer, net, hub):
    assert scorer.push_to_hub(NAME, token="secret") == f"https://hub/{NAME}/commit/1"
    assert hub.calls == [("token", "secret"), ("private", None)]
    names = hub.list_repo_files(NAME)
    assert names == [
        ".gitattributes", "README.md", "features.safetensors", "posterior.safetensors",
        "reference.safetensors", "scorer.json",
    ]  # fmt: skip
    new = ring(20, seed=2)
    scores = scorer.score(new).scores
    shared = {name: scores[name] for name in ("activations", "epistemic_distance")}
    expected = scorer.reference.verdict(shared).p_value
    again = flare.load(f"hf://{NAME}", net, token="secret")
    assert again.data is None
    assert torch.equal(again.score(new).p_value, expected)
    assert hub.calls[-1] == ("download", {"token": "secret"})
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="fitted to other weights of Net"):
        flare.load(f"hf://{NAME}", Net())


def test_data_is_shared_only_when_asked_and_taken_back(scorer, net, hub):
    with pytest.raises(
        ValueError, match="data=True uploads training samples: set visibility with private=True"
    ):
        scorer.push_to_hub(NAME, data=True)
    assert not hub.root.exists()
    scorer.push_to_hub(NAME, data=True, private=True)
    new = ring(20, seed=2)
    assert flare.load(f"hf://{NAME}", net).score(new) == scorer.score(new)
    card = hub.place(NAME) / "README.md"
    assert "**This repository holds 600 training samples**" in card.read_text(encoding="utf-8")
    scorer.push_to_hub(NAME)
    assert "data.safetensors" not in hub.list_repo_files(NAME)
    assert "holds no training sample" in card.read_text(encoding="utf-8")


def test_a_branch_is_a_revision(scorer, net, hub):
    scorer.push_to_hub(NAME)
    scorer.push_to_hub(NAME, data=True, private=False, revision="full")
    assert flare.load(f"hf://{NAME}", net).data is None
    assert flare.load(f"hf://{NAME}@full", net).data is not None


def test_the_card_says_what_the_scorer_was_fitted_on(scorer, hub):
    scorer.push_to_hub(NAME)
    card = (hub.place(NAME) / "README.md").read_text(encoding="utf-8")
    posterior = scorer.posterior
    count = sum(p.numel() for p in scorer.denoiser.module.parameters())
    for fact in (
        "library_name: flare",
        f"Net, {count} parameters, predicts epsilon",
        posterior.origin.fingerprint["weights"][:16],
        "shape (2,)",
        f"cosine with T = {T}",
        "600 samples, 500 training pairs",
        f"dense over {posterior.size} uncertain parameters (all subset)",
        f"{posterior.scale:.4g}, {posterior.prior_precision:.4g}",
        "| witnesses | activations, epistemic_distance |",
        "| compares with | 60 held-out samples |",
        "| training samples inside | none |",
        f"flare {flare.__version__}",
        f'flare.load("hf://{NAME}", net)',
    ):
        assert fact in card, fact
    assert "Known limits" not in card


def test_the_card_says_what_is_wrong(net, hub):
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(ring(), torch.zeros(600))
    with pytest.warns(UserWarning, match="do not trust this scorer"):
        scorer = flare.fit(net, data, flare.schedules.cosine(T), pairs=200, subset=20)
    scorer.push_to_hub(NAME)
    card = (hub.place(NAME) / "README.md").read_text(encoding="utf-8")
    assert f"- **Problem:** {scorer.about['problems'][0]}" in card
    assert f"- {scorer.about['remarks'][0]}" in card
    assert "(random subset)" in card
    assert "training samples |" in card


def test_a_directory_is_read_without_the_hub(scorer, net, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    scorer.save(tmp_path / "scorer")
    new = ring(5, seed=2)
    assert flare.load(tmp_path / "scorer", net).score(new) == scorer.score(new)
    for share in (lambda: scorer.push_to_hub(NAME), lambda: flare.load(f"hf://{NAME}", net)):
        with pytest.raises(ImportError, match="sharing needs huggingface_hub: pip install huggingface_hub"):
            share()


def test_what_cannot_be_shared_is_refused_and_nothing_is_replaced(scorer, net, hub):
    for name in ("ring-scorer", "a/b/c", "../scorer", "owner/", "C:\\scorer"):
        with pytest.raises(ValueError, match="neither a directory nor the name of a repository"):
            scorer.push_to_hub(name)
    with pytest.raises(FileNotFoundError, match="there is no scorer at"):
        flare.load("owner/elsewhere", net)  # a local path: flare.load does not guess
    hub.create_repo("owner/model")
    weights = hub.place("owner/model") / "model.safetensors"
    weights.write_text("precious")
    with pytest.raises(FileExistsError, match=r"owner/model exists and is not a scorer; choose another name"):
        scorer.push_to_hub("owner/model")
    assert weights.read_text() == "precious"
    with pytest.raises(FileNotFoundError, match=r"the repository owner/model .* has no scorer\.json"):
        flare.load("hf://owner/model", net)
    free = flare.fit(net, ring(), flare.schedules.cosine(T), structure="matrix_free", subset=5, pairs=50,
                     check=False)  # fmt: skip
    with pytest.raises(ValueError, match="a matrix_free posterior needs its training pairs again"):
        free.push_to_hub(NAME)

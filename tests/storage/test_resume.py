"""An interrupted fit resumes and ends with bitwise the same numbers."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from reference import small_problem

from flare import Resume, posteriors, subsets
from flare.storage import checkpoint


class StoppedError(Exception):
    pass


def stop_after(count: int):
    """A progress wrapper that raises after `count` batches; its attribute `seen` counts them."""

    def watch(items):
        for place, item in enumerate(items):
            if place == count:
                raise StoppedError
            watch.seen += 1
            yield item

    watch.seen = 0
    return watch


ITERATED = "low_rank by iteration"


def fit(structure: str, resume: Resume | None, progress=None, n=160, seed=0) -> dict[str, torch.Tensor]:
    _, denoiser, pairs = small_problem((3,), n=n, seed=seed)
    subset = subsets.named(denoiser, "second.*")
    extra = {"rank": 5} if structure.startswith("low_rank") else {}
    prior = "marglik" if structure == "matrix_free" else 1.0  # so that only tuning needs products
    fitted = getattr(posteriors, structure.split()[0])(
        denoiser, subset, pairs, prior, "calibrated", **extra, resume=resume, progress=progress
    )
    numbers = {"scale": fitted.scale, "prior": fitted.prior_precision}
    return {**fitted.tensors(), **{name: torch.tensor(value) for name, value in numbers.items()}}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank", ITERATED, "kronecker", "matrix_free"])
def test_an_interrupted_fit_resumes(tmp_path, structure, monkeypatch):
    monkeypatch.setattr("flare.storage.resume._SAVING_FRACTION", 1e9)  # save after every batch
    if structure == ITERATED:
        monkeypatch.setattr(import_module("flare.posteriors.low_rank"), "MATRIX", 0)
    whole = fit(structure, None)
    resume = Resume(tmp_path / "parts", every=0)
    # passes, steps of Lanczos' method (one per parameter), or batches of 16 of 160 pairs
    units = {ITERATED: 4, "matrix_free": 21}.get(structure, 10)
    by_products = structure in (ITERATED, "matrix_free")
    for stop in (3, 2):
        with pytest.raises(StoppedError):
            fit(structure, resume, stop_after(stop))
    kept = list(resume.directory.rglob("sums.safetensors"))
    assert len(kept) == (3 if by_products else 1)  # one per product
    last = stop_after(units)
    assert same(fit(structure, resume, last), whole)
    assert last.seen == (units if by_products else 5)
    resume.clear()
    assert not resume.directory.exists()


def test_other_weights_pairs_or_settings_start_from_scratch(tmp_path, monkeypatch):
    monkeypatch.setattr("flare.storage.resume._SAVING_FRACTION", 1e9)
    resume = Resume(tmp_path / "parts", every=0)
    with pytest.raises(StoppedError):
        fit("dense", resume, stop_after(5))
    for structure, options in (("diagonal", {}), ("dense", {"n": 161}), ("dense", {"seed": 1})):
        assert same(fit(structure, resume, **options), fit(structure, None, **options))


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_damaged_part_is_reported_and_computed_again(tmp_path, harm, monkeypatch):
    monkeypatch.setattr("flare.storage.resume._SAVING_FRACTION", 1e9)
    resume = Resume(tmp_path / "parts", every=0)
    with pytest.raises(StoppedError):
        fit("dense", resume, stop_after(5))
    (part,) = resume.directory.rglob("sums.safetensors")
    content = part.read_bytes()
    middle = len(content) - 40
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    part.write_bytes({"cut": content[:-9], "flip": flipped, "empty": b""}[harm])
    with pytest.warns(RuntimeWarning, match=r"sums.safetensors is .* computed again"):
        found = fit("dense", resume)
    assert same(found, fit("dense", None))


def test_sums_are_saved_at_intervals(tmp_path, monkeypatch):
    now, saves = [0.0], []
    monkeypatch.setattr("flare.storage.resume.time.monotonic", lambda: now[0])

    def save(path, tensors, metadata):
        saves.append(now[0])
        now[0] += 3.0  # a slow disk

    monkeypatch.setattr(checkpoint, "save", save)
    resume = Resume(tmp_path, every=10)
    for _ in range(200):
        now[0] += 1.0
        resume.save_if_due("sums", {}, 0)
    # first after 10 s, then so rarely that saves of 3 s take 5% of the time
    assert saves[:3] == [10.0, 73.0, 136.0]

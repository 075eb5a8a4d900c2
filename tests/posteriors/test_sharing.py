"""A curvature is computed once, and any number of posteriors share it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import safetensors.torch
import torch
from reference import small_problem

from flare import posteriors, subsets
from flare.posteriors import STRUCTURES
from flare.posteriors.curvature import Origin, residual_statistics
from flare.posteriors.posterior import register
from flare.storage import checkpoint

FILES = Path(__file__).parent / "format_1"
OPTIONS = {"low_rank": {"rank": 5}, "matrix_free": {"tolerance": 1e-8}}
parametrize = pytest.mark.parametrize("name", ["dense", "diagonal", "kronecker", "low_rank", "matrix_free"])


def problem():
    _, denoiser, pairs = small_problem((3,), width=5, n=60)
    return denoiser, subsets.named(denoiser, "second.*"), pairs


def draws(posterior):
    return posterior.draw(4, torch.Generator().manual_seed(3))


@parametrize
def test_posteriors_share_one_curvature_without_the_data(name, monkeypatch):
    denoiser, subset, pairs = problem()
    fit, options = getattr(posteriors, name), OPTIONS.get(name, {})
    first, second = (
        fit(denoiser, subset, pairs, delta, s, **options) for delta, s in ((0.1, 3.0), (2.0, 1.0))
    )
    tuned = fit(denoiser, subset, pairs, **options)
    if name != "matrix_free":  # its draws are products over the pairs

        def refuse(*args, **kwargs):
            raise AssertionError("the data was used again")

        monkeypatch.setattr(type(pairs), "batch_source", refuse)
        monkeypatch.setattr(type(denoiser), "call", refuse)
    again = first.refit(2.0, 1.0)
    assert torch.equal(draws(again), draws(second))
    assert all(value is first.tensors()[name] for name, value in again.tensors().items())
    again = posteriors.tune(first, denoiser, "marglik", "calibrated")
    assert (again.prior_precision, again.scale) == (tuned.prior_precision, tuned.scale)
    assert torch.equal(draws(again), draws(tuned))


def test_refitted_matrix_free_posteriors_share_what_their_products_told(monkeypatch):
    denoiser, subset, pairs = problem()
    first = posteriors.matrix_free(denoiser, subset, pairs, 0.1, 3.0)
    second = first.refit(2.0)
    second.log_det_precision(), second.draw(1)
    monkeypatch.setattr(type(first.H), "__call__", None)
    assert first.log_det_precision() != second.log_det_precision()
    assert first.H.leading is second.H.leading


@parametrize
def test_a_posterior_file_holds_the_curvature(name, tmp_path):
    denoiser, subset, pairs = problem()
    posterior = STRUCTURES[name].function(denoiser, subset, pairs, 1.0, 1.0, **OPTIONS.get(name, {}))
    posterior.save(tmp_path / "posterior.safetensors")
    again = posteriors.load(tmp_path / "posterior.safetensors", denoiser, pairs)
    assert type(again) is type(posterior) is STRUCTURES[name].posterior
    assert again.origin.statistics == posterior.origin.statistics
    assert torch.equal(draws(again.refit(0.1, 3.0)), draws(posterior.refit(0.1, 3.0)))


def stored_covariance(name, tensors, delta, s):
    """Σ = (s·H + δ·I)⁻¹ from what a file of format 1 stores, ordered as second.weight, second.bias."""
    if name == "diagonal":
        H = tensors["diagonal"].diag()
    elif name == "kronecker":
        A, G = (
            tensors[f"second:Q{factor.upper()}"]
            @ tensors[f"second:{factor}"].diag()
            @ tensors[f"second:Q{factor.upper()}"].T
            for factor in ("a", "g")
        )
        weights = [6 * row + column for row in range(3) for column in range(5)]
        order = [*weights, 5, 11, 17]  # the bias is the last input of every output
        H = torch.kron(G, A)[order][:, order]
    else:
        Q = tensors["eigenvectors"]
        H = Q @ tensors["eigenvalues"].diag() @ Q.T
    return torch.linalg.inv(s * H + delta * torch.eye(len(H), dtype=torch.float64))


@pytest.mark.parametrize("name", ["dense", "diagonal", "kronecker", "low_rank"])
def test_files_of_format_1_load(name):
    """Written by an earlier version, with δ = 0.1 and s = N/σ²."""
    path = FILES / f"{name}.safetensors"
    loaded = posteriors.load(path)
    expected = stored_covariance(name, safetensors.torch.load_file(path), 0.1, loaded.scale)
    eye = torch.eye(18, dtype=torch.float64)
    torch.testing.assert_close(loaded.covariance(eye), expected, rtol=1e-9, atol=1e-9)
    root = loaded.exact_directions()
    torch.testing.assert_close(root @ root.T, expected, rtol=1e-9, atol=1e-9)
    assert loaded.prior_precision == 0.1
    assert loaded.is_calibrated


def test_a_low_rank_file_of_format_1_is_not_truncated(tmp_path):
    path = FILES / "low_rank.safetensors"
    tensors, meta = checkpoint.load(path)
    assert "truncation" not in meta
    assert posteriors.load(path).truncation == "none"
    for wrong, message in (
        ("some", "unknown truncation 'some'"),
        ("covariance", "cannot be used as a low_rank"),
    ):
        checkpoint.save(tmp_path / "wrong.safetensors", tensors, meta | {"truncation": wrong})
        with pytest.raises(ValueError, match=message):
            posteriors.load(tmp_path / "wrong.safetensors")


def test_a_matrix_free_file_of_format_1_asks_for_its_network_and_pairs():
    with pytest.raises(ValueError, match="needs its network and training pairs"):
        posteriors.load(FILES / "matrix_free.safetensors")


def test_structures_are_functions_with_their_own_options():
    shared = ["denoiser", "subset", "pairs", "prior_precision", "scale"]
    own = {
        "dense": ["probes", "curvature"],
        "low_rank": ["rank", "passes", "truncation", "probes"],
        "kronecker": ["probes"],
    }
    for name, options in own.items():
        parameters = inspect.signature(getattr(posteriors, name)).parameters
        assert [*parameters] == [*shared, *options, "validation", "resume", "progress"]
        assert STRUCTURES[name].options == tuple(options)
    assert [name for name in STRUCTURES if STRUCTURES[name].stores_matrix] == ["dense"]
    for entry in STRUCTURES.values():
        assert inspect.isfunction(entry.function)
        assert getattr(posteriors, entry.name) is entry.function
        described = [line.strip().partition(":")[0] for line in entry.function.__doc__.splitlines()]
        assert set(inspect.signature(entry.function).parameters) <= set(described)
        assert entry.summary
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank'"):
        posteriors.kronecker(*problem(), rank=3)
    with pytest.raises(ValueError, match="unknown structure 'dens'; did you mean 'dense'"):
        STRUCTURES.find("dens")


def test_a_new_structure_is_one_registration(tmp_path, monkeypatch):
    monkeypatch.setattr(STRUCTURES, "_entries", {**STRUCTURES})

    class Isotropic(posteriors.Dense):
        structure = "isotropic"

    @register(Isotropic)
    def isotropic(denoiser, subset, pairs, prior_precision, scale, *, value=1.0):
        """The same curvature for every parameter."""
        origin = Origin.of(denoiser, subset, residual_statistics(denoiser, pairs))
        eye = torch.eye(subset.size, dtype=torch.float64)
        return Isotropic(origin, prior_precision, scale, value * eye.diagonal(), eye)

    posterior = isotropic(*problem(), 1.0, 2.0, value=3.0)
    posterior.save(tmp_path / "posterior.safetensors")
    again = posteriors.load(tmp_path / "posterior.safetensors")
    v = torch.randn(posterior.size, dtype=torch.float64)
    torch.testing.assert_close(again.covariance(v), v / 7.0)
    assert STRUCTURES["isotropic"].summary == "The same curvature for every parameter."
    assert STRUCTURES["isotropic"].options == ("value",)

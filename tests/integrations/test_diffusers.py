"""From a saved pipeline to scored samples, offline; guidance, latents and observed functions."""

from __future__ import annotations

import inspect
import json

import pytest
import tiny
import torch
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    ImagePipelineOutput,
)
from reference import TinyNet, close
from torch import nn
from torch.func import jacrev

import flare
from flare import subsets
from flare.integrations.diffusers import Autoencoder
from flare.network.forward_mode import Workarounds, plain_attention
from flare.network.guidance import guide
from flare.report import as_result

T = 30


def saved(kind, path):
    """The directory of a tiny pipeline with a model of this kind."""
    model = tiny.MODELS[kind]()
    if kind in ("dit", "transformer2d"):
        pipe = DiTPipeline(model, tiny.vae(), DDIMScheduler(T, clip_sample=False))
    elif kind == "sd3":
        pipe = DiTPipeline(model, tiny.vae(), FlowMatchEulerDiscreteScheduler(T, shift=3.0))
    else:
        pipe = DDPMPipeline(model, DDPMScheduler(T))
    pipe.save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", tiny.MODELS)
@pytest.mark.filterwarnings("ignore:prior_precision was tuned")
def test_the_five_lines_run_from_a_saved_pipeline(kind, tmp_path):
    path = saved(kind, tmp_path)
    data, cond = torch.rand(6, *tiny.SHAPES[kind]) * 2 - 1, tiny.cond(kind, 6)
    model = flare.from_diffusers(path)
    posterior = flare.posteriors.dense(
        model.denoiser,
        subsets.random(model.denoiser, count=40, seed=0),
        model.pairs(data, n=24, seed=0, cond=cond),
        prior_precision="marglik",
    )
    result = flare.sample(
        model.denoiser, model.steps(4), posterior, n=3, shape=data.shape[1:], directions=2, seed=0,
        cond=tiny.cond(kind, 3), derivative="exact",
    )  # fmt: skip
    assert model.shape == tiny.SHAPES[kind]
    assert result.samples.shape == (3, *model.shape)
    assert (result.score > 0).all()
    posterior.save(tmp_path / "posterior.safetensors")
    again = flare.posteriors.load(tmp_path / "posterior.safetensors", model.denoiser)
    torch.testing.assert_close(again.draw(1, torch.Generator().manual_seed(0)).shape, torch.Size([1, 40]))


HOSTILE = {  # where the code is, and the entry of model_index.json that names it
    "a pipeline": ("evil.py", {"_class_name": ["evil", "Evil"]}),
    "a component": ("unet/evil.py", {"unet": ["evil", "Evil"]}),
    "a component in another folder": ("evil.py", {"unet": ["../evil", "Evil"]}),
    "a component of two letters": ("unet/e.py", {"unet": "eE"}),
    "a file with the name of a library": ("unet/diffusers.py", {"unet": ["diffusers", "Evil"]}),
    "a module on the path": ("evil.py", {"unet": ["evil", "Evil"]}),
    "a pipeline in a pipeline": ("unet/evil.py", {"unet": ["diffusers", "DiffusionPipeline"]}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_code_that_comes_with_a_pipeline_never_runs(case, tmp_path, monkeypatch):
    path, (file, entry) = saved("unet2d", tmp_path), HOSTILE[case]
    (path / file).write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    index = path / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | entry))
    if case == "a pipeline in a pipeline":
        (path / "unet" / "model_index.json").write_text('{"_class_name": ["evil", "Evil"]}')
    monkeypatch.syspath_prepend(path)
    with pytest.raises(ValueError, match=r"model_index\.json names code .* FLARE does not run it"):
        flare.from_diffusers(path)
    assert not list(path.rglob("ran"))


@pytest.mark.parametrize("text", ["[]", "no", "{}", '{"_class_name": {"a": 1}}'])
def test_a_damaged_index_of_a_pipeline_is_named(text, tmp_path):
    (tmp_path / "model_index.json").write_text(text)
    with pytest.raises(ValueError, match=r"model_index\.json is not"):
        flare.from_diffusers(tmp_path)


def fitted(pipe, data=None, cond=None, count=40):
    model = flare.from_diffusers(pipe)
    data = torch.rand(6, *model.shape) * 2 - 1 if data is None else data
    pairs = model.pairs(data, n=24, seed=0, cond=cond)
    subset = subsets.random(model.denoiser, count=count, seed=0)
    return model, flare.posteriors.dense(model.denoiser, subset, pairs, 1e-2)


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("make", [DDPMPipeline, DDIMPipeline])
@pytest.mark.parametrize(
    "options", [{}, {"clip_sample": False}, {"thresholding": True, "sample_max_value": 1.5}]
)
def test_flare_pipeline_returns_the_images_of_the_pipeline_with_their_uncertainty(make, options):
    scheduler = (DDPMScheduler if make is DDPMPipeline else DDIMScheduler)(T, **options)
    pipe = quiet(make(tiny.unet2d(), scheduler))
    _, posterior = fitted(pipe)
    scored = flare.FlarePipeline(pipe, posterior, directions=2, score="trace")
    own = {"eta": 0.6} if make is DDIMPipeline else {}
    arguments = {"batch_size": 3, "num_inference_steps": 5, "output_type": "pt", **own}
    theirs = pipe(generator=torch.Generator().manual_seed(7), **arguments)
    ours = scored(generator=torch.Generator().manual_seed(7), **arguments)
    assert type(ours) is type(theirs)
    close(ours.images, theirs.images, 1e-4)
    assert ours.scores.shape == (3,)
    assert ours.uncertainty_maps.shape == (3, 1, 8, 8)
    torch.testing.assert_close(4 * ours.uncertainty_maps.flatten(1).sum(1), ours.scores)
    images, scores, maps = scored(3, num_inference_steps=2, return_dict=False)
    assert [image.size for image in images] == [(8, 8)] * 3
    assert (len(scores), len(maps)) == (3, 3)
    generators = [torch.Generator().manual_seed(k) for k in range(2)]
    assert scored(2, generator=generators, num_inference_steps=2, output_type="np").images.shape == (
        2,
        8,
        8,
        1,
    )


def test_pipelines_score_finished_images_and_keep_their_maps():
    pipe = quiet(DiTPipeline(tiny.dit(), tiny.vae(), DDIMScheduler(T, clip_sample=False)))
    _, posterior = fitted(pipe, cond=tiny.cond("dit", 6))
    scored = flare.FlarePipeline(pipe, posterior, directions=2, score="off_manifold")
    arguments = {"class_labels": [1, 7], "num_inference_steps": 2, "output_type": "pt"}
    ours = scored(**arguments, guidance_scale=2.0, generator=torch.Generator().manual_seed(7))
    assert ours.uncertainty_maps.shape == ours.images.shape
    assert ours.scores.isfinite().all()
    unet = quiet(DDPMPipeline(tiny.unet2d(), DDPMScheduler(T)))
    model, posterior = fitted(unet)
    x = torch.randn(3, 1, 8, 8)
    options = {"score": "influence", "levels": (0.1, 0.5), "data": torch.randn(6, 1, 8, 8)}
    whole = flare.score(model.denoiser, posterior, model.schedule, x, **options)
    alone = flare.score(model.denoiser, posterior, model.schedule, x, batch_size=1, **options)
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=0)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize(
    "scheduler",
    [DDIMScheduler(T, clip_sample=False), DPMSolverMultistepScheduler(T), DDPMScheduler(T)],
    ids=type,
)
def test_the_dit_pipeline_with_guidance_and_its_decoder(scheduler, guidance):
    pipe = quiet(DiTPipeline(tiny.dit(), tiny.vae(), scheduler))
    _, posterior = fitted(pipe, cond=tiny.cond("dit", 6))
    scored = flare.FlarePipeline(pipe, posterior, directions=2)
    arguments = {
        "class_labels": [1, 7], "guidance_scale": guidance, "num_inference_steps": 4, "output_type": "pt"
    }  # fmt: skip
    torch.manual_seed(5)
    theirs = pipe(**arguments, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(5)
    ours = scored(**arguments, generator=torch.Generator().manual_seed(7))
    assert isinstance(ours, ImagePipelineOutput)
    close(ours.images, theirs.images, 1e-4)
    assert ours.uncertainty_maps.shape == theirs.images.shape
    assert (ours.uncertainty_maps >= 0).all()


def test_what_flare_pipeline_cannot_do_is_refused_by_name():
    pipe = quiet(DDPMPipeline(tiny.unet2d(), DDPMScheduler(T)))
    _, posterior = fitted(pipe)

    class StrangePipeline(DDPMPipeline):
        pass

    with pytest.raises(
        ValueError, match=r"StrangePipeline is not supported by FlarePipeline, which supports DDPM"
    ):
        flare.FlarePipeline(StrangePipeline(tiny.unet2d(), DDPMScheduler(T)), posterior)
    for scheduler in (EulerDiscreteScheduler(T), EDMEulerScheduler(), HeunDiscreteScheduler(T)):
        with pytest.raises(ValueError, match=f"not scale the inputs of an {type(scheduler).__name__}"):
            flare.FlarePipeline(DDPMPipeline(tiny.unet2d(), scheduler), posterior)
    with pytest.raises(ValueError, match="unknown option of DDPMPipeline 'eta'"):
        flare.FlarePipeline(pipe, posterior)(2, eta=0.5)
    with pytest.raises(ValueError, match="has no output_type='latent'"):
        flare.FlarePipeline(pipe, posterior)(2, output_type="latent")
    other = quiet(DiTPipeline(tiny.dit(), tiny.vae(), DDIMScheduler(T, clip_sample=False)))
    with pytest.raises(ValueError, match="fitted"):
        flare.FlarePipeline(other, posterior)
    _, posterior = fitted(other, cond=tiny.cond("dit", 6))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'class_labels'"):
        flare.FlarePipeline(other, posterior)()


@pytest.mark.parametrize("posterior", [None, "posterior.safetensors"])
def test_what_is_no_posterior_is_refused_with_how_to_fit_one(posterior):
    pipe = DDPMPipeline(tiny.unet2d(), DDPMScheduler(T))
    got = type(posterior).__name__
    message = rf"got {got}\. Fit one with .*flare\.posteriors\.dense\(.*flare\.posteriors\.load\(path"
    with pytest.raises(TypeError, match=message):
        flare.FlarePipeline(pipe, posterior)


def test_as_many_directions_by_default_as_sample_has():
    defaults = {
        inspect.signature(function).parameters["directions"].default
        for function in (flare.sample, flare.FlarePipeline)
    }
    assert defaults == {16}


@pytest.mark.parametrize("output_type", ["pil", "np", "pt"])
def test_the_output_of_the_pipeline_is_reported(output_type, tmp_path):
    pipe = quiet(DDPMPipeline(tiny.unet2d(in_channels=3, out_channels=3), DDPMScheduler(T)))
    scored = flare.FlarePipeline(pipe, fitted(pipe)[1], directions=2)
    call = {"num_inference_steps": 2, "output_type": output_type}
    output = scored(4, generator=torch.Generator().manual_seed(0), **call)
    output.scores[1] = torch.nan  # lost
    images = scored(4, generator=torch.Generator().manual_seed(0), **call | {"output_type": "pt"}).images
    result = as_result(output)
    torch.testing.assert_close(result.samples[[0, 2, 3]], images[[0, 2, 3]], atol=1 / 255, rtol=0.0)
    assert result.lost.tolist() == [False, True, False, False]
    assert torch.equal(result.variance, output.uncertainty_maps)
    flare.report.write(tmp_path / "report.html", output)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "3 images of shape 3 × 8 × 8" in page
    assert "1 of 4 samples" in page


def test_learned_variance_sets_the_noise_and_the_spread_is_conditional_on_it():
    net = tiny.unet2d(in_channels=1, out_channels=2)
    scheduler = DDPMScheduler(T, variance_type="learned_range")
    pipe = quiet(DDPMPipeline(net, scheduler))
    model, posterior = fitted(pipe)
    theirs = pipe(
        3, generator=torch.Generator().manual_seed(7), num_inference_steps=5, output_type="pt"
    ).images
    ours = flare.FlarePipeline(pipe, posterior, directions=2)(
        3, generator=torch.Generator().manual_seed(7), num_inference_steps=5, output_type="pt"
    )
    close(ours.images, theirs, 1e-4)
    steps, start = model.steps(5), torch.randn(2, 1, 8, 8)
    tangent, definition = (
        flare.sample(
            model.denoiser, steps, posterior.refit(1e6), start=start, rule=rule, directions=6
        ).variance
        for rule in ("tangent", "monte_carlo")
    )
    assert 0.5 < float(tangent.sum() / definition.sum()) < 2


def test_learned_variance_with_guidance_is_that_of_the_conditional_branch():
    net = tiny.unet2d(in_channels=1, out_channels=2, num_class_embeds=11)
    model = flare.from_diffusers((net, DDPMScheduler(T, variance_type="learned_range")))
    start, labels, null = torch.randn(2, 1, 8, 8), torch.tensor([1, 2]), torch.tensor([10, 10])
    each = {"class_labels": labels, "null": {"class_labels": null}}
    runs = [
        flare.sample(guided.denoiser, guided.steps(3), start=start, cond=cond).samples
        for guided, cond in (
            (model.with_guidance(2.0, {"class_labels": 10}), {"class_labels": labels}),
            (model.with_guidance(2.0), each),
        )
    ]
    assert torch.equal(*runs)


class Conditional(TinyNet):
    def forward(self, x, t, label):
        return super().forward(x, t, shift=label)


def test_guidance_is_one_network_whose_branches_share_their_parameters():
    torch.manual_seed(1)
    net = Conditional((3,)).double()
    denoiser = flare.Denoiser(net)
    w, label = 2.0, torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    both = guide(denoiser, w, null={"label": 0.0})
    x, t = torch.randn(3, 3, dtype=torch.float64), torch.tensor([1, 5, 9])
    with torch.no_grad():
        expected = (1 + w) * net(x, t, label) - w * net(x, t, torch.zeros(3))
    torch.testing.assert_close(both(x, t, {"label": label}), expected)
    assert both.fingerprint() == denoiser.fingerprint()
    assert both.to("cpu") is not denoiser
    torch.testing.assert_close(denoiser(x, t, {"label": label}), net(x, t, label).detach())  # is not guided
    torch.testing.assert_close(both.by("secant").wide(torch.float64)(x, t, {"label": label}), expected)
    other = both.with_params({"second.bias": net.second.bias.detach() + 1})
    torch.testing.assert_close(other(x, t, {"label": label}), expected + 1)  # (1 + w) − w

    schedule = flare.schedules.linear(12, 0.02, 0.3)
    data = torch.randn(30, 3, dtype=torch.float64)
    pairs = flare.noising.pairs(data, schedule, n=60, cond={"label": torch.randn(30, dtype=torch.float64)})
    posterior = flare.posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 1e4)
    steps = flare.samplers.ddim(schedule, [6])  # one step: the variance of x' is b² times that of f_w
    options = {"posterior": posterior, "start": x, "cond": {"label": label}}
    joint = flare.sample(both, steps, directions="exact", **options).variance
    rerun = flare.sample(both, steps, rule="monte_carlo", directions=2000, **options).variance
    torch.testing.assert_close(joint, rerun, rtol=0.2, atol=0.0)
    given, empty = (
        flare.sample(denoiser, steps, directions="exact", **options | {"cond": {"label": c}}).variance
        for c in (label, torch.zeros_like(label))
    )
    independent = (1 + w) ** 2 * given + w**2 * empty
    assert (independent / joint).median() > 2, "the branches mostly agree, which independence cannot know"


def test_bad_guidance_is_named():
    denoiser = flare.Denoiser(Conditional((3,)))
    x, t = torch.randn(2, 3), torch.tensor([1, 2])
    with pytest.raises(ValueError, match="must name the conditions"):
        guide(denoiser, 1.0, null={})
    with pytest.raises(ValueError, match="replaces 'label', which is not in cond"):
        guide(denoiser, 1.0, null={"label": 0.0})(x, t)
    with pytest.raises(ValueError, match="needs the conditions of the unconditional branch"):
        guide(denoiser, 1.0)(x, t, {"label": torch.zeros(2)})
    with pytest.raises(ValueError, match="must be one row of shape"):
        guide(denoiser, 1.0, null={"label": torch.zeros(3)})(x, t, {"label": torch.zeros(2)})


def test_nested_null_conditions():
    class Nested(TinyNet):
        def forward(self, x, t, added):
            return super().forward(x, t, shift=added["a"]) + added["b"].reshape(-1, 1)

    denoiser = flare.Denoiser(Nested((3,)))
    x, t = torch.randn(2, 3), torch.tensor([1, 2])
    added = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    f = guide(denoiser, 1.0, null={"added": {"a": 0.0}})(x, t, {"added": added})
    empty = added | {"a": torch.zeros(2)}
    torch.testing.assert_close(f, 2 * denoiser(x, t, {"added": added}) - denoiser(x, t, {"added": empty}))


def test_null_conditions_of_every_sample_go_with_it():
    torch.manual_seed(1)
    denoiser = flare.Denoiser(Conditional((3,)))
    schedule = flare.schedules.linear(12, 0.02, 0.3)
    pairs = flare.noising.pairs(torch.randn(30, 3), schedule, n=60, cond={"label": torch.randn(30)})
    posterior = flare.posteriors.dense(denoiser, subsets.everything(denoiser), pairs, 1e4)
    steps = flare.samplers.ddim(schedule, 4)
    options = {"n": 5, "shape": (3,), "directions": 3, "batch_size": 2}
    label, empty = torch.randn(5), torch.full((5,), 0.3)
    given = flare.sample(
        guide(denoiser, 2.0), steps, posterior, cond={"label": label, "null": {"label": empty}}, **options
    )
    same = flare.sample(
        guide(denoiser, 2.0, {"label": 0.3}), steps, posterior, cond={"label": label}, **options
    )
    assert torch.equal(given.samples, same.samples)
    assert torch.equal(given.variance, same.variance)


@pytest.fixture(scope="module")
def latent():
    pipe = DiTPipeline(tiny.dit(), tiny.vae(), DDIMScheduler(T, clip_sample=False))
    model, posterior = fitted(pipe, cond=tiny.cond("dit", 6))
    return model, posterior, {"n": 3, "shape": model.shape, "directions": 3, "cond": tiny.cond("dit", 3)}


def test_latents_are_carried_to_pixels_along_every_direction(latent):
    model, posterior, options = latent
    steps = model.steps(3)
    result = flare.sample(
        model.denoiser, steps, posterior, observe=model.decode, covariance=True, derivative="exact", **options
    )
    assert {"derivative": "exact", "observed by": "exact"}.items() <= result.about.items()
    with torch.no_grad():
        torch.testing.assert_close(result.observed, model.decode(result.samples))
    # J C Jᵀ with the whole Jacobian of the decoder and the whole covariance of the latents
    for k in range(3):
        with plain_attention(), Workarounds():
            J = jacrev(lambda z: model.decode(z[None])[0].flatten())(result.samples[k]).flatten(1)
        expected = (J @ result.covariance[k] @ J.T).diagonal()
        close(result.observed_variance[k].flatten(), expected, 1e-3)
    secant = flare.sample(
        model.denoiser, steps, posterior, observe=model.decode, derivative="secant", batch_size=2, **options
    )
    assert {"derivative": "secant", "observed by": "secant"}.items() <= secant.about.items()
    error = (secant.observed_variance - result.observed_variance).norm() / result.observed_variance.norm()
    assert error < 0.05
    images = torch.rand(2, 1, 8, 8) * 2 - 1
    assert model.encode(images).shape == (2, *model.shape)
    plain = flare.from_diffusers((tiny.unet2d(), DDPMScheduler(T)))
    assert plain.encode(images) is plain.decode(images) is images


class Stubborn(nn.Module):
    """An autoencoder that does not differentiate."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.vae, self.way = tiny.vae(), way
        self.config, self.dtype, self.device = self.vae.config, torch.float32, torch.device("cpu")

    def decode(self, z):
        z = torch.from_numpy(z.numpy()) if self.way == "numpy" else z.detach()
        return self.vae.decode(z)


@pytest.mark.parametrize("way", ["detach", "numpy"])
def test_a_decoder_that_does_not_differentiate_is_named_or_taken_by_secants(latent, way):
    model, posterior, options = latent
    expected = flare.sample(model.denoiser, model.steps(3), posterior, observe=model.decode, **options)
    stubborn = Autoencoder(Stubborn(way))
    with pytest.raises(
        (ValueError, RuntimeError), match=r"decode (does not depend on|cannot be differentiated)"
    ):
        flare.sample(
            model.denoiser, model.steps(3), posterior, observe=stubborn.decode, derivative="exact", **options
        )
    with pytest.warns(RuntimeWarning, match="takes secants"):
        found = flare.sample(model.denoiser, model.steps(3), posterior, observe=stubborn.decode, **options)
    assert {"derivative": "secant", "observed by": "secant"}.items() <= found.about.items()
    error = (found.observed_variance - expected.observed_variance).norm() / expected.observed_variance.norm()
    assert error < 0.05


def test_any_function_is_observed_by_every_rule_that_keeps_its_directions(tmp_path):
    torch.manual_seed(2)
    denoiser = flare.Denoiser(TinyNet((4,)).double())
    schedule = flare.schedules.cosine(20)
    pairs = flare.noising.pairs(torch.randn(20, 4, dtype=torch.float64), schedule, n=40)
    posterior = flare.posteriors.dense(denoiser, subsets.last_layer(denoiser), pairs, 1e6)
    steps = flare.samplers.ddim(schedule, 6)

    def norm(x):
        return x.square().sum(1)

    options = {"n": 4, "shape": (4,), "observe": norm, "seed": 1}
    tangent = flare.sample(denoiser, steps, posterior, directions="exact", covariance=True, **options)
    g = 2 * tangent.samples
    expected = torch.einsum("bi,bij,bj->b", g, tangent.covariance, g)
    torch.testing.assert_close(tangent.observed_variance, expected)
    rerun = flare.sample(denoiser, steps, posterior, directions=600, rule="monte_carlo", **options)
    torch.testing.assert_close(rerun.observed_variance, expected, rtol=0.3, atol=0.0)
    assert rerun.about["observed by"] == "rerun models"
    plain = flare.sample(denoiser, steps, **options)
    torch.testing.assert_close(plain.observed, tangent.observed)
    assert plain.observed_variance is None
    tangent.save(tmp_path / "result.safetensors")
    again = flare.Result.load(tmp_path / "result.safetensors")
    assert torch.equal(again.observed_variance, tangent.observed_variance)
    assert again.select(torch.tensor([True, False, True, False])).observed.shape == (2,)
    with pytest.raises(ValueError, match="observe needs a rule that keeps its directions, and decoupled"):
        flare.sample(denoiser, steps, posterior, rule="decoupled", **options)
    with pytest.raises(ValueError, match=r"one row per sample, 4, but <lambda> returned torch.int64"):
        flare.sample(denoiser, steps, posterior, **options | {"observe": lambda x: x.argmax(1)})
    with pytest.raises(ValueError, match="one row per sample"):
        flare.sample(denoiser, steps, posterior, **options | {"observe": lambda x: x.sum()})

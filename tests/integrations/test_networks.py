"""Models of diffusers as denoisers: answers, derivatives, subsets, posteriors, conditions."""

from __future__ import annotations

import pytest
import tiny
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from reference import close

import flare
from flare import posteriors, subsets
from flare.autodiff import vjp
from flare.autodiff.jvp import Push, prepare
from flare.network.forward_mode import Derivative

T = 30


def model_of(kind, **options):
    scheduler = FlowMatchEulerDiscreteScheduler(T) if kind == "sd3" else DDIMScheduler(T, clip_sample=False)
    return flare.from_diffusers((tiny.MODELS[kind](**options), scheduler))


@pytest.mark.parametrize("kind", tiny.MODELS)
def test_a_model_answers_and_is_differentiated(kind):
    model = model_of(kind)
    net, shape, cond = tiny.MODELS[kind](), tiny.SHAPES[kind], tiny.cond(kind, 3)
    x, t = torch.randn(3, *shape), torch.tensor([3, 11, 25])
    state = "sample" if "unet" in kind else "hidden_states"
    with torch.no_grad():
        expected = net(**{state: x}, timestep=t, **cond).sample[:, : shape[0]]
    torch.testing.assert_close(model.denoiser(x, t, cond), expected)
    subset = subsets.random(model.denoiser, count=60, seed=0)
    D = 0.05 * torch.randn(60, 2)
    dx = 0.1 * torch.randn(2, 3, *shape)
    _, exact = Push(model.denoiser, subset, D)(x, dx, t, cond)
    _, secant = Push(model.denoiser.by("secant"), subset, D)(x, dx, t, cond)
    assert ((secant - exact).norm() / exact.norm()) < 0.02
    u = torch.randn(3, 2, *shape)
    rows = vjp.pull_rows(model.denoiser, subset, x, t, u, cond)
    _, by_theta = Push(model.denoiser, subset, D)(x, None, t, cond)
    for k in range(2):
        forward = (by_theta[k].unsqueeze(1) * u).flatten(2).sum(2)
        close(rows @ D[:, k], forward, 1e-4)


@pytest.mark.parametrize("kind", ["unet2d", "dit"])
@pytest.mark.parametrize("structure", ["dense", "diagonal", "low_rank", "kronecker", "matrix_free"])
def test_posteriors_of_convolutions_attention_norms_and_embeddings(kind, structure):
    model = model_of(kind)
    d, shape = model.denoiser, tiny.SHAPES[kind]
    pairs = flare.noising.pairs(torch.randn(8, *shape), model.schedule, n=16, seed=0, cond=tiny.cond(kind, 8))
    if structure == "kronecker":
        names = {
            "unet2d": ["conv_in.*", "conv_out.*", "down_blocks.1.attentions.0.to_q.*",
                       "time_embedding.linear_1.*", "down_blocks.0.downsamplers.0.conv.*"],
            "dit": ["pos_embed.proj.*", "transformer_blocks.0.attn1.to_k.*", "proj_out_2.*"],
        }[kind]  # fmt: skip
    else:
        names = {
            "unet2d": ["conv_out.*", "down_blocks.1.attentions.0.group_norm.*", "*.to_v.bias",
                       "conv_norm_out.*"],
            "dit": ["*.emb.class_embedder.embedding_table.weight", "proj_out_2.bias", "*.to_q.bias"],
        }[kind]  # fmt: skip
    subset = subsets.named(d, names)
    if structure != "kronecker" and subset.size > 500:  # single rows of an embedding
        subset = subsets.Subset({n: i[:60] for n, i in subset.indices.items()}, subset.shapes)
    options = {"rank": 5} if structure == "low_rank" else {}
    scale = 1.0 if structure == "matrix_free" else "calibrated"  # a solve takes a second, not a minute
    posterior = getattr(posteriors, structure)(d, subset, pairs, 1e-2, scale, **options)
    result = flare.sample(
        d, model.steps(3), posterior, n=2, shape=shape, directions=2, cond=tiny.cond(kind, 2), seed=0,
        derivative="exact",
    )  # fmt: skip
    assert torch.isfinite(result.variance).all()
    assert (result.score > 0).all()


@pytest.mark.parametrize(
    ("kind", "layer"),
    [("unet2d", "conv_out"), ("unet2d_condition", "conv_out"), ("dit", "proj_out_2"), ("sd3", "proj_out")],
)
def test_the_last_layer_is_found(kind, layer):
    last = subsets.last_layer(model_of(kind).denoiser)
    assert next(iter(last.indices)).rsplit(".", 1)[0] == layer


def test_a_model_in_training_works_and_stays_so():
    net = tiny.unet2d(dropout=0.5).train()
    model = flare.from_diffusers((net, DDPMScheduler(T)))
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([4, 4])
    assert torch.equal(model.denoiser(x, t), model.denoiser(x, t))
    assert net.training


def test_half_precision_takes_conditions_and_images_of_any_dtype():
    model = flare.from_diffusers((tiny.unet2d_condition().bfloat16(), DDIMScheduler(T, clip_sample=False)))
    cond = tiny.cond("unet2d_condition", 8)
    pairs = flare.noising.pairs(torch.randn(8, 2, 8, 8), model.schedule, n=8, cond=cond)
    subset = subsets.random(model.denoiser, count=20)
    posterior = posteriors.dense(model.denoiser, subset, pairs, 1.0)
    one = {"encoder_hidden_states": cond["encoder_hidden_states"][:2]}
    result = flare.sample(
        model.denoiser, model.steps(2), posterior, n=2, shape=(2, 8, 8), directions=2, cond=one
    )
    assert result.samples.dtype == torch.bfloat16
    assert torch.isfinite(result.score).all()


def test_parameters_of_several_dtypes_move_in_their_own():
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.out = (
                torch.nn.Linear(3, 4),
                torch.nn.LayerNorm(4),
                torch.nn.Linear(4, 3),
            )
            self.norm.double()

        def forward(self, x, t):
            return self.out(self.norm(self.first(x).double()).float())

    denoiser = flare.Denoiser(Mixed())
    subset = subsets.everything(denoiser)
    D = torch.randn(subset.size, 2)
    x, t = torch.randn(4, 3), torch.arange(4)
    taken = prepare(denoiser, subset, "auto", x, 3)
    assert taken.derivative is Derivative.EXACT, "a copy in float64 throughout fails in its forward"
    _, exact = Push(taken, subset, D)(x, None, t)
    change = {name: 1e-2 * value for name, value in subset.scatter(D.T).items()}

    def there(k, sign):
        params = {name: p + sign * change[name][k].to(p.dtype) for name, p in denoiser.params.items()}
        return denoiser.call(params, x, t).detach()

    differences = torch.stack([(there(k, 1) - there(k, -1)) / 2e-2 for k in range(2)])
    assert ((differences - exact).norm() / exact.norm()) < 0.05


def test_an_image_beside_the_sample_and_nested_conditions_go_with_their_samples():
    net = tiny.unet2d_condition(
        in_channels=5, addition_embed_type="text_time", addition_time_embed_dim=2,
        projection_class_embeddings_input_dim=4 + 2 * 3,
    )  # fmt: skip
    model = flare.from_diffusers((net, DDIMScheduler(T, clip_sample=False)))
    cond = tiny.cond("unet2d_condition", 4) | {
        "concat": torch.randn(4, 3, 8, 8),
        "added_cond_kwargs": {"text_embeds": torch.randn(4, 4), "time_ids": torch.randn(4, 3)},
    }
    pairs = flare.noising.pairs(torch.randn(4, 2, 8, 8), model.schedule, n=8, cond=cond)
    posterior = posteriors.dense(model.denoiser, subsets.random(model.denoiser, count=20), pairs, 1.0)
    start = torch.randn(4, 2, 8, 8)
    options = {
        "posterior": posterior, "directions": 2, "start": start, "cond": cond, "derivative": "exact",
    }  # fmt: skip
    whole = flare.sample(model.denoiser, model.steps(2), **options)
    parts = flare.sample(model.denoiser, model.steps(2), batch_size=3, **options)
    torch.testing.assert_close(whole.samples, parts.samples, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole.score, parts.score, rtol=1e-3, atol=1e-6)
    short = {"text_embeds": torch.randn(3, 4), "time_ids": torch.randn(4, 3)}
    with pytest.raises(ValueError, match=r"cond\['added_cond_kwargs'\]\['text_embeds'\] must have one row"):
        flare.sample(model.denoiser, model.steps(2), start=start, cond=cond | {"added_cond_kwargs": short})
    with pytest.raises(ValueError, match="3 channels besides the sample's 2, got 0"):
        flare.sample(model.denoiser, model.steps(2), start=start, cond=tiny.cond("unet2d_condition", 4))


def test_bad_models_and_inputs_are_named():
    with pytest.raises(ValueError, match="AutoencoderKL is not supported; choose from UNet1DModel"):
        flare.from_diffusers((tiny.vae(), DDPMScheduler(T)))
    model = model_of("unet2d")
    with pytest.raises(
        ValueError, match=r"takes samples of shape \(1, H, W\), got samples of shape \(3, 8, 8\)"
    ):
        flare.sample(model.denoiser, model.steps(2), n=2, shape=(3, 8, 8))
    with pytest.raises(ValueError, match=r"needs a condition: give cond=\{'encoder_hidden_states'"):
        flare.sample(model_of("unet2d_condition").denoiser, model.steps(2), n=2, shape=(2, 8, 8))

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from judged import judge

import flare
from flare.report.embedding import pack
from flare.results.calibration import design_labels
from flare.results.drawing import kind, space_evenly
from flare.results.filters import keep_best

ATTACK = "</script><img src=x onerror=alert(1)>&\"'"
SHAPES = [(2,), (1,), (10,), (3, 40), (12, 12), (1, 12, 12), (3, 12, 12), (2, 12, 12), (40, 20, 30)]


def made(shape=(10,), n=40, **changes):
    variance = torch.rand(n, *shape) * torch.logspace(-4, 0, n).view(-1, *[1] * len(shape))
    scores = {"trace": variance.flatten(1).sum(1), "other": torch.rand(n)}
    parts = {"variance": variance, "scores": scores, "profile": torch.rand(n, 7), "about": {"seed": 3}}
    return flare.Result(torch.randn(n, *shape), **(parts | changes))


def page(tmp_path, result, **options):
    path = tmp_path / "out" / "report.html"
    flare.report.write(path, result, **options)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


@pytest.fixture
def payload(tmp_path):
    """The data inside the page of a result."""
    return lambda result, **options: embedded(page(tmp_path, result, **options))


def decoded(block):
    """The values of a packed block, written from its description and not from the code."""
    kinds = {8: "<u1", 16: "<u2", 32: "<f4", 64: "<f8"}
    codes = np.frombuffer(base64.b64decode(block["data"]), kinds[block["bits"]]).astype(float)
    codes = codes.reshape(block["shape"])
    if block["bits"] >= 32:
        return codes
    top = 2 ** block["bits"] - 1
    if block["log"]:
        step = (block["high"] - block["low"]) / (top - 1)
        return np.where(codes > 0, np.exp(block["low"] + (codes - 1) * step), 0)
    return block["low"] + codes * (block["high"] - block["low"]) / top


def step(block):
    """The distance between neighboring codes of a packed block; 0 for floats."""
    return 0.0 if block["bits"] >= 32 else (block["high"] - block["low"]) / (2 ** block["bits"] - 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_page_that_loads_nothing(tmp_path, shape):
    html = page(tmp_path, made(shape))
    assert not re.search(r"https?://", html)
    assert not re.search(
        r"""<(link|iframe|object|embed|img)\b|@import|url\(|\bimport\(|fetch\(|XMLHttp""", html
    )
    assert not re.search(r"<script[^>]*\bsrc=", html)
    assert "default-src 'none'" in html
    for section in ("decide", "extremes", "issues", "samples", "effect", "variance", "profile", "made"):
        assert f'<section id="{section}"' in html
    assert embedded(html)["kind"] == kind(shape)


@pytest.mark.parametrize("shape", [(80,), (28, 28), (3, 64, 64), (12, 1000), (2,)])
def test_the_page_stays_small(tmp_path, shape):
    n = 2000 if np.prod(shape) < 10_000 else 400
    html = page(tmp_path, made(shape, n=n, profile=torch.rand(n, 600)))
    assert len(html.encode()) < 6_000_000
    if shape in ((80,), (28, 28), (2,)):
        assert embedded(html)["even"] == 2000


@pytest.mark.parametrize("shape", [(80,), (28, 28), (3, 32, 32), (2,)])
def test_a_page_with_everything_stays_small(tmp_path, shape):
    result = judge(made(shape, n=2000, profile=torch.rand(2000, 600)), size=500)
    known = {"groups": torch.arange(2000) % 16, "bad": torch.rand(2000) < 0.1}
    html = page(tmp_path, result, data=torch.randn(4000, *shape), **known)
    assert len(html.encode()) < 6_000_000
    assert embedded(html)["n"] == 2000


@pytest.mark.parametrize("n", [20_000, 200_000])
def test_a_page_of_many_samples_stays_small(tmp_path, n):
    about = {"names": [f"samples/of/a/long/run/in/a/deep/directory/{row:06}.png" for row in range(n)]}
    html = page(tmp_path, judge(made((2,), n=n, variance=None, profile=None, scores={}, about=about)))
    assert len(html.encode()) < 6_000_000
    assert embedded(html)["even"] == 2000


def test_what_is_inserted_is_text(tmp_path):
    result = made(scores={ATTACK: torch.rand(40)})
    html = page(
        tmp_path, result, title=ATTACK, settings={ATTACK: ATTACK}, summary=[(ATTACK, ATTACK)] * 2,
    )  # fmt: skip
    assert "<img" not in html
    assert html.count("</script>") == 2
    assert embedded(html)["rankings"][0]["name"] == ATTACK
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&amp;&#34;" in html


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"must be a flare\.Result or the output of .*, got Tensor"):
        page(tmp_path, torch.rand(4, 3))


def test_sections_without_data_are_left_out(tmp_path):
    bare = page(tmp_path, made(variance=None, profile=None, about={}))
    for section in ("variance", "profile", "summary", "groups", "alert"):
        assert f'id="{section}"' not in bare
    assert "Settings" not in bare
    assert "deviations" not in embedded(bare)
    assert torch.__version__ in bare
    assert flare.__version__ in bare


def test_tables_and_summary(tmp_path):
    html = page(
        tmp_path, made(), settings={"prior precision": 1e-6, "rule": "tangent"}, summary=[("rate", 0.25)],
    )  # fmt: skip
    for text in ("<td>1e-06</td>", "<td>tangent</td>", "<dd>0.25</dd>"):
        assert text in html
    assert '<th scope="row">seed</th><td>3</td>' in page(tmp_path, made())


@pytest.mark.parametrize("shape", [(2,), (10,), (3, 40), (12, 12), (3, 12, 12)])
def test_embedded_values_are_those_of_the_result_in_order_of_rank(shape, payload):
    result = made(shape)
    order = result.score.argsort(stable=True)
    data = payload(result)
    want = result.samples[order].numpy()
    got = decoded(data["samples"])
    if len(shape) == 3:
        want = want.transpose(0, 2, 3, 1)
    if shape != (2,):  # points are not rounded
        want = want.clip(data["samples"]["low"], data["samples"]["high"])
    np.testing.assert_allclose(got, want.reshape(got.shape), atol=0.51 * step(data["samples"]))
    variance = result.variance[order]
    if shape == (3, 12, 12):
        variance = variance.sum(1)
    sd = decoded(data["deviations"])
    rtol = 0.05 if kind(shape) == "images" else 1e-3  # 8 bits over the decades, or 16
    np.testing.assert_allclose(sd, variance.sqrt().numpy().reshape(sd.shape), rtol=rtol)
    assert data["rows"] == order.tolist()
    assert [ranking["name"] for ranking in data["rankings"]] == ["trace", "other"]
    for ranking in data["rankings"]:
        np.testing.assert_array_equal(decoded(ranking["values"]), result.scores[ranking["name"]].double())
    np.testing.assert_allclose(decoded(data["profile"]), result.profile[order].numpy(), rtol=1e-3)


@pytest.mark.parametrize("regions", [None, 5])
@pytest.mark.parametrize(("n", "keep"), [(1, 1.0), (7, 1 / 3), (50, 0.5), (333, 0.123)])
def test_every_share_of_the_slider_keeps_what_the_result_keeps(payload, n, keep, regions):
    result = judge(made(n=n))
    result = replace(result, regions=None if regions is None else torch.randint(regions, (n,)))
    data = payload(result, keep=keep)
    assert data["shares"][data["start"]] == keep
    for ranking in data["rankings"]:
        order = decoded(ranking["values"]).argsort(kind="stable")
        values = result.verdict.z if ranking["name"] == "verdict" else result.scores[ranking["name"]].double()
        for share, quota in zip(data["shares"], ranking["quotas"], strict=True):
            mask = np.zeros(n, dtype=bool)
            for row in order:  # as the script of the page does
                mask[row] = quota[data["regions"][row]] > 0
                quota[data["regions"][row]] -= 1
            np.testing.assert_array_equal(mask, keep_best(values, share, result.regions))
            if ranking["name"] == "verdict":
                np.testing.assert_array_equal(mask, result.keep(share))


def test_regions_are_the_default_groups(tmp_path):
    result = judge(made(n=100))
    regions = torch.arange(100) % 4 + 3
    html = page(tmp_path, replace(result, regions=regions))
    data = embedded(html)
    assert data["groups"] == ["3", "4", "5", "6"]
    assert data["group"] == data["regions"] == (regions - 3).tolist()
    assert "<h2>Share of each region</h2>" in html
    assert '<label for="share" id="rule">Keep the best of every region</label>' in html
    named = page(tmp_path, replace(result, regions=regions), groups=["a"] * 100)
    assert embedded(named)["groups"] == ["a"]
    assert "<h2>Share of each group</h2>" in named
    one = replace(result, regions=torch.zeros_like(regions))
    assert "groups" not in embedded(page(tmp_path, one))


def test_p_values_are_exact(payload):
    """A p-value of 0.05 must not pass for more because of rounding."""
    result = judge(made(n=500), size=99)
    ranking = payload(result)["rankings"][0]
    p = decoded(ranking["p"]) / (ranking["size"] + 1)
    np.testing.assert_array_equal(p, result.p_value)
    assert (p == 0.05).any()
    assert payload(result, alpha=0.033)["alpha"] == 0.033


def test_of_too_many_samples_some_have_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("flare.report.embedding.PICTURES", 101)
    result = made(n=500)
    html = page(tmp_path, result)
    data = embedded(html)
    ranked = result.score.argsort(stable=True).tolist()
    ranks = [ranked.index(row) for row in data["rows"]]
    even, extra = ranks[: data["even"]], data["rows"][data["even"] :]
    assert len(even) == 101
    assert (even[0], even[-1]) == (0, 499)
    assert set(np.diff(even)) <= {4, 5, 6}
    # the best and the worst by every score have a picture
    ends = {
        int(row) for score in result.scores.values() for row in score.argsort()[[*range(6), *range(-6, 0)]]
    }
    assert ends <= set(data["rows"])
    assert set(extra) <= ends | set(data["labels"]["order"])
    assert data["samples"]["shape"][0] == len(data["rows"]) == len(set(data["rows"]))
    assert "show 101 of them, evenly spaced by rank" in html
    assert "evenly spaced by rank; counts" not in page(tmp_path, made(n=100))


def test_of_a_great_many_samples_the_page_covers_some(tmp_path, monkeypatch):
    monkeypatch.setattr("flare.report.embedding.ROWS", (20 + 12 * 2) * 100)
    html = page(tmp_path, made(n=1000))
    data = embedded(html)
    assert data["n"] == len(data["indices"]) == 100
    assert (np.diff(data["indices"]) >= 0).all()
    assert "This page covers 100 of 1,000 samples" in html


def test_the_first_screen_says_the_verdict(tmp_path):
    result = judge(made(n=200))
    doubtful = int((result.p_value <= 0.05).sum())
    html = page(tmp_path, result, bad=torch.arange(200) < 10)
    assert f'<dd id="model">{doubtful} of 200 samples look less plausible than 95% of real data. ' in html
    assert "Known to be bad: 10 of 200 (5%).</dd>" in html
    assert "The p-value of a sample is the share of real samples that look at least as doubtful." in html
    assert "compared with 99 held-out real samples" in html
    assert 'id="alert"' not in html
    wrong = judge(made(n=200), worse=torch.ones(200))
    assert '<p class="notice alert" id="alert" role="alert">Most samples look unlike real data' in page(
        tmp_path, wrong
    )


def test_what_is_known_of_the_samples_goes_into_the_page(payload):
    result = judge(made((2,)))
    bad = torch.arange(40) % 4 == 0
    data = payload(result, groups=["b", "a"] * 20, bad=bad)
    assert data["groups"] == ["a", "b"]
    assert data["group"] == [1, 0] * 20
    assert data["bad"] == bad.nonzero().flatten().tolist()
    assert data["copies"] == [0, 20]
    assert data["nearest"] == list(range(0, 80, 2))
    words = {"influence": "it surprises the network", "neighbors": "far from the training data"}
    assert [data["reasons"][k] for k in data["reason"]] == [[name, words[name]] for name in result.reason]
    many = payload(made(n=100), groups=torch.arange(100))
    assert many["groups"] == [*map(str, range(24)), "others"]


@pytest.mark.parametrize("shape", [(2,), (10,), (3, 40), (12, 12), (3, 12, 12)])
def test_the_nearest_training_samples_are_embedded(shape, payload):
    result = judge(made(shape))
    training = torch.randn(100, *shape).clamp(-2, 2)
    data = payload(result, data=training)
    pictures = decoded(data["real"])[data["real_of"]]
    want = training[[data["nearest"][row] for row in data["rows"]]].numpy()
    if len(shape) == 3:
        want = want.transpose(0, 2, 3, 1)
    if len(shape) > 1 and kind(shape) == "images":
        want = want.clip(data["samples"]["low"], data["samples"]["high"])
    np.testing.assert_allclose(pictures, want.reshape(pictures.shape), atol=0.51 * step(data["real"]) + 1e-6)


def test_some_rows_of_the_training_data_are_enough(payload):
    result = judge(made())
    training = torch.randn(100, 10)
    rows = result.verdict.nearest.unique().flip(0)  # in any order
    assert len(rows) < 100
    some = payload(result, data=training[rows], rows=rows)
    whole = payload(result, data=training)
    some_pictures, pictures = (decoded(data["real"])[data["real_of"]] for data in (some, whole))
    np.testing.assert_array_equal(some_pictures, pictures)
    assert some["nearest"] == whole["nearest"]


def test_of_a_latent_model_the_decoded_images_are_drawn(tmp_path):
    images = torch.rand(40, 3, 16, 16)
    latent = judge(made((4, 8, 8), observed=images, observed_variance=torch.rand(40, 3, 16, 16)))
    data = embedded(page(tmp_path, latent, data=torch.rand(100, 3, 16, 16)))
    assert data["shape"] == [3, 16, 16]
    assert data["samples"]["shape"] == [40, 16, 16, 3]
    assert data["deviations"]["shape"] == [40, 16, 16, 1]
    assert data["real"]["shape"][1:] == [16, 16, 3]
    pixels = made((3, 12, 12), observed=torch.rand(40, 1, 16, 16))  # not latents: observed is something else
    assert embedded(page(tmp_path, pixels))["shape"] == [3, 12, 12]


def test_lost_samples_are_left_out_and_counted(tmp_path):
    result = judge(made())
    samples, z, p = result.samples.clone(), result.verdict.z.clone(), result.p_value.clone()
    samples[3] = torch.nan
    p[[3, 7]] = z[[3, 7]] = torch.nan  # sample 7 has no score
    lost = replace(result, samples=samples, verdict=replace(result.verdict, z=z, p_value=p))
    html = page(tmp_path, lost, groups=torch.arange(40) % 2, bad=torch.arange(40) < 10)
    data = embedded(html)
    assert data["indices"] == [i for i in range(40) if i not in (3, 7)]
    assert data["bad"] == list(range(8))
    assert data["issues"][-1] == {
        "title": "Lost to NaN or infinity", "amount": "2 of 40 samples", "note": "3, 7.", "samples": [],
    }  # fmt: skip
    assert data["labels"]["total"] == 40
    assert data["labels"]["scored"] == 38


def test_samples_have_their_names(payload, tmp_path):
    names = [ATTACK, "=1+1", 'a,b\n"c"', *(f"{row}.png" for row in range(3, 40))]
    samples = torch.randn(40, 10)
    samples[5] = torch.nan
    result = judge(made(about={"names": names, "seed": 3}))
    data = payload(replace(result, samples=samples))
    assert data["names"] == names[:5] + names[6:]
    assert data["issues"][-1]["note"] == "5.png."
    assert "names</th>" not in page(tmp_path / "more", result)
    assert payload(result[:10])["names"] is None  # of a selection, they are not known


@pytest.mark.parametrize("n", [300, 1000])
def test_the_samples_to_label_are_those_of_the_result(payload, monkeypatch, n):
    """Each has a picture, also if few others have one, or if the page covers some of the samples."""
    result = judge(made(n=n))
    samples = result.samples.clone()
    samples[7] = torch.nan
    z = result.verdict.z.clone()
    z[7] = torch.nan
    p = result.p_value.clone()
    p[7] = torch.nan
    result = replace(result, samples=samples, verdict=replace(result.verdict, z=z, p_value=p))
    design = design_labels(result.ranking, 0.05, 0.9)
    monkeypatch.setattr("flare.report.embedding.PICTURES", 10)
    for rows in (3_000_000, 68 * 200):
        monkeypatch.setattr("flare.report.embedding.ROWS", rows)
        data = payload(result)
        assert data["labels"]["order"] == design.order.tolist() == result.propose_labels().tolist()
        assert data["labels"]["members"] == [own.tolist() for own in design.members]
        assert data["labels"]["thresholds"] == design.thresholds
        assert data["labels"]["kept"] == [int((result.ranking <= t).sum()) for t in design.thresholds]
        drawn = {data["indices"][row] for row in data["rows"]}
        assert drawn >= set(design.order.tolist())
        assert drawn >= {place for issue in data["issues"] for place in issue["samples"][:6]}
        assert len(data["indices"]) <= 200 + len(design.order) or rows > 10**6


def test_labels_belong_to_samples(payload):
    """Another score keeps the labels, other samples have others."""
    result = made()
    key = payload(result)["key"]
    assert payload(replace(result, scores={"s": torch.rand(40)}))["key"] == key
    assert payload(replace(result, samples=result.samples + 1))["key"] != key


def test_large_images_shrink_until_enough_of_them_fit(tmp_path):
    html = page(tmp_path, judge(made((3, 64, 64), n=600)), data=torch.randn(1200, 3, 64, 64))
    data = embedded(html)
    assert len(html.encode()) < 6_000_000
    assert data["samples"]["shape"][1] in (48, 32)
    assert data["even"] >= 100
    assert "Images are shown at" in html


def test_a_score_that_is_not_finite_is_left_out(tmp_path):
    other = torch.rand(40)
    other[5] = torch.nan
    result = made()
    html = page(tmp_path, replace(result, scores={**result.scores, "other": other}))
    assert [ranking["name"] for ranking in embedded(html)["rankings"]] == ["trace"]
    assert "The score other is left out: some of its values are NaN" in html


def test_what_cannot_be_shown_says_why(tmp_path):
    cases = [
        (made(scores={}), {}, "no scores.*flare.sample"),
        (made(scores={"s": torch.full((40,), float("nan"))}), {}, "40 of 40 values of score 's' are NaN"),
        (made(scores={"s": torch.rand(3)}), {}, r"must have shape \(40,\)"),
        (made(), {"keep": 50}, r"keep must lie in \(0, 1\], got 50; did you mean 0.5"),
        (made(), {"alpha": 1.5}, r"alpha must lie in \(0, 1\), got 1.5"),
        (made(), {"groups": [1, 2]}, r"groups must have one value per sample, shape \(40,\), got \(2,\)"),
        (made(), {"bad": torch.rand(40)}, "bad must be a bool mask, got float32"),
        (made(), {"bad": torch.rand(3) > 0}, r"bad must have one value per sample, shape \(40,\)"),
        (made(), {"data": torch.rand(90, 10)}, "which only a verdict with `nearest` knows"),
        (judge(made()), {"data": torch.rand(90, 9)}, r"samples of shape \(10,\), got \(9,\)"),
        (judge(made()), {"data": torch.rand(20, 10)}, "names training sample 78, which data does not have"),
        (made((2, 2, 2, 2)), {}, "cannot be drawn; reshape"),
        (made(variance=torch.rand(40, 9)), {}, "the variance must have the shape of the samples"),
        (made(profile=torch.full((40, 3), float("inf"))), {}, "result.profile has NaN or infinity"),
    ]
    for result, options, message in cases:
        with pytest.raises(ValueError, match=message):
            flare.report.write(tmp_path / "r.html", result, **options)
    assert not list(tmp_path.iterdir())


def test_the_same_result_gives_the_same_file(tmp_path):
    result = made()
    assert page(tmp_path / "a", result) == page(tmp_path / "b", result)


def test_packing_keeps_zero_and_constants():
    for values in (torch.zeros(3), torch.full((3,), 2.0), torch.tensor([0.0, 1e-8, 1.0])):
        for bits in (8, 16, 32, 64):
            for log in (False, True):
                got = decoded(pack(values, bits, log))
                atol = 0 if log else 0.51 / (2 ** min(bits, 16) - 1)
                np.testing.assert_allclose(got, values, rtol=1e-6, atol=max(atol, 1e-12))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 97, 2000])
def test_choices(count):
    assert space_evenly(count, 5000).tolist() == list(range(count))
    assert len(set(space_evenly(count, 3).tolist())) == min(3, count)

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
import torch

import flare
from flare.report.data import pack, payload
from flare.report.figures import interleave, kind, space_evenly

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


def decoded(block):
    """The values of a packed block, written from its description and not from the code."""
    kinds = {8: "<u1", 16: "<u2", 32: "<f4"}
    codes = np.frombuffer(base64.b64decode(block["data"]), kinds[block["bits"]]).astype(float)
    codes = codes.reshape(block["shape"])
    if block["bits"] == 32:
        return codes
    top = 2 ** block["bits"] - 1
    if block["log"]:
        step = (block["high"] - block["low"]) / (top - 1)
        return np.where(codes > 0, np.exp(block["low"] + (codes - 1) * step), 0)
    return block["low"] + codes * (block["high"] - block["low"]) / top


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_page_that_loads_nothing(tmp_path, shape):
    html = page(tmp_path, made(shape))
    assert not re.search(r"https?://", html)
    assert not re.search(
        r"""<(link|iframe|object|embed|img)\b|@import|url\(|\bimport\(|fetch\(|XMLHttp""", html
    )
    assert not re.search(r"<script[^>]*\bsrc=", html)
    assert "default-src 'none'" in html
    for section in ("samples", "scores", "extremes", "variance", "profile", "made"):
        assert f'<section id="{section}"' in html
    assert embedded(html)["kind"] == kind(shape)


@pytest.mark.parametrize("shape", [(80,), (28, 28), (3, 64, 64), (12, 1000), (2,)])
def test_the_page_stays_small(tmp_path, shape):
    n = 2000 if np.prod(shape) < 10_000 else 400
    html = page(tmp_path, made(shape, n=n, profile=torch.rand(n, 600)))
    assert len(html.encode()) < 6_000_000
    if shape in ((80,), (28, 28), (2,)):
        assert embedded(html)["shown"] == 2000


def test_what_is_inserted_is_text(tmp_path):
    result = made(scores={ATTACK: torch.rand(40)})
    html = page(
        tmp_path, result, title=ATTACK, settings={ATTACK: ATTACK}, timings={ATTACK: ATTACK},
        summary=[(ATTACK, ATTACK, ATTACK)] * 2,
    )  # fmt: skip
    assert "<img" not in html
    assert html.count("</script>") == 2
    assert embedded(html)["score"] == ATTACK
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&amp;&quot;" in html


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"must be a flare\.Result or the output of .*, got Tensor"):
        page(tmp_path, torch.rand(4, 3))


def test_sections_without_data_are_left_out(tmp_path):
    bare = page(tmp_path, made(variance=None, profile=None, about={}))
    for section in ("variance", "profile", "summary"):
        assert f'id="{section}"' not in bare
    assert "Settings" not in bare
    assert "Timings" not in bare
    assert "deviations" not in embedded(bare)
    assert torch.__version__ in bare
    assert flare.__version__ in bare


def test_tables_and_summary(tmp_path):
    html = page(
        tmp_path, made(), settings={"prior precision": 1e-6, "rule": "tangent"}, timings={"sampling": 12.345},
        summary=[("", "before", "after"), ("hallucinations", 0.25, 0.05)],
    )  # fmt: skip
    for text in ("<td>1e-06</td>", "<td>tangent</td>", "<td>12.3 s</td>", ">after</th>", "<td>0.05</td>"):
        assert text in html
    assert "<dd>0.25</dd>" in page(tmp_path, made(), summary=[("rate", 0.25)])
    assert '<th scope="row">seed</th><td>3</td>' in page(tmp_path, made())
    with pytest.raises(ValueError, match=r"rows of lengths \[2, 3\]"):
        page(tmp_path / "no", made(), summary=[("a", 1), ("a", 1, 2)])


@pytest.mark.parametrize("shape", [(2,), (10,), (3, 40), (12, 12), (3, 12, 12)])
def test_embedded_values_are_those_of_the_result_in_order_of_rank(shape):
    result = made(shape)
    order = result.score.argsort(stable=True)
    data = payload(result, 0.5, None, 2000)
    want = result.samples[order].numpy()
    got = decoded(data["samples"])
    if len(shape) == 3:
        want = want.transpose(0, 2, 3, 1)
    step = (data["samples"]["high"] - data["samples"]["low"]) / (2 ** data["samples"]["bits"] - 1)
    want = want.clip(data["samples"]["low"], data["samples"]["high"])
    np.testing.assert_allclose(got, want.reshape(got.shape), atol=0.51 * step)
    variance = result.variance[order]
    if shape == (3, 12, 12):
        variance = variance.sum(1)
    sd = decoded(data["deviations"])
    rtol = 0.05 if kind(shape) == "images" else 1e-3  # 8 bits over the decades, or 16
    np.testing.assert_allclose(sd, variance.sqrt().numpy().reshape(sd.shape), rtol=rtol)
    np.testing.assert_allclose(decoded(data["scores"]), result.score[order].numpy(), rtol=1e-6)
    np.testing.assert_allclose(decoded(data["profile"]), result.profile[order].numpy(), rtol=1e-3)
    assert data["ends"]["indices"] == [*order[:12].tolist(), *order.flip(0)[:12].tolist()]


@pytest.mark.parametrize(("n", "keep"), [(1, 1.0), (7, 1 / 3), (50, 0.5), (333, 0.123)])
def test_every_stop_of_the_slider_is_keep_fraction(n, keep):
    result = made(n=n)
    data = payload(result, keep, None, 5)
    for fraction, count, threshold in data["stops"]:
        mask = flare.keep_fraction(result.score, fraction)
        assert count == mask.sum()
        assert threshold == pytest.approx(float(result.score[mask].max()))
    assert data["stops"][data["start"]][0] == keep
    assert sum(data["bins"]["counts"]) == n


def test_of_too_many_samples_an_even_choice_is_embedded(tmp_path):
    html = page(tmp_path, made(n=500), limit=101)
    data = embedded(html)
    assert data["shown"] == len(data["ranks"]) == data["samples"]["shape"][0] == 101
    assert (data["ranks"][0], data["ranks"][-1]) == (0, 499)
    assert set(np.diff(data["ranks"])) <= {4, 5, 6}
    assert "show 101 of them, evenly chosen over the ranks" in html
    assert "evenly chosen over the ranks; counts" not in page(tmp_path, made(n=100), limit=100)


def test_the_score_that_ranks_can_be_named(tmp_path):
    result = made()
    assert payload(result, 0.5, "other", 9)["score"] == "other"
    with pytest.raises(ValueError, match="unknown score 'othr'; did you mean 'other'"):
        page(tmp_path, result, score="othr")


def test_what_cannot_be_shown_says_why(tmp_path):
    cases = [
        (made(scores={}), {}, "no scores.*flare.sample"),
        (made(scores={"s": torch.full((40,), float("nan"))}), {}, "40 of 40 values of score 's' are NaN"),
        (made(scores={"s": torch.rand(3)}), {}, r"must have shape \(40,\)"),
        (made(), {"keep": 0}, "fraction must lie in"),
        (made(), {"limit": 0}, "limit must be an integer of at least 1"),
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
        for bits in (8, 16, 32):
            for log in (False, True):
                got = decoded(pack(values, bits, log))
                atol = 0 if log else 0.51 / (2 ** min(bits, 16) - 1)
                np.testing.assert_allclose(got, values, rtol=1e-6, atol=max(atol, 1e-12))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 97, 2000])
def test_choices(count):
    assert sorted(interleave(count).tolist()) == list(range(count))
    assert space_evenly(count, 5000).tolist() == list(range(count))
    assert len(set(space_evenly(count, 3).tolist())) == min(3, count)

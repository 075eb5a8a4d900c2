"""The report in a real browser. The screenshots lie in pytest's temporary directory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import flare

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
KINDS = ("points", "series", "channels", "grey", "colour")
SCREENS = {
    "light": (1100, "light"),
    "dark": (1100, "dark"),
    "phone": (390, "light"),
    "phone-dark": (390, "dark"),
}
ATTACK = "</script><img src=x onerror=alert(1)>"


def made(kind, n=200):
    """Samples that get worse with their variance: a grid of points, sines, or discs."""
    worse = torch.rand(n) ** 4
    if kind == "points":
        shape = (2,)
        x = torch.randint(-2, 3, (n, 2)).float() + 0.08 * torch.randn(n, 2)
        where = torch.rand(n, 2)
    elif kind in ("series", "channels"):
        shape = (80,) if kind == "series" else (3, 80)
        phase = torch.rand(n, *shape[:-1], 1) * 2 * math.pi
        time = torch.linspace(0, 1, 80)
        x = torch.sin(2 * math.pi * time + phase)
        where = (0.2 + time**2).expand(n, *shape)
    else:
        shape = (28, 28) if kind == "grey" else (3, 28, 28)
        place = torch.linspace(-1, 1, 28)
        distance = torch.hypot(place[:, None] - 0.4 * torch.randn(n, *[1] * len(shape)), place)
        x = torch.tanh((0.5 - distance) * 12).expand(n, *shape)
        where = torch.exp(-(((distance - 0.5) * 6) ** 2)).expand(n, *shape) + 0.02
    scale = worse.view(n, *[1] * len(shape))
    variance = (1e-4 + 0.05 * scale) * where
    score = variance.flatten(1).sum(1)
    profile = score[:, None] * torch.linspace(0.1, 1, 30) ** 3
    return flare.Result(x + 0.5 * scale * torch.randn(n, *shape), variance, {"trace": score}, None, profile)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a result; whatever the page logs, asks the network for or throws fails the test."""
    pages, complaints = [], []

    def request(url):
        if not url.startswith(("file://", "data:")):
            complaints.append(f"request: {url}")

    def run(result, width=1100, scheme="light", **options):
        path = tmp_path / "report.html"
        flare.report.write(path, result, **options)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda r: request(r.url))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield run
    for page in pages:
        page.close()
    assert not complaints


def picture(page, selector):
    return page.evaluate("s => document.querySelector(s).toDataURL()", f"{selector} canvas")


def press(page, *keys):
    """Keys on the slider; then two frames, for the drawing to be done."""
    for key in keys:
        page.locator("#keep").press(key)
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_on_every_screen(show, tmp_path_factory, kind, screen):
    width, scheme = SCREENS[screen]
    page = show(
        made(kind), width, scheme, title=f"Made-up {kind}", summary=[("rate", "21 %")], timings={"all": 2.0}
    )
    shot = tmp_path_factory.getbasetemp() / f"{kind}-{screen}.png"
    page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it must not scroll sideways"
    before, after = (page.locator(f"#{id} canvas").first.bounding_box() for id in ("before", "after"))
    assert (before["y"] == after["y"]) == (width > 640)
    blank = "c => !c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    for canvas in page.locator("canvas").all():
        assert not canvas.evaluate(blank), canvas.get_attribute("aria-label")
        assert canvas.get_attribute("role") == "img"


@pytest.mark.parametrize("kind", KINDS)
def test_the_slider_moves_everything_at_once(show, kind):
    result = made(kind)
    page = show(result, keep=0.5)
    figures = ("#before", "#after", "#histogram", "#steps", *(["#coordinates"] if kind != "grey" else []))
    first = {name: picture(page, name) for name in figures}
    threshold = float(page.locator("#histogram canvas").get_attribute("data-threshold"))
    assert page.locator("#counts").inner_text().startswith("100 of 200 kept, 100 removed")
    press(page, "Home", "ArrowRight")
    assert page.locator("#share").inner_text() == "2 %"
    assert page.locator("#keep").get_attribute("aria-valuetext") == "2 %, 4 of 200 samples"
    assert page.locator("#after-count").inner_text() == "4 samples"
    lower = float(page.locator("#histogram canvas").get_attribute("data-threshold"))
    assert lower < threshold
    assert lower == pytest.approx(float(result.score.sort().values[3]))
    then = {name: picture(page, name) for name in figures}
    # of images the first of the maps is that of all samples
    changed = {name for name in figures if first[name] != then[name]}
    assert changed == set(figures) - {"#before"} - ({"#coordinates"} if kind == "colour" else set())
    press(page, "End")
    assert page.locator("#counts").inner_text().startswith("200 of 200 kept, 0 removed")
    assert picture(page, "#after") == picture(page, "#before")


def test_the_mouse_moves_the_slider(show):
    page = show(made("series"))
    box = page.locator("#keep").bounding_box()
    page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2)
    press(page)
    assert 15 <= float(page.locator("#share").inner_text().removesuffix(" %")) <= 25


def test_the_page_reads_what_was_written(show):
    result = made("series")
    order = result.score.argsort(stable=True)
    page = show(result)
    for name, tensor in (("samples", result.samples), ("deviations", result.variance.sqrt())):
        got = page.evaluate(f"Array.from({name}.values)")
        np.testing.assert_allclose(got, tensor[order].flatten(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(page.evaluate("Array.from(scores)"), result.score[order], rtol=1e-6)


def test_text_stays_text(show):
    page = show(
        made("points"),
        title=ATTACK,
        settings={ATTACK: ATTACK},
        summary=[(ATTACK, ATTACK)],
        timings={"t": ATTACK},
    )
    assert page.title() == ATTACK
    assert page.locator("h1").inner_text() == ATTACK
    assert page.locator("img").count() == 0


def test_without_variance_and_profile(show):
    for kind in KINDS:
        full = made(kind)
        page = show(flare.Result(full.samples, scores=full.scores), keep=1 / 3)
        assert page.locator("#variance, #profile").count() == 0
        assert page.locator("#share").inner_text() == "33.33 %"


def test_one_sample_and_equal_scores(show):
    for n in (1, 3):
        for kind in KINDS:
            full = made(kind, n)
            page = show(
                flare.Result(full.samples, full.variance * 0, {"flat": torch.ones(n)}, None, full.profile * 0)
            )
            press(page, "Home", "End")
            assert page.locator("#counts").inner_text().startswith(f"{n} of {n} kept")


def test_it_prints_in_light_colours(show, tmp_path):
    page = show(made("series"), scheme="dark")
    dark = picture(page, "#histogram")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert picture(page, "#histogram") != dark
    assert page.evaluate("theme.card") == "#ffffff"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert picture(page, "#histogram") == dark
    assert page.pdf(path=tmp_path / "report.pdf").startswith(b"%PDF")

"""The report in a real browser. The screenshots lie in pytest's temporary directory."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from judged import judge

import flare
from flare.results.filters import keep_best

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
KINDS = ("points", "series", "channels", "gray", "color")
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
        shape = (28, 28) if kind == "gray" else (3, 28, 28)
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
    return page.evaluate("s => document.querySelector(s).toDataURL()", f"{selector} canvas[role=img]")


def settle(page):
    """Two frames, for the drawing to be done."""
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


def press(page, *keys):
    """Keys on the slider."""
    for key in keys:
        page.locator("#share").press(key)
    settle(page)


def slide(page, share):
    """Move the slider to one of its shares."""
    page.locator("#share").evaluate(
        "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')); }",
        page.evaluate("data.shares").index(share),
    )
    settle(page)


def texts(page, selector):
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


def judged(kind, n=200, **options):
    """Samples with a verdict and regions, the data that they are compared with, groups and known mistakes."""
    result = made(kind, n)
    worse = result.score.argsort().argsort() / n
    training = torch.zeros(2 * n, *result.samples.shape[1:])
    training[::2] = result.samples + 0.01
    known = {"data": training, "groups": torch.arange(n) % 3, "bad": worse > 0.9}
    return replace(judge(result, worse, **options), regions=torch.arange(n) % 7), known


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_on_every_screen(show, tmp_path_factory, kind, screen):
    width, scheme = SCREENS[screen]
    result, known = judged(kind)
    page = show(
        result,
        width,
        scheme,
        title=f"Made-up {kind}",
        summary=[("rate", "21%")],
        timings={"all": 2.0},
        **known,
    )
    shot = tmp_path_factory.getbasetemp() / f"{kind}-{screen}.png"
    page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits), "it must not scroll sideways"
    before, after = (page.locator(f"#{id} canvas").first.bounding_box() for id in ("before", "after"))
    assert (before["y"] == after["y"]) == (width > 640)
    blank = "c => !c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    page.locator("#worst button").first.click()
    assert page.evaluate(fits)
    dialog = page.locator("dialog").bounding_box()
    assert dialog["x"] >= 0
    assert dialog["x"] + dialog["width"] <= width
    page.screenshot(path=shot.with_stem(f"{shot.stem}-card"))
    for canvas in page.locator("canvas[role=img]").all():
        assert not canvas.evaluate(blank), canvas.get_attribute("aria-label")


def test_the_first_screen_answers(show):
    result, known = judged("gray")
    page = show(result, **known)
    doubtful = int((result.p_value <= 0.05).sum())
    headline = f"{doubtful} of 200 samples look less plausible than 95% of real data."
    assert texts(page, ".headline") == [headline]
    order = result.verdict.z.argsort(stable=True).tolist()
    for id, rows in (("worst", order[::-1][:6]), ("best", order[:6])):
        captions = texts(page, f"#{id} button")
        assert [int(text[1:].split(" · ")[0]) for text in captions] == rows
        for row, text in zip(rows, captions, strict=True):
            reason = {"influence": "it would change the network", "neighbors": "far from the training data"}
            expected = reason[result.reason[row]] if result.p_value[row] <= 0.05 else "plausible"
            assert expected in text
            assert ("known to be bad" in text) == bool(known["bad"][row])
            assert ("near copy" in text) == (row % 20 == 0)
    bottom = page.locator("#extremes").bounding_box()
    assert bottom["y"] + bottom["height"] < 900
    assert page.locator("#alert").count() == 0


def test_a_wrong_model_is_said_at_the_top(show):
    page = show(judge(made("points"), worse=torch.ones(200)))
    assert page.locator("#alert").inner_text().startswith("Most samples look unlike real data")
    assert page.locator("#alert").bounding_box()["y"] < page.locator("#verdict").bounding_box()["y"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_slider_moves_everything_at_once(show, kind):
    result, known = judged(kind)
    page = show(result, **known)
    figures = ["#before", "#after", "#histogram", "#steps"]
    if kind in ("points", "series", "channels"):
        figures.append("#coordinates")
    first = {name: picture(page, name) for name in figures}
    for share in (0.5, 0.9, 0.25, 1):
        slide(page, share)
        kept = result.keep(share)
        count = int(kept.sum())
        assert texts(page, "#counts") == [f"{count} of 200 kept, {200 - count} removed"]
        assert page.locator("#level").inner_text() == f"{100 * share:g}%"
        assert page.locator("#after-count").inner_text() == f"{count} samples"
        label = page.locator("#share").get_attribute("aria-valuetext")
        assert label == f"{100 * share:g}%, {count} of 200 samples kept"
        rates = dict(zip(texts(page, "#rates dt"), texts(page, "#rates dd:not(.more)"), strict=True))
        assert rates["Kept"] == f"{count} of 200"
        doubtful = int((kept & (result.p_value <= 0.05)).sum())
        assert float(rates["Doubtful (p ≤ 0.05), of the kept"][:-1]) == pytest.approx(
            100 * doubtful / count, abs=0.5
        )
        assert rates["Near copies of training data, kept"] == str(int((kept & result.verdict.copies).sum()))
        inside = int((kept & known["bad"]).sum())
        assert float(rates["Known to be bad, of the kept"][:-1]) == pytest.approx(
            100 * inside / count, abs=0.5
        )
        for group, text in enumerate(texts(page, "#shares tr")):
            own = kept & (known["groups"] == group)
            part = 100 * int(own.sum()) / count
            assert text.endswith(f"{part:.1f}% {int(own.sum())} of {int((known['groups'] == group).sum())}")
        if share == 0.25:
            then = {name: picture(page, name) for name in figures}
            assert {name for name in figures if first[name] != then[name]} == set(figures) - {"#before"}
    assert picture(page, "#after") == picture(page, "#before")


def test_maps_of_images_follow_the_slider(show):
    page = show(*judged("gray")[:1])
    maps = "() => [...document.querySelectorAll('#coordinates canvas')].map(c => c.toDataURL())"
    first = page.evaluate(maps)
    slide(page, 0.25)
    changed = [a != b for a, b in zip(first, page.evaluate(maps), strict=True)]
    assert changed == [False, True, True]  # all, kept, removed
    slide(page, 1)
    assert texts(page, "#coordinates figcaption") == ["all", "kept", "removed (none)"]


def test_one_region_has_one_threshold(show):
    result = made("series")
    page = show(result, keep=0.5)
    assert texts(page, "label[for=share]") == ["Keep the best"]
    press(page, "Home", "ArrowRight")
    assert page.locator("#level").inner_text() == "2%"
    assert texts(page, "#counts")[0].startswith("4 of 200 kept, 196 removed; trace ≤ ")
    assert "dashed line: the threshold" in page.locator("#histogram-note").inner_text()
    threshold = float(page.locator("#histogram canvas").get_attribute("data-threshold"))
    assert threshold == pytest.approx(float(result.score.sort().values[3]))
    press(page, "End")
    assert texts(page, "#counts")[0].startswith("200 of 200 kept, 0 removed")
    assert picture(page, "#after") == picture(page, "#before")
    page = show(replace(result, regions=torch.arange(200) % 3))
    assert texts(page, "label[for=share]") == ["Keep the best of every region"]
    assert "dashed" not in page.locator("#histogram-note").inner_text()


def test_every_share_keeps_what_python_keeps(show):
    """Exactly, with regions and with ties, too."""
    result, _ = judged("points", 333)
    ties = flare.Result(result.samples, scores={"s": (result.score * 3).round()})
    for some in (result, ties, replace(ties, regions=torch.randint(5, (333,)))):
        page = show(some, keep=1 / 3)
        for at, share in enumerate(page.evaluate("data.shares")):
            mask = page.evaluate("(at) => { keep(at); return Array.from(view.mask); }", at)
            assert mask == some.keep(share).int().tolist()


def test_the_mouse_moves_the_slider(show):
    page = show(made("series"))
    box = page.locator("#share").bounding_box()
    page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2)
    settle(page)
    assert 15 <= float(page.locator("#level").inner_text().removesuffix("%")) <= 25


def test_the_score_can_be_chosen(show):
    result, known = judged("series")
    page = show(result, **known)
    names = ["verdict", "influence", "neighbors", "trace"]
    assert page.locator("#score option").all_inner_texts() == names
    for name in names[1:]:
        before = {id: picture(page, id) for id in ("#before", "#after", "#histogram", "#worst")}
        page.locator("#score").select_option(label=name)
        settle(page)
        assert all(picture(page, id) != old for id, old in before.items())
        order = result.scores[name].argsort(stable=True).tolist()
        worst = [int(text[1:].split(" · ")[0]) for text in texts(page, "#worst button")]
        assert worst == order[::-1][:6]
        kept = keep_best(result.scores[name], 0.5, result.regions)
        assert page.evaluate("Array.from(view.mask)") == kept.int().tolist()
        # real data has no trace
        compared = "Green: 99 held-out real samples" in page.locator("#histogram-note").inner_text()
        assert compared == (name != "trace")


def check_card(page, result, known, row):
    """The open card says everything about sample `row`."""
    assert page.locator("#card-title").inner_text() == f"Sample #{row}"
    lead = page.locator("#card-lead").inner_text()
    assert ("kept" in lead) == bool(result.keep(0.5)[row])
    scores = {text.split()[0]: text.split()[1:] for text in texts(page, "#card-scores tr")}
    assert list(scores) == ["verdict", "influence", "neighbors", "trace"]
    assert float(scores["verdict"][1]) == pytest.approx(float(result.p_value[row]), abs=0.006)
    for name in ("influence", "neighbors"):
        assert float(scores[name][1]) == pytest.approx(float(result.verdict.p_values[name][row]), abs=0.006)
    assert scores["trace"][1] == "–"
    facts = texts(page, "#card-facts li")
    assert facts == [f"Nearest training sample: #{2 * row}", f"Group: {int(known['groups'][row])}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_click_opens_the_card_of_a_sample(show, kind):
    result, known = judged(kind)
    page = show(result, **known)
    page.locator("#worst button").nth(2).click()
    order = result.verdict.z.argsort(stable=True).tolist()[::-1]
    check_card(page, result, known, order[2])
    assert page.locator("#card-pictures canvas").count() == {"channels": 3, "gray": 3, "color": 3}.get(
        kind, 1
    )
    page.locator("#card-next").click()
    check_card(page, result, known, order[3])
    page.keyboard.press("ArrowLeft")
    check_card(page, result, known, order[2])
    page.keyboard.press("Escape")
    assert not page.locator("dialog").evaluate("d => d.open")


@pytest.mark.parametrize("kind", KINDS)
def test_pointing_at_a_figure_names_the_sample_under_it(show, kind):
    result, known = judged(kind)
    page = show(result, **known)
    canvas = page.locator("#before canvas[role=img]").first
    canvas.scroll_into_view_if_needed()
    # where the worst sample is drawn, from its values and the maps of the figure
    worst = int(result.verdict.z.argmax())
    spot = {
        "points": "s => { const g = figures.before.geometry; const [a, b] = samples.row(s);"
        " return [g.X(a), g.Y(b)]; }",
        "gray": "s => { const c = figures.before.geometry.cells.find(c => c.slot === s);"
        " return [c.x + c.width / 2, c.y + c.height / 2]; }",
        "series": "s => { const g = figures.before.geometry.maps[0];"
        " return [g.X(40), g.Y(samples.row(s)[40])]; }",
    }
    spot |= {"channels": spot["series"], "color": spot["gray"]}
    x, y = page.evaluate(f"row => ({spot[kind]})(slotOf.get(row))", worst)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + y)
    tip = page.locator("#tip").inner_text()
    found = int(tip[1:].split(" · ")[0])
    if kind in ("points", "gray", "color"):
        assert found == worst
    else:  # another curve may pass through the same place
        at = result.samples.reshape(200, -1)[:, 40]
        assert float((at[found] - at[worst]).abs()) < 0.05
    assert f"p = {page.evaluate('p => probability(p)', float(result.p_value[found]))}" in tip
    page.mouse.click(box["x"] + x, box["y"] + y)
    check_card(page, result, known, found)
    page.locator("#card-close").click()
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()


def test_the_keyboard_walks_through_the_samples(show):
    result, known = judged("points")
    page = show(result, **known)
    canvas = page.locator("#before canvas[role=img]")
    canvas.focus()
    canvas.press("End")
    worst = int(result.verdict.z.argmax())
    assert page.locator("#tip").inner_text().startswith(f"#{worst} · ")
    canvas.press("ArrowLeft")
    canvas.press("Enter")
    check_card(page, result, known, result.verdict.z.argsort(stable=True).tolist()[-2])


def saved(page, tmp_path):
    with page.expect_download() as download:
        page.locator("#save").click()
    assert download.value.suggested_filename == "kept.csv"
    download.value.save_as(tmp_path / "kept.csv")
    return list(csv.DictReader((tmp_path / "kept.csv").read_text().splitlines()))


def test_kept_samples_are_saved_as_csv(show, tmp_path):
    result, _ = judged("gray")
    samples = result.samples.clone()
    samples[5] = torch.nan  # lost: indices are those of the result, not of the rows that are left
    page = show(replace(result, samples=samples, variance=None, profile=None))
    left = result[torch.arange(200) != 5]
    for share in (0.5, 0.8):
        slide(page, share)
        kept = left.keep(share).nonzero().flatten().tolist()
        table = saved(page, tmp_path)
        assert [int(line["index"]) for line in table] == [row + (row >= 5) for row in kept]
        for line in table:
            row = int(line["index"])
            assert float(line["verdict"]) == float(result.verdict.z[row])
            assert float(line["p_value"]) == float(result.p_value[row])
    page.locator("#score").select_option(label="trace")
    table = saved(page, tmp_path)
    assert len(table) == 159  # 80% of 199, rounded
    assert list(table[0]) == ["index", "trace"]


def test_the_page_reads_what_was_written(show):
    result = made("series")
    order = result.score.argsort(stable=True)
    page = show(result)
    for name, tensor in (("samples", result.samples), ("deviations", result.variance.sqrt())):
        got = page.evaluate(f"Array.from({name}.values)")
        np.testing.assert_allclose(got, tensor[order].flatten(), rtol=1e-3, atol=1e-4)
    assert page.evaluate("Array.from(rankings[0].values)") == result.score.double().tolist()


def test_bins_are_those_of_numpy(show):
    result, _ = judged("points")
    page = show(result)
    edges = np.array(page.evaluate("rankings[0].edges"))
    want = np.histogram(result.verdict.z.clip(edges[0], edges[-1]), edges)[0]
    assert page.evaluate("countBins(rankings[0].values, rankings[0].edges)") == want.tolist()


def test_text_stays_text(show):
    result = made("points")
    page = show(
        flare.Result(result.samples, scores={ATTACK: result.score}),
        title=ATTACK,
        settings={ATTACK: ATTACK},
        summary=[(ATTACK, ATTACK)],
        timings={"t": ATTACK},
        groups=[ATTACK] * 200,
    )
    assert page.title() == ATTACK
    assert page.locator("h1").inner_text() == ATTACK
    page.locator("#worst button").first.click()
    assert page.locator("#card-facts").inner_text() == f"Group: {ATTACK}"
    assert page.locator("img").count() == 0


def test_without_variance_and_profile(show):
    for kind in KINDS:
        full = made(kind)
        page = show(flare.Result(full.samples, scores=full.scores), keep=1 / 3)
        assert page.locator("#variance, #profile, #groups").count() == 0
        assert page.locator("#level").inner_text() == "33.33%"


def test_one_sample_and_equal_scores(show):
    for n in (1, 3):
        for kind in KINDS:
            full = made(kind, n)
            page = show(
                flare.Result(full.samples, full.variance * 0, {"flat": torch.ones(n)}, None, full.profile * 0)
            )
            press(page, "Home", "End")
            assert page.locator("#counts").inner_text().startswith(f"{n} of {n} kept")


def test_doubtful_samples_are_kept_if_all_are_doubtful(show):
    for kind in KINDS:
        page = show(judge(made(kind), worse=torch.full((200,), 3.0)))
        press(page, "Home")
        assert texts(page, "#counts")[0].startswith("2 of 200 kept, 198 removed")
        assert texts(page, "#rates dd:not(.more)")[1] == "100%"


def test_more_samples_than_pictures(show, monkeypatch):
    monkeypatch.setattr("flare.report.embedding.PICTURES", 50)
    result, known = judged("series", 900)
    page = show(result, **known)
    assert page.evaluate("view.all.length") == 50
    order = result.verdict.z.argsort(stable=True).tolist()
    page.locator("#worst button").nth(3).click()
    check_card(page, result, known, order[-4])
    assert page.evaluate("view.count") == 450


def test_it_prints_in_light_colors(show, tmp_path):
    page = show(judged("series")[0], scheme="dark")
    dark = picture(page, "#histogram")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert picture(page, "#histogram") != dark
    assert page.evaluate("theme.card") == "#ffffff"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#save").is_hidden()
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert picture(page, "#histogram") == dark
    assert page.pdf(path=tmp_path / "report.pdf").startswith(b"%PDF")

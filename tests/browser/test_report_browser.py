"""The report in a real browser. The screenshots lie in pytest's temporary directory."""

from __future__ import annotations

import csv
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from judged import judge
from scipy.stats import beta

import flare
from flare.cli.scored import read_labels
from flare.results.calibration import design_labels
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
    "light": (1280, "light"),
    "dark": (1280, "dark"),
    "phone": (390, "light"),
    "phone-dark": (390, "dark"),
}
ATTACK = "</script><img src=x onerror=alert(1)>"
# elements with text that reach beyond the screen or hide some of their text
CUT_OFF = """() => [...document.querySelectorAll("main *, dialog[open] *")].filter((e) => {
  const box = e.getBoundingClientRect();
  const hides = e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible";
  return box.width && (box.right > innerWidth + 0.5 || box.left < -0.5 || (hides && e.tagName !== "SELECT"));
}).map((e) => e.outerHTML.slice(0, 200))"""


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
        page.on("dialog", lambda d: complaints.append(f"alert: {d.message}") if d.type == "alert" else None)
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
        **known,
    )
    shot = tmp_path_factory.getbasetemp() / f"{kind}-{screen}.png"
    page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits), "it must not scroll sideways"
    cut = page.evaluate(CUT_OFF)
    assert not cut, "nothing must be cut off"
    blank = "c => !c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    page.locator("#worst button").first.click()
    assert page.evaluate(fits)
    assert not page.evaluate(CUT_OFF)
    dialog = page.locator("dialog").bounding_box()
    assert dialog["x"] >= 0
    assert dialog["x"] + dialog["width"] <= width
    page.screenshot(path=shot.with_stem(f"{shot.stem}-card"))
    for canvas in page.locator("canvas[role=img]").all():
        assert not canvas.evaluate(blank), canvas.get_attribute("aria-label")


def test_the_first_screen_answers(show):
    result, known = judged("gray")
    page = show(result, **known)
    doubtful, bad = int((result.p_value <= 0.05).sum()), int(known["bad"].sum())
    [model] = texts(page, "#model")
    assert model.startswith(
        f"{doubtful} of 200 samples look less plausible than 95% of real data. About 10 of"
    )
    assert model.endswith(f"Known to be bad: {bad} of 200 ({100 * bad / 200:g}%).")
    inside = int((known["bad"] & result.keep(0.5)).sum())
    said = f"Keep the best half of every region: 100 samples. Known to be bad: {inside} of 100 ({inside}%)."
    assert texts(page, "#filter") == [said]
    count = len(result.propose_labels())
    assert texts(page, "#labels")[0].startswith(f"Label {count} samples to get a guarantee: at most 5% ")
    assert page.locator("#label").inner_text() == "Start labeling"
    assert page.locator("#alert").count() == 0
    visible = page.locator("#decide").inner_text() + page.locator("#extremes").inner_text()
    assert visible.index("The p-value of a sample is the share") < visible.index("p = ")  # explained first


def test_the_worst_and_the_best(show):
    result, known = judged("gray")
    page = show(result, **known)
    order = result.verdict.z.argsort(stable=True).tolist()
    for id, rows in (("worst", order[::-1][:6]), ("best", order[:6])):
        captions = texts(page, f"#{id} button")
        assert [int(text[1:].split(" · ")[0]) for text in captions] == rows
        for row, text in zip(rows, captions, strict=True):
            reason = {"influence": "it surprises the network", "neighbors": "far from the training data"}
            expected = reason[result.reason[row]] if result.p_value[row] <= 0.05 else "plausible"
            assert expected in text
            assert ("known to be bad" in text) == bool(known["bad"][row])
            assert ("near copy" in text) == (row % 20 == 0)


def test_a_wrong_model_is_said_at_the_top(show):
    page = show(judge(made("points"), worse=torch.ones(200)))
    assert page.locator("#alert").inner_text().startswith("Most samples look unlike real data")
    assert page.locator("#alert").bounding_box()["y"] < page.locator("#decide").bounding_box()["y"]
    said = "Fix the model first. A filter cannot repair it. Until then, the best half has 100 samples."
    assert texts(page, "#filter") == [said]


@pytest.mark.parametrize("kind", KINDS)
def test_the_slider_moves_everything_at_once(show, kind):
    result, known = judged(kind)
    page = show(result, **known)
    page.locator("#tab-kept").click()
    figures = ["#figure", "#histogram", "#tradeoff", "#steps"]
    if kind in ("points", "series", "channels"):
        figures.append("#coordinates")
    first = {name: picture(page, name) for name in figures}
    for share in (0.5, 0.9, 0.25, 1):
        slide(page, share)
        kept = result.keep(share)
        count = int(kept.sum())
        assert texts(page, "#counts") == [f"{count} of 200 kept, {200 - count} removed"]
        assert page.locator("#level").inner_text() == f"{100 * share:g}%"
        assert texts(page, "#tabs > button") == ["All 200", f"Kept {count}", f"Removed {200 - count}"]
        label = page.locator("#share").get_attribute("aria-valuetext")
        assert label == f"{100 * share:g}%, {count} of 200 samples kept"
        [said] = texts(page, "#filter")
        part = {0.5: "half", 0.25: "quarter"}.get(share, f"{100 * share:g}%")
        everything = "Keep all 200 samples: nothing is filtered."
        assert said.startswith(
            everything if share == 1 else f"Keep the best {part} of every region: {count} samples."
        )
        rates = dict(zip(texts(page, "#rates dt"), texts(page, "#rates dd:not(.more)"), strict=True))
        assert rates["Kept"] == f"{count} of 200"
        doubtful = int((kept & (result.p_value <= 0.05)).sum())
        assert float(rates["Doubtful (p ≤ 0.05), of the kept"][:-1]) == pytest.approx(
            100 * doubtful / count, abs=0.5
        )
        assert rates["Near copies of training data, kept"] == str(int((kept & result.verdict.copies).sum()))
        inside = int((kept & known["bad"]).sum())
        assert f"Known to be bad: {inside} of {count} ({rates['Known to be bad, of the kept']})" in said
        assert float(rates["Known to be bad, of the kept"][:-1]) == pytest.approx(
            100 * inside / count, abs=0.5
        )
        for group, text in enumerate(texts(page, "#shares tr")):
            own = kept & (known["groups"] == group)
            part = 100 * int(own.sum()) / count
            assert text.endswith(f"{part:.1f}% {int(own.sum())} of {int((known['groups'] == group).sum())}")
        if share == 0.25:
            assert all(first[name] != picture(page, name) for name in figures)
    kept = picture(page, "#figure")
    page.locator("#tab-all").click()
    assert picture(page, "#figure") == kept
    page.locator("#tab-removed").click()
    assert page.locator("#samples-note").inner_text() == "No samples."


def test_tabs_show_one_selection(show):
    result, known = judged("points")
    page = show(result, **known)
    page.locator("#tab-all").focus()
    for key, name, mask in (
        ("ArrowRight", "kept", result.keep(0.5)),
        ("ArrowRight", "removed", ~result.keep(0.5)),
        ("ArrowRight", "all", torch.ones(200, dtype=torch.bool)),
        ("ArrowLeft", "removed", ~result.keep(0.5)),
    ):
        page.keyboard.press(key)
        assert page.locator("#tabs [aria-selected=true]").get_attribute("id") == f"tab-{name}"
        rows = page.evaluate("chosenSlots().map((slot) => data.rows[slot])")
        assert sorted(rows) == mask.nonzero().flatten().tolist()


def test_the_trade_off_is_that_of_every_share(show):
    result, known = judged("series", 150)
    page = show(result, **known)
    found = page.evaluate("tradeoffLines().map(([name, , shares]) => [name, shares])")
    masks = {"doubtful (p ≤ 0.05)": result.p_value <= 0.05, "known to be bad": known["bad"]}
    assert [name for name, _ in found] == list(masks)
    for name, shares in found:
        for share, got in zip(page.evaluate("data.shares"), shares, strict=True):
            kept = result.keep(share)
            assert got == pytest.approx(float((kept & masks[name]).sum() / kept.sum()))
    assert texts(page, "#tradeoff-note .swatch") == [*masks, "current filter"]
    bare = flare.Result(result.samples, scores={"s": result.score})
    page = show(bare)
    assert page.locator("#tradeoff-box").is_hidden()
    assert page.locator("#above-box").is_hidden()


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
    assert texts(page, "#filter") == ["Keep all 200 samples: nothing is filtered."]
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
    slide(page, 0.3)
    for name in names[1:]:
        before = {id: picture(page, id) for id in ("#figure", "#histogram", "#worst")}
        page.locator("#score").select_option(label=name)
        settle(page)
        assert page.locator("#level").inner_text() == "30%"  # the share stays
        doubtful = [label for label in texts(page, "#rates dt") if label.startswith("Doubtful")]
        assert doubtful == ([] if name == "trace" else [f"Doubtful by {name} (p ≤ 0.05), of the kept"])
        assert texts(page, "#filter")[0].startswith(
            f"Keep the best 30% of every region by {name}: 60 samples."
        )
        assert all(picture(page, id) != old for id, old in before.items())
        order = result.scores[name].argsort(stable=True).tolist()
        worst = [int(text[1:].split(" · ")[0]) for text in texts(page, "#worst button")]
        assert worst == order[::-1][:6]
        kept = keep_best(result.scores[name], 0.3, result.regions)
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
    assert page.locator("#card-pictures canvas").count() == (1 if kind in ("points", "series") else 3)
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
    canvas = page.locator("#figure canvas[role=img]").first
    canvas.scroll_into_view_if_needed()
    # where the worst sample is drawn, from its values and the maps of the figure
    worst = int(result.verdict.z.argmax())
    spot = {
        "points": "s => { const g = figure.geometry; const [a, b] = samples.row(s);"
        " return [g.X(a), g.Y(b)]; }",
        "gray": "s => { const c = figure.geometry.cells.find(c => c.slot === s);"
        " return [c.x + c.width / 2, c.y + c.height / 2]; }",
        "series": "s => { const g = figure.geometry.maps[0]; return [g.X(40), g.Y(samples.row(s)[40])]; }",
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
    canvas = page.locator("#figure canvas[role=img]")
    canvas.focus()
    canvas.press("End")
    worst = int(result.verdict.z.argmax())
    assert page.locator("#tip").inner_text().startswith(f"#{worst} · ")
    canvas.press("ArrowLeft")
    canvas.press("Enter")
    check_card(page, result, known, result.verdict.z.argsort(stable=True).tolist()[-2])


def saved(page, tmp_path, button="#save", name="kept.csv"):
    with page.expect_download() as download:
        page.locator(button).click()
    assert download.value.suggested_filename == name
    download.value.save_as(tmp_path / name)
    with (tmp_path / name).open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    columns = ["name", "index", "label", "verdict", "p_value", "reason", "region"]
    assert all(list(line) == columns for line in table)
    return table


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
            assert line["name"] == str(row)
            assert line["label"] == ""
            assert float(line["p_value"]) == float(result.p_value[row])
            assert line["verdict"] == ("trusted" if result.p_value[row] > 0.05 else "doubtful")
            assert line["reason"] == ("" if result.p_value[row] > 0.05 else result.reason[row])
            assert int(line["region"]) == int(result.regions[row])
    page.locator("#score").select_option(label="trace")
    assert len(saved(page, tmp_path)) == 159  # 80% of 199, rounded


def test_names_are_safe_in_the_page_and_in_spreadsheets(show, tmp_path):
    result, known = judged("points")
    odd = [ATTACK, '"quoted", and more', "two\nlines", "=SUM(A1)", "-1", "+x", "@x", "'=x", "plain.png"]
    names = odd + [f"{row}.png" for row in range(len(odd), 200)]
    page = show(replace(result, about={"names": names}), keep=1.0, **known)
    table = saved(page, tmp_path)
    assert [line["name"] for line in table] == [f"'{name}" if name[0] in "=-+@'" else name for name in names]
    places = page.evaluate("data.indices.map((_, row) => slotOf.get(row))")
    for row, name in enumerate(odd):
        page.evaluate("(slot) => openCard(slot, [slot])", places[row])
        assert page.locator("#card-title").text_content() == f"Sample {name}"
        page.evaluate("(row) => giveLabel(row, 'bad')", row)
    assert page.locator("img").count() == 0
    page.evaluate("relabel()")
    assert len(saved_labels(page, tmp_path)) == len(odd)
    read = read_labels(tmp_path / "labels.csv", names, tmp_path / "samples.npz")
    assert read == dict.fromkeys(range(len(odd)), True)


def test_samples_without_a_verdict(show, tmp_path):
    result = made("series")
    page = show(flare.Result(result.samples, scores=result.scores))
    assert texts(page, "#model") == ["200 samples, ranked by the score “trace”: higher is more doubtful."]
    table = saved(page, tmp_path)
    assert len(table) == 100
    assert set(table[0].values()) == {table[0]["name"], ""}
    page.locator("#label").click()
    page.keyboard.press("b")
    first = int(result.propose_labels()[0])
    assert saved_labels(page, tmp_path) == {first: "bad"}


def saved_labels(page, tmp_path):
    if page.locator("dialog").evaluate("d => d.open"):
        page.locator("#card-close").click()
    table = saved(page, tmp_path, "#save-labels", "labels.csv")
    return {int(line["index"]): line["label"] for line in table}


def shown_index(page):
    return page.evaluate("data.indices[data.rows[shown.slot]]")


def test_rows_of_a_table_have_names_and_units(show):
    x = torch.tensor([[0.0, 1.0, -2.0], [1.0, 0.5, 0.0]]).repeat(20, 1)
    about = {"columns": ["age", "income", "height"]}
    scaling = {"scaling": {"mean": [40.0, 3e4, 170.0], "std": [10.0, 5e3, 8.0]}}
    for more, row, axis in (
        (scaling, "age: 40, income: 35000, height: 154.", "standardized value"),
        ({}, "age: 0, income: 1, height: −2.", "value"),
    ):
        page = show(flare.Result(x, scores={"a": torch.arange(40.0)}, about=about | more))
        assert texts(page, ".lead")[0].startswith("40 rows of 3 columns")
        assert page.evaluate("[axisLabel, channelName(0)]") == ["age, income, height", axis]
        page.evaluate("openCard(slotOf.get(rowOf.get(0)), [])")
        assert texts(page, "#card-note")[0].startswith(row)
        assert "scaling" not in page.content().partition("How this was made")[2]


def test_labels_by_key_click_and_undo(show, tmp_path):
    result, known = judged("gray")
    page = show(result, **known)
    order = result.propose_labels().tolist()
    total = len(order)
    page.locator("#label").click()
    assert shown_index(page) == order[0]
    assert page.locator("#card-progress").inner_text() == f"0 of {total} labeled, {total} to go."
    for part in ("#card-lead", "#card-scores", "#card-facts"):
        assert page.locator(part).is_hidden()
    page.keyboard.press("g")
    assert shown_index(page) == order[1]
    page.keyboard.press("b")
    page.keyboard.press("ArrowRight")  # skips a sample
    assert shown_index(page) == order[3]
    page.locator("#card-bad").click()
    assert shown_index(page) == order[2]  # the first without a label
    assert page.locator("#card-progress").inner_text() == f"3 of {total} labeled, {total - 3} to go."
    page.keyboard.press("u")
    assert shown_index(page) == order[3]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#card-bad").get_attribute("aria-pressed") == "true"
    assert "labeled bad" in page.locator("#card-lead").inner_text()  # the scores are shown after the label
    page.keyboard.press("g")  # another label of the same sample
    assert shown_index(page) == order[2]
    assert saved_labels(page, tmp_path) == {order[0]: "good", order[1]: "good"}
    page.locator("#undo").click()
    assert saved_labels(page, tmp_path) == {order[0]: "good", order[1]: "bad"}
    assert texts(page, "#labels") == [f"2 of {total} labeled, {total - 2} to go."]
    assert page.locator("#label").inner_text() == "Continue labeling"
    rates = dict(zip(texts(page, "#rates dt"), texts(page, "#rates dd.more"), strict=True))
    assert rates["Labeled bad, kept"].endswith("1 of all 2 labeled")


def test_other_samples_may_be_labeled_too(show, tmp_path):
    result, known = judged("points")
    page = show(result, **known)
    worst = int(result.verdict.z.argmax())  # not among the best three quarters, so not proposed
    page.locator("#worst button").first.click()
    page.keyboard.press("b")
    assert shown_index(page) == worst
    assert "does not count for the guarantee" in page.locator("#card-progress").inner_text()
    assert saved_labels(page, tmp_path) == {worst: "bad"}
    assert "labeled bad" in texts(page, "#worst button")[0]
    assert texts(page, "#labels")[0].startswith("Label ")


def test_labels_survive_a_reload_and_can_be_cleared(show, tmp_path):
    result, known = judged("points")
    page = show(result, **known)
    page.locator("#label").click()
    for key in "gbg":
        page.keyboard.press(key)
    before = saved_labels(page, tmp_path)
    assert list(before.values()) == ["good", "bad", "good"]
    page.reload()
    assert saved_labels(page, tmp_path) == before
    page.locator("#undo").click()
    assert len(saved_labels(page, tmp_path)) == 2
    for accept, left in ((False, 2), (True, 0)):
        page.once("dialog", lambda dialog, accept=accept: dialog.accept() if accept else dialog.dismiss())
        page.locator("#clear").click()
        assert page.evaluate("labels.size") == left
    assert page.locator("#clear").is_hidden()
    page.reload()
    assert page.evaluate("labels.size") == 0


def test_a_browser_that_forbids_storage_says_so(show, browser, tmp_path):
    result, known = judged("points")
    page = show(result, **known)
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    )
    page.reload()
    page.locator("#label").click()
    page.keyboard.press("g")
    page.locator("#card-close").click()
    page.locator("#storage", has_text="Save them as CSV before you close the page").wait_for()  # next frame
    assert len(saved_labels(page, tmp_path)) == 1


@pytest.mark.parametrize("wrong", [0, 1, 3, 60])
@pytest.mark.parametrize("loose", [False, True])
def test_the_guarantee_is_that_of_calibrate(show, tmp_path, wrong, loose):
    """Label every proposed sample, and calibrate with the file that the page saves."""
    result, known = judged("points", 400)
    page = show(result, **known)
    design = design_labels(result.ranking, 0.05, 0.9)
    only = design.order[~torch.isin(design.order, design.members[0])] if loose else design.members[0]
    bad = set(only[:wrong].tolist())
    page.locator("#label").click()
    for _ in design.order:
        page.keyboard.press("b" if shown_index(page) in bad else "g")
    assert not page.locator("dialog").evaluate("d => d.open")
    labels = saved_labels(page, tmp_path)
    assert labels == {int(i): "bad" if int(i) in bad else "good" for i in design.order}
    read = read_labels(tmp_path / "labels.csv", [str(i) for i in range(400)], tmp_path / "samples.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rule = flare.calibrate(result, read)
    assert texts(page, "#labels") == [f"The guarantee {rule}."]
    effect = "writes the kept samples" if rule.guaranteed else "writes nothing. With --risk, it accepts more"
    for said in ("flare calibrate FILE labels.csv", effect):
        assert said in page.locator("#next-command").inner_text()
    assert page.locator("#guarantee").is_visible() == rule.guaranteed
    assert rule.guaranteed == (loose or not wrong)
    if not rule.guaranteed:
        return
    page.locator("#score").select_option(label="trace")
    page.locator("#guarantee").click()
    kept = rule.keep(result).nonzero().flatten().tolist()
    assert page.locator("#score").input_value() == "0"
    assert texts(page, "#filter")[0].startswith(f"Keep what the labels guarantee: {len(kept)} samples.")
    assert page.evaluate("view.threshold") == float(result.ranking[kept].max())
    assert texts(page, "label[for=share]") == ["Keep what is guaranteed"]
    assert "dashed line: the threshold" in page.locator("#histogram-note").inner_text()
    assert [int(line["index"]) for line in saved(page, tmp_path)] == kept
    page.locator("#score").select_option(label="trace")  # another ranking keeps the share
    assert abs(page.evaluate("view.count") - len(kept)) <= 2
    assert not page.evaluate("view.guaranteed")


def test_the_bound_is_that_of_clopper_and_pearson(show):
    page = show(made("points"))
    for size in (1, 5, 45, 300):
        for wrong in sorted({0, 1, size // 2, size - 1, size}):
            bound = page.evaluate("([b, k]) => upperBound(b, k, 0.9)", [wrong, size])
            expected = 1.0 if wrong == size else beta.ppf(0.9, wrong + 1, size - wrong)
            assert bound == pytest.approx(expected, abs=1e-12)


def test_few_samples_cannot_have_a_guarantee(show):
    page = show(judged("points", 60)[0])
    said = "A guarantee needs more samples: the best 30 of 60 are fewer than the 45 that must be labeled."
    assert texts(page, "#labels") == [said]
    assert page.locator("#label").is_hidden()


def test_issues_filter_the_view_and_back(show):
    result, known = judged("gray")
    samples = result.samples.clone()
    samples[3] = samples[4] + 1e-4
    regions = torch.zeros(200, dtype=torch.long)
    regions[:100] = 1
    about = {"copy_distance": 1e-2, "region_counts": [24, 24, 12]}
    result = replace(result, samples=samples, regions=regions, about=about)
    page = show(result, **known)
    titles = texts(page, ".issue h3")
    assert titles == [
        "It surprises the network", "Far from the training data", "Near copies of training data",
        "Near duplicates among the samples", "Regions with too few samples",
    ]  # fmt: skip
    assert texts(page, "#issues-absent") == [
        "Checked and not found: regions with too many samples; lost to NaN or infinity."
    ]
    assert texts(page, ".issue b")[2:] == ["10 of 200 samples", "2 of 200 samples", "1 of 3 regions"]
    expected = result.verdict.copies.nonzero().flatten().tolist()
    issue = page.locator(".issue").nth(2)
    assert issue.locator(".sample").count() == 6
    issue.get_by_text("Show only these").click()
    assert texts(page, "#only-title") == ["Only: near copies of training data"]
    rows = page.evaluate("chosenSlots().map((slot) => data.rows[slot])")
    assert sorted(rows) == expected
    inside = int((result.keep(0.5) & result.verdict.copies).sum())
    assert texts(page, "#tabs > button") == ["All 10", f"Kept {inside}", f"Removed {10 - inside}"]
    page.locator("#tab-kept").click()
    assert page.evaluate("chosenSlots().length") == inside
    page.locator("#tab-all").click()
    page.locator("#only-back").click()
    assert page.locator("#only").is_hidden()
    assert page.evaluate("chosenSlots().length") == 200
    page.locator(".issue").nth(3).locator(".sample").first.click()
    assert page.locator("#card-facts").inner_text().count("Near duplicate of #") == 1


def test_images_are_large_and_may_be_smooth_or_show_their_variance(show):
    result, known = judged("gray")
    for width in (1280, 390):
        page = show(result, width, **known)
        widths = page.evaluate("figure.geometry.cells.map((c) => c.width - 8)")
        widths += page.evaluate(
            "[...document.querySelectorAll('.sample canvas')].map((c) => c.clientWidth - 8)"
        )
        assert min(widths) >= 64
    sharp = picture(page, "#figure")
    page.locator("#smooth").check()
    smooth = picture(page, "#figure")
    page.locator("#overlay").check()
    covered = picture(page, "#figure")
    assert len({sharp, smooth, covered}) == 3
    page.locator("#overlay").uncheck()
    page.locator("#smooth").uncheck()
    assert picture(page, "#figure") == sharp


def test_outliers_do_not_crush_points_and_ellipses(show):
    result = made("points")
    samples, variance = result.samples.clone(), result.variance.clone()
    samples[0] = 1e6
    variance[1] = 1e8
    page = show(flare.Result(samples, variance, result.scores))
    assert page.evaluate("pointLimits.x[1] - pointLimits.x[0]") < 10
    assert "Points outside of the axes are drawn on the border." in page.locator("#samples-note").inner_text()
    spot = page.evaluate("[figure.geometry.X(1e6), figure.targets[0].clientWidth]")
    assert 0.9 * spot[1] < spot[0] <= spot[1]
    sizes = result.variance.amax(1).sqrt()
    largest = 2 * page.evaluate("ellipseFactor()") * float(sizes.quantile(0.9))
    assert 0.004 < largest / page.evaluate("pointLimits.x[1] - pointLimits.x[0]") < 0.06


def test_twenty_thousand_samples(show, tmp_path):
    result, known = judged("points", 20_000)
    page = show(replace(result, variance=None, profile=None), **known)
    assert page.evaluate("view.count") == 10_000
    assert page.evaluate("proposed.every((index) => slotOf.has(rowOf.get(index)))")
    page.locator("#label").click()
    page.keyboard.press("g")
    assert len(saved_labels(page, tmp_path)) == 1
    assert len(saved(page, tmp_path)) == 10_000


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
        groups=[ATTACK] * 200,
    )
    assert page.title() == ATTACK
    assert page.locator("h1").inner_text() == ATTACK
    page.locator("#worst button").first.click()
    assert page.locator("#card-facts").inner_text() == f"Group: {ATTACK}"
    assert ATTACK in page.locator("#card-lead").inner_text()
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

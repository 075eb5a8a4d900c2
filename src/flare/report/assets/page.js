// The page: where each figure goes, and what the choice of score, the slider and a label change.
const slider = byId("share");
const select = byId("score");
const fixed = []; // drawn once per layout and per ranking
const moving = []; // drawn at every move of the slider, too
const wide = innerWidth < 640 ? 1.5 : 3.2; // aspect ratio of a full-width figure
const halves = innerWidth < 640 ? 1.5 : 1.8; // of a figure next to another
const TABS = ["all", "kept", "removed"];
let tab = "all";

// The slots that the figure of samples shows: those of a tab, and of an issue if one is chosen.
function chosenSlots(which = tab) {
  const slots = only ? Array.from(view.ranking.order).filter((row) => only.rows.has(row) && slotOf.has(row)).map((row) => slotOf.get(row)) : view.all;
  return which === "all" ? slots : slots.filter((slot) => Boolean(view.mask[data.rows[slot]]) === (which === "kept"));
}

const figure = new SampleFigure(byId("figure"), `Samples as ${kind.noun}, colored by score`, () => chosenSlots());

function showSamples() {
  const rows = only ? Array.from(only.rows) : null;
  const total = rows ? rows.length : data.n;
  const kept = rows ? rows.filter((row) => view.mask[row]).length : view.count;
  const counts = { all: total, kept, removed: total - kept };
  for (const name of TABS) {
    const button = byId(`tab-${name}`);
    button.setAttribute("aria-selected", name === tab);
    button.tabIndex = name === tab ? 0 : -1;
    button.querySelector("small").textContent = whole(counts[name]);
  }
  const drawn = figure.draw();
      byId("samples-note").textContent = counts[tab] === 0 ? "No samples."
    : `${drawn < counts[tab] ? `${whole(drawn)} of ${whole(counts[tab])} are drawn. ` : ""}${kind.note}`;
}

function setSamples() {
  for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => { tab = name; showSamples(); });
  byId("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: 2 }[event.key];
    if (!by) return;
    tab = TABS[(TABS.indexOf(tab) + by) % 3];
    showSamples();
    byId(`tab-${tab}`).focus();
  });
  byId("only-back").addEventListener("click", () => restrict(null));
  for (const name of ["smooth", "overlay"]) {
    const box = byId(name);
    if (!box) continue;
    box.addEventListener("change", () => { look[name] = box.checked; redraw(); });
  }
  moving.push(showSamples);
  fixed.push(() => {
    byId("low").textContent = text(view.ranking.scale.low);
    byId("high").textContent = text(view.ranking.scale.high);
    byId("ramp").style.background = `linear-gradient(to right, ${theme.ramp.map((c) => `rgb(${c})`).join(", ")})`;
  });
}

// The six worst and the six best.
function setEnds() {
  fixed.push(() => {
    for (const [id, slots] of Object.entries(ends())) {
      const parent = byId(id);
      parent.replaceChildren();
      for (const slot of slots) {
        const button = sampleButton(parent, slot, slots);
        const [name, number, ...more] = summary(data.rows[slot]);
        put(button, "b", `${name} · ${number}`);
        for (const remark of more) put(button, "span", remark);
      }
    }
  });
}

function setVariance() {
  const parent = byId("coordinates");
  if (!parent) return;
  const note = byId("variance-note");
  if (data.kind === "series") {
    for (let c = 0; c < channels; c += 1) {
      const ratio = channels > 1 ? 1.6 * wide : wide;
      const target = canvas(parent, ratio, `Epistemic standard deviation along the series, ${channelName(c)}`);
      moving.push(bandFigure(target, deviations, c * length, positions, {
        xlabel: c === channels - 1 && "position", ylabel: channels > 1 ? `standard deviation, channel ${c + 1}` : "standard deviation",
      }));
    }
    note.textContent = "Epistemic standard deviation at each position. Line: median over the samples; band: 10% to 90%. Gray: all; blue: kept.";
  } else if (data.kind === "images") {
    setMaps(parent, note);
  } else {
    const factor = ellipseFactor();
    const scaled = factor === 1 ? "" : `, drawn ${text(Math.max(factor, 1 / factor))} times ${factor > 1 ? "larger" : "smaller"}`;
    const target = canvas(parent, 1, "Ellipses of the epistemic variance of the kept samples");
    target.classList.add("square");
    moving.push(() => ellipses(target, view.kept, factor));
    note.textContent = `Ellipses of two epistemic standard deviations around kept samples (at most 300, evenly spaced by rank)${scaled}. The largest are cut to 6% of the axis.`;
  }
}

function setMaps(parent, note) {
  parent.classList.add("row");
  const maps = ["all", "kept", "removed"].map((label) => {
    const figure = put(parent, "figure");
    const target = canvas(figure, columns / rows, `Epistemic standard deviation by pixel, ${label} samples`);
    return [target, put(figure, "figcaption", label)];
  });
  const all = typicalSpread(Array.from({ length: data.even }, (_, slot) => slot));
  const top = robustTop(all, 0.995);
  fixed.push(() => heat(maps[0][0], all, top));
  moving.push(() => {
    const removed = view.all.filter((slot) => !view.mask[data.rows[slot]]);
    [view.kept, removed].forEach((slots, k) => {
      heat(maps[k + 1][0], typicalSpread(slots), top);
      maps[k + 1][1].textContent = `${["kept", "removed"][k]}${slots.length ? "" : " (none)"}`;
    });
  });
  note.textContent = `Epistemic standard deviation of each pixel, median over the samples (at most 200, evenly spaced by rank). The colors run from 0 to ${text(top)}, the 99.5% quantile of the first map.`;
}

function setProfile() {
  if (!byId("steps")) return;
  const target = canvas(byId("steps"), wide, "Trace of the epistemic covariance after each step");
  moving.push(bandFigure(target, decode(data.profile), 0, Float32Array.from(data.steps), {
    xlabel: "step", ylabel: "trace of the variance",
  }));
}

function setFilter() {
  slider.max = data.shares.length - 1;
  slider.value = data.start;
  rankings.forEach(({ name }, k) => { put(select, "option", name).value = k; });
  select.addEventListener("change", () => { choose(Number(select.value)); redraw(); });
  slider.addEventListener("input", () => { keep(Number(slider.value)); soon(move); });
  slider.form.addEventListener("submit", (event) => event.preventDefault());
  byId("save").addEventListener("click", saveKept);
  moving.push(describeFilter);
}

function describeFilter() {
  const { ranking, count, threshold } = view;
  const level = view.guaranteed ? percent(count / data.n) : `${Number((100 * data.shares[view.stop]).toPrecision(4))}%`;
  byId("level").textContent = level;
  slider.setAttribute("aria-valuetext", `${level}, ${whole(count)} of ${whole(data.n)} samples kept`);
  const limit = hasThreshold() ? `; ${ranking.name} ≤ ${text(threshold, 4)}` : "";
  byId("counts").textContent = `${whole(count)} of ${whole(data.n)} kept, ${whole(data.n - count)} removed${limit}`;
  byId("rule").textContent = view.guaranteed ? "Keep what is guaranteed" : `Keep the best${oneRegion ? "" : " of every region"}`;
  byId("filter").textContent = filterSentence();
  byId("guarantee").setAttribute("aria-pressed", view.guaranteed);
}

function setEffect() {
  moving.push(() => rates(byId("rates")));
  const target = canvas(byId("histogram"), wide, "Histogram of the score: kept and removed samples");
  moving.push(() => histogram(target));
  moving.push(() => { byId("histogram-note").textContent = histogramNote(); });
  const bought = canvas(byId("tradeoff"), halves, "Doubtful and bad samples among the kept, against the share kept");
  const above = canvas(byId("above"), halves, "Share of the samples above each p");
  let lines = [];
  fixed.push(() => {
    lines = tradeoffLines();
    byId("above-box").hidden = !view.ranking.p;
    if (view.ranking.p) keptAgainstP(above, byId("above-note"));
  });
  moving.push(() => {
    byId("tradeoff-box").hidden = !lines.length && !testCandidates().length;
    if (!byId("tradeoff-box").hidden) tradeoff(bought, byId("tradeoff-note"), lines);
  });
}

function setFigures() {
  setLabels();
  setFilter();
  setEnds();
  fixed.push(() => listIssues(byId("issue-list"), byId("issues-absent")), describeLabels);
  setSamples();
  setEffect();
  if (data.groups) moving.push(() => groupShares(byId("shares")));
  setVariance();
  setProfile();
}

function move() {
  for (const draw of moving) draw();
}

function redraw() {
  readTheme();
  for (const draw of fixed) draw();
  move();
  if (card.open) fillCard(shown.slot);
}

// After a label, the page behind the card is drawn when the card closes.
let stale = false;
function relabel() {
  if (view.guaranteed) keep(view.stop); // the guarantee was that of other labels
  stale = card.open;
  if (stale) fillCard(shown.slot);
  else redraw();
}
card.addEventListener("close", () => {
  if (stale) redraw();
  stale = false;
});

// At most one move per animation frame.
let waiting = 0;
function soon(action) {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(action);
}

loadLabels();
view.stop = data.start;
choose(0);
setFigures();
redraw();
let width = innerWidth;
addEventListener("resize", () => {
  if (width === innerWidth) return; // only the height changed, as when a phone hides its address bar
  width = innerWidth;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
// Print in light colors, whatever the screen shows.
function setPrinting(on) {
  printing = on;
  document.documentElement.toggleAttribute("data-print", on);
  redraw();
}
addEventListener("beforeprint", () => setPrinting(true));
addEventListener("afterprint", () => setPrinting(false));

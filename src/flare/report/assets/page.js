// The page: where each figure goes, and what the choice of score and the slider change.
const slider = byId("share");
const select = byId("score");
const fixed = []; // drawn once per layout and per ranking
const moving = []; // drawn at every move of the slider, too
const wide = innerWidth < 640 ? 1.5 : 3.2; // aspect ratio of a full-width figure

const figures = {
  before: new SampleFigure(byId("before"), `All samples as ${kind.noun}, colored by score`, () => view.all),
  after: new SampleFigure(byId("after"), `The kept samples as ${kind.noun}, colored by score`, () => view.kept),
};

function setSamples() {
  fixed.push(() => figures.before.draw());
  moving.push(() => figures.after.draw());
  fixed.push(() => {
    byId("low").textContent = text(view.ranking.scale.low);
    byId("high").textContent = text(view.ranking.scale.high);
    byId("ramp").style.background = `linear-gradient(to right, ${theme.ramp.map((c) => `rgb(${c})`).join(", ")})`;
  });
  if (data.kind === "images") {
    byId("samples-note").textContent =
      "Evenly spaced by rank, from the best (top left) to the worst (bottom right); the frame has the color of the score.";
  }
}

// The six worst and the six best, each a button that opens its card.
function setEnds() {
  fixed.push(() => {
    for (const [id, slots] of Object.entries(ends())) {
      const parent = byId(id);
      parent.replaceChildren();
      for (const slot of slots) {
        const row = data.rows[slot];
        const button = put(parent, "button", undefined, "sample");
        button.type = "button";
        const target = canvas(button, kind.smallRatio, `Sample ${sampleName(row)}`);
        const [index, number, ...more] = summary(row);
        put(button, "b", `${index} · ${number}`);
        for (const remark of more) put(button, "span", remark);
        button.addEventListener("click", () => openCard(slot, slots));
        kind.small(target, slot);
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
    note.textContent = `Ellipses of two epistemic standard deviations around kept samples (at most 300, evenly spaced by rank)${scaled}.`;
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
  note.textContent = `Epistemic standard deviation of each pixel, median over the samples (at most 200, evenly spaced by rank); the colors run from 0 to ${text(top)}, the 99.5% quantile of the first map.`;
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
  const level = `${Number((100 * data.shares[view.stop]).toPrecision(4))}%`;
  byId("level").textContent = level;
  slider.setAttribute("aria-valuetext", `${level}, ${whole(count)} of ${whole(data.n)} samples kept`);
  const limit = oneRegion ? `; ${ranking.name} ≤ ${text(threshold, 4)}` : "";
  byId("counts").textContent = `${whole(count)} of ${whole(data.n)} kept, ${whole(data.n - count)} removed${limit}`;
  byId("before-count").textContent = `${whole(data.n)} samples`;
  byId("after-count").textContent = `${whole(count)} samples`;
}

function setFigures() {
  setFilter();
  setEnds();
  moving.push(() => rates(byId("rates")));
  const target = canvas(byId("histogram"), wide, "Histogram of the score: kept and removed samples");
  moving.push(() => histogram(target));
  fixed.push(() => { byId("histogram-note").textContent = histogramNote(); });
  setSamples();
  if (data.groups) moving.push(() => groupShares(byId("shares")));
  setVariance();
  setProfile();
}

function move() {
  for (const figure of moving) figure();
}

function redraw() {
  readTheme();
  for (const figure of fixed) figure();
  move();
  if (card.open) fillCard(shown.slot);
}

// At most one move per animation frame.
let waiting = 0;
function soon(action) {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(action);
}

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

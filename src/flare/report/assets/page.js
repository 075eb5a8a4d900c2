// The page: where each figure goes, and what the slider changes.
const byId = (id) => document.getElementById(id);
const slider = byId("keep");
const fixed = []; // drawn once per layout
const moving = []; // drawn at every move of the slider; each takes the number of kept embedded samples

const narrow = innerWidth < 640;
const wide = narrow ? 1.5 : 3.2; // aspect ratio of a full-width figure
const noun = { points: "points", series: "curves", images: "images" }[data.kind];
const draw = { points, series: curves, images: tiles }[data.kind];

function put(parent, tag, content, className) {
  const made = document.createElement(tag);
  if (content !== undefined) made.textContent = content;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

// The number of embedded samples that the slider keeps; they are in order of rank.
function embedded(kept) {
  const first = data.ranks.findIndex((rank) => rank >= kept);
  return first < 0 ? data.shown : Math.max(1, first);
}

function panelsOf(id, label) {
  const many = Math.max(channels, 1);
  const ratio = data.kind === "series" ? (many > 1 && !narrow ? 2.6 : 1.6) : 1;
  return Array.from({ length: many }, (_, c) =>
    canvas(byId(id), ratio, many > 1 ? `${label}, ${channelName(c)}` : label));
}

function setSamples() {
  const before = panelsOf("before", `All samples as ${noun}, colored by score`);
  const after = panelsOf("after", `The kept samples as ${noun}, colored by score`);
  fixed.push(() => draw(before, data.shown));
  moving.push((kept) => draw(after, kept));
  byId("low").textContent = text(data.scale.low);
  byId("high").textContent = text(data.scale.high);
  fixed.push(() => {
    byId("ramp").style.background = `linear-gradient(to right, ${theme.ramp.map((c) => `rgb(${c})`).join(", ")})`;
  });
  if (data.kind === "images") {
    byId("samples-note").textContent =
      "An even choice over the ranks, from the most certain (top left) to the least certain (bottom right); the frame has the color of the score.";
  }
}

function setHistogram() {
  const target = canvas(byId("histogram"), wide, `Histogram of the score ${data.score} with the threshold`);
  moving.push(() => histogram(target, Number(slider.value)));
}

function setExtremes() {
  const ends = data.ends;
  const values = decode(ends.samples);
  const spread = ends.deviations ? decode(ends.deviations) : null;
  const points = decode(ends.scores).values;
  const half = ends.indices.length / 2;
  const most = (spread && extent(spread.values)[1]) || 1;
  ["most", "least"].forEach((id, side) => {
    const parent = byId(id);
    const own = Array.from({ length: half }, (_, k) => side * half + k);
    if (data.kind === "points") {
      parent.classList.add("list");
      const table = put(parent, "table");
      const head = put(put(table, "thead"), "tr");
      const names = ["sample", data.score, "x₁", "x₂", ...(spread ? ["sd x₁", "sd x₂"] : [])];
      const style = (k) => (k > 3 ? "number extra" : "number"); // extra numbers are hidden on narrow screens
      names.forEach((name, k) => { put(head, "th", name, style(k)).scope = "col"; });
      const body = put(table, "tbody");
      for (const i of own) {
        const line = put(body, "tr");
        const cells = [points[i], ...values.row(i), ...(spread ? spread.row(i) : [])].map((v) => text(v));
        [`#${ends.indices[i]}`, ...cells].forEach((cell, k) => put(line, "td", cell, style(k)));
      }
      return;
    }
    for (const i of own) {
      const figure = put(parent, "figure");
      const label = `Sample ${ends.indices[i]}, score ${text(points[i])}`;
      const ratio = data.kind === "series" ? 1.5 / Math.sqrt(channels) : ((spread ? 2 : 1) * columns) / rows;
      const target = canvas(figure, ratio, label);
      put(figure, "figcaption", `#${ends.indices[i]} · ${text(points[i])}`);
      const small = data.kind === "series" ? miniature : portrait;
      fixed.push(() => small(target, values.row(i), spread && spread.row(i), points[i], most));
    }
  });
  byId("extremes-note").textContent = {
    points: spread && !narrow ? "sd: the epistemic standard deviation of the coordinate." : "",
    series: `Index of the sample and its score${spread ? "; band: ± 2 epistemic standard deviations" : ""}. All on one scale.`,
    images: `Index of the sample and its score${spread ? "; beside the image its epistemic standard deviation, all on one scale" : ""}.`,
  }[data.kind];
}

function setVariance() {
  const parent = byId("coordinates");
  if (!parent) return;
  const note = byId("variance-note");
  if (data.kind === "series") {
    Array.from({ length: channels }, (_, c) => {
      const target = canvas(parent, wide, `Epistemic standard deviation along the series, ${channelName(c)}`);
      const figure = bandFigure(target, deviations, c * length, places, {
        xlabel: "position", ylabel: channels > 1 ? `standard deviation, channel ${c + 1}` : "standard deviation",
      });
      moving.push(figure);
    });
    note.textContent = "Epistemic standard deviation at each position. Line: median over the samples; band: 10 % to 90 %. Gray: all; blue: kept.";
  } else if (data.kind === "images") {
    parent.classList.add("row");
    const maps = ["all", "kept", "removed"].map((name) => {
      const figure = put(parent, "figure");
      const target = canvas(figure, columns / rows, `Epistemic standard deviation by pixel, ${name} samples`);
      return [target, put(figure, "figcaption", name)];
    });
    const all = rootMean(0, data.shown);
    const top = Math.max(...all, ...rootMean(Math.floor(data.shown / 2), data.shown));
    fixed.push(() => heat(maps[0][0], all, top));
    moving.push((kept) => {
      heat(maps[1][0], rootMean(0, kept), top);
      heat(maps[2][0], rootMean(kept, data.shown), top);
      maps[2][1].textContent = kept < data.shown ? "removed" : "removed (none)";
    });
    note.textContent = `Root of the mean epistemic variance of each pixel; the colors run from 0 to ${text(top)}.`;
  } else {
    const factor = ellipseFactor();
    const scaled = factor === 1 ? "" : `, drawn ${text(Math.max(factor, 1 / factor))} times ${factor > 1 ? "larger" : "smaller"}`;
    const target = canvas(parent, 1, "Ellipses of the epistemic variance of the kept samples");
    target.classList.add("square");
    moving.push((kept) => ellipses([target], kept, factor));
    note.textContent = `Ellipses of two epistemic standard deviations around kept samples (at most 300, evenly chosen)${scaled}.`;
  }
}

function setProfile() {
  if (!byId("steps")) return;
  const target = canvas(byId("steps"), wide, "Trace of the epistemic covariance after each step");
  moving.push(bandFigure(target, decode(data.profile), 0, Float32Array.from(data.steps), {
    xlabel: "step", ylabel: "trace of the variance",
  }));
}

function move() {
  const [fraction, kept, threshold] = data.stops[slider.value];
  const share = `${Number((100 * fraction).toPrecision(4))} %`;
  byId("share").textContent = share;
  slider.setAttribute("aria-valuetext", `${share}, ${whole(kept)} of ${whole(data.n)} samples`);
  byId("counts").textContent = `${whole(kept)} of ${whole(data.n)} kept, ${whole(data.n - kept)} removed; ${data.score} ≤ ${text(threshold, 4)}`;
  byId("before-count").textContent = `${whole(data.n)} samples`;
  byId("after-count").textContent = `${whole(kept)} samples`;
  const shown = embedded(kept);
  for (const figure of moving) figure(shown);
}

function redraw() {
  readTheme();
  for (const figure of fixed) figure();
  move();
}

// At most one redraw per animation frame.
let waiting = 0;
function soon(action) {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(action);
}

setSamples();
setHistogram();
setExtremes();
setVariance();
setProfile();
redraw();
slider.addEventListener("input", () => soon(move));
slider.form.addEventListener("submit", (event) => event.preventDefault());
let width = innerWidth;
addEventListener("resize", () => {
  if (width === innerWidth) return; // only the height changed, as when a phone hides its address bar
  width = innerWidth;
  soon(redraw);
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

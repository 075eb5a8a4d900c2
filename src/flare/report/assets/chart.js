// Canvases, axes and colors.
let printing = false;
const theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["card", "text", "muted", "grid", "rest", "accent", "real", "bad", "mix"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  // on a dark page every color of the ramp is lightened by the same fraction; heat maps are not changed
  const mix = Number(theme.mix);
  theme.heat = data.ramp.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  theme.ramp = theme.heat.map((rgb) => rgb.map((c) => Math.round(c + mix * (255 - c))));
}

// The color (r, g, b) at a position in [0, 1] along a ramp.
function along(ramp, place) {
  const last = ramp.length - 1;
  const at = Math.min(Math.max(place, 0), 1) * last;
  const i = Math.min(Math.floor(at), last - 1);
  return ramp[i].map((c, k) => Math.round(c + (at - i) * (ramp[i + 1][k] - c)));
}

// The color of a value of the chosen ranking.
function color(value, alpha = 1) {
  const { low, high, log } = view.ranking.scale;
  const place = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return `rgb(${along(theme.ramp, place).join(" ")} / ${alpha})`;
}

// The color of the score of a slot; hidden while the sample is being labeled.
function slotColor(slot, alpha) {
  return color(view.blind ? view.ranking.scale.low : view.ranking.values[data.rows[slot]], alpha);
}

// A new element with text and a class, at the end of its parent.
function put(parent, tag, content, className) {
  const made = document.createElement(tag);
  if (content !== undefined) made.textContent = content;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

// A canvas with a fixed aspect ratio, so that it is not distorted on narrow paper.
function canvas(parent, ratio, label) {
  const made = put(parent, "canvas");
  made.style.aspectRatio = ratio;
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  return made;
}

// A cleared drawing area of width × height CSS pixels.
function surface(target) {
  const width = target.clientWidth;
  const height = target.clientHeight;
  const density = printing ? 3 : Math.max(1, window.devicePixelRatio || 1);
  target.width = Math.max(1, Math.round(width * density));
  target.height = Math.max(1, Math.round(height * density));
  const pen = target.getContext("2d");
  pen.scale(density, density);
  pen.lineJoin = pen.lineCap = "round";
  return { pen, width, height };
}

function ticks([low, high], log, room) {
  if (log) {
    const decades = Math.log10(high / low);
    const heads = decades < 1.6 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / room));
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p += 1) {
      if (p % every) continue;
      found.push(...heads.map((h) => h * 10 ** p).filter((v) => v >= low && v <= high));
    }
    return found;
  }
  const rough = (high - low) / room;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1) {
    found.push(k === 0 ? 0 : Number((k * step).toPrecision(12)));
  }
  return found;
}

// Ticks with labels; on a logarithmic axis either all labels are powers of ten or none.
function labelled(found, log) {
  const power = log && found.some((v) => v < 1e-3 || v >= 1e5);
  return found.map((v) => [v, text(v, 3, power)]);
}

// Axes with grid and labels; returns the pen, clipped to the plot, and the maps X and Y to pixels.
function axes(target, { x, y, xlog = false, ylog = false, xlabel, ylabel, whole: integers = false }) {
  const { pen, width, height } = surface(target);
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const box = { right: width - 10, top: 24, bottom: height - (xlabel ? 38 : 24) };
  const yticks = labelled(ticks(y, ylog, Math.max(2, (box.bottom - box.top) / 44)), ylog);
  box.left = 12 + Math.max(18, ...yticks.map(([, label]) => pen.measureText(label).width));
  const xticks = labelled(ticks(x, xlog, Math.max(2, (box.right - box.left) / 62)), xlog);
  const map = ([low, high], log, from, to) => {
    const f = log ? Math.log : (v) => v;
    return (v) => from + ((f(v) - f(low)) / (f(high) - f(low) || 1)) * (to - from);
  };
  const X = map(x, xlog, box.left, box.right);
  const Y = map(y, ylog, box.bottom, box.top);
  pen.strokeStyle = theme.grid;
  pen.fillStyle = theme.muted;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const [v, label] of yticks) {
    line(pen, box.left, Y(v), box.right, Y(v));
    pen.fillText(label, box.left - 6, Y(v));
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  let free = -Infinity; // end of the previous label, to avoid overlaps
  for (const [v, label] of xticks) {
    if (integers && !Number.isInteger(v)) continue;
    line(pen, X(v), box.top, X(v), box.bottom);
    const half = pen.measureText(label).width / 2;
    const at = Math.min(X(v), width - half - 1);
    if (at - half < free + 6) continue;
    pen.fillText(label, at, box.bottom + 6);
    free = at + half;
  }
  pen.textAlign = "right";
  pen.textBaseline = "bottom";
  if (xlabel) pen.fillText(xlabel, box.right, height - 1);
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText(ylabel, 2, 3);
  pen.beginPath();
  pen.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  pen.clip();
  return { pen, X, Y, box };
}

function dot(pen, x, y, radius) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
}

function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

function path(pen, xs, ys, X, Y) {
  pen.beginPath();
  for (let i = 0; i < xs.length; i += 1) pen.lineTo(X(xs[i]), Y(ys[i]));
  if (xs.length === 1) pen.lineTo(X(xs[0]), Y(ys[0]));
}

function band(pen, xs, low, high, X, Y) {
  pen.beginPath();
  for (let i = 0; i < xs.length; i += 1) pen.lineTo(X(xs[i]), Y(low[i]));
  for (let i = xs.length - 1; i >= 0; i -= 1) pen.lineTo(X(xs[i]), Y(high[i]));
  pen.closePath();
  pen.fill();
}

// The range of some values with a margin; never empty.
function padded(low, high, share = 0.04) {
  const pad = (high - low) * share || Math.abs(high) * share || 0.5;
  return [low - pad, high + pad];
}

function extent(values, start = 0, stop = values.length) {
  let low = Infinity;
  let high = -Infinity;
  for (let i = start; i < stop; i += 1) {
    if (values[i] < low) low = values[i];
    if (values[i] > high) high = values[i];
  }
  return [low, high];
}

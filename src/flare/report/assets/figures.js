// One function per figure; each takes the number of embedded samples to show, in order of rank.

// ── points ──
function equalAxes() {
  const even = (axis) => extent(samples.values.filter((_, i) => i % 2 === axis));
  const [x, y] = [even(0), even(1)];
  const half = (Math.max(x[1] - x[0], y[1] - y[0]) || 1) * 0.54;
  return [x, y].map(([low, high]) => [(low + high) / 2 - half, (low + high) / 2 + half]);
}

function pointAxes(target) {
  const [x, y] = equalAxes();
  return axes(target, { x, y, xlabel: "x₁", ylabel: "x₂" });
}

function points(targets, count) {
  const { pen, X, Y } = pointAxes(targets[0]);
  const alpha = Math.min(0.95, Math.max(0.6, 24 / Math.sqrt(count)));
  for (const i of mixed(count)) {
    const [a, b] = samples.row(i);
    pen.fillStyle = color(scores[i], alpha);
    pen.beginPath();
    pen.arc(X(a), Y(b), 2.6, 0, 2 * Math.PI);
    pen.fill();
  }
}

// One round scale factor for all ellipses: unscaled, they may be invisible or cover everything.
function ellipseFactor() {
  const second = decode(data.ellipses);
  const largest = Float64Array.from({ length: data.shown }, (_, i) => Math.sqrt(Math.max(...second.row(i).slice(0, 2))));
  const typical = quantile(largest.sort(), 0.5);
  const wanted = (equalAxes()[0][1] - equalAxes()[0][0]) * 0.025;
  const rough = typical > 0 ? wanted / (2 * typical) : 1;
  if (rough > 0.2 && rough < 2) return 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [5, 2, 1].map((m) => m * power).find((f) => f <= rough);
}

function ellipses(targets, count, factor) {
  const { pen, X, Y } = pointAxes(targets[0]);
  const second = decode(data.ellipses);
  const [across, up] = [X(1) - X(0), Y(1) - Y(0)];
  pen.lineWidth = 1.2;
  for (const i of evenly(count, 300).reverse()) { // large ones first, so that small ones stay visible
    const [a, b] = samples.row(i);
    const [u, v, c] = second.row(i);
    const middle = (u + v) / 2;
    const root = Math.hypot((u - v) / 2, c);
    const axis = (value) => 2 * factor * Math.sqrt(Math.max(value, 0));
    pen.strokeStyle = color(scores[i], 0.9);
    pen.fillStyle = color(scores[i], 0.18);
    pen.beginPath();
    pen.save(); // the path in data units, the stroke in pixels
    pen.translate(X(a), Y(b));
    pen.scale(across, up);
    pen.ellipse(0, 0, axis(middle + root), axis(middle - root), 0.5 * Math.atan2(2 * c, u - v), 0, 2 * Math.PI);
    pen.restore();
    pen.fill();
    pen.stroke();
  }
}

// ── series ──
const channels = data.kind === "series" ? samples.shape[1] : 0;
const length = data.kind === "series" ? samples.shape[2] : 0;
const places = Float32Array.from({ length }, (_, i) => i);
const channelName = (c) => (channels > 1 ? `channel ${c + 1}` : "value");

// The range of each channel over all samples.
const channelRanges = Array.from({ length: channels }, (_, c) => {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < data.shown; i += 1) {
    const [a, b] = extent(samples.row(i), c * length, (c + 1) * length);
    low = Math.min(low, a);
    high = Math.max(high, b);
  }
  return padded(low, high);
});

const span = padded(0, Math.max(length - 1, 0), 0);

function curves(targets, count) {
  const alpha = Math.min(0.9, Math.max(0.22, 7 / Math.sqrt(count)));
  targets.forEach((target, c) => {
    const { pen, X, Y } = axes(target, {
      x: span, y: channelRanges[c], xlabel: c === channels - 1 && "position", ylabel: channelName(c), whole: true,
    });
    pen.lineWidth = length === 1 ? 4 : 1;
    for (const i of mixed(count)) {
      pen.strokeStyle = color(scores[i], alpha);
      path(pen, places, samples.row(i).subarray(c * length, (c + 1) * length), X, Y);
      pen.stroke();
    }
  });
}

// One small sample with a band of 2 standard deviations.
function miniature(target, values, spread, score) {
  const { pen, width, height } = surface(target);
  const each = height / channels;
  for (let c = 0; c < channels; c += 1) {
    const [low, high] = channelRanges[c];
    const X = (v) => 2 + (v / Math.max(length - 1, 1)) * (width - 4);
    const Y = (v) => c * each + 2 + ((high - v) / (high - low)) * (each - 4);
    const row = values.subarray(c * length, (c + 1) * length);
    if (spread) {
      const wide = spread.subarray(c * length, (c + 1) * length);
      pen.fillStyle = color(score, 0.28);
      band(pen, places, row.map((v, i) => v - 2 * wide[i]), row.map((v, i) => v + 2 * wide[i]), X, Y);
    }
    pen.strokeStyle = color(score);
    pen.lineWidth = length === 1 ? 5 : 1.6;
    path(pen, places, row, X, Y);
    pen.stroke();
  }
}

// ── bands: the median and the 10 % and 90 % quantiles over the first `count` samples ──
function columnQuantiles(table, offset, width, count) {
  const out = [0.1, 0.5, 0.9].map(() => new Float32Array(width));
  const column = new Float32Array(count);
  for (let j = 0; j < width; j += 1) {
    for (let i = 0; i < count; i += 1) column[i] = table.values[i * table.size + offset + j];
    column.sort();
    [0.1, 0.5, 0.9].forEach((q, k) => { out[k][j] = quantile(column, q); });
  }
  return out;
}

// A figure of bands over `xs`: all samples in gray, the kept ones in color.
function bandFigure(target, table, offset, xs, labels) {
  const all = columnQuantiles(table, offset, xs.length, data.shown);
  const few = columnQuantiles(table, offset, xs.length, Math.max(1, Math.ceil(data.shown * 0.05)));
  // on a logarithmic axis, zeros are drawn at the lower end
  const bottom = Math.min(...[...all[0], ...all[1], ...few[0]].filter((v) => v > 0));
  const top = extent(all[2])[1];
  const log = Number.isFinite(bottom) && top / bottom >= 30;
  const y = log ? [bottom / 1.3, top * 1.3] : [0, top * 1.06 || 1];
  return (count) => {
    const { pen, X, Y: up } = axes(target, { x: extent(xs), y, ylog: log, whole: true, ...labels });
    const Y = (v) => up(Math.max(v, y[0]));
    const kept = columnQuantiles(table, offset, xs.length, count);
    for (const [quantiles, ink, alpha] of [[all, theme.muted, 0.22], [kept, theme.accent, 0.28]]) {
      pen.fillStyle = pen.strokeStyle = ink;
      pen.globalAlpha = alpha;
      band(pen, xs, quantiles[0], quantiles[2], X, Y);
      pen.globalAlpha = 1;
      pen.lineWidth = 2;
      path(pen, xs, quantiles[1], X, Y);
      pen.stroke();
    }
  };
}

// ── images ──
const [rows, columns, colors] = data.kind === "images" ? samples.shape.slice(1) : [1, 1, 1];

// Pixels (rows × columns) as a small canvas; `paint` returns the color of a pixel.
function bitmap(paint) {
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const pen = small.getContext("2d");
  const image = pen.createImageData(columns, rows);
  for (let p = 0; p < rows * columns; p += 1) image.data.set([...paint(p), 255], 4 * p);
  pen.putImageData(image, 0, 0);
  return small;
}

function picture(values) {
  const { low, high } = data.samples;
  const gray = (v) => Math.round((255 * (v - low)) / (high - low || 1));
  return bitmap((p) => [0, 1, 2].map((k) => gray(values[p * colors + (colors === 3 ? k : 0)])));
}

function stamp(pen, image, x, y, width, height) {
  pen.imageSmoothingEnabled = width < columns;
  pen.drawImage(image, x, y, width, height);
}

const bitmaps = new Map();

function tiles(targets, count) {
  const { pen, width, height } = surface(targets[0]);
  const across = Math.max(3, Math.min(10, Math.floor(width / Math.max(44, (44 * columns) / rows))));
  const cell = width / across;
  const inside = cell - 8;
  const tall = (inside * rows) / columns;
  const down = Math.max(1, Math.floor(height / (tall + 8)));
  evenly(count, across * down).forEach((i, k) => {
    const x = (k % across) * cell;
    const y = Math.floor(k / across) * (tall + 8);
    if (!bitmaps.has(i)) bitmaps.set(i, picture(samples.row(i)));
    pen.fillStyle = color(scores[i]);
    pen.fillRect(x + 1, y + 1, cell - 2, tall + 6);
    stamp(pen, bitmaps.get(i), x + 4, y + 4, inside, tall);
  });
}

// One framed image with its standard deviations beside it.
function portrait(target, values, spread, score, most) {
  const { pen, width, height } = surface(target);
  const part = spread ? width / 2 - 2 : width;
  pen.fillStyle = color(score);
  pen.fillRect(0, 0, part, height);
  stamp(pen, picture(values), 3, 3, part - 6, height - 6);
  if (spread) stamp(pen, bitmap((p) => along(theme.heat, spread[p] / most)), width - part, 0, part, height);
}

// The root of the mean variance of the samples from..to, one value per pixel.
function rootMean(from, to) {
  const sum = new Float64Array(rows * columns);
  for (let i = from; i < to; i += 1) deviations.row(i).forEach((v, p) => { sum[p] += v * v; });
  return sum.map((v) => Math.sqrt(v / Math.max(1, to - from)));
}

function heat(target, values, most) {
  const { pen, width, height } = surface(target);
  stamp(pen, bitmap((p) => along(theme.heat, values[p] / (most || 1))), 0, 0, width, height);
}

// ── histogram ──
function histogram(target, stop) {
  const { edges, counts } = data.bins;
  const { log } = data.scale;
  const [, kept, threshold] = data.stops[stop];
  const { pen, X, Y, box } = axes(target, {
    x: [edges[0], edges[edges.length - 1]], y: [0, Math.max(...counts) * 1.06], xlog: log,
    xlabel: log ? `${data.score} (log scale)` : data.score, ylabel: "samples",
  });
  let before = 0;
  counts.forEach((count, i) => {
    const [left, right] = [X(edges[i]), X(edges[i + 1])];
    const below = Math.min(Math.max(kept - before, 0), count);
    pen.fillStyle = theme.rest;
    pen.fillRect(left + 0.5, Y(count), right - left - 1, Y(below) - Y(count));
    pen.fillStyle = color(log ? Math.sqrt(edges[i] * edges[i + 1]) : (edges[i] + edges[i + 1]) / 2);
    pen.fillRect(left + 0.5, Y(below), right - left - 1, Y(0) - Y(below));
    before += count;
  });
  const x = Math.min(Math.max(X(threshold), box.left + 1), box.right - 1);
  target.dataset.threshold = threshold;
  pen.strokeStyle = theme.text;
  pen.lineWidth = 1.5;
  pen.setLineDash([5, 4]);
  line(pen, x, box.top, x, box.bottom);
}

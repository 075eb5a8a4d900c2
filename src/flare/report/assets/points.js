// Samples as points of the plane.
const pointKind = {
  noun: "points",
  panels: 1,
  ratio: 1,
  smallRatio: 1,

  draw([target], slots) {
    const { pen, X, Y } = pointAxes(target);
    const alpha = Math.min(0.95, Math.max(0.6, 24 / Math.sqrt(slots.length)));
    for (const k of mixed(slots.length)) {
      const [a, b] = samples.row(slots[k]);
      pen.fillStyle = slotColor(slots[k], alpha);
      dot(pen, X(a), Y(b), 2.6);
      pen.fill();
    }
    return { X, Y };
  },

  // The slot whose point is nearest to a pixel, within reach.
  find({ X, Y }, slots, x, y) {
    let [best, least] = [null, 14 ** 2];
    for (const slot of slots) {
      const [a, b] = samples.row(slot);
      const distance = (X(a) - x) ** 2 + (Y(b) - y) ** 2;
      if (distance < least) [best, least] = [slot, distance];
    }
    return best;
  },

  mark({ pen }, { X, Y }, slot) {
    const [a, b] = samples.row(slot);
    dot(pen, X(a), Y(b), 7);
    pen.strokeStyle = theme.text;
    pen.lineWidth = 2;
    pen.stroke();
  },

  // One point among all the others.
  small(target, slot) {
    const { pen, width, height } = surface(target);
    const [x, y] = equalAxes();
    const X = (v) => ((v - x[0]) / (x[1] - x[0])) * width;
    const Y = (v) => height - ((v - y[0]) / (y[1] - y[0])) * height;
    pen.fillStyle = theme.rest;
    for (const other of view.all.filter((_, k) => k % Math.ceil(view.all.length / 400) === 0)) {
      const [a, b] = samples.row(other);
      pen.fillRect(X(a) - 0.75, Y(b) - 0.75, 1.5, 1.5);
    }
    const [a, b] = samples.row(slot);
    dot(pen, X(a), Y(b), 5);
    pen.fillStyle = slotColor(slot);
    pen.fill();
    pen.strokeStyle = theme.text;
    pen.lineWidth = 1.2;
    pen.stroke();
  },

  // The point with its standard deviations, and the nearest training sample.
  card(parent, slot) {
    const target = canvas(parent, 1.4, "The sample among all others");
    const { pen, X, Y } = pointAxes(target);
    pen.fillStyle = theme.rest;
    for (const other of view.all) {
      const [a, b] = samples.row(other);
      dot(pen, X(a), Y(b), 1.5);
      pen.fill();
    }
    const [a, b] = samples.row(slot);
    pen.lineWidth = 2;
    if (nearest) {
      const [c, d] = nearest.row(data.real_of[slot]);
      pen.strokeStyle = theme.real;
      dot(pen, X(c), Y(d), 6);
      pen.stroke();
    }
    pen.fillStyle = slotColor(slot);
    dot(pen, X(a), Y(b), 5);
    pen.fill();
    const spread = deviations ? `, ± ${Array.from(deviations.row(slot), (v) => text(v)).join(" and ")}` : "";
    return `At (${text(a)}, ${text(b)})${spread}.${nearest ? " Ring: the nearest training sample." : ""}`;
  },
};

function equalAxes() {
  const even = (axis) => extent(samples.values.filter((_, i) => i % 2 === axis));
  const [x, y] = [even(0), even(1)];
  const half = (Math.max(x[1] - x[0], y[1] - y[0]) || 1) * 0.54;
  return [x, y].map(([low, high]) => [(low + high) / 2 - half, (low + high) / 2 + half]);
}

function pointAxes(target) {
  let [x, y] = equalAxes();
  const stretch = target.clientWidth / target.clientHeight; // one unit is as long in both directions
  if (stretch > 1.01) x = padded(...x, (stretch - 1) / 2);
  return axes(target, { x, y, xlabel: "x₁", ylabel: "x₂" });
}

// One round scale factor for all ellipses: unscaled, they may be invisible or cover everything.
function ellipseFactor() {
  const largest = Float64Array.from({ length: data.even }, (_, slot) => Math.max(...deviations.row(slot)));
  const typical = quantile(largest.sort(), 0.5);
  const wanted = (equalAxes()[0][1] - equalAxes()[0][0]) * 0.025;
  const rough = typical > 0 ? wanted / (2 * typical) : 1;
  if (rough > 0.2 && rough < 2) return 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [5, 2, 1].map((m) => m * power).find((f) => f <= rough);
}

function ellipses(target, slots, factor) {
  const { pen, X, Y } = pointAxes(target);
  const covariance = data.covariance ? decode(data.covariance).values : new Float32Array(data.rows.length);
  const [across, up] = [X(1) - X(0), Y(1) - Y(0)];
  pen.lineWidth = 1.2;
  for (const k of evenly(slots.length, 300).reverse()) { // large ones first, so that small ones stay visible
    const [a, b] = samples.row(slots[k]);
    const [u, v] = deviations.row(slots[k]).map((deviation) => deviation ** 2);
    const c = covariance[slots[k]];
    const middle = (u + v) / 2;
    const root = Math.hypot((u - v) / 2, c);
    const axis = (value) => 2 * factor * Math.sqrt(Math.max(value, 0));
    pen.strokeStyle = slotColor(slots[k], 0.9);
    pen.fillStyle = slotColor(slots[k], 0.18);
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

// Samples as points of the plane.
const pointKind = {
  noun: "points",
  panels: 1,
  ratio: 1,
  smallRatio: 1,
  get note() { return pointLimits.outside ? "Points outside of the axes are drawn on the border." : ""; },

  draw([target], slots) {
    target.classList.add("square");
    const { pen, X, Y } = pointAxes(target);
    const alpha = Math.min(0.95, Math.max(0.6, 24 / Math.sqrt(slots.length)));
    for (const k of mixed(slots.length)) {
      const [a, b] = samples.row(slots[k]);
      pen.fillStyle = slotColor(slots[k], alpha);
      dot(pen, X(a), Y(b), 2.6);
      pen.fill();
    }
    return { X, Y, drawn: slots.length };
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
    const { x, y } = pointLimits;
    const X = inside(x, (v) => ((v - x[0]) / (x[1] - x[0])) * width);
    const Y = inside(y, (v) => height - ((v - y[0]) / (y[1] - y[0])) * height);
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
    const spread = deviations && !view.blind ? `, ± ${Array.from(deviations.row(slot), (v) => text(v)).join(" and ")}` : "";
    return `At (${text(a)}, ${text(b)})${spread}.${nearest ? " Ring: the nearest training sample." : ""}`;
  },
};

// Equal axes that span all points, unless outliers would take up more than a third of an axis; then 99% of them.
const pointLimits = data.kind === "points" ? findLimits() : null;

function findLimits() {
  let outside = false;
  const [x, y] = [0, 1].map((axis) => {
    const sorted = samples.values.filter((_, i) => i % 2 === axis).sort();
    const last = sorted.length - 1;
    const [low, high] = [sorted[0], sorted[last]];
    const trim = last < 40 ? 0 : Math.max(1, Math.floor(0.005 * last));
    const inner = [sorted[trim], sorted[last - trim]];
    if (inner[1] <= inner[0] || high - low <= 1.5 * (inner[1] - inner[0])) return [low, high];
    outside = true;
    return inner;
  });
  const half = (Math.max(x[1] - x[0], y[1] - y[0]) || 1) * 0.54;
  const equal = ([low, high]) => [(low + high) / 2 - half, (low + high) / 2 + half];
  return { x: equal(x), y: equal(y), outside };
}

// A map to pixels that keeps values beyond the limits on the border.
const inside = ([low, high], map) => (value) => map(Math.min(Math.max(value, low), high));

function pointAxes(target) {
  let { x, y } = pointLimits;
  const stretch = target.clientWidth / target.clientHeight; // one unit is as long in both directions
  if (stretch > 1.01) x = padded(...x, (stretch - 1) / 2);
  const { X, Y, ...rest } = axes(target, { x, y, xlabel: "x₁", ylabel: "x₂" });
  return { X: inside(x, X), Y: inside(y, Y), ...rest };
}

// One round scale factor for all ellipses, so that 9 of 10 are smaller than 4% of the axis.
function ellipseFactor() {
  const largest = Float64Array.from({ length: data.even }, (_, slot) => Math.max(...deviations.row(slot)));
  const typical = quantile(largest.sort(), 0.9);
  const wanted = (pointLimits.x[1] - pointLimits.x[0]) * 0.04;
  const rough = typical > 0 ? wanted / (2 * typical) : 1;
  if (rough > 0.5 && rough < 2) return 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [5, 2, 1].map((m) => m * power).find((f) => f <= rough);
}

function ellipses(target, slots, factor) {
  const { pen, X, Y } = pointAxes(target);
  const covariance = data.covariance ? decode(data.covariance).values : new Float32Array(data.rows.length);
  const { x, y } = pointLimits;
  const [across, up] = [(X(x[1]) - X(x[0])) / (x[1] - x[0]), (Y(y[1]) - Y(y[0])) / (y[1] - y[0])];
  const largest = 0.06 * (x[1] - x[0]);
  pen.lineWidth = 1.2;
  for (const k of evenly(slots.length, 300).reverse()) { // large ones first, so that small ones stay visible
    const [a, b] = samples.row(slots[k]);
    const [u, v] = deviations.row(slots[k]).map((deviation) => deviation ** 2);
    const c = covariance[slots[k]];
    const middle = (u + v) / 2;
    const root = Math.hypot((u - v) / 2, c);
    const axis = (value) => Math.min(2 * factor * Math.sqrt(Math.max(value, 0)), largest);
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

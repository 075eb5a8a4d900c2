// Samples as curves, one panel per channel.
const channels = data.kind === "series" ? samples.shape[1] : 1;
const length = data.kind === "series" ? samples.shape[2] : 0;
const positions = Float32Array.from({ length }, (_, i) => i);
const span = padded(0, Math.max(length - 1, 0), 0);
const channelName = (c) => (channels > 1 ? `channel ${c + 1}` : data.columns.some(([, mean, std]) => mean || std !== 1) ? "standardized value" : "value");
const axisLabel = data.columns.length > 8 ? "column" : data.columns.map(([name]) => name).join(", ") || "position";
const channelOf = (row, c) => row.subarray(c * length, (c + 1) * length);

// The range of each channel over all samples.
const channelRanges = Array.from({ length: data.kind === "series" ? channels : 0 }, (_, c) => {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < data.rows.length; i += 1) {
    const [a, b] = extent(samples.row(i), c * length, (c + 1) * length);
    low = Math.min(low, a);
    high = Math.max(high, b);
  }
  return padded(low, high);
});

const curveKind = {
  noun: "curves",
  panels: channels,
  ratio: innerWidth < 640 ? 1.6 : channels > 1 ? 4 : 2.6,
  smallRatio: 1.5 / Math.sqrt(channels),
  note: "",

  draw(targets, slots) {
    const alpha = Math.min(0.9, Math.max(0.22, 7 / Math.sqrt(slots.length)));
    const maps = targets.map((target, c) => {
      const { pen, X, Y } = channelAxes(target, c);
      pen.lineWidth = length === 1 ? 4 : 1;
      for (const k of mixed(slots.length)) {
        pen.strokeStyle = slotColor(slots[k], alpha);
        path(pen, positions, channelOf(samples.row(slots[k]), c), X, Y);
        pen.stroke();
      }
      return { X, Y };
    });
    return { maps, drawn: slots.length };
  },

  // The slot whose curve passes nearest to a pixel, within reach.
  find({ maps }, slots, x, y, panel) {
    const { X, Y } = maps[panel];
    const at = Math.round(((x - X(0)) / (X(1) - X(0))));
    if (at < 0 || at >= length) return null;
    let [best, least] = [null, 14];
    for (const slot of slots) {
      const distance = Math.abs(Y(samples.row(slot)[panel * length + at]) - y);
      if (distance < least) [best, least] = [slot, distance];
    }
    return best;
  },

  mark({ pen }, { maps }, slot, panel) {
    const { X, Y } = maps[panel];
    for (const [ink, width] of [[theme.card, 6], [theme.text, 2.5]]) {
      pen.strokeStyle = ink;
      pen.lineWidth = width;
      path(pen, positions, channelOf(samples.row(slot), panel), X, Y);
      pen.stroke();
    }
  },

  // One curve with a band of 2 standard deviations.
  small(target, slot) {
    const { pen, width, height } = surface(target);
    const each = height / channels;
    for (let c = 0; c < channels; c += 1) {
      const [low, high] = channelRanges[c];
      const X = (v) => 2 + (v / Math.max(length - 1, 1)) * (width - 4);
      const Y = (v) => c * each + 2 + ((high - v) / (high - low)) * (each - 4);
      drawCurve(pen, slot, c, X, Y);
    }
  },

  // The curve with its band, channel by channel, and the nearest training sample.
  card(parent, slot) {
    for (let c = 0; c < channels; c += 1) {
      const target = canvas(parent, channels > 1 ? 3.2 : 2, `The sample, ${channelName(c)}`);
      const { pen, X, Y } = channelAxes(target, c);
      if (nearest) {
        pen.strokeStyle = theme.real;
        pen.lineWidth = 2;
        pen.setLineDash([5, 4]);
        path(pen, positions, channelOf(nearest.row(data.real_of[slot]), c), X, Y);
        pen.stroke();
        pen.setLineDash([]);
      }
      drawCurve(pen, slot, c, X, Y);
    }
    const found = [];
    if (deviations && !view.blind) found.push("Band: ± 2 epistemic standard deviations.");
    if (nearest) found.push("Dashed: the nearest training sample.");
    return found.join(" ");
  },
};

function channelAxes(target, c) {
  return axes(target, {
    x: span, y: channelRanges[c], xlabel: c === channels - 1 && axisLabel, ylabel: channelName(c), whole: true,
  });
}

function drawCurve(pen, slot, c, X, Y) {
  const row = channelOf(samples.row(slot), c);
  if (deviations && !view.blind) {
    const wide = channelOf(deviations.row(slot), c);
    pen.fillStyle = slotColor(slot, 0.28);
    band(pen, positions, row.map((v, i) => v - 2 * wide[i]), row.map((v, i) => v + 2 * wide[i]), X, Y);
  }
  pen.strokeStyle = slotColor(slot);
  pen.lineWidth = length === 1 ? 5 : 1.8;
  path(pen, positions, row, X, Y);
  pen.stroke();
}

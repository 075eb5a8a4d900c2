// What keeping fewer samples buys: doubtful and bad samples among the kept, against the share that is kept.
// For each position of the slider, the share of the kept that is in a set of rows.
function sharesOfKept({ order, quotas }, set) {
  const inside = quotas[0].map(() => [0]); // per region: how many of its best k are in the set
  for (const row of order) {
    const own = inside[data.regions[row]];
    own.push(own[own.length - 1] + (set.has(row) ? 1 : 0));
  }
  return quotas.map((quota) => {
    const found = quota.reduce((sum, count, region) => sum + inside[region][count], 0);
    return found / quota.reduce((sum, count) => sum + count, 0);
  });
}

// The lines of the chart: name, color, and share of the kept per position of the slider.
function tradeoffLines() {
  const { ranking } = view;
  const lines = [];
  if (ranking.p) lines.push([`doubtful${byScore()} (p ≤ ${data.alpha})`, theme.muted, sharesOfKept(ranking, doubtfulRows(ranking))]);
  if (bad) lines.push(["known to be bad", theme.bad, sharesOfKept(ranking, bad)]);
  return lines;
}

function tradeoff(target, note, lines) {
  const tests = view.ranking === rankings[0] ? testCandidates() : [];
  const { risk, confidence, kept } = data.labels;
  const top = Math.max(0.02, ...lines.flatMap(([, , shares]) => shares), ...tests.flatMap(({ bound }) => [bound, risk]));
  const { pen, X, Y, box } = axes(target, {
    x: [0, 100], y: [0, Math.min(100, 108 * top)], xlabel: "% kept", ylabel: "% of the kept",
  });
  pen.lineWidth = 2;
  for (const [, ink, shares] of lines) {
    pen.strokeStyle = ink;
    path(pen, data.shares, shares, (share) => X(100 * share), (share) => Y(100 * share));
    pen.stroke();
  }
  tests.forEach(({ wrong, size, bound }, k) => {
    const x = X((100 * kept[k]) / data.n);
    pen.strokeStyle = pen.fillStyle = theme.text;
    line(pen, x, Y((100 * wrong) / size), x, Y(100 * bound));
    line(pen, x - 5, Y(100 * bound), x + 5, Y(100 * bound));
    dot(pen, x, Y((100 * wrong) / size), 4);
    pen.fill();
  });
  pen.lineWidth = 1;
  pen.setLineDash([5, 4]);
  pen.strokeStyle = theme.accent;
  const at = X((100 * view.count) / data.n);
  line(pen, at, box.top, at, box.bottom);
  if (tests.length) line(pen, box.left, Y(100 * risk), box.right, Y(100 * risk));
  note.replaceChildren();
  for (const [name, ink] of lines) swatch(note, ink, name);
  if (tests.length) swatch(note, theme.text, `labeled bad, and its bound with confidence ${confidence}`);
  swatch(note, theme.accent, `current filter${tests.length ? `, and the risk of ${percent(risk)}` : ""}`);
}

function swatch(parent, ink, name) {
  const entry = put(parent, "span", undefined, "swatch");
  put(entry, "i").style.background = ink;
  entry.append(name);
}

// The share of samples with a p above each level; of real data, it is 1 - p.
function keptAgainstP(target, note) {
  const { pen, X, Y, box } = axes(target, { x: [0, 1], y: [0, 100], xlabel: "p", ylabel: "% of samples above p" });
  const sorted = Float64Array.from(view.ranking.p).sort();
  pen.lineWidth = 2;
  pen.strokeStyle = theme.real;
  line(pen, X(0), Y(100), X(1), Y(0));
  pen.strokeStyle = theme.text;
  pen.beginPath();
  pen.moveTo(X(0), Y(100));
  sorted.forEach((p, k) => {
    pen.lineTo(X(p), Y(100 * (1 - k / sorted.length)));
    pen.lineTo(X(p), Y(100 * (1 - (k + 1) / sorted.length)));
  });
  pen.stroke();
  pen.lineWidth = 1;
  pen.setLineDash([5, 4]);
  pen.strokeStyle = theme.muted;
  line(pen, X(data.alpha), box.top, X(data.alpha), box.bottom);
  note.replaceChildren();
  swatch(note, theme.text, "these samples");
  swatch(note, theme.real, data.held_out ? "real data" : "training data");
  swatch(note, theme.muted, `doubtful up to p = ${data.alpha}`);
}

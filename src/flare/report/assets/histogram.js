// The values of all samples in bins, with real data behind them.
function countBins(values, edges, mask) {
  const counts = new Array(edges.length - 1).fill(0);
  values.forEach((value, row) => {
    if (mask && !mask[row]) return;
    let [low, high] = [0, counts.length - 1]; // values beyond the edges count in the first and the last bin
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (value >= edges[middle]) low = middle;
      else high = middle - 1;
    }
    counts[low] += 1;
  });
  return counts;
}

// The outline of bins as steps.
function stairs(pen, edges, counts, X, Y) {
  pen.beginPath();
  pen.moveTo(X(edges[0]), Y(0));
  counts.forEach((count, i) => {
    pen.lineTo(X(edges[i]), Y(count));
    pen.lineTo(X(edges[i + 1]), Y(count));
  });
  pen.lineTo(X(edges[counts.length]), Y(0));
}

function histogram(target) {
  const { ranking, mask, threshold } = view;
  const { edges, values, scale } = ranking;
  const all = countBins(values, edges);
  const kept = countBins(values, edges, mask);
  const real = ranking.real && scaledReal(ranking);
  const { pen, X, Y, box } = axes(target, {
    x: [edges[0], edges[edges.length - 1]], y: [0, Math.max(...all, ...(real || [])) * 1.06], xlog: scale.log,
    xlabel: scale.log ? `${ranking.label} (log scale)` : ranking.label, ylabel: "samples",
  });
  if (real) {
    stairs(pen, edges, real, X, Y);
    pen.globalAlpha = 0.3;
    pen.fillStyle = theme.real;
    pen.fill();
    pen.globalAlpha = 1;
  }
  all.forEach((count, i) => {
    const [left, right] = [X(edges[i]), X(edges[i + 1])];
    pen.fillStyle = theme.rest;
    pen.fillRect(left + 0.5, Y(count), right - left - 1, Y(kept[i]) - Y(count));
    pen.fillStyle = color(scale.log ? Math.sqrt(edges[i] * edges[i + 1]) : (edges[i] + edges[i + 1]) / 2);
    pen.fillRect(left + 0.5, Y(kept[i]), right - left - 1, Y(0) - Y(kept[i]));
  });
  pen.lineWidth = 2;
  if (real) {
    stairs(pen, edges, real, X, Y);
    pen.strokeStyle = theme.real;
    pen.stroke();
  }
  target.dataset.threshold = threshold;
  if (!hasThreshold()) return;
  const x = Math.min(Math.max(X(threshold), box.left + 1), box.right - 1);
  pen.strokeStyle = theme.text;
  pen.setLineDash([5, 4]);
  line(pen, x, box.top, x, box.bottom);
}

// Counts of real data as if there were as many real samples as generated ones.
function scaledReal({ real }) {
  const total = real.reduce((sum, count) => sum + count, 0);
  return real.map((count) => (count * data.n) / total);
}

function histogramNote() {
  const { real, name } = view.ranking;
  const found = [`Histogram of ${view.ranking === verdict ? "the verdict, the combined z of its scores" : `the score “${name}”`}. Samples further right are more doubtful. Color: kept; gray: removed${hasThreshold() ? "; dashed line: the threshold" : ""}.`];
  if (real) {
    const total = real.reduce((sum, count) => sum + count, 0);
    const source = data.held_out ? "held-out real samples" : "training samples";
    found.push(`Green: ${whole(total)} ${source}, scaled to the same number.`);
  }
  found.push("The first and the last bar include outliers.");
  return found.join(" ");
}

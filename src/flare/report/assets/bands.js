// Bands: the median and the 10% and 90% quantiles over samples.
const BAND = [0.1, 0.5, 0.9];

function columnQuantiles(table, offset, width, slots) {
  const out = BAND.map(() => new Float32Array(width));
  const column = new Float32Array(slots.length);
  for (let j = 0; j < width; j += 1) {
    slots.forEach((slot, i) => { column[i] = table.values[slot * table.size + offset + j]; });
    column.sort();
    BAND.forEach((q, k) => { out[k][j] = quantile(column, q); });
  }
  return out;
}

// A figure of bands over `xs`, drawn at every move: all samples in gray, the kept ones in color.
function bandFigure(target, table, offset, xs, labels) {
  const all = columnQuantiles(table, offset, xs.length, Array.from({ length: data.even }, (_, slot) => slot));
  // on a logarithmic axis, zeros are drawn at the lower end
  const bottom = Math.min(...[...all[0], ...all[1]].filter((v) => v > 0));
  const top = extent(all[2])[1];
  const log = Number.isFinite(bottom) && top / bottom >= 30;
  const y = log ? [bottom / 3, top * 1.5] : [0, top * 1.1 || 1];
  return () => {
    const { pen, X, Y: up } = axes(target, { x: extent(xs), y, ylog: log, whole: true, ...labels });
    const Y = (v) => up(Math.max(v, y[0]));
    const parts = [[all, theme.muted, 0.22]];
    if (view.kept.length) parts.push([columnQuantiles(table, offset, xs.length, view.kept), theme.accent, 0.28]);
    for (const [quantiles, ink, alpha] of parts) {
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

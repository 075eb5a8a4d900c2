// What ranks the samples, and which of them the filter keeps. A row is a sample in the tables, for all samples.
const rankings = data.rankings.map((packed) => {
  const values = decode(packed.values).values;
  return {
    ...packed,
    values,
    // as Python divides, so that the same samples have p ≤ 0.05
    p: packed.p ? Float64Array.from(decode(packed.p).values, (count) => count / (packed.size + 1)) : null,
    order: Uint32Array.from(values.keys()).sort((a, b) => values[a] - values[b] || a - b),
  };
});
const verdict = rankings.find((ranking) => ranking.name === "verdict" && data.reason) || null;
const copies = new Set(data.copies || []);
const bad = data.bad ? new Set(data.bad) : null;

const slotOf = new Map(data.rows.map((row, slot) => [row, slot]));
const view = {
  ranking: rankings[0],
  all: [], // slots that are evenly spaced by rank, best first
  kept: [], // those of them that are kept
  mask: new Uint8Array(data.n), // which rows are kept
  count: 0, // how many rows are kept
  threshold: NaN, // the largest kept value
  stop: 0, // position of the slider
};
const oneRegion = data.rankings[0].quotas[0].length === 1;

function choose(index) {
  view.ranking = rankings[index];
  view.all = Array.from(view.ranking.order, (row) => slotOf.get(row)).filter((slot) => slot < data.even);
  keep(view.stop);
}

// As result.keep does: the best of every region.
function keep(stop) {
  const { order, values, quotas } = view.ranking;
  const left = [...quotas[stop]]; // how many more samples of each region are kept
  view.stop = stop;
  view.mask.fill(0);
  view.count = 0;
  for (const row of order) {
    if (!left[data.regions[row]]) continue;
    left[data.regions[row]] -= 1;
    view.mask[row] = 1;
    view.count += 1;
    view.threshold = values[row];
  }
  view.kept = view.all.filter((slot) => view.mask[data.rows[slot]]);
}

// The best and the worst slots of the ranking, at most six each; all of them have pictures.
function ends() {
  const few = Math.min(6, Math.max(1, Math.floor(data.n / 2)));
  const slots = (rows) => Array.from(rows, (row) => slotOf.get(row));
  const { order } = view.ranking;
  return { worst: slots(order.slice(-few)).reverse(), best: slots(order.slice(0, few)) };
}

const sampleName = (row) => `#${data.indices[row]}`;
const probability = (p) => (p < 0.0995 ? String(Number(p.toPrecision(2))) : p.toFixed(2));
const percent = (share) => `${Number((100 * share).toPrecision(share < 0.1 || share > 0.9 ? 3 : 2))}%`;

// What there is to say about a sample, apart from its numbers.
function remarks(row) {
  const found = [];
  if (verdict) found.push(verdict.p[row] <= data.alpha ? data.reasons[data.reason[row]] : "plausible");
  if (copies.has(row)) found.push("near copy of training data");
  if (bad && bad.has(row)) found.push("known to be bad");
  return found;
}

// One line: index, p-value or score, remarks.
function summary(row) {
  const { p, values, name: score } = view.ranking;
  const number = p ? `p = ${probability(p[row])}` : `${score} ${text(values[row])}`;
  return [sampleName(row), number, ...remarks(row)];
}

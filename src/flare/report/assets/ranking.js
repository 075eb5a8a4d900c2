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

const rowOf = new Map(data.indices.map((index, row) => [index, row]));
const slotOf = new Map(data.rows.map((row, slot) => [row, slot]));
const view = {
  ranking: rankings[0],
  all: [], // slots that are evenly spaced by rank, best first
  kept: [], // those of them that are kept
  mask: new Uint8Array(data.n), // which rows are kept
  count: 0, // how many rows are kept
  threshold: NaN, // the largest kept value
  stop: 0, // position of the slider
  guaranteed: false, // whether the filter keeps what the labels guarantee
  blind: false, // whether colors hide the scores
};
const oneRegion = data.rankings[0].quotas[0].length === 1;
const hasThreshold = () => oneRegion || view.guaranteed; // otherwise every region has its own

function choose(index) {
  view.ranking = rankings[index];
  view.all = Array.from(view.ranking.order, (row) => slotOf.get(row)).filter((slot) => slot < data.even);
  keep(view.stop);
}

// As result.keep does: the best of every region.
function keep(stop) {
  const left = [...view.ranking.quotas[stop]]; // how many more samples of each region are kept
  view.stop = stop;
  view.guaranteed = false;
  keepIf((row) => {
    left[data.regions[row]] -= 1;
    return left[data.regions[row]] >= 0;
  });
}

// As the rule of flare.calibrate does: everything up to a threshold of the first ranking.
function keepBelow(threshold) {
  choose(0);
  keepIf((row) => view.ranking.values[row] <= threshold);
  const distance = (share) => Math.abs(share - view.count / data.n);
  view.stop = data.shares.reduce((best, share, k) => (distance(share) < distance(data.shares[best]) ? k : best), 0);
  view.guaranteed = true;
}

// The test sees the rows in the order of their rank.
function keepIf(test) {
  view.mask.fill(0);
  view.count = 0;
  for (const row of view.ranking.order) {
    if (!test(row)) continue;
    view.mask[row] = 1;
    view.count += 1;
    view.threshold = view.ranking.values[row];
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

const nameOf = (row) => (data.names ? data.names[row] : `#${data.indices[row]}`);
const probability = (p) => (p < 0.0995 ? String(Number(p.toPrecision(2))) : p.toFixed(2));
const percent = (share) => `${Number((100 * share).toPrecision(3))}%`;
const byScore = () => (view.ranking === rankings[0] ? "" : ` by ${view.ranking.name}`);
const isDoubtful = (row) => verdict !== null && verdict.p[row] <= data.alpha;

// What there is to say about a sample, apart from its numbers.
function remarks(row) {
  const found = [];
  if (verdict) found.push(isDoubtful(row) ? data.reasons[data.reason[row]][1] : "plausible");
  if (copies.has(row)) found.push("near copy of training data");
  if (data.twins && data.twins[row] >= 0) found.push("near duplicate");
  if (bad && bad.has(row)) found.push("known to be bad");
  const label = labels.get(data.indices[row]);
  if (label) found.push(`labeled ${label}`);
  return found;
}

// One line: name, p-value or score, remarks.
function summary(row) {
  const { p, values, name: score } = view.ranking;
  const number = p ? `${view.ranking === rankings[0] ? "" : `${score}: `}p = ${probability(p[row])}` : `${score} ${text(values[row])}`;
  return [nameOf(row), number, ...remarks(row)];
}

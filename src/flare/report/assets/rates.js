// What the filter does, in numbers: rates, and the share of each group.
function rates(parent) {
  const kept = view.count;
  const cards = [["Kept", `${whole(kept)} of ${whole(data.n)}`, percent(kept / data.n)]];
  const among = (rows) => {
    let inside = 0;
    rows.forEach((row) => { inside += view.mask[row]; });
    return inside;
  };
  const compare = (label, set) => {
    const inside = among(set);
    cards.push([label, percent(inside / kept), `${whole(inside)} of ${whole(kept)}; ${percent(set.size / data.n)} of all (${whole(set.size)})`]);
  };
  if (view.ranking.p) compare(`Doubtful${byScore()} (p ≤ ${data.alpha}), of the kept`, doubtfulRows(view.ranking));
  if (bad) compare("Known to be bad, of the kept", bad);
  if (labels.size) {
    const rows = Array.from(labels.keys(), (index) => rowOf.get(index));
    const wrong = rows.filter((row) => labels.get(data.indices[row]) === "bad");
    cards.push(["Labeled bad, kept", whole(among(wrong)), `of ${whole(among(rows))} labeled and kept; ${whole(wrong.length)} of all ${whole(rows.length)} labeled`]);
  }
  if (copies.size) cards.push(["Near copies of training data, kept", whole(among(copies)), `of ${whole(copies.size)}`]);
  parent.replaceChildren();
  for (const [label, value, more] of cards) {
    const box = put(parent, "div");
    put(box, "dt", label);
    put(box, "dd", value);
    put(box, "dd", more, "more");
  }
}

const doubtfulRows = ({ p }) => new Set(Array.from(p.keys()).filter((row) => p[row] <= data.alpha));

// One line per group: its share of all samples and of the kept ones.
function groupShares(body) {
  const all = new Array(data.groups.length).fill(0);
  const kept = new Array(data.groups.length).fill(0);
  data.group.forEach((group, row) => {
    all[group] += 1;
    kept[group] += view.mask[row];
  });
  const top = Math.max(...all.map((count) => count / data.n), ...kept.map((count) => count / view.count));
  body.replaceChildren();
  data.groups.forEach((group, k) => {
    const row = put(body, "tr");
    put(row, "th", group).scope = "row";
    for (const [share, className] of [[all[k] / data.n, "all"], [kept[k] / view.count, "kept"]]) {
      const entry = put(row, "td", undefined, "bar");
      put(entry, "span", `${(100 * share).toFixed(1)}%`);
      const bar = put(entry, "i", undefined, className);
      bar.style.width = `calc((100% - 6.5ch) * ${share / (top || 1)})`;
    }
    put(row, "td", `${whole(kept[k])} of ${whole(all[k])}`, "number");
  });
}

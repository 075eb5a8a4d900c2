// What the filter does, in numbers: rates, reasons, and the share of each group.
function rates(parent) {
  const kept = view.count;
  const cards = [["Kept", `${whole(kept)} of ${whole(data.n)}`, percent(kept / data.n)]];
  const among = (set) => {
    let inside = 0;
    set.forEach((row) => { inside += view.mask[row]; });
    return inside;
  };
  const compare = (label, set) => {
    const inside = among(set);
    const all = `${percent(set.size / data.n)} of all (${whole(set.size)})`;
    cards.push([label, percent(inside / kept), `${whole(inside)}; ${all}`]);
  };
  if (view.ranking.p) {
    const doubtful = Array.from(view.ranking.p.keys()).filter((row) => view.ranking.p[row] <= data.alpha);
    compare(`Doubtful (p ≤ ${data.alpha}), of the kept`, new Set(doubtful));
  }
  if (bad) compare("Known to be bad, of the kept", bad);
  if (copies.size) {
    const inside = among(copies);
    cards.push(["Near copies of training data, kept", whole(inside), `of ${whole(copies.size)}`]);
  }
  if (verdict) {
    const counts = data.reasons.map((reason, k) => [reason, data.reason.filter((r, row) => r === k && !view.mask[row]).length]);
    const listed = counts.filter(([, count]) => count).sort((a, b) => b[1] - a[1]);
    const [reason, count] = listed[0] || ["–", 0];
    cards.push(["Most frequent reason among the removed", reason, count ? `${whole(count)} of ${whole(data.n - kept)} removed` : "nothing is removed"]);
  }
  parent.replaceChildren();
  for (const [label, value, more] of cards) {
    const card = put(parent, "div");
    put(card, "dt", label);
    put(card, "dd", value);
    put(card, "dd", more, "more");
  }
}

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
      const cell = put(row, "td", undefined, "bar");
      put(cell, "span", `${(100 * share).toFixed(1)}%`);
      const bar = put(cell, "i", undefined, className);
      bar.style.width = `calc((100% - 6.5ch) * ${share / (top || 1)})`;
    }
    put(row, "td", `${whole(kept[k])} of ${whole(all[k])}`, "number");
  });
}

// The kept samples as a file: index, value and p-value.
function saveKept() {
  const { name, values, p } = view.ranking;
  const quoted = /[",\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name;
  const lines = [["index", quoted, ...(p ? ["p_value"] : [])]];
  view.mask.forEach((kept, row) => {
    if (kept) lines.push([data.indices[row], values[row], ...(p ? [p[row]] : [])]);
  });
  const url = URL.createObjectURL(new Blob([lines.map((cells) => `${cells.join(",")}\n`).join("")], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "kept.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Issues: what is wrong, how often, some examples, and a filter of the view.
let only = null; // the issue that the figure of samples is restricted to
const issues = data.issues.map((issue) => {
  const inside = issue.samples.filter((index) => rowOf.has(index));
  return { ...issue, rows: new Set(inside.map((index) => rowOf.get(index))) };
});

function listIssues(parent, absent) {
  parent.replaceChildren();
  for (const issue of issues.filter(({ amount }) => amount)) {
    const entry = put(parent, "article", undefined, "issue");
    const head = put(entry, "div", undefined, "head");
    put(head, "h3", issue.title);
    put(head, "b", issue.amount);
    put(head, "p", issue.note, "note");
    const slots = Array.from(issue.rows, (row) => slotOf.get(row)).filter((slot) => slot !== undefined);
    if (!slots.length) continue;
    const examples = put(entry, "div", undefined, "strip");
    for (const slot of slots.slice(0, 6)) sampleButton(examples, slot, slots);
    const button = put(head, "button", "Show only these", "screen");
    button.type = "button";
    button.addEventListener("click", () => { restrict(issue); byId("samples").scrollIntoView(); });
  }
  const missing = issues.filter(({ amount }) => !amount).map(({ title }) => title[0].toLowerCase() + title.slice(1));
  absent.textContent = missing.length ? `Checked and not found: ${missing.join("; ")}.` : "";
}

// A small picture that opens the card of a sample.
function sampleButton(parent, slot, list) {
  const button = put(parent, "button", undefined, "sample");
  button.type = "button";
  const target = canvas(button, kind.smallRatio, `Sample ${nameOf(data.rows[slot])}`);
  button.addEventListener("click", () => openCard(slot, list));
  kind.small(target, slot);
  return button;
}

function restrict(issue) {
  only = issue;
  byId("only").hidden = !issue;
  byId("only-title").textContent = issue ? `Only: ${issue.title[0].toLowerCase()}${issue.title.slice(1)}` : "";
  showSamples();
}

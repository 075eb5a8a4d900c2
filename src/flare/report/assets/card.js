// One sample: a card with its pictures, its label, its scores and its nearest training sample.
const kind = { points: pointKind, series: curveKind, images: imageKind }[data.kind];
const card = byId("card");
const shown = { slot: null, list: [], labeling: false }; // the sample of the card, and those that the arrows go through

function openCard(slot, list, labeling = false) {
  shown.list = list;
  shown.labeling = labeling;
  if (!card.open) card.showModal();
  fillCard(slot);
}

function fillCard(slot) {
  shown.slot = slot;
  const row = data.rows[slot];
  const index = data.indices[row];
  const label = labels.get(index);
  // what the scores say must not sway the label
  view.blind = shown.labeling && !label;
  card.classList.toggle("blind", view.blind);
  byId("card-title").textContent = `Sample ${nameOf(row)}`;
  const rank = view.ranking.order.indexOf(row) + 1;
  const state = view.mask[row] ? "kept" : "removed";
  byId("card-lead").textContent = [`Rank ${whole(rank)} of ${whole(data.n)} by ${view.ranking.name}: ${state}`, ...remarks(row)].join(" · ");
  const pictures = byId("card-pictures");
  pictures.replaceChildren();
  const drawn = kind.card(pictures, slot);
  byId("card-note").textContent = [cells(slot), drawn].filter(Boolean).join(" ");
  for (const word of ["good", "bad"]) byId(`card-${word}`).setAttribute("aria-pressed", label === word);
  byId("card-undo").disabled = !past.length;
  const counts = proposed.includes(index);
  byId("card-progress").textContent = counts ? `${progress()}.` : `${progress()}. This sample is not one of them. Its label is saved but does not count for the guarantee.`;
  fillFacts(row);
  const place = shown.list.indexOf(slot);
  byId("card-back").disabled = place <= 0;
  byId("card-next").disabled = place < 0 || place === shown.list.length - 1;
  view.blind = false;
}

// The row of a table by columns, in its own units.
function cells(slot) {
  const row = samples.row(slot);
  return data.columns.map(([name, mean, std], i) => `${name}: ${text(row[i] * std + mean, 4)}`).join(", ") + (data.columns.length ? "." : "");
}

function fillFacts(row) {
  const body = byId("card-scores");
  body.replaceChildren();
  for (const { name, values, p } of rankings) {
    const entry = put(body, "tr");
    put(entry, "th", name).scope = "row";
    put(entry, "td", text(values[row], 4), "number");
    put(entry, "td", p ? probability(p[row]) : "–", "number");
  }
  const facts = byId("card-facts");
  facts.replaceChildren();
  if (data.nearest) put(facts, "li", `Nearest training sample: #${data.nearest[row]}`);
  if (data.twins && data.twins[row] >= 0) {
    const twin = rowOf.get(data.twins[row]);
    put(facts, "li", `Near duplicate of ${twin === undefined ? `#${data.twins[row]}` : nameOf(twin)}`);
  }
  if (data.groups) put(facts, "li", `${data.noun === "region" ? "Region" : "Group"}: ${data.groups[data.group[row]]}`);
}

function stepCard(by) {
  const next = shown.list[shown.list.indexOf(shown.slot) + by];
  if (next !== undefined) fillCard(next);
}

const proposedSlots = () => proposed.map((index) => slotOf.get(rowOf.get(index)));

function startLabeling() {
  const next = nextProposed();
  openCard(slotOf.get(rowOf.get(next === undefined ? proposed[0] : next)), proposedSlots(), true);
}

// After the label of a proposed sample, the next one; after the last one, the guarantee.
function labelShown(label) {
  const index = data.indices[data.rows[shown.slot]];
  giveLabel(index, label);
  if (proposed.includes(index)) {
    if (nextProposed() !== undefined) startLabeling();
    else {
      card.close();
      byId("decide").scrollIntoView();
    }
  }
  relabel();
}

function undoShown() {
  if (!past.length) return;
  const index = undoLabel();
  const slot = slotOf.get(rowOf.get(index));
  if (card.open && slot !== undefined) {
    if (proposed.includes(index)) openCard(slot, proposedSlots(), true);
    else fillCard(slot);
  }
  relabel();
}

byId("card-back").addEventListener("click", () => stepCard(-1));
byId("card-next").addEventListener("click", () => stepCard(1));
byId("card-good").addEventListener("click", () => labelShown("good"));
byId("card-bad").addEventListener("click", () => labelShown("bad"));
byId("card-undo").addEventListener("click", undoShown);
byId("card-close").addEventListener("click", () => card.close());
card.addEventListener("click", (event) => { if (event.target === card) card.close(); }); // the backdrop
// keys of the document: a button that gets disabled loses the focus
document.addEventListener("keydown", (event) => {
  if (!card.open || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const action = {
    ArrowLeft: () => stepCard(-1),
    ArrowRight: () => stepCard(1),
    g: () => labelShown("good"),
    b: () => labelShown("bad"),
    u: undoShown,
  }[event.key];
  if (action) action();
});

// Labels, good or bad, by the indices of samples; the browser keeps them under a hash of the samples.
const labels = new Map();
const past = []; // all labels in the order in which they were given, for undo
const storage = { key: `flare-labels-${data.key}`, works: true };
const proposed = data.labels.order;

function replay() {
  labels.clear();
  for (const [index, label] of past) labels.set(index, label);
}

function loadLabels() {
  try {
    const stored = JSON.parse(localStorage.getItem(storage.key) || "[]");
    past.push(...stored.filter(([index, label]) => rowOf.has(index) && (label === "good" || label === "bad")));
  } catch {
    storage.works = false; // a page from a disk may not be allowed to keep anything
  }
  replay();
}

function storeLabels() {
  replay();
  try {
    if (past.length) localStorage.setItem(storage.key, JSON.stringify(past));
    else localStorage.removeItem(storage.key);
  } catch {
    storage.works = false;
  }
}

function giveLabel(index, label) {
  past.push([index, label]);
  storeLabels();
}

// Takes the last label back; returns the index of its sample.
function undoLabel() {
  const [index] = past.pop();
  storeLabels();
  return index;
}

function clearLabels() {
  past.length = 0;
  storeLabels();
}

const countProposed = () => proposed.filter((index) => labels.has(index)).length;
const nextProposed = () => proposed.find((index) => !labels.has(index));

function progress() {
  const done = countProposed();
  const left = proposed.length - done;
  return `${whole(done)} of ${whole(proposed.length)} labeled, ${left ? `${whole(left)} to go` : "all done"}`;
}

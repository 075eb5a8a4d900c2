// What to do: the filter and the labels, in a sentence each. Python writes the sentence on the model.
function shareInWords(share) {
  const words = { 0.25: "quarter", 0.5: "half" };
  return words[share] || `${Number((100 * share).toPrecision(4))}%`;
}

function filterSentence() {
  const { count } = view;
  const samples = `${whole(count)} ${count === 1 ? "sample" : "samples"}`;
  const share = data.shares[view.stop];
  const regions = oneRegion ? "" : " of every region";
  const best = `the best ${shareInWords(share)}${regions}${byScore()}`;
  let said = `Keep ${best}: ${samples}.`;
  if (view.guaranteed) said = `Keep what the labels guarantee: ${samples}.`;
  else if (share === 1) said = `Keep all ${samples}: nothing is filtered.`;
  else if (data.off) said = `Fix the model first. A filter cannot repair it. Until then, ${best} has ${samples}.`;
  if (!bad) return said;
  const inside = Array.from(bad).filter((row) => view.mask[row]).length;
  return `${said} Known to be bad: ${whole(inside)} of ${whole(count)} (${percent(inside / count)}).`;
}

// The guarantee, or how far from it the labels are, in the words of flare.calibrate.
function guaranteeSentence(tests) {
  const { risk, confidence, kept, scored, total } = data.labels;
  const place = chooseCandidate(tests);
  const { size, wrong, bound } = tests[Math.max(place, 0)];
  const three = (value) => Number(value.toPrecision(3));
  const goal = `at most ${three(100 * risk)}%`;
  const basis = `(${whole(labels.size)} labels, ${whole(wrong)} bad among the ${whole(size)} that count)`;
  if (place >= 0) {
    const share = `${whole(kept[place])} of ${whole(total)} samples (${three((100 * kept[place]) / total)}%)`;
    return `The guarantee keeps ${share}: ${goal} of them are bad, with confidence ${confidence} ${basis}.`;
  }
  const best = Math.round((100 * kept[0]) / scored);
  const part = { 50: "the best half has", 100: "the whole set has" }[best] || `the best ${best}% have`;
  const said = bound < 1 ? `; ${part} at most ${Math.ceil(1000 * bound) / 10}% bad` : "";
  return `The guarantee keeps nothing: no threshold reaches ${goal} bad with confidence ${confidence}${said} ${basis}.`;
}

function labelsSentence(tests) {
  const { risk, confidence, members, needed, kept } = data.labels;
  if (members[0].length < needed[0]) {
    return `A guarantee needs more samples: the best ${whole(kept[0])} of ${whole(data.n)} are fewer than the ${whole(needed[0])} that must be labeled.`;
  }
  if (nextProposed() === undefined) return guaranteeSentence(tests);
  if (countProposed()) return `${progress()}.`;
  return `Label ${whole(proposed.length)} samples to get a guarantee: at most ${percent(risk)} of the kept are bad, with confidence ${confidence}.`;
}

function describeLabels() {
  const tests = testCandidates();
  const possible = data.labels.members[0].length >= data.labels.needed[0];
  const done = possible && nextProposed() === undefined;
  byId("labels").textContent = labelsSentence(tests);
  byId("label").hidden = !possible || done;
  byId("label").textContent = countProposed() ? "Continue labeling" : "Start labeling";
  byId("guarantee").hidden = !done || chooseCandidate(tests) < 0;
  byId("guarantee").setAttribute("aria-pressed", view.guaranteed);
  for (const id of ["save-labels", "undo", "clear"]) byId(id).hidden = !past.length;
  byId("next-command").hidden = !done;
  byId("next-effect").textContent = chooseCandidate(tests) < 0 ? "It gives the same answer and writes nothing. With --risk, it accepts more bad samples." : "It gives the same answer and writes the kept samples.";
  byId("storage").textContent = labels.size && !storage.works ? "This browser does not store labels of local files. Save them as CSV before you close the page." : "";
}

function setLabels() {
  byId("label").addEventListener("click", startLabeling);
  byId("save-labels").addEventListener("click", saveLabels);
  byId("undo").addEventListener("click", undoShown);
  byId("guarantee").addEventListener("click", () => {
    keepBelow(data.labels.thresholds[chooseCandidate(testCandidates())]);
    byId("share").value = view.stop;
    byId("score").value = 0;
    redraw();
  });
  byId("clear").addEventListener("click", () => {
    if (!confirm(`Clear all ${whole(labels.size)} labels? This cannot be undone.`)) return;
    clearLabels();
    relabel();
  });
}

// What labels guarantee, as flare.calibrate decides it: each candidate threshold is tested with the labels of its members.
function binomialCdf(bad, size, rate) {
  let [sum, log] = [0, size * Math.log1p(-rate)];
  for (let k = 0; k <= bad; k += 1) {
    sum += Math.exp(log);
    log += Math.log((size - k) / (k + 1)) + Math.log(rate) - Math.log1p(-rate);
  }
  return Math.min(sum, 1);
}

// The rate of bad samples that is not exceeded with this confidence, if `bad` of `size` are bad (Clopper and Pearson).
function upperBound(bad, size, confidence) {
  if (bad >= size) return 1;
  let [low, high] = [0, 1];
  for (let k = 0; k < 60; k += 1) {
    const middle = (low + high) / 2;
    if (binomialCdf(bad, size, middle) > 1 - confidence) low = middle;
    else high = middle;
  }
  return high;
}

// One test per candidate whose members are all labeled, from the strictest on.
function testCandidates() {
  const { members, needed, confidence } = data.labels;
  const found = [];
  for (const own of members) {
    if (!own.every((index) => labels.has(index))) break;
    const wrong = own.filter((index) => labels.get(index) === "bad").length;
    const holds = wrong < needed.length && own.length >= needed[wrong];
    found.push({ size: own.length, wrong, holds, bound: upperBound(wrong, own.length, confidence) });
  }
  return found;
}

// The place of the loosest candidate that holds before the first that does not, or -1.
function chooseCandidate(tests) {
  const failed = tests.findIndex(({ holds }) => !holds);
  return (failed < 0 ? tests.length : failed) - 1;
}

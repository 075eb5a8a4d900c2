"use strict";
// The embedded data, and numbers as text.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);

function decode(packed) {
  const binary = atob(packed.data);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  let values;
  if (packed.bits >= 32) {
    values = new (packed.bits === 64 ? Float64Array : Float32Array)(bytes.buffer);
  } else {
    const codes = packed.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
    const meaning = meanings(packed);
    values = new Float32Array(codes.length);
    for (let i = 0; i < codes.length; i += 1) values[i] = meaning[codes[i]];
  }
  const size = packed.shape.slice(1).reduce((a, b) => a * b, 1);
  return { shape: packed.shape, size, values, row: (i) => values.subarray(i * size, (i + 1) * size) };
}

// The value of each code: even steps, or even steps of the logarithm after a zero.
function meanings({ bits, log, low, high }) {
  const top = 2 ** bits - 1;
  const step = (high - low) / (log ? top - 1 : top);
  return Float32Array.from({ length: top + 1 }, (_, c) => {
    if (!log) return low + c * step;
    return c ? Math.exp(low + (c - 1) * step) : 0;
  });
}

// Pictures lie in slots: slot k holds sample data.rows[k] of the tables. The first data.even slots are evenly spaced by rank.
const samples = decode(data.samples);
const deviations = data.deviations ? decode(data.deviations) : null;
const nearest = data.real ? decode(data.real) : null;

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function text(value, digits = 3, power = false) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (!power && size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(digits))).replace("-", "−");
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const ten = "10" + [...String(Number(exponent))].map((c) => SUPERSCRIPTS[c]).join("");
  const head = String(Number(mantissa)).replace("-", "−");
  return head === "1" ? ten : `${head}×${ten}`;
}

const whole = (count) => count.toLocaleString("en");

// The quantile q of sorted values.
function quantile(sorted, q) {
  const place = q * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

// The indices 0 … count - 1 in golden-ratio steps, so that no end of the ranking is drawn last.
function mixed(count) {
  const common = (a, b) => (b ? common(b, a % b) : a);
  let step = Math.max(1, Math.round(count * 0.618));
  while (common(step, count) > 1) step += 1;
  return Array.from({ length: count }, (_, i) => (i * step) % count);
}

// At most `limit` of the indices 0 … count - 1, evenly spaced.
function evenly(count, limit) {
  if (count <= limit) return Array.from({ length: count }, (_, i) => i);
  return Array.from({ length: limit }, (_, i) => Math.round((i * (count - 1)) / (limit - 1)));
}

// A high quantile of some values, so that a single outlier does not set the colors of a map.
function robustTop(values, q) {
  const some = Float32Array.from(evenly(values.length, 200000), (i) => values[i]).sort();
  return quantile(some, q) || some[some.length - 1] || 1;
}

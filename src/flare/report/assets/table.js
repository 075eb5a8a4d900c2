// Samples as CSV files, with a row per sample.
const COLUMNS = ["name", "index", "label", "verdict", "p_value", "reason", "region"];

// A cell that no spreadsheet takes for a formula, as the command line writes it.
function cell(value) {
  if (typeof value === "number") return String(value);
  const safe = value.replace(/^(?='*[=+@\t\r-])/, "'");
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function tableRow(row) {
  const index = data.indices[row];
  return [
    data.names ? data.names[row] : String(index),
    index,
    labels.get(index) || "",
    verdict ? (isDoubtful(row) ? "doubtful" : "trusted") : "",
    verdict ? verdict.p[row] : "",
    isDoubtful(row) ? data.reasons[data.reason[row]][0] : "",
    data.region_names ? data.region_names[data.regions[row]] : "",
  ];
}

function saveTable(name, rows) {
  const lines = [COLUMNS, ...rows.map(tableRow)].map((cells) => `${cells.map(cell).join(",")}\n`);
  const url = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const saveKept = () => saveTable("kept.csv", data.indices.map((_, row) => row).filter((row) => view.mask[row]));
const saveLabels = () => saveTable("labels.csv", Array.from(labels.keys(), (index) => rowOf.get(index)));

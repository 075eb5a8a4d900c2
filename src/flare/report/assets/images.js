// Samples as images, framed in the color of their score.
const [rows, columns, colors] = data.kind === "images" ? samples.shape.slice(1) : [1, 1, 1];
const spreadTop = data.kind === "images" && deviations ? robustTop(deviations.values, 0.95) : 1;
const bitmaps = new Map();
const look = { smooth: false, overlay: false }; // whether pixels are blended, and whether variances lie over images
const CELL = 72; // pixels per image of a figure, its frame included

const imageKind = {
  noun: "images",
  panels: 1,
  ratio: 1,
  smallRatio: columns / rows,
  note: "Evenly spaced by rank, from the most plausible (top left) to the most doubtful (bottom right). The color of a frame shows the score.",

  // The height follows the number of images, up to a screen.
  draw([target], slots) {
    const wide = target.clientWidth;
    const across = Math.max(1, Math.floor(wide / Math.max(CELL, (CELL * columns) / rows)));
    const cell = wide / across;
    const inside = cell - 8;
    const tall = (inside * rows) / columns;
    const down = Math.max(1, Math.min(Math.floor(640 / (tall + 8)), Math.ceil(slots.length / across)));
    target.style.aspectRatio = wide / (down * (tall + 8));
    const { pen } = surface(target);
    const cells = evenly(slots.length, across * down).map((at, k) => {
      const [x, y] = [(k % across) * cell, Math.floor(k / across) * (tall + 8)];
      pen.fillStyle = slotColor(slots[at]);
      pen.fillRect(x + 1, y + 1, cell - 2, tall + 6);
      stamp(pen, bitmapOf(slots[at]), x + 4, y + 4, inside, tall);
      return { slot: slots[at], x, y, width: cell, height: tall + 8 };
    });
    return { cells, drawn: cells.length };
  },

  find({ cells }, slots, x, y) {
    const found = cells.find((c) => x >= c.x && x < c.x + c.width && y >= c.y && y < c.y + c.height);
    return found ? found.slot : null;
  },

  mark({ pen }, { cells }, slot) {
    const cell = cells.find((c) => c.slot === slot);
    if (!cell) return;
    pen.strokeStyle = theme.text;
    pen.lineWidth = 3;
    pen.strokeRect(cell.x + 1.5, cell.y + 1.5, cell.width - 3, cell.height - 3);
  },

  small(target, slot) {
    const { pen, width, height } = surface(target);
    pen.fillStyle = slotColor(slot);
    pen.fillRect(0, 0, width, height);
    stamp(pen, bitmapOf(slot), 4, 4, width - 8, height - 8);
  },

  // The image, its standard deviations and the nearest training sample side by side.
  card(parent, slot) {
    const row = put(parent, "div", undefined, "side");
    const add = (caption, image) => {
      const figure = put(row, "figure");
      const target = canvas(figure, columns / rows, caption);
      put(figure, "figcaption", caption);
      const { pen, width, height } = surface(target);
      stamp(pen, image, 0, 0, width, height);
    };
    add("this sample", picture(samples.row(slot)));
    if (nearest) add("nearest training sample", picture(nearest.row(data.real_of[slot])));
    if (!deviations || view.blind) return "";
    add("epistemic standard deviation", heatmap(deviations.row(slot), spreadTop));
    return `The colors of the map run from 0 to ${text(spreadTop)}, the 95% quantile of all samples.`;
  },
};

// Pixels (rows × columns) as a small canvas; `paint` returns the color of a pixel.
function bitmap(paint) {
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const pen = small.getContext("2d");
  const image = pen.createImageData(columns, rows);
  for (let p = 0; p < rows * columns; p += 1) {
    [image.data[4 * p], image.data[4 * p + 1], image.data[4 * p + 2]] = paint(p);
    image.data[4 * p + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return small;
}

function brightness(value) {
  const { low, high } = data.samples;
  return (255 * (value - low)) / (high - low || 1);
}

const picture = (values) => bitmap((p) => [0, 1, 2].map((k) => brightness(values[p * colors + (colors === 3 ? k : 0)])));

// The image of a slot, in gray under its standard deviations if they lie over it.
function bitmapOf(slot) {
  if (look.overlay && deviations) return overlaid(samples.row(slot), deviations.row(slot));
  if (!bitmaps.has(slot)) bitmaps.set(slot, picture(samples.row(slot)));
  return bitmaps.get(slot);
}

function overlaid(values, spread) {
  return bitmap((p) => {
    let gray = 0;
    for (let k = 0; k < colors; k += 1) gray += brightness(values[p * colors + k]) / colors;
    const share = Math.min(spread[p] / spreadTop, 1);
    return along(theme.heat, share).map((c) => gray + 0.85 * share * (c - gray));
  });
}

const heatmap = (values, top) => bitmap((p) => along(theme.heat, values[p] / (top || 1)));

function stamp(pen, image, x, y, width, height) {
  pen.imageSmoothingEnabled = look.smooth || width < columns;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, x, y, width, height);
}

// The median standard deviation of some slots, one value per pixel; of at most 200 of them, evenly chosen.
function typicalSpread(slots) {
  if (!slots.length) return new Float32Array(rows * columns);
  return columnQuantiles(deviations, 0, rows * columns, evenly(slots.length, 200).map((k) => slots[k]))[1];
}

function heat(target, values, top) {
  const { pen, width, height } = surface(target);
  stamp(pen, heatmap(values, top), 0, 0, width, height);
}

// A figure of samples that answers to pointer and keys, and the line of text under the pointer.
const tip = byId("tip");

function showTip(slot, x, y) {
  tip.textContent = summary(data.rows[slot]).join(" · ");
  tip.hidden = false;
  const left = Math.min(x + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${y + 16 + scrollY}px`;
}

// `slots` returns the samples that the figure shows, best first.
class SampleFigure {
  constructor(parent, label, slots) {
    this.slots = slots;
    this.targets = Array.from({ length: kind.panels }, (_, c) => this.addPanel(parent, label, c));
    this.marked = null;
  }

  addPanel(parent, label, c) {
    const frame = put(parent, "div", undefined, "layers");
    const target = canvas(frame, kind.ratio, kind.panels > 1 ? `${label}, ${channelName(c)}` : label);
    target.tabIndex = c === 0 ? 0 : -1;
    target.setAttribute("aria-description", "Arrow keys choose a sample, Enter opens it.");
    const over = put(frame, "canvas", undefined, "over");
    over.setAttribute("aria-hidden", "true");
    target.addEventListener("pointermove", (event) => this.hover(event, c));
    target.addEventListener("pointerleave", () => this.leave());
    target.addEventListener("blur", () => this.leave());
    target.addEventListener("click", (event) => {
      if (this.marked === null) this.hover(event, c); // a finger does not hover first
      if (this.marked !== null) openCard(this.marked, this.slots());
    });
    target.addEventListener("keydown", (event) => this.press(event));
    return target;
  }

  draw() {
    this.geometry = kind.draw(this.targets, this.slots());
    this.leave();
    return this.geometry.drawn;
  }

  hover(event, panel) {
    const slot = kind.find(this.geometry, this.slots(), event.offsetX, event.offsetY, panel);
    if (slot === null) this.leave();
    else {
      this.mark(slot);
      showTip(slot, event.clientX, event.clientY);
    }
  }

  mark(slot) {
    this.marked = slot;
    this.targets.forEach((target, panel) => {
      const area = surface(target.nextElementSibling);
      if (slot !== null) kind.mark(area, this.geometry, slot, panel);
    });
  }

  leave() {
    if (this.marked === null) return;
    tip.hidden = true;
    this.mark(null);
  }

  press(event) {
    const slots = this.slots();
    const at = slots.indexOf(this.marked);
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: slots.length - 1 }[event.key];
    if (next !== undefined && slots.length) {
      event.preventDefault();
      const slot = slots[Math.min(Math.max(next, 0), slots.length - 1)];
      const box = event.target.getBoundingClientRect();
      this.mark(slot);
      showTip(slot, box.left, box.top);
    } else if ((event.key === "Enter" || event.key === " ") && this.marked !== null) {
      event.preventDefault();
      openCard(this.marked, slots);
    }
  }
}

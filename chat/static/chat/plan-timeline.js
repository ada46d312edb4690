// The steps as bars between the times they began and ended; those that have not begun stand below, without one.

import { elapsed, milliseconds, words } from "./format.js";
import { isOpen } from "./plan-model.js";
import { fitted, keep, mark, measured, onFrame, set, svg } from "./svg.js";

const ROW = 30, BAR = 14, AXIS = 34, AFTER = 84; // after the bars: room for how long the last one took
const LEAST_SPAN_MS = 50, LEAST_BAR = 3, LEAST_ROOM = 40; // pixels for all bars together
const MOST_TICKS = 200;
const SOON = 600; // pixels beyond what is in sight, drawn already
const TICKS_MS = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 2592e6];
const FONTS = { key: "400 12px 'JetBrains Mono', monospace" };

export class Timeline {
  constructor(box, model, { onShow, onJump }) {
    Object.assign(this, { box, model, onShow, onJump, rows: new Map(), current: null, until: 0, whole: false });
    onFrame(box, "scroll", () => this.paint());
    box.addEventListener("pointerover", (event) => {
      const row = event.target.closest("[data-row]");
      onShow(row ? model.steps.get(row.dataset.row) : null, row);
    });
    box.addEventListener("pointerleave", () => onShow(null));
    box.addEventListener("click", (event) => {
      const key = event.target.closest("[data-row]")?.dataset.row;
      if (key !== undefined) onJump(key);
    });
  }

  reshape() {
    if (!this.model.steps.has(this.current)) this.current = null;
    this.draw();
  }

  draw({ again = false } = {}) {
    const width = this.box.clientWidth;
    if (width <= 0) return;
    this.width = width;
    const longest = this.model.inOrder().reduce((most, step) => Math.max(most, measured(step.key, FONTS.key)), 0);
    this.label = Math.min(width * 0.4, Math.max(124, Math.min(240, width * 0.3, longest + 44)));
    this.room = Math.max(LEAST_ROOM, width - this.label - AFTER);
    this.rows.clear();
    this.until = 0;
    this.axis = svg("svg", { class: "axis", width, height: AXIS, viewBox: `0 0 ${width} ${AXIS}`, "aria-hidden": "true" });
    this.grid = svg("g", { class: "grid" });
    this.holder = svg("g");
    this.heading = svg("text", { class: "heading", x: 8 });
    this.drawing = svg("svg", { class: "drawing", role: "img", width, "aria-labelledby": "timeline-name", "aria-describedby": "timeline-text" });
    this.drawing.append(svg("defs", {}, hatch()), this.grid, this.heading, this.holder);
    this.box.replaceChildren(this.axis, this.drawing);
    this.update();
    if (!again && this.box.clientWidth < width) this.draw({ again: true }); // a scrollbar took its place
  }

  // -- what changes

  update() {
    if (!this.drawing) return;
    const steps = this.model.inOrder();
    const begun = steps.filter((step) => this.model.begun(step)).sort((one, other) => one.started - other.started);
    const rest = steps.filter((step) => !this.model.begun(step));
    this.scale(begun);
    const gap = rest.length ? ROW : 0;
    this.tops = new Map([...begun, ...rest].map((step, place) => [step.key, place * ROW + (place < begun.length ? 0 : gap)]));
    this.heading.textContent = rest.length ? (this.model.ended ? "Without a time of their own" : "Not begun") : "";
    set(this.heading, { y: begun.length * ROW + 20 });
    const height = steps.length * ROW + gap + 4;
    set(this.drawing, { height, viewBox: `0 0 ${this.width} ${height}` });
    this.rules(begun.length * ROW);
    this.paint();
    for (const [key, row] of this.rows) if (this.tops.has(key)) this.put(row, this.model.steps.get(key));
  }

  // Draw the rows in sight, or soon to be.
  paint() {
    if (!this.tops) return;
    const { scrollTop, clientHeight } = this.box;
    for (const [key, top] of this.tops) {
      const near = this.whole || (top + ROW > scrollTop - SOON && top < scrollTop + clientHeight + SOON);
      keep(this.rows, key, near, () => this.row(this.model.steps.get(key)));
    }
  }

  row(step) {
    const ground = svg("rect", { class: "ground", width: this.width, height: ROW, rx: 6 });
    const key = svg("text", { class: "key", x: 28, y: 19 });
    key.textContent = fitted(step.key, this.label - 36, FONTS.key);
    const sign = svg("g", { class: "sign", transform: "translate(8 9) scale(0.75)" });
    const row = svg("g", { class: step.key === this.current ? "row current" : "row", "data-row": step.key }, ground, sign, key, svg("g", { class: "bar" }));
    this.put(row, step);
    this.holder.append(row);
    return row;
  }

  put(row, step) {
    if (row.dataset.status !== step.status) row.querySelector(".sign").replaceChildren(mark(step.status));
    set(row, { transform: `translate(0 ${this.tops.get(step.key)})`, "data-status": step.status });
    this.bar(row, step);
  }

  // The time that the width stands for. While the plan goes on it is a third longer than what has passed, so that all
  // bars change their place but rarely.
  scale(begun) {
    this.from = begun.length ? begun[0].started : this.model.created;
    const now = begun.some(isOpen) || !this.model.ended ? this.model.now() : 0;
    const last = begun.reduce((most, step) => Math.max(most, step.ended ?? 0), now);
    const span = Math.max(LEAST_SPAN_MS, last - this.from);
    if (this.model.ended) this.until = this.from + span;
    else if (last >= this.until || this.until === 0) this.until = this.from + Math.max(10_000, span * 1.33);
  }

  x(when) {
    const share = (when - this.from) / (this.until - this.from);
    return this.label + Math.max(0, Math.min(1, share)) * this.room;
  }

  bar(row, step) {
    const bar = row.querySelector(".bar");
    if (!this.model.begun(step)) {
      const text = svg("text", { class: "word", x: this.label, y: 19 });
      text.textContent = this.model.carried(step) ? "Done in an earlier try" : words(step.status);
      bar.replaceChildren(text);
      return;
    }
    const end = step.ended ?? this.model.now();
    const [left, right] = [this.x(step.started), this.x(end)];
    const width = Math.max(LEAST_BAR, right - left);
    const top = (ROW - BAR) / 2;
    const shape = svg("rect", { class: "span", x: left, y: top, width, height: BAR, rx: Math.min(5, width / 2) });
    const waits = step.waits.map((wait) => {
      const from = this.x(wait.since);
      const size = Math.max(LEAST_BAR, this.x(wait.until ?? end) - from);
      return svg("g", { class: "wait", "data-status": wait.status }, svg("rect", { class: "under", x: from, y: top, width: size, height: BAR }), svg("rect", { class: "over", x: from, y: top, width: size, height: BAR, fill: "url(#hatch)" }));
    });
    const text = svg("text", { class: "word", x: left + width + 8, y: 19 });
    const took = this.model.took(step);
    const word = { failed: "Failed · ", skipped: "Skipped · ", waiting_approval: "Waits · ", waiting_retry: "Waits · " }[step.status] ?? "";
    text.textContent = word + (isOpen(step) ? elapsed(0, took) : milliseconds(took));
    bar.replaceChildren(shape, ...waits, text);
  }

  // The axis and its lines.
  rules(height) {
    const span = this.until - this.from, pixel = span / this.room;
    const every = TICKS_MS.find((each) => each >= pixel * (each < 6e4 ? 84 : 60)) ?? Math.max(TICKS_MS.at(-1), span / MOST_TICKS);
    const lines = [], labels = [];
    for (let at = Math.ceil(this.from / every) * every; at <= this.until; at += every) {
      const x = this.x(at);
      lines.push(svg("line", { x1: x, x2: x, y1: 0, y2: height }));
      const label = svg("text", { class: "tick", x, y: 22 });
      label.textContent = clock(at, every);
      labels.push(svg("line", { x1: x, x2: x, y1: AXIS - 6, y2: AXIS }), label);
    }
    if (!this.model.ended) {
      const x = this.x(this.model.now());
      lines.push(svg("line", { class: "now", x1: x, x2: x, y1: 0, y2: height }));
    }
    const day = svg("text", { class: "day", x: 8, y: 22 });
    day.textContent = `${new Date(this.from).toISOString().slice(0, 10)} UTC`;
    this.grid.replaceChildren(...lines);
    this.axis.replaceChildren(day, ...labels);
  }

  // Bars that are open grow; where they leave the axis, all of it is drawn anew.
  tick() {
    if (!this.drawing || this.model.ended) return;
    const now = this.model.now();
    if (now >= this.until) {
      this.update();
      return;
    }
    for (const [key, row] of this.rows) {
      const step = this.model.steps.get(key);
      if (step && isOpen(step) && this.model.begun(step)) this.bar(row, step);
    }
    const line = this.grid.querySelector(".now");
    if (line) set(line, { x1: this.x(now), x2: this.x(now) });
  }

  // -- looking about

  choose(key) {
    this.rows.get(this.current)?.classList.remove("current");
    this.current = key;
    const top = this.tops.get(key), { scrollTop, clientHeight } = this.box;
    if (top < scrollTop || top + ROW + AXIS > scrollTop + clientHeight) this.box.scrollTop = top - clientHeight / 2;
    this.paint();
    this.rows.get(key).classList.add("current");
    this.onShow(this.model.steps.get(key), this.rows.get(key), { said: true });
  }

  move(key) {
    const all = [...this.tops.keys()];
    if (key === "Home") return all[0];
    if (key === "End") return all.at(-1);
    if (this.current === null) return all[0];
    const by = key === "ArrowDown" || key === "ArrowRight" ? 1 : -1;
    return all[Math.max(0, Math.min(all.length - 1, all.indexOf(this.current) + by))];
  }
}

function clock(at, every) {
  const text = new Date(at).toISOString();
  if (every >= 864e5) return text.slice(5, 10);
  if (every >= 6e4) return text.slice(11, 16);
  return every >= 1e3 ? text.slice(11, 19) : text.slice(14, 23).replace(/0{1,2}$/, "");
}

function hatch() {
  return svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { class: "hatch", width: 2.2, height: 6 }));
}

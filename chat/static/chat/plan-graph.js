// The steps as a graph: what a step reads stands before it. Drawn again when steps come or go, or the window changes;
// else only the step that changed is.

import { elapsed, milliseconds, words } from "./format.js";
import { layout } from "./plan-layout.js";
import { isOpen } from "./plan-model.js";
import { fitted, keep, lines, mark, measured, onFrame, set, svg } from "./svg.js";

const HEIGHT = 86; // of a step
const WIDTHS = { least: 132, beside: 150, most: 248 };
const BETWEEN = { along: { least: 36, most: 64 }, down: 40, beside: 18 }; // layers side by side, below each other; steps of a layer
const EDGE = 10; // of the drawing
const MOST_EDGES = 5_000;
const SMALL = 150; // steps; a larger plan is drawn where it is looked at
const SOON = 500; // pixels
const WORDS = { waiting_retry: "Waiting to retry", waiting_approval: "Needs approval" };
const FONTS = { state: "500 11.5px Inter, sans-serif", kind: "500 11px Inter, sans-serif", action: "500 13px Inter, sans-serif", key: "400 11px 'JetBrains Mono', monospace" };

export class Graph {
  constructor(box, model, { onShow, onJump }) {
    Object.assign(this, { box, model, onShow, onJump, nodes: new Map(), edges: new Map(), current: null, touched: false, whole: false });
    onFrame(box, "scroll", () => this.paint());
    box.addEventListener("pointerover", (event) => this.hovered(event));
    box.addEventListener("pointerleave", () => onShow(null));
    box.addEventListener("click", (event) => {
      const key = event.target.closest("[data-node]")?.dataset.node;
      if (key !== undefined) onJump(key);
    });
    for (const name of ["wheel", "pointerdown", "keydown"]) {
      box.addEventListener(name, () => { this.touched = true; }, { passive: true });
    }
  }

  // -- drawing

  reshape() {
    const keys = [...this.model.steps.keys()];
    let edges = this.model.edges.map(({ from, to }) => [from, to]);
    this.cut = edges.length > MOST_EDGES;
    if (this.cut) edges = keys.flatMap((key) => this.model.steps.get(key).reads.slice(-2).map((read) => [read, key]));
    this.plan = layout(keys, edges);
    if (!this.model.steps.has(this.current)) this.current = null;
    this.draw();
  }

  draw({ again = false } = {}) {
    const room = this.box.clientWidth - 2 * EDGE;
    if (room <= 0) return; // hidden; drawn when it is shown
    this.measure(room);
    this.corners = new Map([...this.plan.places].map(([key, item]) => [key, this.corner(item)]));
    this.nodes.clear();
    this.edges.clear();
    this.holders = { edges: svg("g"), nodes: svg("g") };
    const { width, height } = this.size;
    const drawing = svg("svg", { class: "drawing", role: "img", width, height, viewBox: `0 0 ${width} ${height}`, "aria-labelledby": "graph-name", "aria-describedby": "graph-text" });
    drawing.append(svg("defs", {}, arrow("idle"), arrow("done"), arrow("active")), this.holders.edges, this.holders.nodes);
    this.box.replaceChildren(drawing);
    if (!again && this.box.clientWidth - 2 * EDGE < room) return this.draw({ again: true }); // a scrollbar took its place
    this.paint();
    this.follow();
  }

  // Draw what is in sight, or soon will be; a small plan is drawn as a whole.
  paint() {
    if (!this.corners) return;
    const far = this.whole || this.corners.size <= SMALL ? Infinity : SOON;
    const { scrollLeft: left, scrollTop: top, clientWidth, clientHeight } = this.box;
    const seen = (x, y, right, bottom) => right > left - far && x < left + clientWidth + far && bottom > top - far && y < top + clientHeight + far;
    for (const [key, { x, y }] of this.corners) {
      keep(this.nodes, key, seen(x, y, x + this.step, y + HEIGHT), () => this.node(key, x, y));
    }
    for (const route of this.plan.routes) {
      const [one, other] = [this.corners.get(route.from), this.corners.get(route.to)];
      const span = [Math.min(one.x, other.x), Math.min(one.y, other.y), Math.max(one.x, other.x) + this.step, Math.max(one.y, other.y) + HEIGHT];
      keep(this.edges, route, seen(...span), () => this.edge(route));
    }
  }

  node(key, x, y) {
    const node = svg("g", { class: key === this.current ? "node current" : "node", "data-node": key, transform: `translate(${x} ${y})` });
    this.fill(node, this.model.steps.get(key));
    this.holders.nodes.append(node);
    return node;
  }

  // From left to right where all layers fit, else from the top down.
  measure(room) {
    const { layers, width } = this.plan;
    const { least, most } = BETWEEN.along;
    this.sideways = layers * WIDTHS.beside + (layers - 1) * least <= room && (layers > 1 || width <= 1);
    if (this.sideways) {
      this.step = Math.min(WIDTHS.most, (room - (layers - 1) * least) / layers);
      this.gap = layers > 1 ? Math.min(most, (room - layers * this.step) / (layers - 1)) : 0;
      this.unit = HEIGHT + BETWEEN.beside;
    } else {
      this.step = Math.max(WIDTHS.least, Math.min(WIDTHS.most, room / width - BETWEEN.beside));
      this.gap = BETWEEN.down;
      this.unit = this.step + BETWEEN.beside;
    }
    const along = layers * (this.sideways ? this.step : HEIGHT) + (layers - 1) * this.gap;
    const side = width * this.unit - BETWEEN.beside;
    this.size = { width: 2 * EDGE + (this.sideways ? along : side), height: 2 * EDGE + (this.sideways ? side : along) };
  }

  corner({ layer, at }) {
    const across = EDGE + (at - 0.5) * this.unit;
    const along = EDGE + layer * ((this.sideways ? this.step : HEIGHT) + this.gap);
    return this.sideways ? { x: along, y: across } : { x: across, y: along };
  }

  edge({ from, to, bends }) {
    const points = [...bends, this.plan.places.get(to)];
    const turn = (along, across) => (this.sideways ? `${along} ${across}` : `${across} ${along}`);
    const middle = (item) => {
      const { x, y } = this.corner(item);
      return this.sideways ? { in: x, out: x + this.step, across: y + HEIGHT / 2 } : { in: y, out: y + HEIGHT, across: x + this.step / 2 };
    };
    let last = middle(this.plan.places.get(from));
    let path = `M${turn(last.out, last.across)}`;
    for (const point of points) {
      const next = middle(point);
      const end = point === points.at(-1) ? next.in - 6 : next.in;
      const half = (end - last.out) / 2;
      path += `C${turn(last.out + half, last.across)} ${turn(end - half, next.across)} ${turn(end, next.across)}`;
      if (point !== points.at(-1)) path += `L${turn(next.out, next.across)}`;
      last = next;
    }
    const element = svg("path", { class: "edge", d: path, "data-from": from, "data-to": to });
    this.colour(element);
    this.holders.edges.append(element);
    return element;
  }

  colour(edge) {
    const [from, to] = [edge.dataset.from, edge.dataset.to].map((key) => this.model.steps.get(key)?.status);
    const state = to === "running" ? "active" : from === "completed" && to !== "skipped" ? "done" : "idle";
    set(edge, { "data-state": state, "marker-end": `url(#arrow-${state})` });
  }

  fill(node, step) {
    const inner = this.step - 24;
    const state = svg("text", { class: "state", x: 34, y: 22 });
    const action = svg("text", { class: "what" });
    lines(step.action.replaceAll("`", ""), inner, FONTS.action, 2).forEach((line, number) => {
      const piece = svg("tspan", { x: 12, y: 42 + 16 * number });
      piece.textContent = line;
      action.append(piece);
    });
    const kind = svg("text", { class: "kind", x: this.step - 12, y: HEIGHT - 11 });
    kind.textContent = step.kind;
    const taken = measured(step.kind, FONTS.kind) + (step.critical ? 14 : 0);
    const key = svg("text", { class: "key", x: 12, y: HEIGHT - 11 });
    key.textContent = fitted(step.key, inner - taken - 8, FONTS.key);
    const sign = mark(step.status);
    set(sign, { transform: "translate(12 10)" });
    node.replaceChildren(svg("rect", { class: "shape", width: this.step, height: HEIGHT, rx: 12 }), sign, state, action, key, kind);
    if (step.critical) node.append(svg("path", { class: "diamond", d: `M${this.step - 12 - taken + 4} ${HEIGHT - 19}l4 4-4 4-4-4z` }));
    set(node, { "data-status": step.status, "data-critical": step.critical ? "yes" : "no" });
    this.say(state, step);
  }

  say(element, step) {
    const took = this.model.took(step);
    const timed = took !== null && (isOpen(step) || step.ended !== null) && step.status !== "skipped" && !step.status.startsWith("waiting");
    const time = timed ? ` · ${short(took, isOpen(step))}` : "";
    const word = WORDS[step.status] ?? words(step.status), room = this.step - 46;
    element.textContent = measured(word + time, FONTS.state) <= room ? word + time : fitted(word, room, FONTS.state);
  }

  // -- what changes

  update() {
    if (!this.nodes.size) return;
    for (const [key, node] of this.nodes) {
      const step = this.model.steps.get(key);
      if (step && node.dataset.status !== step.status) this.fill(node, step);
    }
    for (const edge of this.edges.values()) this.colour(edge);
    this.follow();
  }

  tick() {
    for (const node of this.box.querySelectorAll('.node[data-status="running"]')) {
      const step = this.model.steps.get(node.dataset.node);
      if (step) this.say(node.querySelector(".state"), step);
    }
  }

  // Keep what runs in sight, until the reader goes about by himself.
  follow() {
    const running = this.model.inOrder().filter(isOpen).at(0);
    if (running && !this.touched && this.corners.has(running.key)) this.reveal(running.key);
  }

  reveal(key) {
    const { x, y } = this.corners.get(key);
    const near = (from, size, start, view) => (from >= start && from + size <= start + view ? start : Math.max(0, from - (view - size) / 2));
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.box;
    this.box.scrollTo({ left: near(x, this.step, scrollLeft, clientWidth), top: near(y, HEIGHT, scrollTop, clientHeight) });
    this.paint();
  }

  // -- looking about

  hovered(event) {
    const key = event.target.closest("[data-node]")?.dataset.node;
    this.onShow(key === undefined ? null : this.model.steps.get(key), event.target.closest("[data-node]"));
  }

  choose(key) {
    this.nodes.get(this.current)?.classList.remove("current");
    this.current = key;
    this.reveal(key);
    this.nodes.get(key).classList.add("current");
    this.onShow(this.model.steps.get(key), this.nodes.get(key), { said: true });
  }

  // The nearest step that way; the first arrow only shows where one is.
  move(key) {
    const all = this.model.inOrder();
    const start = this.current ?? (all.find(isOpen) ?? all[0]).key;
    if (key === "Home") return all[0].key;
    if (key === "End") return all.at(-1).key;
    if (this.current === null) return start;
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    const here = this.corners.get(start);
    let best = start, least = Infinity;
    for (const [other, there] of this.corners) {
      const ahead = dx * (there.x - here.x) + dy * (there.y - here.y);
      const aside = Math.abs(dy * (there.x - here.x) + dx * (there.y - here.y));
      if (ahead <= 1 || ahead + 3 * aside >= least) continue;
      [best, least] = [other, ahead + 3 * aside];
    }
    return best;
  }
}

function arrow(state) {
  const head = svg("path", { d: "M1 1 7 5 1 9", class: "head", "data-state": state });
  return svg("marker", { id: `arrow-${state}`, viewBox: "0 0 8 10", refX: 6, refY: 5, markerWidth: 8, markerHeight: 10, orient: "auto", markerUnits: "userSpaceOnUse" }, head);
}

// A time that fits a step: `12 s`, `1:24 min`, `2:05 h`.
function short(took, open) {
  if (took < 60_000) return open ? elapsed(0, took) : milliseconds(took);
  const [unit, of] = took < 3_600_000 ? ["min", 60_000] : ["h", 3_600_000];
  return `${Math.floor(took / of)}:${String(Math.floor((took % of) / (of / 60))).padStart(2, "0")} ${unit}`;
}

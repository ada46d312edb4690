// The plan page's two pictures of a plan, a graph and a timeline: one at a time, live, with what a step says beside it.

import { call } from "./api.js";
import { announce, slot } from "./dom.js";
import { milliseconds, words } from "./format.js";
import { Graph } from "./plan-graph.js";
import { PlanModel } from "./plan-model.js";
import { Timeline } from "./plan-timeline.js";

const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
const POINTED_MS = 1_800;
const SHOWN_CHARACTERS = 280; // of an action or an error, beside the picture

export class PlanViews {
  constructor(page, section) {
    Object.assign(this, { page, section, frame: null, stale: false, heardMeanwhile: null });
    this.model = new PlanModel(JSON.parse(document.getElementById("plan-graph").textContent));
    this.detail = slot(section, "detail");
    const on = { onShow: (step, at, more) => this.show(step, at, more), onJump: (key) => this.jump(key) };
    this.views = { graph: new Graph(slot(section, "graph"), this.model, on), timeline: new Timeline(slot(section, "timeline"), this.model, on) };
    this.tabs = [...section.querySelectorAll("[role=tab]")];
    for (const tab of this.tabs) tab.addEventListener("click", () => this.open(tab.dataset.view));
    section.querySelector("[role=tablist]").addEventListener("keydown", (event) => this.tabKey(event));
    for (const view of Object.values(this.views)) {
      view.box.addEventListener("keydown", (event) => this.key(event, view));
      view.box.addEventListener("focus", () => { if (view.box.matches(":focus-visible")) view.choose(view.current ?? view.move("ArrowDown")); });
      view.box.addEventListener("blur", () => this.show(null));
      for (const name of ["wheel", "touchmove"]) view.box.addEventListener(name, () => this.show(null), { passive: true });
    }
    document.fonts.ready.then(() => this.start());
  }

  start() {
    this.open(localStorage.getItem("plan-view") === "timeline" ? "timeline" : "graph");
    this.tell();
    new ResizeObserver(() => {
      if (this.shown().box.clientWidth !== this.drawnAt) this.drawShown();
    }).observe(this.section);
    setInterval(() => { if (!document.hidden) this.shown().tick(); }, 1000);
    for (const [event, whole] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(event, () => { this.shown().whole = whole; this.shown().paint(); });
    }
  }

  // -- what happens

  heard(name, data) {
    const changed = this.model.apply(name, data);
    this.heardMeanwhile?.push([name, data]);
    if (changed === "shape") this.reload();
    else if (changed) this.draw();
  }

  // Many events come at once: one drawing a frame.
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.shown().update();
      this.tell();
    });
  }

  // Steps came or went: the server says how all of them hang together now.
  async reload() {
    this.stale = true;
    if (this.heardMeanwhile) return;
    this.heardMeanwhile = [];
    try {
      while (this.stale) {
        this.stale = false;
        const graph = await call("GET", `/api/plans/${this.model.id}/graph/`);
        this.model.load(graph);
        for (const event of this.heardMeanwhile.splice(0)) this.model.apply(...event); // the answer may be older
        this.drawShown(); // at once: what is drawn and what the model knows are the same steps
        this.tell();
      }
    } catch {
      // the list goes on; the next change asks again
    } finally {
      this.heardMeanwhile = null;
    }
  }

  // -- which picture

  shown() {
    return this.views[this.section.dataset.shown ?? "graph"];
  }

  open(name) {
    this.section.dataset.shown = name;
    localStorage.setItem("plan-view", name);
    for (const tab of this.tabs) {
      const chosen = tab.dataset.view === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
    }
    this.show(null);
    this.drawShown();
  }

  drawShown() {
    const view = this.shown();
    if (view.shaped !== this.model.steps) view.reshape();
    else view.draw();
    view.shaped = this.model.steps;
    this.drawnAt = view.box.clientWidth;
  }

  tabKey(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = this.tabs.at((this.tabs.indexOf(document.activeElement) + by) % this.tabs.length);
    this.open(next.dataset.view);
    next.focus();
  }

  // -- looking about

  key(event, view) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (KEYS.includes(event.key)) view.choose(view.move(event.key));
    else if ((event.key === "Enter" || event.key === " ") && view.current) this.jump(view.current);
    else if (event.key === "Escape") this.show(null);
    else return;
    event.preventDefault();
  }

  jump(key) {
    const line = this.page.querySelector(`[data-step="${CSS.escape(key)}"]`);
    if (!line) return;
    this.show(null);
    line.querySelector("details").open = true;
    line.querySelector("summary").focus({ preventScroll: true });
    line.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth" });
    line.classList.add("pointed");
    setTimeout(() => line.classList.remove("pointed"), POINTED_MS);
  }

  show(step, at, { said = false } = {}) {
    this.detail.hidden = !step;
    if (!step) return;
    slot(this.detail, "title").textContent = step.key;
    slot(this.detail, "what").textContent = short(step.action.replaceAll("`", ""));
    const facts = this.facts(step);
    slot(this.detail, "facts").replaceChildren(...facts.flatMap(([name, value]) => [named("dt", name), named("dd", value)]));
    this.beside(at.getBoundingClientRect());
    if (said) announce(`${step.key}: ${step.action}. ${facts.map((fact) => fact.join(" ")).join(". ")}`);
  }

  facts(step) {
    const took = this.model.took(step);
    return [
      ["State", words(step.status)],
      ["Kind", [step.kind, step.tool, step.critical ? "critical" : "not critical"].filter(Boolean).join(" · ")],
      ["Reads", step.reads.join(", ") || "nothing"],
      ["Began", time(step.started)],
      ["Took", took === null ? "" : milliseconds(took)],
      ["Goes on", step.status === "waiting_retry" ? time(step.due) : ""],
      ...step.waits.map((wait) => [wait.status === "waiting_retry" ? "Retry wait" : "Approval wait", milliseconds((wait.until ?? this.model.now()) - wait.since)]),
      ["Error", short(step.error || "")],
    ].filter(([, value]) => value);
  }

  // Below what it is about, above where there is no room; never outside the section.
  beside(target) {
    const frame = this.section.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.detail;
    const left = Math.max(0, Math.min(frame.width - width, target.left + Math.min(target.width, 320) / 2 - width / 2 - frame.left));
    const below = target.bottom + 8 + height < innerHeight;
    this.detail.style.left = `${left}px`;
    this.detail.style.top = `${(below ? target.bottom + 8 : target.top - height - 8) - frame.top}px`;
  }

  // What the pictures show, in words.
  tell() {
    const steps = this.model.inOrder();
    const counts = new Map();
    for (const step of steps) counts.set(step.status, (counts.get(step.status) ?? 0) + 1);
    const states = [...counts].map(([status, count]) => `${count} ${words(status).toLowerCase()}`).join(", ");
    const text = `${steps.length} ${steps.length === 1 ? "step" : "steps"}: ${states}. The list below says the same in words.`;
    for (const name of ["graph-text", "timeline-text"]) document.getElementById(name).textContent = text;
    slot(this.section, "critical").hidden = !steps.some((step) => step.critical);
    slot(this.section, "waits").hidden = !steps.some((step) => step.waits.length);
    slot(this.section, "cut").hidden = !this.views.graph.cut;
  }
}

const short = (text) => (text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text);

const time = (when) => (when === null ? "" : `${new Date(when).toISOString().slice(11, 19)} UTC`);

function named(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

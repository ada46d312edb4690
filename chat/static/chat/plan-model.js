// A plan's steps as the graph and the timeline know them: what the server told, then what its events say.

import { ENDED } from "./plan-actions.js";
import { ENDED_STEPS } from "./plan-steps.js";

const KINDS = { llm: "LLM", data: "Data", planning: "Planning", assessment: "Assessment" };
const SMALL_SKEW_MS = 2_000; // as likely the page's way here

// When the page came, by the clock here; its scripts may have taken longer.
const arrived = () => performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.responseStart ?? performance.now());

const moment = (text) => (text ? Date.parse(text) : null);

export class PlanModel {
  constructor(graph) {
    const skew = graph.now ? moment(graph.now) - arrived() : 0;
    this.skew = Math.abs(skew) < SMALL_SKEW_MS ? 0 : skew;
    this.load(graph);
  }

  load(graph) {
    this.id = graph.plan_id;
    this.status = graph.status;
    this.created = moment(graph.created_at);
    this.ended = moment(graph.ended_at);
    this.steps = new Map(graph.nodes.map((node) => [node.key, stepOf(node)]));
    this.edges = graph.edges;
    for (const { from, to } of graph.edges) this.steps.get(to).reads.push(from);
  }

  now() {
    return this.ended ?? Date.now() + this.skew;
  }

  // What an event changed: "steps", "shape" (the server has to be asked), or nothing.
  apply(name, data) {
    if (data.plan_id !== this.id) return null;
    if (name === "plan_adapted") return "shape";
    if (name === "plan_step") return this.step(data);
    const end = { plan_completed: "completed", plan_failed: "failed", plan_cancelled: "cancelled" }[name];
    if (!end || ENDED.includes(this.status)) return null;
    this.status = end;
    this.ended = moment(data.at);
    for (const step of this.steps.values()) {
      if (ENDED_STEPS.includes(step.status)) continue;
      stopWaiting(step, this.ended);
      Object.assign(step, { status: "skipped", ended: this.ended, error: "" });
    }
    return "steps";
  }

  step({ step: key, status, at, error, action, not_before: due }) {
    const step = this.steps.get(key);
    if (!step) return "shape";
    if (ENDED_STEPS.includes(step.status)) return null; // an ended step stays ended; the page knew it before the event
    const when = moment(at);
    stopWaiting(step, when);
    if (status === "running") step.started ??= when;
    step.due = moment(due);
    if (status.startsWith("waiting") && !step.waits.some((wait) => wait.since === when)) {
      step.waits.push({ status, since: when, until: null });
    }
    if (ENDED_STEPS.includes(status)) step.ended = when;
    Object.assign(step, { status, error: status === "completed" ? "" : error || "", action: action ?? step.action });
    if (!ENDED.includes(this.status)) this.status = status.startsWith("waiting") ? status : "running";
    return "steps";
  }

  inOrder() {
    return [...this.steps.values()];
  }

  // Whether the step has a bar: not one that a try before this plan had ended.
  begun(step) {
    return step.started !== null && !this.carried(step);
  }

  carried(step) {
    return step.ended !== null && step.ended < this.created;
  }

  // Milliseconds from its start to its end, or to now; null before its start.
  took(step) {
    return step.started === null ? null : Math.max(0, (step.ended ?? this.now()) - step.started);
  }
}

function stepOf(node) {
  return {
    key: node.key,
    action: node.action,
    kind: KINDS[node.kind] ?? node.kind,
    tool: node.tool_name,
    critical: node.is_critical,
    status: node.status,
    error: node.error,
    due: moment(node.not_before),
    started: moment(node.started_at),
    ended: moment(node.ended_at),
    waits: node.waits.map(({ status, since, until }) => ({ status, since: moment(since), until: moment(until) })),
    reads: [],
  };
}

function stopWaiting(step, when) {
  const last = step.waits.at(-1);
  if (last && last.until === null && last.since < when) last.until = when;
}

export const isOpen = (step) => step.status === "running" || step.status.startsWith("waiting");

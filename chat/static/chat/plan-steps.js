// The list of a plan's steps after somebody has changed those that had not begun.

import { setLine, slot } from "./dom.js";

export function adapted(thread, { plan_id: id, steps }) {
  const plan = thread.plan(id);
  if (!plan) return;
  const kept = new Set(steps.map((step) => step.key));
  for (const line of plan.querySelectorAll("[data-step]")) if (!kept.has(line.dataset.step)) line.remove();
  for (const step of steps) {
    const known = thread.step(id, step.key);
    if (known) {
      setLine(slot(known, "action"), step.action);
      slot(plan, "steps").append(known);
    } else {
      thread.addStep(plan, step);
    }
  }
  thread.count(plan);
}

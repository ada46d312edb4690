// The list of a plan's steps: how many are done, and what becomes of it when somebody changes those that had not begun.

import { setLine, slot } from "./dom.js";

export const ENDED_STEPS = ["completed", "failed", "skipped"];
const changed = new Set();

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
  count(plan);
}

// Count once a frame, however many steps of a long plan change in it.
export function count(plan) {
  if (!changed.size) {
    requestAnimationFrame(() => {
      for (const each of changed) countNow(each);
      changed.clear();
    });
  }
  changed.add(plan);
}

function countNow(plan) {
  const states = [...plan.querySelectorAll("[data-step]")].map((step) => step.dataset.status);
  const skipped = states.filter((state) => state === "skipped").length;
  const done = states.filter((state) => ENDED_STEPS.includes(state)).length - skipped;
  Object.assign(slot(plan, "progress"), { max: Math.max(1, states.length), value: done });
  slot(plan, "count").textContent = `${done} of ${states.length}${skipped ? ` · ${skipped} skipped` : ""}`;
}

// Stopping a plan, and trying one again.

import { call } from "./api.js";
import { setText, slot } from "./dom.js";

export const ENDED = ["completed", "failed", "cancelled"];

export async function clickedPlan(event) {
  const button = event.target.closest("[data-action=cancel-plan], [data-action=retry-plan]");
  if (!button) return;
  const plan = button.closest("[data-plan]");
  const cancel = button.dataset.action === "cancel-plan";
  button.disabled = true;
  try {
    const made = await call("POST", `/api/plans/${plan.dataset.plan}/${cancel ? "cancel" : "retry"}/`);
    if (!cancel) location.assign(`/plans/${made.id}/`);
    else if (!ENDED.includes(plan.dataset.status)) slot(plan, "status").textContent = "Stopping…";
  } catch (error) {
    setText(plan.querySelector(":scope > [data-slot=error]"), error.message);
  } finally {
    button.disabled = false;
  }
}

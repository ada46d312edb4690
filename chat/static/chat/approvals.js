// Cards of calls that wait for a person. The server draws them, from the stored arguments.

import { call } from "./api.js";
import { setText, slot } from "./dom.js";

export class Approvals {
  // homeOf(data): the turn or plan that the call belongs to, if the page has it
  constructor(root, homeOf, onGrow) {
    Object.assign(this, { homeOf, onGrow, asked: new Map() });
    root.addEventListener("submit", (event) => this.decide(event));
  }

  async draw(data) {
    const id = data.approval_id;
    const owner = this.homeOf(data);
    if (!owner) return;
    const number = (this.asked.get(id) ?? 0) + 1;
    this.asked.set(id, number);
    const response = await fetch(`/approvals/${id}/`, { credentials: "same-origin" }).catch(() => null);
    if (!response?.ok || response.redirected || this.asked.get(id) !== number) return; // a later question is on its way
    const holder = document.createElement("template");
    holder.innerHTML = await response.text();
    const card = holder.content.firstElementChild;
    const known = owner.querySelector(`[data-approval="${id}"]`);
    if (known) known.replaceWith(card);
    else [...owner.querySelectorAll("[data-slot=approvals]")].at(-1).append(card);
    this.onGrow();
  }

  async decide(event) {
    const form = event.target.closest("[data-decide]");
    if (!form) return;
    event.preventDefault();
    const problem = slot(form, "problem");
    setText(problem, "");
    try {
      const body = { decision: event.submitter.value, note: form.elements.note.value };
      const edited = form.elements.arguments;
      if (body.decision === "approve" && edited && edited.value !== edited.defaultValue) body.arguments = parsed(edited.value);
      this.draw(await call("POST", `/api/approvals/${form.dataset.decide}/decide/`, body));
    } catch (error) {
      setText(problem, error.message);
    }
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The arguments are no JSON: ${error.message}`);
  }
}

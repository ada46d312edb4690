// Asking something else instead, asking again, and leafing through what was asked and answered before.

import { call, newKey } from "./api.js";
import { announce, fromTemplate, setText, slot } from "./dom.js";

const later = () => ({ Prefer: "respond-async", "Idempotency-Key": newKey() });

export class Branches {
  // onProblem(text, draft): says what went wrong, and keeps what was to be asked; onAsked(): a new turn is drawn
  constructor(root, thread, { onProblem, onAsked }) {
    Object.assign(this, { root, thread, onProblem, onAsked, missed: null, again: null, leafing: false, chosen: null });
    this.url = `/api/conversations/${root.dataset.conversation}`;
    root.addEventListener("click", (event) => this.clicked(event));
    root.addEventListener("submit", (event) => this.submitted(event));
    root.addEventListener("keydown", (event) => this.key(event));
  }

  // One event of the stream. A question that does not follow the last one shown begins another branch, and another tab
  // may have chosen one: the server draws it.
  heard(name, data) {
    if (name === "branch_selected" && this.leafing) {
      this.chosen = data; // ours, or another tab's: the page that is asked for in a moment shows it
      return;
    }
    this.missed?.push([name, data]);
    if ((name === "turn_queued" && !this.follows(data)) || (name === "branch_selected" && !this.shows(data))) {
      this.refresh();
      return;
    }
    this.thread.apply(name, data);
    if (name !== "turn_queued" || data.after_id === undefined) return;
    this.thread.turn(data.turn_id).dataset.after = data.after_id ?? "none";
  }

  shows({ turn_id }) {
    return this.thread.lastTurn() === String(turn_id);
  }

  follows({ turn_id, after_id }) {
    if (after_id === undefined) return true;
    const turns = [...this.root.querySelectorAll("[data-turn]")].map((turn) => turn.dataset.turn);
    const place = turns.indexOf(String(turn_id));
    if (place === 0) return true; // what came before it may be left out
    return (turns.at(place < 0 ? -1 : place - 1) ?? null) === (after_id === null ? null : String(after_id));
  }

  // Draw the thread as the server does. What happens meanwhile is drawn again: its page may have been made before.
  async refresh() {
    if (this.missed) {
      this.again = true;
      return this.refreshed;
    }
    this.missed = [];
    this.refreshed = this.redraw();
    await this.refreshed;
    const missed = this.missed;
    this.missed = null;
    for (const [name, data] of missed) this.heard(name, data);
    this.thread.onTurn(this.thread.openTurn());
    if (this.again) {
      this.again = false;
      await this.refresh();
    }
  }

  async redraw() {
    try {
      const response = await fetch(location.pathname + location.search, { credentials: "same-origin" });
      if (!response.ok || response.redirected) throw new Error(`the page answered ${response.status}`);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const drafts = this.drafts();
      this.root.replaceChildren(...page.querySelector("[data-page]").childNodes);
      this.restore(drafts);
    } catch {
      location.reload();
    }
  }

  // What somebody is typing, or sending, instead of a question outlives a drawing anew, where the question is still shown.
  drafts() {
    return [...this.root.querySelectorAll("[data-edit]")].filter((form) => !form.taken).map((form) => ({
      turn: form.closest("[data-turn]").dataset.turn,
      form,
      typing: form.contains(document.activeElement),
    }));
  }

  restore(drafts) {
    for (const { turn, form, typing } of drafts) {
      const shown = this.thread.turn(turn);
      if (!shown) continue;
      this.open(shown, form);
      if (typing) form.elements.text.focus({ preventScroll: true });
    }
  }

  open(turn, form) {
    slot(turn, "question").after(form);
    turn.classList.add("editing");
  }

  async clicked(event) {
    const button = event.target.closest("[data-action]");
    const turn = button?.closest("[data-turn]");
    if (!turn) return;
    const act = { "edit-question": this.edit, "cancel-edit": this.cancelEdit, "answer-again": this.answerAgain, branch: this.show }[button.dataset.action];
    if (!act) return;
    try {
      await act.call(this, turn, button);
    } catch (error) {
      this.onProblem(error.message);
    }
  }

  edit(turn) {
    if (turn.querySelector("[data-edit]")) return;
    const form = fromTemplate("edit");
    form.elements.text.value = slot(turn, "question").textContent;
    this.open(turn, form);
    form.elements.text.focus();
  }

  cancelEdit(turn) {
    turn.querySelector("[data-edit]").remove();
    turn.classList.remove("editing");
    turn.querySelector("[data-action=edit-question]").focus();
  }

  key(event) {
    const form = event.target.closest("[data-edit]");
    if (!form) return;
    if (event.key === "Escape") {
      event.stopPropagation(); // it stops no answer
      this.cancelEdit(form.closest("[data-turn]"));
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.matches("textarea")) {
      event.preventDefault();
      form.requestSubmit();
    }
  }

  async submitted(event) {
    const form = event.target.closest("[data-edit]");
    if (!form) return;
    event.preventDefault();
    const text = form.elements.text.value, button = form.querySelector(".primary");
    if (!text.trim() || button.disabled) return;
    const { after } = form.closest("[data-turn]").dataset;
    button.disabled = true;
    setText(slot(form, "problem"), "");
    try {
      form.key ||= newKey(); // trying again is not asking twice
      if (form.asked !== text) Object.assign(form, { asked: text, key: newKey() });
      const body = { text, after_turn: after === "none" ? null : Number(after) };
      await call("POST", `${this.url}/messages/`, body, { ...later(), "Idempotency-Key": form.key });
      form.taken = true;
      await this.asked();
    } catch (error) {
      if (form.isConnected) setText(slot(form, "problem"), error.message);
      else this.onProblem(error.message, text); // its question is not shown any more
    } finally {
      button.disabled = false;
    }
  }

  async answerAgain(turn, button) {
    button.disabled = true;
    try {
      await call("POST", `/api/turns/${turn.dataset.turn}/regenerate/`, undefined, later());
      await this.asked();
    } finally {
      button.disabled = false;
    }
  }

  async asked() {
    this.onProblem("");
    await this.refresh();
    this.onAsked();
  }

  async show(turn, button) {
    const turns = () => [...this.root.querySelectorAll("[data-turn]")];
    const place = turns().indexOf(turn), top = turn.getBoundingClientRect().top;
    const where = button.closest(".turn-tools").classList.contains("asked") ? ".asked" : ".answered";
    const { branch, to } = button.dataset;
    this.leafing = true;
    try {
      await call("POST", `${this.url}/branch/`, { turn_id: Number(branch) }, { "Idempotency-Key": newKey() });
      this.onProblem("");
      await this.refresh();
    } finally {
      const chosen = this.chosen;
      Object.assign(this, { leafing: false, chosen: null });
      if (chosen && !this.shows(chosen)) await this.refresh(); // another tab's, also where ours was refused
    }
    const shown = turns()[place];
    if (!shown) return;
    this.root.parentElement.scrollTop += shown.getBoundingClientRect().top - top; // it stays where the eye is
    const pager = shown.querySelector(`${where} .pager`);
    if (!pager) return;
    (pager.querySelector(`[data-to="${to}"]:enabled`) ?? pager.querySelector("button:enabled"))?.focus();
    announce(`Version ${pager.querySelector(".pages").textContent.replace("/", " of ")}.`);
  }
}

// The place to write: Enter sends, Shift-Enter breaks the line, Esc stops, / comes here.

import { setText, slot } from "./dom.js";

export class Composer {
  // onSend(text, form): resolves when it was taken, throws an Error to show; onStop(turnId)
  constructor(form, { onSend, onStop = () => {} }) {
    Object.assign(this, { form, onSend, onStop, turn: null, sending: false });
    this.input = form.querySelector("textarea");
    this.problem = slot(form, "problem");
    this.sendButton = form.querySelector("[data-action=send]");
    this.stopButton = form.querySelector("[data-action=stop]");
    form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.input.addEventListener("input", () => this.refresh());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.stopButton.addEventListener("click", () => this.stop());
    document.addEventListener("keydown", (event) => this.pageKey(event));
    this.refresh();
    if (matchMedia("(hover: hover)").matches) this.input.focus();
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }

  pageKey(event) {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (this.turn) this.stop();
      else document.activeElement?.blur();
    } else if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select")) {
      event.preventDefault();
      this.input.focus();
    }
  }

  async send() {
    const text = this.input.value;
    if (!text.trim() || this.sending || this.turn) return;
    this.sending = true;
    this.input.value = "";
    this.show("");
    this.refresh();
    try {
      await this.onSend(text, this.form);
    } catch (error) {
      if (!this.input.value) this.input.value = text;
      this.show(error.message);
    } finally {
      this.sending = false;
      this.refresh();
    }
  }

  async stop() {
    if (!this.turn) return;
    this.stopButton.disabled = true;
    try {
      await this.onStop(this.turn);
    } catch (error) {
      this.show(error.message);
    }
  }

  answering(turn) {
    this.turn = turn;
    this.stopButton.disabled = false;
    this.refresh();
  }

  fill(text) {
    this.input.value = text;
    this.refresh();
    this.input.focus();
  }

  // `draft` comes into the field, where nothing else is being written.
  show(problem, draft = "") {
    setText(this.problem, problem);
    if (draft && !this.input.value) this.fill(draft);
  }

  refresh() {
    this.stopButton.hidden = !this.turn;
    this.sendButton.hidden = Boolean(this.turn);
    this.sendButton.disabled = this.sending || !this.input.value.trim();
  }
}

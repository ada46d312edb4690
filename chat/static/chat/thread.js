// Draws events into the page. Drawing one twice changes nothing: the server's page may know it already.

import { Approvals } from "./approvals.js";
import { showCall } from "./calls.js";
import { announce, fromTemplate, setHtml, setLine, setText, slot } from "./dom.js";
import { elapsed, milliseconds, words } from "./format.js";
import { LiveText } from "./live-text.js";
import { clickedPlan, ENDED } from "./plan-actions.js";
import { adapted, count, ENDED_STEPS } from "./plan-steps.js";
import { endWait, sayWait } from "./waits.js";

export class Thread {
  // onTurn(turnId or null): which turn is being answered
  constructor(root, { onTurn = () => {}, onGrow = () => {} } = {}) {
    Object.assign(this, { root, onTurn, onGrow });
    this.fences = new Map();
    this.steps = new Map();
    this.live = new Map();
    this.dirty = new Set();
    root.addEventListener("toggle", (event) => showCall(event.target), true);
    root.addEventListener("click", clickedPlan);
    this.approvals = new Approvals(root, (data) => this.ownerTurn(data.run) ?? this.plan(data.plan_id), onGrow);
    setInterval(() => this.tick(), 1000);
    this.tick();
  }

  apply(name, data) {
    this[`on_${name}`]?.(data);
    this.onGrow(name === "plan_completed" ? this.plan(data.plan_id) : null);
  }

  // -- turns

  turn(id) {
    return this.root.querySelector(`[data-turn="${id}"]`);
  }

  // The turn that the thread ends with; null: there is none.
  lastTurn() {
    return [...this.root.querySelectorAll("[data-turn]")].at(-1)?.dataset.turn ?? null;
  }

  openTurn() {
    const open = [...this.root.querySelectorAll("[data-turn]")].filter((turn) => !ENDED.includes(turn.dataset.status));
    return open.length ? open.at(-1).dataset.turn : null;
  }

  ensureTurn(id, text) {
    const known = this.turn(id);
    if (known) return known;
    const turn = fromTemplate("turn");
    turn.dataset.turn = id;
    slot(turn, "question").textContent = text;
    slot(turn, "working").hidden = false;
    this.root.append(turn);
    this.onTurn(String(id));
    return turn;
  }

  doing(turn, text) {
    endWait(slot(turn, "doing"));
    slot(turn, "doing").textContent = text;
    slot(turn, "working").hidden = !text || ENDED.includes(turn.dataset.status);
  }

  on_turn_queued({ turn_id, text }) {
    this.ensureTurn(turn_id, text);
  }

  on_typing({ run }) {
    const turn = this.ownerTurn(run);
    if (!turn || ENDED.includes(turn.dataset.status)) return;
    turn.dataset.status = "running";
    setText(slot(turn, "notice"), "");
    this.doing(turn, "Thinking…");
  }

  on_turn_ended({ turn_id, status, notice }) {
    const turn = this.turn(turn_id);
    if (!turn) return;
    turn.dataset.status = status;
    for (const key of [...this.live.keys()].filter((key) => key.startsWith(`turn:${turn_id}/`))) this.forget(key);
    this.doing(turn, "");
    const element = slot(turn, "notice");
    setText(element, notice || "");
    element.classList.toggle("bad", status === "failed");
    announce(status === "completed" ? "The answer is ready." : `The answer ended: ${words(status)}.`);
    this.onTurn(this.openTurn());
  }

  // A wait between two tries is live and ends by itself; one that is a row ends with the run's next claim.
  on_rate_limit(data) {
    if (data.fence !== undefined && !this.fresh(data)) return;
    const { run, plan_id, step, retry_after_s, delay_s } = data;
    const turn = this.ownerTurn(run);
    if (turn) this.doing(turn, "Waiting…");
    const activity = turn ? slot(turn, "doing") : this.activity(this.step(plan_id, step) ?? this.stepOf(run));
    const then = () => (turn ? this.doing(turn, "Thinking…") : setText(activity, ""));
    sayWait(activity, retry_after_s ?? delay_s ?? 0, data.fence === undefined ? null : then);
  }

  ownerTurn(run) {
    return run?.startsWith("turn:") ? this.turn(run.slice(5)) : null;
  }

  // -- rounds

  round(turn, number) {
    const rounds = slot(turn, "rounds");
    for (const round of rounds.children) {
      if (Number(round.dataset.round) === number) return round;
      if (Number(round.dataset.round) > number) {
        const made = this.newRound(number);
        round.before(made);
        return made;
      }
    }
    const made = this.newRound(number);
    rounds.append(made);
    return made;
  }

  newRound(number) {
    const round = fromTemplate("round");
    round.dataset.round = number;
    return round;
  }

  on_ai_message({ run, round: number, html, partial }) {
    const turn = this.ownerTurn(run);
    if (!turn) return;
    const round = this.round(turn, number);
    this.forget(`${run}/${number}`);
    round.dataset.stored = "yes";
    const prose = slot(round, "text");
    prose.classList.remove("streaming");
    setHtml(prose, html || "");
    slot(round, "partial").hidden = !partial;
  }

  // -- live text

  fresh({ run, fence }) {
    if (fence < (this.fences.get(run) ?? 0)) return false;
    this.fences.set(run, fence);
    return true;
  }

  on_token(data) {
    if (!this.fresh(data)) return;
    const key = `${data.run}/${data.round}`;
    if (!this.live.has(key)) this.live.set(key, new LiveText());
    this.live.get(key).write(data.offset, data.text);
    this.draw(key);
  }

  on_round_restarted(data) {
    if (!this.fresh(data)) return;
    const key = `${data.run}/${data.round}`;
    this.live.set(key, new LiveText());
    this.draw(key);
  }

  forget(key) {
    this.live.delete(key);
    this.dirty.delete(key);
  }

  draw(key) {
    this.dirty.add(key);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      for (const each of this.dirty) this.drawNow(each);
      this.dirty.clear();
      this.onGrow();
    });
  }

  drawNow(key) {
    const [run, number] = key.split("/");
    const text = this.live.get(key)?.text;
    if (text === undefined) return;
    const turn = this.ownerTurn(run);
    if (turn) {
      if (ENDED.includes(turn.dataset.status)) return;
      const round = this.round(turn, Number(number));
      if (round.dataset.stored) return;
      const prose = slot(round, "text");
      prose.classList.add("streaming");
      prose.textContent = text;
      prose.hidden = !text;
      this.doing(turn, text ? "Writing…" : "Thinking…");
    } else {
      const step = this.stepOf(run);
      if (!step || ENDED_STEPS.includes(step.dataset.status)) return;
      setText(slot(step, "live"), text);
      if (text && endWait(slot(step, "activity"))) setText(slot(step, "activity"), "");
    }
  }

  // -- tool calls

  tool({ run, round: number, position, tool, label }) {
    const key = `${run}/${number}/${position}`;
    const known = this.root.querySelector(`[data-tool="${CSS.escape(key)}"]`);
    if (known) return known;
    const turn = this.ownerTurn(run);
    const owner = turn ? this.round(turn, number) : this.stepOf(run);
    const home = owner && slot(owner, "tools");
    if (!home) return null;
    const made = fromTemplate("tool");
    made.dataset.tool = key;
    slot(made, "label").textContent = label;
    slot(made, "tool").textContent = tool;
    const after = [...home.children].find((other) => this.later(other.dataset.tool, key));
    home.insertBefore(made, after ?? null);
    return made;
  }

  later(one, other) {
    const [, round, position] = one.split("/").map(Number), [, otherRound, otherPosition] = other.split("/").map(Number);
    return round > otherRound || (round === otherRound && position > otherPosition);
  }

  on_tool_start(data) {
    const chip = this.tool(data);
    if (chip && chip.dataset.state !== "running") return; // a live signal that its row has overtaken
    if (chip && data.label) slot(chip, "label").textContent = data.label;
    const turn = this.ownerTurn(data.run);
    if (turn) this.doing(turn, `${data.label || data.tool}…`);
    else setText(this.activity(this.stepOf(data.run)), `${data.label || data.tool}…`);
  }

  on_tool_end(data) {
    const chip = this.tool(data);
    if (chip) {
      if (data.label) slot(chip, "label").textContent = data.label;
      chip.dataset.state = data.success ? "done" : "failed";
      setText(slot(chip, "state"), words(chip.dataset.state));
      setText(slot(chip, "time"), milliseconds(data.duration_ms));
      setText(slot(chip, "error"), data.error || "");
      if (chip.open) showCall(chip);
    }
    const turn = this.ownerTurn(data.run);
    if (turn) this.doing(turn, "Thinking…");
    else setText(this.activity(this.stepOf(data.run)), "");
  }

  // -- approvals

  on_approval_requested(data) {
    const turn = this.ownerTurn(data.run);
    if (turn && !ENDED.includes(turn.dataset.status)) {
      turn.dataset.status = "waiting_approval";
      this.doing(turn, "Waiting for approval…");
    }
    this.approvals.draw(data);
    announce(`Approval is asked for: ${data.summary}`);
  }

  on_approval_decided(data) {
    const turn = this.ownerTurn(data.run);
    if (turn) this.doing(turn, "Waiting for a worker…");
    this.approvals.draw(data);
  }

  // -- plans

  plan(id) {
    return this.root.querySelector(`[data-plan="${id}"]`);
  }

  step(planId, key) {
    const name = `${planId}/${key}`;
    const known = this.steps.get(name);
    if (known?.isConnected) return known;
    const found = this.plan(planId)?.querySelector(`[data-step="${CSS.escape(key ?? "")}"]`) ?? null;
    this.steps.set(name, found);
    return found;
  }

  stepOf(run) {
    return this.root.querySelector(`[data-run="${CSS.escape(run)}"]`);
  }

  activity(step) {
    return step && !ENDED_STEPS.includes(step.dataset.status) ? slot(step, "activity") : null;
  }

  on_plan_created({ plan_id, turn_id, goal, steps }) {
    const turn = this.turn(turn_id);
    if (this.plan(plan_id) || !turn) return;
    const plan = fromTemplate("plan");
    plan.dataset.plan = plan_id;
    slot(plan, "link").href = `/plans/${plan_id}/`;
    slot(plan, "number").textContent = plan_id;
    setLine(slot(plan, "goal"), goal);
    for (const each of steps) this.addStep(plan, each);
    slot(turn, "plans").append(plan);
    count(plan);
    announce(`A plan of ${steps.length} steps was made.`);
  }

  addStep(plan, { run, key, action, status }) {
    const step = fromTemplate("step");
    step.dataset.step = key;
    step.dataset.run = run ?? "";
    this.stepStatus(step, status);
    setLine(slot(step, "action"), action);
    slot(plan, "steps").append(step);
    return step;
  }

  on_plan_step(data) {
    const plan = this.plan(data.plan_id);
    if (!plan) return;
    const step = this.step(data.plan_id, data.step) ?? this.addStep(plan, { ...data, key: data.step });
    if (data.run) step.dataset.run = data.run;
    this.stepStatus(step, data.status);
    setLine(slot(step, "action"), data.action);
    this.time(step, data);
    if (data.html) setHtml(slot(step, "synthesis"), data.html);
    setText(slot(step, "error"), data.status === "completed" ? "" : data.error || "");
    if (data.status !== "running") {
      slot(step, "live").hidden = true;
      slot(step, "activity").hidden = true;
    }
    if (!ENDED.includes(plan.dataset.status)) this.planStatus(plan, data.status.startsWith("waiting") ? data.status : "running");
    count(plan);
  }

  stepStatus(step, status) {
    step.dataset.status = status;
    slot(step, "status").textContent = words(status);
  }

  time(step, { status, at }) {
    const time = slot(step, "time");
    const moment = Date.parse(at);
    if (status === "running") {
      time.dataset.since ||= new Date(moment).toISOString();
    } else if (ENDED_STEPS.includes(status) && time.dataset.since) {
      const took = moment - Date.parse(time.dataset.since);
      if (took >= 0) time.textContent = milliseconds(took);
    }
  }

  planStatus(plan, status) {
    plan.dataset.status = status;
    slot(plan, "status").textContent = words(status);
    plan.querySelector("[data-action=cancel-plan]").hidden = ENDED.includes(status);
    plan.querySelector("[data-action=retry-plan]").hidden = !["failed", "cancelled"].includes(status);
  }

  endPlan(id, status, { at, html = "", error = "" }) {
    const plan = this.plan(id);
    if (!plan) return;
    const took = slot(this.root, "took");
    const since = took?.dataset.since ?? plan.querySelector("time[data-since]")?.dataset.since;
    if (took && since) took.textContent = milliseconds(Date.parse(at) - Date.parse(since));
    this.planStatus(plan, status);
    if (status !== "completed") {
      for (const step of plan.querySelectorAll("[data-step]")) {
        if (!ENDED_STEPS.includes(step.dataset.status)) this.stepStatus(step, "skipped");
        slot(step, "live").hidden = slot(step, "activity").hidden = true;
      }
    }
    if (html) {
      setHtml(slot(plan, "result-text"), html);
      slot(plan, "result").hidden = false;
    }
    setText(plan.querySelector(":scope > [data-slot=error]"), error);
    count(plan);
    announce(`The plan ended: ${words(status)}.`);
  }

  on_plan_adapted(data) {
    adapted(this, data);
  }

  on_plan_completed({ plan_id, html, at }) {
    this.endPlan(plan_id, "completed", { html, at });
  }

  on_plan_failed({ plan_id, error, step, at }) {
    this.endPlan(plan_id, "failed", { error: step ? `step ${step}: ${error}` : error, at });
  }

  on_plan_cancelled({ plan_id, at }) {
    this.endPlan(plan_id, "cancelled", { at });
  }

  tick() {
    for (const time of this.root.querySelectorAll('[data-status="running"] > details time[data-since]')) {
      time.textContent = elapsed(Date.parse(time.dataset.since));
    }
  }
}

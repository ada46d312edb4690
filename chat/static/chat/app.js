// Wires the page at hand: a new chat, a conversation, or a plan.

import { call, newKey } from "./api.js";
import { Board, fill } from "./board.js";
import { Branches } from "./branches.js";
import { Composer } from "./composer.js";
import { PlanViews } from "./plan-views.js";
import { startSidebar, titled } from "./sidebar.js";
import { Stream, showState } from "./stream.js";
import { Thread } from "./thread.js";

const pages = { home, conversation, plan };

startSidebar();
const root = document.querySelector("[data-page]");
if (root) pages[root.dataset.page](root);

// `after` is the turn that the text goes on from, as its author saw it; undefined: the server knows.
function post(conversation, text, key, after) {
  return call("POST", `/api/conversations/${conversation}/messages/`, { text, after_turn: after }, { Prefer: "respond-async", "Idempotency-Key": key });
}

function home(root) {
  const form = root.querySelector("[data-composer]");
  if (!form) return;
  const made = { text: null };
  const composer = new Composer(form, {
    onSend: async (text) => {
      if (made.text !== text) Object.assign(made, { text, opened: newKey(), sent: newKey() }); // trying again is not sending twice
      const workspace = form.elements.workspace?.value;
      const opened = await call("POST", "/api/conversations/", workspace ? { workspace } : {}, { "Idempotency-Key": made.opened });
      await post(opened.id, text, made.sent);
      location.assign(`/c/${opened.id}/`);
    },
  });
  root.addEventListener("click", (event) => {
    const text = event.target.closest("[data-suggestion]")?.dataset.suggestion;
    if (text) composer.fill(text);
  });
}

function conversation(root) {
  const id = root.dataset.conversation;
  const form = document.querySelector("[data-composer]");
  const end = keepAtEnd();
  let composer = null;
  const thread = new Thread(root, { onTurn: (turn) => composer?.answering(turn), onGrow: end.grown });
  if (form) {
    const sent = { text: null };
    composer = new Composer(form, {
      onSend: async (text) => {
        if (sent.text !== text) { // trying again asks the same at the same place
          const last = thread.lastTurn();
          Object.assign(sent, { text, key: newKey(), after: last === null ? null : Number(last) });
        }
        const turn = await post(id, text, sent.key, sent.after).catch((error) => {
          if (error.code === "turn.active") sent.text = null; // nothing was made; the next try follows what is shown then
          throw error;
        });
        sent.text = null;
        thread.ensureTurn(turn.turn_id, text);
        end.jump();
        const { title } = await call("GET", `/api/conversations/${id}/`);
        titled(id, title);
      },
      onStop: (turn) => call("POST", `/api/turns/${turn}/cancel/`),
    });
    composer.answering(thread.openTurn());
  }
  const branches = new Branches(root, thread, { onProblem: (text, draft) => composer?.show(text, draft), onAsked: end.jump });
  const board = new Board(document.getElementById("board"));
  follow(root, (name, data) => {
    if (name === "blackboard" && data.turn_id) board.heard(data); // a plan has a board of its own
    else branches.heard(name, data);
  });
  end.jump();
}

function plan(root) {
  const thread = new Thread(root);
  const views = new PlanViews(root, root.querySelector("[data-views]"));
  const board = root.querySelector("[data-plan-board]");
  follow(root, (name, data) => {
    if (name === "blackboard" && fill(board, data)) board.hidden = false;
    thread.apply(name, data);
    views.heard(name, data);
  });
}

function follow(root, onEvent) {
  new Stream(root.dataset.stream, {
    lastId: root.dataset.lastId,
    onEvent,
    onState: showState,
  }).run();
}

// Stay at the end while the reader is there; offer the way back when not.
function keepAtEnd() {
  const scroll = document.querySelector("[data-scroll]");
  const button = document.querySelector("[data-action=to-end]");
  const near = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  let pinned = true;
  const jump = () => { pinned = true; scroll.scrollTop = scroll.scrollHeight; button.hidden = true; };
  scroll.addEventListener("scroll", () => { pinned = near(); button.hidden = pinned; });
  button.addEventListener("click", jump);
  // A result is read from its top, also when it is longer than the window.
  const showTop = (plan) => plan.querySelector("[data-slot=result]").scrollIntoView({ block: "start" });
  const grown = (ended = null) => {
    if (!pinned) button.hidden = near();
    else if (ended && ended.querySelector("[data-slot=result]").offsetHeight > scroll.clientHeight - 120) showTop(ended);
    else jump();
  };
  return { jump, grown };
}

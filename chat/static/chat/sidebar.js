// The list of chats: rename, delete, and the drawer it becomes on a narrow screen.

import { call } from "./api.js";
import { fromTemplate, setText, slot } from "./dom.js";

const current = () => document.querySelector("[data-conversation]")?.dataset.conversation;

export function startSidebar() {
  document.addEventListener("click", (event) => {
    const action = event.target.closest("[data-action]")?.dataset.action;
    if (action === "menu") menu(!document.body.classList.contains("menu-open"));
    else if (action === "close-menu") menu(false);
    else if (action === "theme") theme();
    else if (action === "rename") rename(event.target.closest("[data-chat]"));
    else if (action === "delete") remove(event.target.closest("[data-chat]"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu(false);
  });
}

function menu(open) {
  document.body.classList.toggle("menu-open", open);
  document.querySelector("[data-action=menu]").setAttribute("aria-expanded", String(open));
  if (open) document.querySelector(".new-chat").focus();
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

export function titled(id, title) {
  let item = document.querySelector(`[data-chat="${id}"]`);
  if (!item) {
    item = fromTemplate("chat-item");
    item.dataset.chat = id;
    item.querySelector("a").href = `/c/${id}/`;
  }
  slot(item, "title").textContent = title || "New chat";
  document.querySelector("[data-chats]").prepend(item);
  document.querySelector("[data-slot=no-chats]").hidden = true;
  if (current() === id) {
    item.querySelector("a").setAttribute("aria-current", "page");
    slot(document, "page-title").textContent = title || "New chat";
    document.title = `${title || "New chat"} · Capstan`;
  }
}

// Ask in the one dialog; `act(value)` may throw an Error to show there.
function ask({ title, text, yes, danger, value }, act) {
  const dialog = document.querySelector("[data-dialog]");
  const form = dialog.querySelector("form");
  const field = form.elements.title;
  slot(dialog, "dialog-title").textContent = title;
  setText(slot(dialog, "dialog-text"), text);
  setText(slot(dialog, "dialog-problem"), "");
  slot(dialog, "dialog-yes").textContent = yes;
  slot(dialog, "dialog-yes").classList.toggle("danger", Boolean(danger));
  field.hidden = value === undefined;
  field.value = value ?? "";
  form.onsubmit = async (event) => {
    if (event.submitter?.value !== "yes" && !(event.submitter === null && value !== undefined)) return;
    event.preventDefault();
    try {
      await act(field.value.trim());
      dialog.close();
    } catch (error) {
      setText(slot(dialog, "dialog-problem"), error.message);
    }
  };
  field.onkeydown = (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      form.requestSubmit(slot(dialog, "dialog-yes"));
    }
  };
  dialog.showModal();
  (value === undefined ? dialog.querySelector("menu button") : field).focus();
  field.select();
}

function rename(item) {
  const id = item.dataset.chat;
  ask({ title: "Rename this chat", text: "", yes: "Rename", value: slot(item, "title").textContent }, async (title) => {
    titled(id, (await call("PATCH", `/api/conversations/${id}/`, { title })).title);
  });
}

function remove(item) {
  const id = item.dataset.chat;
  const text = `“${slot(item, "title").textContent}” and its messages go for good.`;
  ask({ title: "Delete this chat?", text, yes: "Delete", danger: true }, async () => {
    await call("DELETE", `/api/conversations/${id}/`);
    if (current() === id) location.assign("/");
    else item.remove();
  });
}

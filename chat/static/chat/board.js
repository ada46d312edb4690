// The blackboard beside the chat: a column where there is room for it, else a drawer. Where it is a column, its being
// open or closed is remembered.

const wide = matchMedia("(min-width: 72.0625rem)");

export class Board {
  constructor(panel) {
    this.panel = panel;
    this.button = document.querySelector("[data-action=board]");
    document.addEventListener("click", (event) => {
      const action = event.target.closest("[data-action]")?.dataset.action;
      if (action === "board") this.show(!this.shown());
      else if (action === "close-board" || (action === "close-menu" && this.drawn())) this.show(false);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.drawn()) return;
      event.stopPropagation(); // it stops no answer
      this.show(false);
    }, true);
    wide.addEventListener("change", () => this.tell());
    this.tell();
  }

  shown() {
    return getComputedStyle(this.panel).visibility !== "hidden" && getComputedStyle(this.panel).display !== "none";
  }

  drawn() {
    return document.body.classList.contains("board-open");
  }

  show(open) {
    if (wide.matches) {
      document.documentElement.dataset.board = open ? "open" : "closed";
      localStorage.setItem("board", document.documentElement.dataset.board);
    } else {
      document.body.classList.toggle("board-open", open);
    }
    this.tell();
    (open ? this.panel : this.button).focus();
  }

  tell() {
    if (wide.matches) document.body.classList.remove("board-open");
    const open = wide.matches ? this.shown() : this.drawn();
    this.button.setAttribute("aria-expanded", String(open));
    if (open) delete this.button.dataset.news;
  }

  // One event of the stream.
  heard(data) {
    const changed = fill(this.panel, data);
    this.panel.toggleAttribute("data-empty", !this.panel.querySelector("[data-line]:not([hidden])"));
    if (changed && this.button.getAttribute("aria-expanded") === "false") this.button.dataset.news = "yes";
  }
}

// Write an event's board into the lines of an element; whether that changed them. One that could not be read changes none.
export function fill(element, { status, board }) {
  let changed = false;
  for (const line of status === "set" ? element.querySelectorAll("[data-line]") : []) {
    const value = line.querySelector("dd"), text = board[line.dataset.line] || "";
    changed ||= value.textContent !== text;
    value.textContent = text;
    line.hidden = !text;
  }
  return changed;
}

// A stream of server-sent events that says where it stands when it comes back, and what keeps it away.

const SILENCE_MS = 40_000; // the server pings each 15 s
const HIDDEN_MS = 120_000; // a tab that nobody sees gives its connection back
const LONGEST_WAIT_MS = 15_000;

export class Stream {
  // onEvent(name, data), onState("live" | "waiting" | "refused" | "ended")
  constructor(url, { lastId, onEvent, onState }) {
    Object.assign(this, { url, lastId, onEvent, onState, failures: 0, stopped: false });
    this.hiddenTimer = 0;
    document.addEventListener("visibilitychange", () => this.seen());
    addEventListener("online", () => this.wake?.());
  }

  async run() {
    while (!this.stopped) {
      const result = await this.read();
      if (result === "refused" || result === "ended") {
        this.stopped = true;
        this.onState(result);
        return;
      }
      if (document.hidden && result === "hidden") {
        await new Promise((resolve) => { this.wake = resolve; });
        continue;
      }
      this.onState("waiting");
      const wait = Math.min(500 * 2 ** this.failures, LONGEST_WAIT_MS) * (0.5 + Math.random() / 2);
      this.failures += 1;
      await new Promise((resolve) => { this.wake = resolve; setTimeout(resolve, wait); });
    }
  }

  seen() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) this.hiddenTimer = setTimeout(() => this.abort?.("hidden"), HIDDEN_MS);
    else this.wake?.();
  }

  async read() {
    const controller = new AbortController();
    let why = "lost";
    this.abort = (reason) => { why = reason; controller.abort(); };
    let watchdog = setTimeout(() => this.abort("silent"), SILENCE_MS);
    try {
      const response = await fetch(this.url, {
        credentials: "same-origin",
        headers: { Accept: "text/event-stream", ...(this.lastId ? { "Last-Event-ID": this.lastId } : {}) },
        signal: controller.signal,
      });
      if ([400, 401, 403, 404].includes(response.status)) return "refused";
      if (!response.ok || !response.body) return "lost";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffer = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return why;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => this.abort("silent"), SILENCE_MS);
        buffer += value;
        const blocks = buffer.split("\n\n");
        buffer = blocks.pop();
        for (const block of blocks) {
          const end = this.take(block);
          if (end) {
            controller.abort();
            return end;
          }
        }
      }
    } catch {
      return why;
    } finally {
      clearTimeout(watchdog);
      this.abort = null;
    }
  }

  take(block) {
    let name = "message", id = null;
    const data = [];
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon <= 0) continue;
      const value = line.slice(colon + 1).replace(/^ /, "");
      const field = line.slice(0, colon);
      if (field === "event") name = value;
      else if (field === "data") data.push(value);
      else if (field === "id") id = value;
    }
    if (!data.length) return null;
    const payload = JSON.parse(data.join("\n"));
    if (name === "stream_end") return payload.reason === "ended" ? "ended" : "refused";
    if (name === "caught_up") {
      this.failures = 0;
      this.onState("live");
    }
    this.onEvent(name, payload);
    if (id) this.lastId = id;
    return null;
  }
}

const STATES = { connecting: "Connecting…", live: "Live", waiting: "Reconnecting…", refused: "Not connected", ended: "Finished" };

export function showState(state) {
  const element = document.querySelector("[data-connection]");
  element.dataset.state = state;
  element.querySelector("[data-slot=connection]").textContent = STATES[state];
}

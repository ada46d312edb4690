// Pieces of drawings. Text goes in as text, never as markup.

const NAMESPACE = "http://www.w3.org/2000/svg";
const pen = document.createElement("canvas").getContext("2d");

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

// How wide the text is, in pixels.
export function measured(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

// The text cut to a width in pixels, with an ellipsis where something is left out.
export function fitted(text, width, font) {
  pen.font = font;
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (pen.measureText(`${text.slice(0, middle).trimEnd()}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low).trimEnd()}…`;
}

// The text on at most `most` lines of a width.
export function lines(text, width, font, most) {
  pen.font = font;
  const found = [];
  let line = "";
  const pieces = text.split(/\s+/).filter(Boolean);
  for (const [place, word] of pieces.entries()) {
    const longer = line ? `${line} ${word}` : word;
    if (!line || pen.measureText(longer).width <= width) {
      line = longer;
      continue;
    }
    if (found.length === most - 1) return [...found, fitted([line, ...pieces.slice(place)].join(" "), width, font)];
    found.push(fitted(line, width, font));
    line = word;
  }
  return line ? [...found, fitted(line, width, font)] : found;
}

// The mark of a status: each has a shape of its own, so that nobody needs the colours.
export function mark(status) {
  const shapes = {
    completed: ["M4.7 8.3 7 10.6 11.4 5.9"],
    failed: ["M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2"],
    skipped: ["M5 8h6"],
    waiting_retry: ["M8 4.8V8.2L10.4 9.6"],
    waiting_approval: ["M6.4 5.5v5M9.6 5.5v5"],
    running: ["M8 1.2a6.8 6.8 0 0 1 6.8 6.8"],
  };
  const disc = svg("circle", { class: "disc", cx: 8, cy: 8, r: status === "running" ? 6.8 : 7 });
  const strokes = (shapes[status] ?? []).map((d) => svg("path", { class: "stroke", d }));
  return svg("g", { class: "mark-of", "data-status": status }, disc, ...strokes);
}

// Have an element in a map while it is wanted.
export function keep(drawn, key, wanted, make) {
  if (wanted === drawn.has(key)) return;
  if (wanted) {
    drawn.set(key, make());
  } else {
    drawn.get(key).remove();
    drawn.delete(key);
  }
}

// At most once a frame.
export function onFrame(element, event, handle) {
  let frame = null;
  element.addEventListener(event, () => {
    frame ??= requestAnimationFrame(() => {
      frame = null;
      handle();
    });
  }, { passive: true });
}

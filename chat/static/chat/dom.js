// Small helpers: templates come from the server, so that live pieces look like those it drew.

export const slot = (element, name) => element.querySelector(`[data-slot="${name}"]`);

export function fromTemplate(id) {
  return document.getElementById(id).content.firstElementChild.cloneNode(true);
}

export function setText(element, text) {
  if (!element) return;
  element.textContent = text;
  if (element.matches("p, .live")) element.hidden = !text;
}

// One line of a model's text: `code` set as code.
export function setLine(element, text) {
  element.replaceChildren(...String(text).split(/`([^`]+)`/).map((piece, odd) => {
    if (odd % 2 === 0) return piece;
    const code = document.createElement("code");
    code.textContent = piece;
    return code;
  }));
}

// `html` was made safe by the server; nothing else is ever put in as HTML.
export function setHtml(element, html) {
  element.innerHTML = html;
  element.hidden = !html;
}

export function announce(text) {
  document.querySelector("[data-announce]").textContent = text;
}

// What went into a call and came out of it, asked for when its chip is opened.

import { slot } from "./dom.js";

export async function showCall(chip) {
  if (!chip.matches?.("[data-tool]") || !chip.open) return;
  const body = slot(chip, "body");
  try {
    const response = await fetch(`/calls/${chip.dataset.tool}/`, { credentials: "same-origin" });
    if (response.redirected) body.textContent = "You have been signed out.";
    else if (response.ok) body.innerHTML = await response.text(); // escaped by the server
    else body.textContent = response.status === 404 ? "The call is not stored yet." : `The server answered ${response.status}.`;
  } catch {
    body.textContent = "The server cannot be reached.";
  }
}

// "The provider asks us to wait": said where the work goes on, gone when it does or when the time is over.

const timers = new WeakMap();

export function sayWait(element, seconds, then) {
  if (!element) return;
  clearTimeout(timers.get(element));
  element.dataset.wait = "yes";
  element.textContent = `The model’s provider asks us to wait ${Math.max(1, Math.ceil(seconds))} s…`;
  element.hidden = false;
  if (then) timers.set(element, setTimeout(() => { if (endWait(element)) then(); }, seconds * 1000));
}

// Whether a wait was shown.
export function endWait(element) {
  const was = element?.dataset.wait === "yes";
  if (was) delete element.dataset.wait;
  return was;
}

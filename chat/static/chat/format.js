// Words and numbers, as the templates' filters write them.

const statusWords = JSON.parse(document.getElementById("words")?.textContent || "{}");

export const words = (status) => statusWords[status] || String(status).replaceAll("_", " ");

export function milliseconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 60000) return `${(value / 1000).toFixed(1)} s`;
  const seconds = Math.round(value / 1000);
  return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
}

export const elapsed = (since, until = Date.now()) => {
  const seconds = Math.max(0, Math.round((until - since) / 1000));
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
};

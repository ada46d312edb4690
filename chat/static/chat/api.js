// Calls to the API; a failure is an ApiError whose message can be shown.

export class ApiError extends Error {
  constructor(message, { status = 0, code = "network", details = {} } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
  }
}

const ours = {
  not_authenticated: "You have been signed out. Sign in again in another tab, then send it once more.",
  network: "The server cannot be reached. Nothing was sent; try again in a moment.",
};

export async function call(method, path, body, headers = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(method === "GET" ? {} : { "X-CSRFToken": document.querySelector("[name=csrfmiddlewaretoken]").value }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(ours.network);
  }
  if (response.status === 204) return null;
  const data = await response.json().catch(() => null);
  if (response.ok) return data;
  const error = data?.error ?? { code: `http_${response.status}`, message: `The server answered ${response.status}.` };
  throw new ApiError(ours[error.code] ?? error.message, { status: response.status, ...error });
}

export const newKey = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

// Asking the API. A cookie that scripts cannot read carries the key, so every request that could change something says
// in a header of its own that it comes from these pages: no other site can make a browser send that.

const root = document.body.dataset.root;

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.fields = error.fields ?? [];
  }
}

export const address = (path) => root + path;

// And come back. What stands behind the # stays there: browsers keep it to themselves.
export const logIn = () =>
  location.assign(`${root}/login?next=${encodeURIComponent(location.pathname)}${location.hash}`);

export async function ask(method, path, body, signal) {
  const headers = { "X-Undercurrent-Page": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(address(path), {
    method, headers, signal, credentials: "same-origin",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401 && !location.pathname.endsWith("/login")) {
    logIn();
  }
  const text = await answer.text();
  const found = text ? JSON.parse(text) : null;
  if (!answer.ok) throw new ApiError(answer.status, found?.error ?? { message: `HTTP ${answer.status}` });
  return found;
}

export const get = (path, signal) => ask("GET", path, undefined, signal);
export const post = (path, body) => ask("POST", path, body);

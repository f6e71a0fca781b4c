// Calls to the API. The key is in a cookie that scripts cannot read. Requests also carry a header that proves they come from
// these pages, because another site cannot make a browser send it.

const root = document.body.dataset.root;

class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.fields = error.fields ?? [];
  }
}

export const toUrl = (path) => root + path;

// The login page returns to this page. The fragment stays after the #, so it is never sent to the server.
export const goToLogin = () =>
  location.assign(`${root}/login?next=${encodeURIComponent(location.pathname)}${location.hash}`);

export async function callApi(method, path, body, signal) {
  const headers = { "X-Undercurrent-Page": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(toUrl(path), {
    method, headers, signal, credentials: "same-origin",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.status === 401 && !location.pathname.endsWith("/login")) goToLogin();
  const text = await response.text();
  const result = text ? JSON.parse(text) : null;
  if (!response.ok) throw new ApiError(response.status, result?.error ?? { message: `HTTP ${response.status}` });
  return result;
}

export const get = (path, signal) => callApi("GET", path, undefined, signal);
export const post = (path, body) => callApi("POST", path, body);

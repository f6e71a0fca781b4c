// The login page.

import { toUrl, post } from "./api.js";
import { $ } from "./dom.js";
import { me } from "./who.js";

// Where to go after login: only ever a page of this service, whatever the address says.
function chooseDestination(next, origin, home) {
  try {
    const url = new URL(next ?? home, origin);
    if (url.origin === origin && !url.pathname.endsWith("/login")) return url.href;
  } catch {
    // not a valid address
  }
  return home;
}

const leave = () => {
  const to = chooseDestination(new URLSearchParams(location.search).get("next"), location.origin, toUrl("/"));
  location.replace(to + location.hash);
};

const form = $("#login"), field = $("#key"), problem = $("#key-error"), button = $("button", form);

function showProblem(message) {
  problem.textContent = message;
  field.removeAttribute("aria-invalid");
  if (message) {
    field.setAttribute("aria-invalid", "true");
    field.focus();
    field.select();
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!field.value.trim()) return showProblem("Enter your key.");
  showProblem("");
  button.disabled = true;
  try {
    await post("/login", { key: field.value });
    leave();
  } catch (error) {
    button.disabled = false;
    showProblem(error.status === 401 ? `${error.message}. Check that you copied all of it, starting with uc_.` : error.message);
  }
});
button.disabled = false; // until now the browser would have submitted the form itself

me.then((who) => {
  if (who.keys) return;
  button.disabled = field.disabled = true;
  problem.className = "soft";
  problem.textContent = "This service does not use keys: no login is needed.";
});

// The login page.

import { address, post } from "./api.js";
import { $ } from "./dom.js";
import { me } from "./who.js";

// Where to go afterwards: a page of this very service, whatever the address asks for.
export function destination(asked, origin, home) {
  try {
    const to = new URL(asked ?? home, origin);
    if (to.origin === origin && !to.pathname.endsWith("/login")) return to.href;
  } catch {
    // no address at all
  }
  return home;
}

const onwards = () => {
  const to = destination(new URLSearchParams(location.search).get("next"), location.origin, address("/"));
  location.replace(to + location.hash);
};

const form = $("#login"), field = $("#key"), problem = $("#key-error"), button = $("button", form);

function refuse(message) {
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
  if (!field.value.trim()) return refuse("Enter your key.");
  refuse("");
  button.disabled = true;
  try {
    await post("/login", { key: field.value });
    onwards();
  } catch (error) {
    button.disabled = false;
    refuse(error.status === 401 ? `${error.message}. Is it complete, from uc_ to its end?` : error.message);
  }
});
button.disabled = false; // before, the browser itself would send the form

me.then((who) => {
  if (who.keys) return;
  button.disabled = field.disabled = true;
  problem.className = "soft";
  problem.textContent = "This service asks for no key: you can go on without one.";
});

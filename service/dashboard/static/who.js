// The current user: shown in the page header, and checked by controls that need a certain role.

import { toUrl, get, goToLogin, post } from "./api.js";
import { $, h, notify } from "./dom.js";
import { pluralize } from "./words.js";

// {keys, role, campaigns}; if the service has no keys, everyone may do everything.
export const me = get("/whoami").catch(() => ({ keys: false, role: null, campaigns: null }));

// Why this user may not administer campaigns; null if they may.
export function explainRefusal({ keys, role }) {
  if (!keys || role === "admin") return null;
  return role ? `This needs an admin key; yours is a ${role} key.` : "This needs an admin key.";
}

// Disable controls for anyone but admins, and show the reason next to them.
export async function disableUnlessAdmin(...controls) {
  const reason = explainRefusal(await me);
  if (!reason) return true;
  for (const control of controls) {
    if (control.tagName === "A") control.removeAttribute("href");
    else control.disabled = true;
    control.setAttribute("aria-disabled", "true");
    control.title = reason;
  }
  controls.at(-1)?.after(h("span", { class: "reason soft" }, reason));
  return false;
}

async function logOut() {
  try {
    await post("/logout");
    location.assign(toUrl("/login"));
  } catch (error) {
    notify(`You are still logged in: ${error.message}`, true);
  }
}

me.then((who) => {
  if (!who.keys) return;
  const place = $("#who");
  if (!who.role) {
    if (!location.pathname.endsWith("/login")) goToLogin();
    return;
  }
  const limits = who.campaigns ? h("span", { class: "soft", title: who.campaigns.join(", ") }, ` (${pluralize(who.campaigns.length, "campaign")})`) : null;
  place.append(
    h("span", { class: "role" }, who.role, limits),
    h("button", { type: "button", class: "small", onclick: logOut }, "Log out"),
  );
  if (who.role !== "admin") for (const link of document.querySelectorAll("[data-admin]")) link.hidden = true;
});

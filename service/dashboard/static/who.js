// Who is looking at a page: shown in its header, and asked by whatever needs a certain role.

import { address, get, logIn, post } from "./api.js";
import { $, h, tell } from "./dom.js";

// {keys, role, campaigns}; without keys everyone may do everything.
export const me = get("/whoami").catch(() => ({ keys: false, role: null, campaigns: null }));

// Why this person may not administer campaigns; null if they may.
export function refusal({ keys, role }) {
  if (!keys || role === "admin") return null;
  return role ? `This needs an admin's key; yours is a ${role}'s.` : "This needs an admin's key.";
}

// A control that only admins can use: disabled for others, with the reason beside it.
export async function adminOnly(...controls) {
  const reason = refusal(await me);
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
    location.assign(address("/login"));
  } catch (error) {
    tell(`You are still logged in: ${error.message}`, true);
  }
}

me.then((who) => {
  if (!who.keys) return;
  const place = $("#who");
  if (!who.role) {
    if (!location.pathname.endsWith("/login")) {
      logIn();
    }
    return;
  }
  const some = who.campaigns ? h("span", { class: "soft", title: who.campaigns.join(", ") }, ` (${who.campaigns.length} campaigns)`) : null;
  place.append(
    h("span", { class: "role" }, who.role, some),
    h("button", { type: "button", class: "small", onclick: logOut }, "Log out"),
  );
  if (who.role !== "admin") for (const link of document.querySelectorAll("[data-admin]")) link.hidden = true;
});

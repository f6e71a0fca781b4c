// The form of a new campaign: a draft, checked by the API while it is typed, shown as JSON and as a command.

import { address, ask, post } from "./api.js";
import { KINDS, command, configured, emptyDraft, emptyVariable, inputOf, messageOf, pretty } from "./configuration.js";
import { $, h, tell } from "./dom.js";
import { me, refusal } from "./who.js";

const PAUSE_MS = 300, KEPT = "undercurrent-new";
const draft = kept() ?? emptyDraft();
const touched = new Set(); // inputs whose mistakes are told; the others are not filled in yet
let keys = false, told = null, under = null, timer = null;

function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

// --- rows -------------------------------------------------------------------------------------------------------------

const describedBy = (id) => `${id}-help ${id}-error`;
const problemOf = (id) => h("p", { id: `${id}-error`, class: "problem" });
const nextId = (list) => Math.max(0, ...list.map(({ id }) => id)) + 1;

function typed(id, value, changed, attributes = {}) {
  const input = h("input", { id, autocomplete: "off", spellcheck: "false", "aria-describedby": describedBy(id), ...attributes,
    oninput: () => { changed(input.value); edited(id); } });
  input.value = value;
  return input;
}

function labelled(id, label, input, help = "") {
  return h("div", { class: "field" }, h("label", { for: id }, label), input, h("p", { id: `${id}-help`, class: "help" }, help), problemOf(id));
}

function removal(what, list, item, draw, focus) {
  return h("button", { type: "button", class: "small", "aria-label": `Remove ${what}`, onclick: () => {
    list.splice(list.indexOf(item), 1);
    draw();
    focus().focus();
    edited();
  } }, "Remove");
}

function drawActions() {
  const last = () => $("#actions li:last-child input") ?? $("#add-action");
  $("#actions").replaceChildren(...draft.actions.map((action, i) => {
    const id = `action-${action.id}`, what = i ? `Action ${i + 1}` : "Baseline";
    return h("li", {},
      h("label", { class: "unseen", for: id }, what),
      typed(id, action.text, (value) => { action.text = value; }, { placeholder: i ? "like email" : "like none", class: "an-action" }),
      i ? null : h("span", { class: "tag" }, "baseline"),
      draft.actions.length > 2 ? removal(what, draft.actions, action, drawActions, last) : null,
      h("p", { id: `${id}-help`, class: "unseen" }, i ? "" : "What you would do without this service"), problemOf(id));
  }));
}

function drawVariables() {
  const last = () => $("#variables fieldset:last-child input") ?? $("#add-variable");
  $("#variables").replaceChildren(...draft.variables.map((variable, i) => variableRow(variable, i, last)));
}

function variableRow(variable, i, last) {
  const own = (part) => `variable-${variable.id}-${part}`, set = (part) => (value) => { variable[part] = value; };
  const text = (part, label, help, attributes) => labelled(own(part), label, typed(own(part), variable[part], set(part), attributes), help);
  const number = { inputmode: "decimal" };
  const parts = {
    levels: [text("levels", "Its levels", "Separated by commas, like low, middle, high")],
    cuts: [
      text("cuts", "Cut at", "Numbers separated by commas, like 40, 90: below 40, from 40 to 90, above", number),
      text("labels", "Names of the levels", "Optional, one more than cuts: small, medium, large")],
    range: [text("low", "From", "", number), text("high", "To", "", number)],
  };
  const kind = h("select", { id: own("kind"), "aria-describedby": describedBy(own("kind")), onchange: () => {
    variable.kind = kind.value;
    chosen();
    edited(own("kind"));
  } }, Object.entries(KINDS).map(([value, label]) => h("option", { value }, label)));
  kind.value = variable.kind;
  const signal = h("input", { type: "checkbox", id: own("signal"), "aria-describedby": describedBy(own("signal")), onchange: () => {
    variable.signal = signal.checked;
    edited(own("signal"));
  } });
  signal.checked = variable.signal;
  const groups = Object.fromEntries(Object.entries(parts).map(([name, fields]) => [name, h("div", { class: "fields across" }, fields)]));
  const check = h("div", { class: "field across" },
    h("label", { class: "check" }, signal, " Signal: a change of the market would show in it"),
    h("p", { id: own("signal-help"), class: "unseen" }), problemOf(own("signal")));
  const chosen = () => {
    for (const [name, group] of Object.entries(groups)) group.hidden = name !== variable.kind;
    check.hidden = variable.kind === "range"; // only levels can be signals
  };
  chosen();
  const what = `variable ${i + 1}`;
  return h("fieldset", { class: "variable" },
    h("legend", {}, `Variable ${i + 1}`),
    removal(what, draft.variables, variable, drawVariables, last),
    h("div", { class: "fields" },
      text("name", "Name", "As requests call it, like risk"),
      labelled(own("kind"), "It is", kind),
      Object.values(groups), check));
}

function add(list, item, draw, selector) {
  list.push(item);
  draw();
  $(selector).focus();
  edited();
}

const addAction = () => add(draft.actions, { id: nextId(draft.actions), text: "" }, drawActions, "#actions li:last-child input");

// --- checking ---------------------------------------------------------------------------------------------------------

function edited(id) {
  if (id) touched.add(id);
  sessionStorage.setItem(KEPT, JSON.stringify(draft));
  show();
  $("#state").textContent = "";
  clearTimeout(timer);
  timer = setTimeout(check, PAUSE_MS);
}

function show() {
  const { config } = configured(draft);
  $("#json").textContent = pretty(config);
  $("#command").textContent = command(config, location.origin + address("/campaigns"), keys);
}

async function check() {
  under?.abort();
  under = new AbortController();
  const { config, inputs } = configured(draft);
  try {
    const { seed, ...complete } = await ask("POST", "/campaigns/check", config, under.signal);
    found(null, inputs);
    $("#defaults").textContent = pretty(complete);
  } catch (error) {
    if (error.name !== "AbortError") found(error, inputs);
  }
}

// The messages of an error, by input. What is about no field in particular is about the name: it is taken, or not allowed.
function byInput(error, inputs) {
  const messages = new Map();
  const fields = error?.fields?.length ? error.fields : error ? [{ field: [403, 409].includes(error.status) ? "name" : "", message: error.message }] : [];
  for (const problem of fields) {
    const input = inputOf(problem.field, inputs) ?? "elsewhere";
    const text = input === "elsewhere" && problem.field ? `${problem.field}: ${messageOf(problem)}` : messageOf(problem);
    messages.set(input, [...(messages.get(input) ?? []), text]);
  }
  return messages;
}

function found(error, inputs) {
  told = byInput(error, inputs);
  for (const place of document.querySelectorAll("#new .problem")) {
    const id = place.id.replace(/-error$/, ""), messages = told.get(id), input = document.getElementById(id);
    const shown = messages && (touched.has(id) || id === "elsewhere" || id === "signals") ? messages.join(" ") : "";
    if (place.textContent !== shown) place.textContent = shown;
    if (input?.matches("input, select")) {
      if (shown) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
  const state = $("#state"), count = told.size;
  $("#complete").hidden = count > 0;
  state.className = count ? "soft" : "good";
  state.textContent = count ? `${count === 1 ? "One thing is" : `${count} things are`} still missing or wrong.` : "✓ Ready to create.";
}

async function create(event) {
  event.preventDefault();
  clearTimeout(timer);
  under?.abort();
  const { config, inputs } = configured(draft);
  const button = $("#create");
  button.disabled = true;
  try {
    const { name } = await post("/campaigns", config);
    sessionStorage.removeItem(KEPT);
    location.assign(address(`/view/${encodeURIComponent(name)}`));
  } catch (error) {
    button.disabled = false;
    for (const input of byInput(error, inputs).keys()) touched.add(input);
    found(error, inputs);
    const first = [...document.querySelectorAll("#new [aria-invalid]")][0];
    if (first?.closest("details")) first.closest("details").open = true;
    (first ?? $("#elsewhere")).focus();
  }
}

async function copy(id) {
  const text = $(`#${id}`).textContent;
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch { // only pages of https and of this machine have a clipboard
    getSelection().selectAllChildren($(`#${id}`));
    tell("Selected: press Ctrl+C to copy it.");
  }
}

// --- the page ---------------------------------------------------------------------------------------------------------

for (const input of document.querySelectorAll("[data-draft]")) {
  input.value = draft[input.dataset.draft];
  input.addEventListener("input", () => {
    draft[input.dataset.draft] = input.value;
    edited(input.id);
  });
}
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
$("#add-action").addEventListener("click", addAction);
$("#add-variable").addEventListener("click", () =>
  add(draft.variables, emptyVariable(nextId(draft.variables)), drawVariables, "#variables fieldset:last-child input"));
$("#new").addEventListener("submit", create);
$("#new").addEventListener("keydown", (event) => { // a campaign is not created by the way
  if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
  event.preventDefault();
  if (!event.target.classList.contains("an-action") || !event.target.value.trim()) return;
  const empty = draft.actions.find(({ text }) => !text.trim());
  if (empty) $(`#action-${empty.id}`).focus();
  else addAction();
});
drawActions();
drawVariables();
show();
me.then((who) => {
  keys = who.keys;
  show();
  const reason = refusal(who);
  if (reason) {
    $("#refused").textContent = `You cannot create a campaign here. ${reason}`;
    $("#refused").hidden = false;
    for (const control of document.querySelectorAll("#new input, #new select, #new button:not([data-copy])")) control.disabled = true;
  } else if (kept()) {
    check();
  }
});

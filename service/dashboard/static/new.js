// The form for a new campaign: a draft that the API checks as it is typed, also shown as JSON and as a shell command.

import { callApi, post, toUrl } from "./api.js";
import { VARIABLE_KINDS, buildConfig, findInput, formatCommand, formatJson, formatMessage, makeEmptyDraft, makeEmptyVariable } from "./configuration.js";
import { $, h, notify } from "./dom.js";
import { pluralize } from "./words.js";
import { explainRefusal, me } from "./who.js";

const PAUSE_MS = 300, STORAGE_KEY = "undercurrent-new";
const draft = loadDraft() ?? makeEmptyDraft();
const touched = new Set(); // inputs whose problems are shown; the others have not been filled in yet
let hasKeys = false, checking = null, timer = null;

function loadDraft() {
  try {
    return JSON.parse(sessionStorage.getItem(STORAGE_KEY));
  } catch {
    return null;
  }
}

// --- rows -------------------------------------------------------------------------------------------------------------

const getDescriptionIds = (id) => `${id}-help ${id}-error`;
const makeProblem = (id) => h("p", { id: `${id}-error`, class: "problem" });
const makeId = (list) => Math.max(0, ...list.map(({ id }) => id)) + 1;

function makeInput(id, value, onChange, attributes = {}) {
  const input = h("input", { id, autocomplete: "off", spellcheck: "false", "aria-describedby": getDescriptionIds(id), ...attributes,
    oninput: () => { onChange(input.value); onEdit(id); } });
  input.value = value;
  return input;
}

function makeField(id, label, input, help = "") {
  return h("div", { class: "field" }, h("label", { for: id }, label), input, h("p", { id: `${id}-help`, class: "help" }, help), makeProblem(id));
}

function makeRemoveButton(what, list, item, draw, focus) {
  return h("button", { type: "button", class: "small", "aria-label": `Remove ${what}`, onclick: () => {
    list.splice(list.indexOf(item), 1);
    draw();
    focus().focus();
    onEdit();
  } }, "Remove");
}

function drawActions() {
  const last = () => $("#actions li:last-child input") ?? $("#add-action");
  $("#actions").replaceChildren(...draft.actions.map((action, i) => {
    const id = `action-${action.id}`, what = i ? `Action ${i + 1}` : "Baseline";
    return h("li", {},
      h("label", { class: "visually-hidden", for: id }, what),
      makeInput(id, action.text, (value) => { action.text = value; }, { placeholder: i ? "for example: email" : "for example: none", class: "an-action" }),
      i ? null : h("span", { class: "tag" }, "baseline"),
      draft.actions.length > 2 ? makeRemoveButton(what, draft.actions, action, drawActions, last) : null,
      h("p", { id: `${id}-help`, class: "visually-hidden" }, i ? "" : "What you would do without this service"), makeProblem(id));
  }));
}

function drawVariables() {
  const last = () => $("#variables fieldset:last-child input") ?? $("#add-variable");
  $("#variables").replaceChildren(...draft.variables.map((variable, i) => makeVariable(variable, i, last)));
}

function makeVariable(variable, i, last) {
  const idOf = (part) => `variable-${variable.id}-${part}`, set = (part) => (value) => { variable[part] = value; };
  const makeText = (part, label, help, attributes) => makeField(idOf(part), label, makeInput(idOf(part), variable[part], set(part), attributes), help);
  const number = { inputmode: "decimal" };
  const parts = {
    levels: [makeText("levels", "Levels", "Separated by commas, for example low, middle, high")],
    cuts: [
      makeText("cuts", "Cut at", "Numbers separated by commas. 40, 90 makes three levels: up to 40, up to 90, above 90", number),
      makeText("labels", "Level names", "Optional, one more than there are cuts: small, medium, large")],
    range: [makeText("low", "From", "", number), makeText("high", "To", "", number)],
  };
  const kind = h("select", { id: idOf("kind"), "aria-describedby": getDescriptionIds(idOf("kind")), onchange: () => {
    variable.kind = kind.value;
    showKind();
    onEdit(idOf("kind"));
  } }, Object.entries(VARIABLE_KINDS).map(([value, label]) => h("option", { value }, label)));
  kind.value = variable.kind;
  const makeCheck = (part, label) => {
    const input = h("input", { type: "checkbox", id: idOf(part), "aria-describedby": getDescriptionIds(idOf(part)), onchange: () => {
      variable[part] = input.checked;
      onEdit(idOf(part));
    } });
    input.checked = Boolean(variable[part]);
    return h("div", { class: "field across" }, h("label", { class: "check" }, input, label),
      h("p", { id: idOf(`${part}-help`), class: "visually-hidden" }), makeProblem(idOf(part)));
  };
  const groups = Object.fromEntries(Object.entries(parts).map(([name, fields]) => [name, h("div", { class: "fields across" }, fields)]));
  const check = makeCheck("signal", " Signal: it would shift if the market changed");
  const lenient = makeCheck("lenient", " Accept values that are missing, new or out of range; otherwise such requests are refused");
  const showKind = () => {
    for (const [name, group] of Object.entries(groups)) group.hidden = name !== variable.kind;
    check.hidden = variable.kind === "range"; // only levels can be signals
  };
  showKind();
  const what = `variable ${i + 1}`;
  return h("fieldset", { class: "variable" },
    h("legend", {}, `Variable ${i + 1}`),
    makeRemoveButton(what, draft.variables, variable, drawVariables, last),
    h("div", { class: "fields" },
      makeText("name", "Name", "As in your requests, for example risk"),
      makeField(idOf("kind"), "Type", kind),
      Object.values(groups), check, lenient));
}

function add(list, item, draw, selector) {
  list.push(item);
  draw();
  $(selector).focus();
  onEdit();
}

const addAction = () => add(draft.actions, { id: makeId(draft.actions), text: "" }, drawActions, "#actions li:last-child input");

// --- checking ---------------------------------------------------------------------------------------------------------

function onEdit(id) {
  if (id) touched.add(id);
  sessionStorage.setItem(STORAGE_KEY, JSON.stringify(draft));
  showConfig();
  $("#state").textContent = "";
  clearTimeout(timer);
  timer = setTimeout(check, PAUSE_MS);
}

function showConfig() {
  const { config } = buildConfig(draft);
  $("#json").textContent = formatJson(config);
  $("#command").textContent = formatCommand(config, location.origin + toUrl("/campaigns"), hasKeys);
}

async function check() {
  checking?.abort();
  checking = new AbortController();
  const { config, inputs } = buildConfig(draft);
  try {
    const { seed, ...complete } = await callApi("POST", "/campaigns/check", config, checking.signal);
    showProblems(null, inputs);
    $("#defaults").textContent = formatJson(complete);
  } catch (error) {
    if (error.name !== "AbortError") showProblems(error, inputs);
  }
}

// The messages of an error, by input. A 403 or 409 names no field: it is about the campaign's name.
function groupByInput(error, inputs) {
  const messages = new Map();
  const fields = error?.fields?.length ? error.fields : error ? [{ field: [403, 409].includes(error.status) ? "name" : "", message: error.message }] : [];
  for (const problem of fields) {
    const input = findInput(problem.field, inputs) ?? "elsewhere";
    const text = input === "elsewhere" && problem.field ? `${problem.field}: ${formatMessage(problem)}` : formatMessage(problem);
    messages.set(input, [...(messages.get(input) ?? []), text]);
  }
  return messages;
}

function showProblems(error, inputs) {
  const problems = groupByInput(error, inputs);
  for (const place of document.querySelectorAll("#new .problem")) {
    const id = place.id.replace(/-error$/, ""), messages = problems.get(id), input = document.getElementById(id);
    const text = messages && (touched.has(id) || id === "elsewhere" || id === "signals") ? messages.join(" ") : "";
    if (place.textContent !== text) place.textContent = text;
    if (input?.matches("input, select")) {
      if (text) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
  const state = $("#state"), count = problems.size;
  $("#complete").hidden = count > 0;
  state.className = count ? "soft" : "good";
  state.textContent = count ? `${pluralize(count, "field")} missing or wrong.` : "✓ Ready to create.";
}

async function create(event) {
  event.preventDefault();
  clearTimeout(timer);
  checking?.abort();
  const { config, inputs } = buildConfig(draft);
  const button = $("#create");
  button.disabled = true;
  try {
    const { name } = await post("/campaigns", config);
    sessionStorage.removeItem(STORAGE_KEY);
    location.assign(toUrl(`/view/${encodeURIComponent(name)}`));
  } catch (error) {
    button.disabled = false;
    for (const input of groupByInput(error, inputs).keys()) touched.add(input);
    showProblems(error, inputs);
    const first = [...document.querySelectorAll("#new [aria-invalid]")][0];
    if (first?.closest("details")) first.closest("details").open = true;
    (first ?? $("#elsewhere")).focus();
  }
}

async function copy(id) {
  const text = $(`#${id}`).textContent;
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied.");
  } catch { // the clipboard is only available on https and on localhost
    getSelection().selectAllChildren($(`#${id}`));
    notify("Selected. Press Ctrl+C to copy.");
  }
}

// --- the page ---------------------------------------------------------------------------------------------------------

for (const input of document.querySelectorAll("[data-draft]")) {
  input.value = draft[input.dataset.draft];
  input.addEventListener("input", () => {
    draft[input.dataset.draft] = input.value;
    onEdit(input.id);
  });
}
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
$("#add-action").addEventListener("click", addAction);
$("#add-variable").addEventListener("click", () =>
  add(draft.variables, makeEmptyVariable(makeId(draft.variables)), drawVariables, "#variables fieldset:last-child input"));
$("#new").addEventListener("submit", create);
$("#new").addEventListener("keydown", (event) => { // Enter must not submit the form
  if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
  event.preventDefault();
  if (!event.target.classList.contains("an-action") || !event.target.value.trim()) return;
  const empty = draft.actions.find(({ text }) => !text.trim());
  if (empty) $(`#action-${empty.id}`).focus();
  else addAction();
});
drawActions();
drawVariables();
showConfig();
me.then((who) => {
  hasKeys = who.keys;
  showConfig();
  const reason = explainRefusal(who);
  if (reason) {
    $("#refused").textContent = `You cannot create campaigns. ${reason}`;
    $("#refused").hidden = false;
    for (const control of document.querySelectorAll("#new input, #new select, #new button:not([data-copy])")) control.disabled = true;
  } else if (loadDraft()) {
    check();
  }
});

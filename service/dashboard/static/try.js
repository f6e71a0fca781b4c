// Try a customer: a form with the campaign's variables. Every change requests a /preview, which records nothing.

import { callApi, get } from "./api.js";
import { $, h } from "./dom.js";
import { makeBeliefBar } from "./charts/law.js";
import { definePatterns } from "./charts/marks.js";
import { makeScoreScale, makeScoreTable } from "./charts/scores.js";
import { describeMode, formatShare, nameRegime, nameRegimes } from "./words.js";

const PAUSE_MS = 250; // after the last change
const path = `/campaigns/${encodeURIComponent(document.body.dataset.name)}`;
const form = $("#customer");
const place = $("#preview");
let config = null;
let loading = null;
let timer = 0;

// --- the form -----------------------------------------------------------------------------------------------------

const pickMiddle = (cuts) => {
  const middle = Math.floor(cuts.length / 2);
  return cuts.length > 1 ? (cuts[middle - 1] + cuts[middle]) / 2 : cuts[0];
};

function findLevel(variable, value) {
  const index = variable.cuts.findIndex((cut) => value <= cut);
  const level = index < 0 ? variable.cuts.length : index;
  return variable.levels ? variable.levels[level] : `level ${level + 1}`;
}

function makeField(variable, index) {
  const id = `variable-${index}`;
  const hintId = `${id}-hint`;
  const signal = config.signals.includes(variable.name) ? h("span", { class: "tag" }, "signal") : null;
  const label = h("label", { for: id }, variable.name, " ", signal);
  const hint = h("p", { class: "soft hint", id: hintId });
  if (!variable.cuts && !variable.range) {
    const levels = [...new Set([...variable.levels, ...(variable.missing === "level" ? ["missing"] : []), ...(variable.unseen === "other" ? ["other"] : [])])];
    return [label, h("select", { id, "aria-describedby": hintId }, levels.map((level) => h("option", { value: level }, level))), hint];
  }
  const attributes = { id, type: "number", step: "any", inputmode: "decimal", "aria-describedby": hintId };
  if (variable.range) Object.assign(attributes, { min: variable.range[0], max: variable.range[1], value: (variable.range[0] + variable.range[1]) / 2 });
  else attributes.value = pickMiddle(variable.cuts);
  return [label, h("input", attributes), hint];
}

function makeActionChoice(action, index) {
  const retired = config.retired_actions.includes(action);
  return h("div", {}, h("input", { type: "checkbox", id: `action-${index}`, value: action, disabled: retired }), " ",
    h("label", { class: "inline", for: `action-${index}` }, action, retired ? " (retired: never chosen)" : ""));
}

function makeForm() {
  form.replaceChildren(
    h("h2", {}, "The customer"),
    ...(config.variables.length ? config.variables.flatMap(makeField) : [h("p", {}, "This campaign has no variables, so all customers look the same to it.")]),
    h("fieldset", {}, h("legend", {}, "Actions this customer must not get"), config.actions.map(makeActionChoice)),
    h("p", {}, h("button", {}, "Preview again")));
}

function buildRequest() {
  const context = {};
  config.variables.forEach((variable, index) => {
    const { value } = $(`#variable-${index}`);
    if (value !== "") context[variable.name] = variable.cuts || variable.range ? Number(value) : value;
  });
  const excluded = config.actions.filter((_, index) => $(`#action-${index}`).checked);
  return { context, excluded_actions: excluded };
}

// Show below each field what the API rejects, what is allowed, or the level of a number. Returns the other problems.
function showHints(problems = []) {
  const other = [];
  const wrong = new Map();
  for (const problem of problems) {
    const index = config.variables.findIndex(({ name }) => problem.field === `context.${name}`);
    if (index < 0) other.push(`${problem.field}: ${problem.message}`); else wrong.set(index, problem);
  }
  config.variables.forEach((variable, index) => {
    const input = $(`#variable-${index}`), hint = $(`#variable-${index}-hint`), problem = wrong.get(index);
    input.toggleAttribute("aria-invalid", Boolean(problem));
    if (problem) input.setAttribute("aria-invalid", "true");
    hint.className = problem ? "bad hint" : "soft hint";
    hint.textContent = problem ? `${problem.message}; allowed: ${[problem.allowed].flat().join(", ")}`
      : input.value === "" && variable.missing === "level" ? "missing"
      : variable.range ? `a number from ${variable.range[0].toLocaleString()} to ${variable.range[1].toLocaleString()}`
        : variable.cuts && input.value !== "" ? `level: ${findLevel(variable, Number(input.value))}` : "";
  });
  return other;
}

// --- the answer ---------------------------------------------------------------------------------------------------

async function preview() {
  loading?.abort();
  loading = new AbortController();
  const { signal } = loading;
  place.setAttribute("aria-busy", "true");
  try {
    const result = await callApi("POST", `${path}/preview`, buildRequest(), signal);
    showHints();
    place.replaceChildren(...makeAnswer(result));
    $("#announcement").textContent = `It would choose ${result.action}. Nothing was recorded.`;
  } catch (error) {
    if (error.name === "AbortError") return;
    const other = showHints(error.fields);
    const [title, text] = error.status === 422 ? ["Some fields are not valid", other.join("; ") || "See the fields marked in the form."]
      : ["The service is not responding", error.status ? error.message : "Try again in a moment."];
    place.replaceChildren(h("section", { class: "card", role: "alert" }, h("h2", {}, title), h("p", {}, text)));
  }
  place.removeAttribute("aria-busy");
}

const makeCard = (title, ...content) => h("section", { class: "card wide" }, h("h2", {}, title), ...content);

function makeAnswer(result) {
  const names = nameRegimes(Math.max(result.belief.length, result.belief_before.length), config.regime_labels);
  const notes = [
    result.paused ? "The campaign is paused, so /decide would refuse this request." : null,
    result.archived ? "The campaign is archived, so /decide would refuse this request." : null,
    result.estimation_left_out ? "A re-estimation of the regimes is due. It takes too long for a preview and is left out here." : null,
  ].filter(Boolean);
  return [
    h("p", { class: "lead" }, "It would choose ", h("strong", { class: "action" }, result.action), ", with a probability of ", h("strong", {}, formatShare(result.propensity)), ". ",
      h("span", { class: "soft" }, describeMode(result, config.control))),
    ...notes.map((note) => h("p", { class: "warn" }, note)),
    h("p", { class: "soft" }, `This would be round ${result.round.toLocaleString()}, decided with model ${result.model_version.toLocaleString()}. The campaign stays at round ${(result.round - 1).toLocaleString()}.`),
    h("div", { class: "cards" },
      makeCard("Belief", result.belief.length > 1 ? [
        h("div", { class: "two" },
          h("div", {}, h("h3", {}, "before this customer"), makeBeliefBar(result.belief_before, names, "Belief before")),
          h("div", {}, h("h3", {}, "after"), makeBeliefBar(result.belief, names, "Belief after"))),
      ] : h("p", {}, "Only one regime is in use, so there is nothing to infer.")),
      makeCard("What each action is worth", makeScoreTable(result.scores, { [result.action]: "chosen" }, "Scores, highest first: the expected reward, and a bonus for what is still uncertain")),
      result.regimes.length > 1 ? makeRegimes(result) : ""),
  ];
}

function makeRegimes(result) {
  const x = makeScoreScale(result.regimes.flatMap((regime) => regime.scores));
  return makeCard("If the regime were known", h("div", { class: "two" }, result.regimes.map((regime) => h("div", {},
    h("h3", {}, `In ${nameRegime(regime.regime, regime.label)}: ${regime.action}`),
    makeScoreTable(regime.scores, { [regime.action]: "highest" }, "Scores if this regime were certain", x)))));
}

function schedulePreview() {
  clearTimeout(timer);
  timer = setTimeout(preview, PAUSE_MS);
}

definePatterns();
try {
  ({ config } = await get(path));
  makeForm();
  form.addEventListener("input", schedulePreview);
  form.addEventListener("submit", (event) => { event.preventDefault(); preview(); });
  await preview();
} catch (error) {
  form.replaceChildren(h("p", { role: "alert" }, error.status === 404 ? "Campaign not found." : error.status ? error.message : "The service is not responding."));
}

// Try a customer: a form made of the campaign's variables, answered as it changes by /preview, which records nothing.

import { ask, get } from "./api.js";
import { $, h } from "./dom.js";
import { lawBar } from "./charts/law.js";
import { definePatterns } from "./charts/marks.js";
import { scoreScale, scoreTable } from "./charts/scores.js";
import { modeSentence, regimeName, regimeNames, share } from "./words.js";

const WAIT = 250; // milliseconds after the last change
const path = `/campaigns/${encodeURIComponent(document.body.dataset.name)}`;
const form = $("#customer");
const place = $("#preview");
let config = null;
let asking = null;
let waiting = 0;

// --- the form -----------------------------------------------------------------------------------------------------

const between = (cuts) => {
  const middle = Math.floor(cuts.length / 2);
  return cuts.length > 1 ? (cuts[middle - 1] + cuts[middle]) / 2 : cuts[0];
};

export function levelOf(variable, value) {
  const index = variable.cuts.findIndex((cut) => value <= cut);
  const level = index < 0 ? variable.cuts.length : index;
  return variable.levels ? variable.levels[level] : `level ${level + 1}`;
}

function field(variable, index) {
  const id = `variable-${index}`;
  const described = `${id}-said`;
  const signal = config.signals.includes(variable.name) ? h("span", { class: "tag" }, "signal") : null;
  const label = h("label", { for: id }, variable.name, " ", signal);
  const said = h("p", { class: "soft said", id: described });
  if (!variable.cuts && !variable.range) {
    return [label, h("select", { id, "aria-describedby": described }, variable.levels.map((level) => h("option", { value: level }, level))), said];
  }
  const attributes = { id, type: "number", step: "any", inputmode: "decimal", "aria-describedby": described };
  if (variable.range) Object.assign(attributes, { min: variable.range[0], max: variable.range[1], value: (variable.range[0] + variable.range[1]) / 2 });
  else attributes.value = between(variable.cuts);
  return [label, h("input", attributes), said];
}

function actionChoice(action, index) {
  const retired = config.retired_actions.includes(action);
  return h("div", {}, h("input", { type: "checkbox", id: `action-${index}`, value: action, disabled: retired }), " ",
    h("label", { class: "inline", for: `action-${index}` }, action, retired ? " (retired: never chosen)" : ""));
}

function makeForm() {
  form.replaceChildren(
    h("h2", {}, "The customer"),
    ...(config.variables.length ? config.variables.flatMap(field) : [h("p", {}, "This campaign has no variables: every customer is alike.")]),
    h("fieldset", {}, h("legend", {}, "Actions that this customer must not get"), config.actions.map(actionChoice)),
    h("p", {}, h("button", {}, "Ask again")));
}

function request() {
  const context = {};
  config.variables.forEach((variable, index) => {
    const { value } = $(`#variable-${index}`);
    if (value !== "") context[variable.name] = variable.cuts || variable.range ? Number(value) : value;
  });
  const excluded = config.actions.filter((_, index) => $(`#action-${index}`).checked);
  return { context, excluded_actions: excluded };
}

// Below each field: which level a number falls into, what is allowed, or what the API says is wrong.
function say(problems = []) {
  const other = [];
  const wrong = new Map();
  for (const problem of problems) {
    const index = config.variables.findIndex(({ name }) => problem.field === `context.${name}`);
    if (index < 0) other.push(`${problem.field}: ${problem.message}`); else wrong.set(index, problem);
  }
  config.variables.forEach((variable, index) => {
    const input = $(`#variable-${index}`), said = $(`#variable-${index}-said`), problem = wrong.get(index);
    input.toggleAttribute("aria-invalid", Boolean(problem));
    if (problem) input.setAttribute("aria-invalid", "true");
    said.className = problem ? "bad said" : "soft said";
    said.textContent = problem ? `${problem.message}; allowed: ${[problem.allowed].flat().join(", ")}`
      : variable.range ? `a number from ${variable.range[0].toLocaleString()} to ${variable.range[1].toLocaleString()}`
        : variable.cuts && input.value !== "" ? `counts as: ${levelOf(variable, Number(input.value))}` : "";
  });
  return other;
}

// --- the answer ---------------------------------------------------------------------------------------------------

async function preview() {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  place.setAttribute("aria-busy", "true");
  try {
    const found = await ask("POST", `${path}/preview`, request(), signal);
    say();
    place.replaceChildren(...answer(found));
    $("#spoken").textContent = `It would take ${found.action}. Nothing was recorded.`;
  } catch (error) {
    if (error.name === "AbortError") return;
    const other = say(error.fields);
    const words = error.status === 422 ? ["Something is wrong with the customer", other.join("; ") || "See the fields marked in the form."]
      : ["The service did not answer", error.status ? error.message : "Try again in a moment."];
    place.replaceChildren(h("section", { class: "card", role: "alert" }, h("h2", {}, words[0]), h("p", {}, words[1])));
  }
  place.removeAttribute("aria-busy");
}

const card = (title, ...content) => h("section", { class: "card wide" }, h("h2", {}, title), ...content);

function answer(found) {
  const names = regimeNames(Math.max(found.belief.length, found.belief_before.length), config.regime_labels);
  const notes = [
    found.paused ? "The campaign is paused: /decide would refuse." : null,
    found.archived ? "The campaign is archived: /decide would refuse." : null,
    found.estimation_left_out ? "A re-estimation of the regimes is due that is too large for a preview: it is left out here." : null,
  ].filter(Boolean);
  return [
    h("p", { class: "lead" }, "It would take ", h("strong", { class: "action" }, found.action), ", with a probability of ", h("strong", {}, share(found.propensity)), ". ",
      h("span", { class: "soft" }, modeSentence(found, config.control).replace("was in its", "is in its"))),
    ...notes.map((note) => h("p", { class: "warn" }, note)),
    h("p", { class: "soft" }, `It would be round ${found.round.toLocaleString()}, with model ${found.model_version.toLocaleString()}; the campaign stays at round ${(found.round - 1).toLocaleString()}.`),
    h("div", { class: "cards" },
      card("The belief", found.belief.length > 1 ? [
        h("div", { class: "two" },
          h("div", {}, h("h3", {}, "before this customer"), lawBar(found.belief_before, names, "Belief before")),
          h("div", {}, h("h3", {}, "after"), lawBar(found.belief, names, "Belief after"))),
      ] : h("p", {}, "There is one regime in use: nothing to believe.")),
      card("What each action is worth", scoreTable(found.scores, { [found.action]: "chosen" }, "Scores, highest first: the reward expected, and the bonus for what is still to be learned")),
      found.regimes.length > 1 ? inEach(found) : ""),
  ];
}

function inEach(found) {
  const x = scoreScale(found.regimes.flatMap((regime) => regime.scores));
  return card("If the regime were known", h("div", { class: "two" }, found.regimes.map((regime) => h("div", {},
    h("h3", {}, `In ${regimeName(regime.regime, regime.label)}: ${regime.action}`),
    scoreTable(regime.scores, { [regime.action]: "highest" }, "Scores if this regime were certain", x)))));
}

function later() {
  clearTimeout(waiting);
  waiting = setTimeout(preview, WAIT);
}

definePatterns();
try {
  ({ config } = await get(path));
  makeForm();
  form.addEventListener("input", later);
  form.addEventListener("submit", (event) => { event.preventDefault(); preview(); });
  await preview();
} catch (error) {
  form.replaceChildren(h("p", { role: "alert" }, error.status === 404 ? "There is no such campaign." : error.status ? error.message : "The service does not answer."));
}

// The cards of a campaign's page that show the model: transitions, signals by regime, and what actions are worth.

import { $, h, makeScroller } from "./dom.js";
import { makeEmissionHeat, makeSymbolHeat, makeTransitionHeat } from "./charts/heat.js";
import { drawWhiskers, groupByAction, makeWhiskerTable } from "./charts/whiskers.js";
import { nameRegime, nameRegimes, pluralize } from "./words.js";

export function drawModelCards(model, state) {
  const none = model.regimes.length ? null
    : state.regimes === 1 && state.config.regimes === 1 ? "This campaign has only one regime."
      : model.guarded ? "More regimes were tried, but they did not improve the model: one is in use." : "The regimes have not been estimated yet.";
  drawTransition(model, state, none);
  drawEmission(model, none);
  drawTheta(model, state);
}

function drawTransition(model, state, none) {
  const place = $("#transition .body");
  if (none) { place.replaceChildren(h("p", {}, none)); return; }
  const unit = state.config.clock ? "period" : "decision";
  place.replaceChildren(
    makeScroller("How regimes follow one another", {}, makeTransitionHeat(model.regimes, unit)),
    h("ul", { class: "plain" }, model.regimes.map((regime) => h("li", {}, h("strong", {}, nameRegime(regime.regime, regime.label)),
      regime.expected_duration === null ? " never ends once it has started." : ` lasts about ${pluralize(Math.round(regime.expected_duration), unit)} at a time and takes up ${Math.round(100 * regime.share)}\u00a0% of the time in the long run.`))));
}

function drawEmission(model, none) {
  const place = $("#emission .body");
  if (none) { place.replaceChildren(h("p", {}, none)); return; }
  const open = $("details", place)?.open ?? false;
  const several = Object.keys(model.regimes[0].signals).length > 1;
  place.replaceChildren(
    makeScroller("Signals by regime", {}, makeEmissionHeat(model.regimes)),
    several ? h("details", { open }, h("summary", {}, "Combinations of levels"), makeScroller("Combinations of levels by regime", {}, makeSymbolHeat(model.regimes))) : "");
}

// --- what actions are worth ---------------------------------------------------------------------------------------

const selection = { term: null, redraw: null };

function drawTheta(model, state) {
  const place = $("#theta .body");
  if (!model.coefficients.length || !model.model_version) {
    place.replaceChildren(h("p", {}, "Nothing learned yet: the first model is computed at the end of the first stage."));
    return;
  }
  const terms = [...new Set(model.coefficients.map(({ term }) => term))];
  if (!terms.includes(selection.term)) selection.term = terms.includes("actions") ? "actions" : terms[0];
  if (!$("#term")) {
    const plot = h("div", { class: "whiskers" });
    place.replaceChildren(
      h("p", {}, h("label", { for: "term", class: "inline" }, "Term "), h("select", { id: "term", onchange: (event) => { selection.term = event.target.value; selection.redraw(); } })),
      h("p", { class: "soft", id: "term-help" }), plot,
      h("details", { class: "alternative" }, h("summary", {}, "As a table"), makeScroller("Coefficients", { class: "short" })));
    new ResizeObserver(() => selection.redraw()).observe(plot);
  }
  $("#term").replaceChildren(...terms.map((term) => h("option", { value: term, selected: term === selection.term }, nameTerm(term))));
  selection.redraw = () => {
    const names = nameRegimes(8, state.config.regime_labels);
    const groups = groupByAction(model.coefficients, selection.term, names);
    const plot = $(".whiskers", place);
    $("#term-help").textContent = describeTerm(selection.term, state.config);
    if (plot.clientWidth) plot.replaceChildren(drawWhiskers(groups, plot.clientWidth, `Coefficients of ${nameTerm(selection.term)}`));
    $(".alternative > div", place).replaceChildren(makeWhiskerTable(groups));
  };
  selection.redraw();
}

function nameTerm(term) {
  if (term === "actions") return "actions: what each one adds";
  if (term === "intercept") return "regimes: the reward level of each";
  return term.startsWith("actions:") ? `actions by ${term.slice(8)}` : `${term}, for any action`;
}

function describeTerm(term, config) {
  const baseline = config.actions[0];
  const variable = config.variables.find(({ name }) => name === term.replace("actions:", ""));
  const unit = variable?.range ? ` Measured from the lowest ${variable.name} (${variable.range[0]}) to the highest (${variable.range[1]}).` : "";
  if (term === "actions") return `How much more each action earns than “${baseline}” in each regime, before customer details are considered.`;
  if (term === "intercept") return `How much “${baseline}” earns in each regime.`;
  if (term.startsWith("actions:")) return `How ${term.slice(8)} changes what an action earns compared with “${baseline}”.${unit}`;
  return `How ${term} changes the reward, for any action.${unit}`;
}

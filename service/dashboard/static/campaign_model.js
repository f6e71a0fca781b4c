// The cards of a campaign's page that show the model: how regimes follow one another, who shows up, what actions are worth.

import { $, h, scroller } from "./dom.js";
import { emissionHeat, symbolHeat, transitionHeat } from "./charts/heat.js";
import { grouped, whiskers, whiskerTable } from "./charts/whiskers.js";
import { plural, regimeName, regimeNames } from "./words.js";

export function modelCards(model, state) {
  const none = model.regimes.length ? null
    : state.regimes === 1 && state.config.regimes === 1 ? "The campaign has one regime: nothing follows another."
      : model.guarded ? "More regimes were tried and do not pay: one is in use." : "The regimes have not been estimated yet.";
  transition(model, state, none);
  emission(model, none);
  theta(model, state);
}

function transition(model, state, none) {
  const place = $("#transition .body");
  if (none) { place.replaceChildren(h("p", {}, none)); return; }
  const unit = state.config.clock ? "period" : "decision";
  place.replaceChildren(
    scroller("How regimes follow one another", {}, transitionHeat(model.regimes, unit)),
    h("ul", { class: "plain" }, model.regimes.map((regime) => h("li", {}, h("strong", {}, regimeName(regime.regime, regime.label)),
      regime.expected_duration === null ? " never ends." : ` lasts for some ${plural(Math.round(regime.expected_duration), unit)} at a stretch, ${Math.round(100 * regime.share)} % of the time in the long run.`))));
}

function emission(model, none) {
  const place = $("#emission .body");
  if (none) { place.replaceChildren(h("p", {}, none)); return; }
  const open = $("details", place)?.open ?? false;
  const several = Object.keys(model.regimes[0].signals).length > 1;
  place.replaceChildren(
    scroller("Signals by regime", {}, emissionHeat(model.regimes)),
    several ? h("details", { open }, h("summary", {}, "Combinations of levels"), scroller("Combinations of levels by regime", {}, symbolHeat(model.regimes))) : "");
}

// --- what actions are worth ---------------------------------------------------------------------------------------

const chosen = { term: null, redraw: null };

function theta(model, state) {
  const place = $("#theta .body");
  if (!model.coefficients.length || !model.model_version) {
    place.replaceChildren(h("p", {}, "Nothing has been learned yet: the first model comes at the end of the first stage."));
    return;
  }
  const terms = [...new Set(model.coefficients.map((found) => found.term))];
  if (!terms.includes(chosen.term)) chosen.term = terms.includes("actions") ? "actions" : terms[0];
  if (!$("#term")) {
    const plot = h("div", { class: "whiskers" });
    place.replaceChildren(
      h("p", {}, h("label", { for: "term", class: "inline" }, "Term "), h("select", { id: "term", onchange: (event) => { chosen.term = event.target.value; chosen.redraw(); } })),
      h("p", { class: "soft", id: "term-words" }), plot,
      h("details", { class: "alternative" }, h("summary", {}, "As a table"), scroller("Coefficients", { class: "short" })));
    new ResizeObserver(() => chosen.redraw()).observe(plot);
  }
  $("#term").replaceChildren(...terms.map((term) => h("option", { value: term, selected: term === chosen.term }, termName(term))));
  chosen.redraw = () => {
    const names = regimeNames(8, state.config.regime_labels);
    const groups = grouped(model.coefficients, chosen.term, names);
    const plot = $(".whiskers", place);
    $("#term-words").textContent = termWords(chosen.term, state.config);
    if (plot.clientWidth) plot.replaceChildren(whiskers(groups, plot.clientWidth, `Coefficients of ${termName(chosen.term)}`));
    $(".alternative > div", place).replaceChildren(whiskerTable(groups));
  };
  chosen.redraw();
}

function termName(term) {
  if (term === "actions") return "actions: what each adds";
  if (term === "intercept") return "regimes: where rewards begin";
  return term.startsWith("actions:") ? `actions by ${term.slice(8)}` : `${term}, whatever the action`;
}

function termWords(term, config) {
  const baseline = config.actions[0];
  const variable = config.variables.find(({ name }) => name === term.replace("actions:", ""));
  const unit = variable?.range ? ` From the lowest ${variable.name} (${variable.range[0]}) to the highest (${variable.range[1]}).` : "";
  if (term === "actions") return `How much more than “${baseline}” an action earns in each regime, before who the customer is.`;
  if (term === "intercept") return `How much better or worse each regime is, for “${baseline}”.`;
  if (term.startsWith("actions:")) return `How much more or less than usual an action earns, by ${term.slice(8)}, compared with “${baseline}”.${unit}`;
  return `How much more or less is earned by ${term}, whatever the action.${unit}`;
}

// Heat maps: tables whose cells are tinted by probability, so that chart and numbers are one.

import { h } from "../dom.js";
import { formatShare, nameRegime } from "../words.js";

function makeCell(value) {
  const cell = h("td", { class: "number heat" }, formatShare(value));
  cell.style.setProperty("--p", value.toFixed(3));
  return cell;
}

const getName = (regime) => nameRegime(regime.regime, regime.label);

export function makeTransitionHeat(regimes, unit) {
  return h("table", { class: "heatmap" },
    h("caption", {}, `Probability of each regime in the next ${unit}, given the regime now`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "from ↓ to →"), regimes.map((to) => h("th", { scope: "col", class: "number" }, getName(to))))),
    h("tbody", {}, regimes.map((from) => h("tr", {}, h("th", { scope: "row" }, getName(from)), from.transition.map((value) => makeCell(value))))));
}

// The probability of each level of each signal, by regime.
export function makeEmissionHeat(regimes) {
  const signals = Object.keys(regimes[0].signals);
  return h("table", { class: "heatmap" },
    h("caption", {}, "Share of customers with each level, by regime"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "signal"), h("th", { scope: "col" }, "level"), regimes.map((regime) => h("th", { scope: "col", class: "number" }, getName(regime))))),
    signals.map((signal) => {
      const levels = Object.keys(regimes[0].signals[signal]);
      return h("tbody", {}, levels.map((level, i) => h("tr", {},
        i === 0 ? h("th", { scope: "rowgroup", rowspan: levels.length }, signal) : null,
        h("th", { scope: "row" }, level),
        regimes.map((regime) => makeCell(regime.signals[signal][level])))));
    }));
}

const MAX_SYMBOLS = 12;

// The combinations of levels that are most likely in some regime.
export function makeSymbolHeat(regimes) {
  const symbols = regimes[0].emission.map(({ symbol }, i) => ({
    words: Object.values(symbol).join(" · "),
    each: regimes.map((regime) => regime.emission[i].probability),
  }));
  const shown = [...symbols].sort((one, other) => Math.max(...other.each) - Math.max(...one.each)).slice(0, MAX_SYMBOLS);
  return h("table", { class: "heatmap" },
    h("caption", {}, `${Object.keys(regimes[0].signals).join(" · ")}: ${shown.length < symbols.length ? `the ${shown.length} most likely of ${symbols.length} combinations` : "all combinations"}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "combination"), regimes.map((regime) => h("th", { scope: "col", class: "number" }, getName(regime))))),
    h("tbody", {}, shown.map(({ words, each }) => h("tr", {}, h("th", { scope: "row" }, words), each.map((value) => makeCell(value))))));
}

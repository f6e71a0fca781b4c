// Heat maps: tables whose cells are tinted by a probability, so that the picture and its numbers are one.

import { h } from "../dom.js";
import { regimeName, share } from "../words.js";

function cell(value, words = share(value)) {
  const made = h("td", { class: "number heat" }, words);
  made.style.setProperty("--p", value.toFixed(3));
  return made;
}

const nameOf = (regime) => regimeName(regime.regime, regime.label);

export function transitionHeat(regimes, unit) {
  return h("table", { class: "heatmap" },
    h("caption", {}, `Probability that the regime of one ${unit} is followed by each regime in the next`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "from ↓ to →"), regimes.map((to) => h("th", { scope: "col", class: "number" }, nameOf(to))))),
    h("tbody", {}, regimes.map((from) => h("tr", {}, h("th", { scope: "row" }, nameOf(from)), from.transition.map((value) => cell(value))))));
}

// How often each level of each signal is seen in each regime.
export function emissionHeat(regimes) {
  const signals = Object.keys(regimes[0].signals);
  return h("table", { class: "heatmap" },
    h("caption", {}, "How often customers have each level, by regime"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "signal"), h("th", { scope: "col" }, "level"), regimes.map((regime) => h("th", { scope: "col", class: "number" }, nameOf(regime))))),
    signals.map((signal) => {
      const levels = Object.keys(regimes[0].signals[signal]);
      return h("tbody", {}, levels.map((level, i) => h("tr", {},
        i === 0 ? h("th", { scope: "rowgroup", rowspan: levels.length }, signal) : null,
        h("th", { scope: "row" }, level),
        regimes.map((regime) => cell(regime.signals[signal][level])))));
    }));
}

const MOST_SYMBOLS = 12;

// The combinations of levels that tell regimes apart most, or are seen most often.
export function symbolHeat(regimes) {
  const symbols = regimes[0].emission.map(({ symbol }, i) => ({
    words: Object.values(symbol).join(" · "),
    each: regimes.map((regime) => regime.emission[i].probability),
  }));
  const shown = [...symbols].sort((one, other) => Math.max(...other.each) - Math.max(...one.each)).slice(0, MOST_SYMBOLS);
  return h("table", { class: "heatmap" },
    h("caption", {}, `${Object.keys(regimes[0].signals).join(" · ")}: ${shown.length < symbols.length ? `the ${shown.length} likeliest of ${symbols.length} combinations` : "every combination"}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "combination"), regimes.map((regime) => h("th", { scope: "col", class: "number" }, nameOf(regime))))),
    h("tbody", {}, shown.map(({ words, each }) => h("tr", {}, h("th", { scope: "row" }, words), each.map((value) => cell(value))))));
}

// The cards of a campaign's page that come from the report: actions in each regime, the lift in words, other policies.

import { $, coded, h, s, scroller } from "./dom.js";
import { actionLook, swatch } from "./charts/marks.js";
import { extentOf, linear } from "./charts/scales.js";
import { amount, liftSentence, policyName, regimeName, share } from "./words.js";

export function reportCards(report, state, zoomed) {
  byRegime($("#actions .by-regime"), report, state);
  lift($("#lift-words"), report.lift, zoomed);
  policies($("#policies .body"), report, state);
}

// --- actions in each regime ---------------------------------------------------------------------------------------

function byRegime(place, report, state) {
  const { regimes, left_out: left } = report.regimes;
  if (!report.decisions.total) { place.replaceChildren(); return; }
  const columns = regimes.length > 1 ? regimes : [];
  const total = report.decisions.total - report.decisions.erased || 1;
  const cell = (part, mean) => {
    const made = h("td", { class: "number part" }, h("strong", {}, share(part)), h("span", { class: "soft" }, mean === null ? "no reward" : `earns ${amount(mean)}`));
    made.style.setProperty("--p", part.toFixed(3));
    return made;
  };
  place.replaceChildren(
    h("h3", {}, columns.length ? "In each regime" : "In all"),
    scroller("Actions in each regime", {}, h("table", { class: "parts" },
      h("caption", { class: "soft" }, "Share of decisions, and what each earned on average where it was chosen"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "action"), h("th", { scope: "col", class: "number" }, "all"), columns.map((regime) => h("th", { scope: "col", class: "number" }, regimeName(regime.regime, regime.label))))),
      h("tbody", {}, report.actions.map((action, i) => h("tr", {},
        h("th", { scope: "row" }, swatch(actionLook(state.config.actions.indexOf(action.action))), ` ${action.action}`, action.retired ? h("span", { class: "tag" }, "retired") : null),
        cell(action.decisions / report.decisions.total, action.mean_reward),
        columns.map((regime) => cell(regime.decisions ? regime.actions[i].decisions / regime.decisions : 0, regime.actions[i].mean_reward))))))),
    left && columns.length ? h("p", { class: "soft" }, `${left.toLocaleString()} of ${total.toLocaleString()} decisions were made with another number of regimes and are left out of their columns.`) : "");
}

// --- the lift -----------------------------------------------------------------------------------------------------

function lift(place, found, zoomed) {
  const where = zoomed ? "In the time shown: " : "";
  if (found.difference) {
    const { value, low, high } = found.difference;
    const part = found.relative ? ` That is ${share(Math.abs(found.relative.value))} ${found.relative.value >= 0 ? "more" : "less"}.` : "";
    place.replaceChildren(where, liftSentence({ difference: value, low, high }), part);
  } else if (found.refusal) {
    place.replaceChildren(`${where}It cannot be said yet what the model earns more than control. `, ...coded(found.refusal.reason), " ", h("span", { class: "soft" }, coded(found.refusal.remedy)));
  }
}

// --- other policies -----------------------------------------------------------------------------------------------

function policies(place, report, state) {
  const { policies: found, left_out: left } = report.off_policy;
  if (!report.decisions.total) { place.replaceChildren(h("p", {}, "There is no decision to learn this from.")); return; }
  const own = report.rewards.mean;
  const bounds = found.flatMap(({ dr }) => (dr ? [dr.low, dr.high] : []));
  const x = linear(...extentOf([...bounds, own ?? NaN]), 4, 196);
  const picture = (dr) => s("svg", { class: "estimate", width: 200, height: 20, viewBox: "0 0 200 20", "aria-hidden": "true" },
    own === null ? null : s("line", { class: "own", x1: x(own), x2: x(own), y1: 0, y2: 20 }),
    s("path", { class: "whisker k1", d: `M${x(dr.low)} 10H${x(dr.high)}M${x(dr.low)} 6v8M${x(dr.high)} 6v8` }), s("circle", { class: "dot k1", cx: x(dr.value), cy: 10, r: 4 }));
  const row = (value) => h("tr", {},
    h("th", { scope: "row" }, policyName(value, state.config.actions[0])),
    value.refusal
      ? h("td", { colspan: 4 }, "Cannot be told. ", coded(value.refusal.reason), " ", h("span", { class: "soft" }, coded(value.refusal.remedy)))
      : [h("td", { class: "roomy" }, picture(value.dr)), h("td", { class: "number" }, amount(value.dr.value)), h("td", { class: "number" }, `${amount(value.dr.low)} to ${amount(value.dr.high)}`),
        h("td", { class: "number roomy" }, Math.round(value.effective_sample_size).toLocaleString())]);
  const out = [["awaited", left.awaited], ["erased", left.erased], ["imported", left.imported], ["unexplained", left.unexplained]].filter(([, count]) => count);
  place.replaceChildren(
    own === null ? "" : h("p", {}, "This campaign earned ", h("strong", {}, amount(own)), " a decision on average, warm start and control included (the vertical line)."),
    scroller("What others would have earned", {}, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "had it been"), h("th", { scope: "col", class: "roomy" }, h("span", { class: "unseen" }, "picture")), h("th", { scope: "col", class: "number" }, "would have earned"), h("th", { scope: "col", class: "number" }, "95 % interval"), h("th", { scope: "col", class: "number roomy" }, "worth decisions"))),
      h("tbody", {}, found.map(row)))),
    h("p", { class: "soft" }, "“Worth decisions” is how many the log is worth for that question: the fewer, the wider the interval.",
      out.length ? ` Left out: ${out.map(([word, count]) => `${count.toLocaleString()} ${word}`).join(", ")}.` : ""));
}

// The cards of a campaign's page that come from the report: actions by regime, the lift as a sentence, other policies.

import { $, h, makeScroller, markCode, s } from "./dom.js";
import { chooseActionLook, makeSwatch } from "./charts/marks.js";
import { findExtent, makeScale } from "./charts/scales.js";
import { describeLift, formatAmount, formatShare, namePolicy, nameRegime } from "./words.js";

export function drawReportCards(report, state, zoomed) {
  drawActionsByRegime($("#actions .by-regime"), report, state);
  drawLift($("#lift-sentence"), report.lift, zoomed);
  drawPolicies($("#policies .body"), report, state);
}

// --- actions in each regime ---------------------------------------------------------------------------------------

function drawActionsByRegime(place, report, state) {
  const { regimes, left_out: left } = report.regimes;
  if (!report.decisions.total) { place.replaceChildren(); return; }
  const columns = regimes.length > 1 ? regimes : [];
  const total = report.decisions.total - report.decisions.erased || 1;
  const none = report.rewards.early ? "none counts yet" : "no reward";
  const makeCell = (part, mean) => {
    const cell = h("td", { class: "number part" }, h("strong", {}, formatShare(part)), h("span", { class: "soft" }, mean === null ? none : `earns ${formatAmount(mean)}`));
    cell.style.setProperty("--p", part.toFixed(3));
    return cell;
  };
  place.replaceChildren(
    h("h3", {}, columns.length ? "By regime" : "Overall"),
    makeScroller("Actions by regime", {}, h("table", { class: "parts" },
      h("caption", { class: "soft" }, "Share of decisions that took the action, and the mean reward of those decisions"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "action"), h("th", { scope: "col", class: "number" }, "all"), columns.map((regime) => h("th", { scope: "col", class: "number" }, nameRegime(regime.regime, regime.label))))),
      h("tbody", {}, report.actions.map((action, i) => h("tr", {},
        h("th", { scope: "row" }, makeSwatch(chooseActionLook(state.config.actions.indexOf(action.action))), ` ${action.action}`, action.retired ? h("span", { class: "tag" }, "retired") : null),
        makeCell(action.decisions / report.decisions.total, action.mean_reward),
        columns.map((regime) => makeCell(regime.decisions ? regime.actions[i].decisions / regime.decisions : 0, regime.actions[i].mean_reward))))))),
    left && columns.length ? h("p", { class: "soft" }, `${left.toLocaleString()} of ${total.toLocaleString()} decisions were made with a different number of regimes and are not counted in the columns by regime.`) : "");
}

// --- the lift -----------------------------------------------------------------------------------------------------

function drawLift(place, lift, zoomed) {
  const where = zoomed ? "In this range: " : "";
  if (lift.difference) {
    const { value, low, high } = lift.difference;
    const part = lift.relative ? ` That is ${formatShare(Math.abs(lift.relative.value))} ${lift.relative.value >= 0 ? "more" : "less"}.` : "";
    place.replaceChildren(where, describeLift({ difference: value, low, high }), part);
  } else if (lift.refusal) {
    place.replaceChildren(`${where}The lift over control cannot be estimated yet. `, ...markCode(lift.refusal.reason), " ", h("span", { class: "soft" }, markCode(lift.refusal.remedy)));
  }
}

// --- other policies -----------------------------------------------------------------------------------------------

function drawPolicies(place, report, state) {
  const { policies, left_out: left } = report.off_policy;
  if (!report.decisions.total) { place.replaceChildren(h("p", {}, "No decisions to estimate this from.")); return; }
  const own = report.rewards.mean;
  const bounds = policies.flatMap(({ dr }) => (dr ? [dr.low, dr.high] : []));
  const x = makeScale(...findExtent([...bounds, own ?? NaN]), 4, 196);
  const drawInterval = (dr) => s("svg", { class: "estimate", width: 200, height: 20, viewBox: "0 0 200 20", "aria-hidden": "true" },
    own === null ? null : s("line", { class: "own", x1: x(own), x2: x(own), y1: 0, y2: 20 }),
    s("path", { class: "whisker k1", d: `M${x(dr.low)} 10H${x(dr.high)}M${x(dr.low)} 6v8M${x(dr.high)} 6v8` }), s("circle", { class: "dot k1", cx: x(dr.value), cy: 10, r: 4 }));
  const makeRow = (value) => h("tr", {},
    h("th", { scope: "row" }, namePolicy(value, state.config.actions[0])),
    value.refusal
      ? h("td", { colspan: 4 }, "Cannot be estimated. ", markCode(value.refusal.reason), " ", h("span", { class: "soft" }, markCode(value.refusal.remedy)))
      : [h("td", { class: "roomy" }, drawInterval(value.dr)), h("td", { class: "number" }, formatAmount(value.dr.value)), h("td", { class: "number" }, `${formatAmount(value.dr.low)} to ${formatAmount(value.dr.high)}`),
        h("td", { class: "number roomy" }, Math.round(value.effective_sample_size).toLocaleString())]);
  const omitted = [["without a reward that counts", left.awaited], ["erased", left.erased], ["imported", left.imported], ["unexplained", left.unexplained]].filter(([, count]) => count);
  place.replaceChildren(
    own === null ? "" : h("p", {}, "This campaign earned ", h("strong", {}, formatAmount(own)), " per decision on average, including warm start and control (the vertical line)."),
    makeScroller("What other policies would have earned", {}, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "policy"), h("th", { scope: "col", class: "roomy" }, h("span", { class: "visually-hidden" }, "chart")), h("th", { scope: "col", class: "number" }, "would have earned"), h("th", { scope: "col", class: "number" }, "95 % interval"), h("th", { scope: "col", class: "number roomy" }, "effective decisions"))),
      h("tbody", {}, policies.map(makeRow)))),
    h("p", { class: "soft" }, "“Effective decisions” is how much evidence the log holds about a policy: the fewer, the wider the interval.",
      omitted.length ? ` Left out: ${omitted.map(([word, count]) => `${count.toLocaleString()} ${word}`).join(", ")}.` : ""));
}

// The cards of a campaign's page that are words and small tables: head, events, health, rewards, alerts, stages.

import { address } from "./api.js";
import { $, coded, h, scroller, settle, when } from "./dom.js";
import { spark } from "./charts/spark.js";
import { KINDS, ago, amount, liftSentence, plural, regimeName, seconds, share } from "./words.js";

const SHOWN_STAGES = 8;
const SHOWN_EVENTS = 100;

const table = (heads, rows, numbers = []) => scroller(heads.join(", "), {}, h("table", {},
  h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: numbers.includes(i) ? "number" : null }, head)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: numbers.includes(i) ? "number" : null }, cell)))))));

// --- what it believes now -----------------------------------------------------------------------------------------

export function head({ state, regimes, health, lastDecided }) {
  const current = regimes.current && regimes.regimes[regimes.current.regime - 1];
  const first = current
    ? h("p", { class: "lead" }, "Now most likely: ", h("strong", {}, regimeName(current.regime, current.label)), `, with ${share(current.belief)} probability`,
      regimes.current.since_round ? `, since round ${regimes.current.since_round.toLocaleString()}.` : ".")
    : h("p", { class: "lead" }, state.round ? regimes.note ?? "No regimes yet." : "No decision yet.");
  const facts = [
    ["round", state.round.toLocaleString()],
    ["last decision", lastDecided ? ago(lastDecided) : "none yet"],
    ["stage", state.stage.toLocaleString()],
    ["model", state.model_version.toLocaleString()],
    ["regimes in use", String(state.regimes)],
  ];
  const worst = health.findings[0]?.severity;
  const look = worst === "problem" ? "bad" : worst === "warning" ? "warn" : "good";
  const nodes = [
    first,
    current ? h("p", {}, current.words) : null,
    regimes.labels_note ? h("p", { class: "warn" }, regimes.labels_note) : null,
    state.round ? null : begin(state),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("p", { class: `verdict ${look}` }, health.verdict, ". ", h("a", { href: "#health" }, look === "good" ? "Details" : "What to do")),
    state.failure ? h("p", { class: "bad" }, `The last update failed: ${state.failure}. The campaign goes on with the model of before.`) : null,
  ].filter(Boolean);
  const badges = [state.paused && "paused", state.archived_at && "archived"].filter(Boolean);
  $(".toolbar").hidden = !state.round;
  settle($("#now"), nodes);
  $("#now").removeAttribute("aria-busy");
  settle($("#badges"), badges.map((badge) => h("span", { class: "tag warn" }, badge)));
}

function begin(state) {
  const variable = (v) => (v.range ? v.range[0] : v.cuts ? v.cuts[0] : v.levels[0]);
  const context = Object.fromEntries(state.config.variables.map((v) => [v.name, variable(v)]));
  const body = JSON.stringify({ campaign: state.name, context });
  return h("div", {}, h("p", {}, "Ask for the first one, and this page fills itself:"),
    h("pre", { tabindex: 0 }, `curl ${location.origin}${address("/decide")} -d '${body.replaceAll("'", "'\\''")}'`));
}

// Until the report of the same range says more.
export function liftWords(series) {
  const lift = series.buckets.at(-1)?.lift;
  $("#lift-words").textContent = (lift && liftSentence(lift)) ?? "Working it out …";
}

// --- what happened ------------------------------------------------------------------------------------------------

export function events(place, timeline) {
  const latest = [...timeline.events].reverse().slice(0, SHOWN_EVENTS);
  const left = timeline.events.length - latest.length + timeline.series.regime_changes_left_out;
  place.replaceChildren(
    latest.length ? h("ul", { class: "plain" }, latest.map((event) => h("li", {}, event.words, " ", h("span", { class: "soft" }, when(event.when)))))
      : h("p", { class: "soft" }, "No regime change, rollback, erasure or change of the configuration in this range."),
    left ? h("p", { class: "soft" }, `${left.toLocaleString()} more: zoom in to see them.`) : "");
}

export function health(place, found) {
  const look = { problem: "bad", warning: "warn", info: "soft" };
  place.replaceChildren(found.findings.length
    ? h("ul", { class: "findings" }, found.findings.map((finding) => h("li", { class: finding.severity },
      h("p", {}, h("span", { class: `tag ${look[finding.severity]}` }, finding.severity), " ", coded(finding.message)),
      h("p", { class: "soft" }, "What to do: ", coded(finding.advice)),
      h("details", {}, h("summary", {}, "The numbers"), table(["what", "number"], Object.entries(finding.evidence).map(([name, value]) =>
        [name.replaceAll("_", " "), typeof value === "number" ? value.toLocaleString() : typeof value === "object" ? JSON.stringify(value) : String(value)]), [1])))))
    : h("p", { class: "good" }, "✓ Learning: nothing to report."));
}

export function rewards(place, report, overdue, state, zoomed) {
  const { rewards: found } = report;
  const { wait_seconds: wait, default: standard } = state.config.rewards;
  const rows = [
    [zoomed ? "received for this range" : "received", `${found.received.toLocaleString()} (${share(found.rate)})`],
    ["mean reward", amount(found.mean)],
    ["awaited: have not come", found.awaited.toLocaleString()],
    ["overdue", wait === null ? "no waiting time is set" : overdue ? overdue.rewards.awaited.toLocaleString() : "0"],
    ["came, counts from the next update on", state.rewards_waiting.toLocaleString()],
  ];
  if (found.by_source.default) rows.push(["set to the default", found.by_source.default.toLocaleString()]);
  if (found.by_source.import) rows.push(["imported", found.by_source.import.toLocaleString()]);
  const words = wait === null
    ? "A reward may come at any time: this campaign sets no waiting time and no default."
    : `After ${seconds(wait)} without a reward the default, ${amount(standard)}, counts from the next stage's end on.`;
  place.replaceChildren(h("table", { class: "rows" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, value))))), h("p", { class: "soft" }, words));
}

const DELIVERY = { waiting: "waiting to be sent", sent: "sent", failed: "given up" };

export function alerts(place, found, state) {
  const { rounds, webhook } = state.config.alerts;
  const note = h("p", { class: "soft" }, `Raised after ${plural(rounds, "round")} in a row. ${webhook ? "Sent to the webhook." : "No webhook is configured: they are only listed here."}`);
  if (!found.alerts.length) { place.replaceChildren(h("p", {}, "None so far."), note); return; }
  place.replaceChildren(h("ul", { class: "plain" }, found.alerts.map((alert) => h("li", {},
    h("strong", {}, `${regimeName(alert.from.regime, alert.from.label)} → ${regimeName(alert.to.regime, alert.to.label)}`),
    ` since round ${alert.since_round.toLocaleString()} `, h("span", { class: "soft" }, when(alert.created_at)),
    alert.delivery ? h("div", { class: alert.delivery.status === "sent" ? "good" : alert.delivery.status === "failed" ? "bad" : "warn" },
      `Webhook: ${DELIVERY[alert.delivery.status]}`, alert.delivery.status === "sent" ? "" : `, ${plural(alert.delivery.attempts, "attempt")}`,
      alert.delivery.failure && alert.delivery.status !== "sent" ? h("span", { class: "soft" }, ` (${alert.delivery.failure})`) : null) : null))),
  found.next_cursor ? h("p", { class: "soft" }, `The newest ${found.alerts.length} are shown.`) : "", note);
}

export function stages(place, found) {
  if (!found.stages.length) { place.replaceChildren(h("p", {}, "No model yet: the first comes at the end of the first stage.")); return; }
  const took = found.stages.map((stage) => stage.seconds);
  place.replaceChildren(h("div", { class: "two" },
    h("div", {}, h("p", {}, spark([...took].reverse(), `Seconds that the last ${took.length} models took to make`)),
      h("p", { class: "soft" }, `The last ${took.length} took ${seconds(Math.min(...took))} to ${seconds(Math.max(...took))} each.`)),
    table(["model", "what", "after round", "took"], found.stages.slice(0, SHOWN_STAGES).map((stage) => [
      stage.model_version.toLocaleString(), KINDS[stage.kind], stage.round.toLocaleString(), seconds(stage.seconds),
    ]), [0, 2, 3])));
}

export { table };

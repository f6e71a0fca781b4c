// The cards of a campaign's page made of text and small tables: head, events, health, rewards, alerts, stages.

import { toUrl } from "./api.js";
import { $, formatTime, h, makeTable, markCode, updateChildren } from "./dom.js";
import { drawSpark } from "./charts/spark.js";
import { MODEL_KINDS, describeLift, formatAgo, formatAmount, formatDuration, formatShare, nameRegime, pluralize } from "./words.js";

const MAX_STAGES = 8;
const MAX_EVENTS = 100;

// --- the current state --------------------------------------------------------------------------------------------

export function drawHead({ state, regimes, health, lastDecided }) {
  const current = regimes.current && regimes.regimes[regimes.current.regime - 1];
  const headline = current
    ? h("p", { class: "lead" }, "Now most likely: ", h("strong", {}, nameRegime(current.regime, current.label)), `, with ${formatShare(current.belief)} probability`,
      regimes.current.since_round ? `, since round ${regimes.current.since_round.toLocaleString()}.` : ".")
    : h("p", { class: "lead" }, state.round ? regimes.note ?? "No regimes yet." : "No decisions yet.");
  const facts = [
    ["round", state.round.toLocaleString()],
    ["last decision", lastDecided ? formatAgo(lastDecided) : "none yet"],
    ["stage", state.stage.toLocaleString()],
    ["model", state.model_version.toLocaleString()],
    ["regimes in use", String(state.regimes)],
  ];
  const worst = health.findings[0]?.severity;
  const severity = worst === "problem" ? "bad" : worst === "warning" ? "warn" : "good";
  const nodes = [
    headline,
    current ? h("p", {}, current.words) : null,
    regimes.labels_note ? h("p", { class: "warn" }, regimes.labels_note) : null,
    state.round ? null : makeFirstSteps(state),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("p", { class: `verdict ${severity}` }, health.verdict, ". ", h("a", { href: "#health" }, severity === "good" ? "Details" : "What to do")),
    state.failure ? h("p", { class: "bad" }, `The last update failed: ${state.failure}. The campaign continues with the previous model.`) : null,
  ].filter(Boolean);
  const badges = [state.paused && "paused", state.archived_at && "archived"].filter(Boolean);
  $(".toolbar").hidden = !state.round;
  updateChildren($("#now"), nodes);
  $("#now").removeAttribute("aria-busy");
  updateChildren($("#badges"), badges.map((badge) => h("span", { class: "tag warn" }, badge)));
}

function makeFirstSteps(state) {
  const pickValue = (v) => (v.range ? v.range[0] : v.cuts ? v.cuts[0] : v.levels[0]);
  const context = Object.fromEntries(state.config.variables.map((v) => [v.name, pickValue(v)]));
  const body = JSON.stringify({ campaign: state.name, context });
  return h("div", {}, h("p", {}, "Request the first decision to see results here:"),
    h("pre", { tabindex: 0 }, `curl ${location.origin}${toUrl("/decide")} -d '${body.replaceAll("'", "'\\''")}'`));
}

// Shown until the report for the same range arrives.
export function drawLiftSentence(series) {
  const lift = series.buckets.at(-1)?.lift;
  $("#lift-sentence").textContent = (lift && describeLift(lift)) ?? "Calculating …";
}

// --- events and findings ------------------------------------------------------------------------------------------

export function drawEvents(place, timeline) {
  const latest = [...timeline.events].reverse().slice(0, MAX_EVENTS);
  const hidden = timeline.events.length - latest.length + timeline.series.regime_changes_left_out;
  place.replaceChildren(
    latest.length ? h("ul", { class: "plain" }, latest.map((event) => h("li", {}, event.words, " ", h("span", { class: "soft" }, formatTime(event.when)))))
      : h("p", { class: "soft" }, "No regime changes, rollbacks, erasures or configuration changes in this range."),
    hidden ? h("p", { class: "soft" }, `${hidden.toLocaleString()} more: zoom in to see them.`) : "");
}

export function drawHealth(place, { findings }) {
  const look = { problem: "bad", warning: "warn", info: "soft" };
  place.replaceChildren(findings.length
    ? h("ul", { class: "findings" }, findings.map((finding) => h("li", { class: finding.severity },
      h("p", {}, h("span", { class: `tag ${look[finding.severity]}` }, finding.severity), " ", markCode(finding.message)),
      h("p", { class: "soft" }, "What to do: ", markCode(finding.advice)),
      h("details", {}, h("summary", {}, "Evidence"), makeTable(["measure", "value"], Object.entries(finding.evidence).map(([name, value]) =>
        [name.replaceAll("_", " "), typeof value === "number" ? value.toLocaleString() : typeof value === "object" ? JSON.stringify(value) : String(value)]), [1])))))
    : h("p", { class: "good" }, "✓ Learning. No findings."));
}

export function drawRewards(place, report, state, zoomed) {
  const { rewards: totals } = report;
  const { wait_seconds: wait, default: defaultReward, while_waiting: way } = state.config.rewards;
  const rows = [
    [zoomed ? "received for this range" : "received", totals.received.toLocaleString() + (wait === null ? ` (${formatShare(totals.rate)})` : "")],
  ];
  if (totals.early) rows.push([`of these, counted only from ${formatTime(totals.early_count_from)}`, totals.early.toLocaleString()]);
  rows.push(
    ["mean reward", totals.early && !totals.counted ? "none counts yet" : formatAmount(totals.mean)],
    ["not yet received", (totals.awaited - totals.early).toLocaleString()],
    // With hold, rewards that came early were read and still teach nothing.
    ["received, not yet learned from", (way === "hold" ? Math.max(totals.early, state.rewards_waiting) : state.rewards_waiting).toLocaleString()]);
  if (totals.by_source.default) rows.push(["set to the default", totals.by_source.default.toLocaleString()]);
  if (totals.by_source.import) rows.push(["imported", totals.by_source.import.toLocaleString()]);
  const explanation = wait === null
    ? "Rewards may arrive at any time: this campaign has no waiting time and no default reward."
    : `After ${formatDuration(wait)} without a reward, the default of ${formatAmount(defaultReward)} counts.`
      + (way === "hold" ? " The model learns from a decision when its wait is over." : " The model learns from a decision before that, with a weight that grows as rewards usually come.")
      + (totals.complete_at ? ` These numbers are complete on ${formatTime(totals.complete_at)}.` : "");
  place.replaceChildren(h("table", { class: "rows" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, value))))), h("p", { class: "soft" }, explanation));
}

const DELIVERY = { waiting: "waiting to be sent", sent: "sent", failed: "failed" };

export function drawAlerts(place, { alerts, next_cursor: nextCursor }, state) {
  const { rounds, webhook } = state.config.alerts;
  const note = h("p", { class: "soft" }, `Raised after ${pluralize(rounds, "round")} in a row. ${webhook ? "Also sent to the webhook." : "No webhook is configured, so alerts are only listed here."}`);
  if (!alerts.length) { place.replaceChildren(h("p", {}, "No alerts yet."), note); return; }
  place.replaceChildren(h("ul", { class: "plain" }, alerts.map((alert) => h("li", {},
    h("strong", {}, `${nameRegime(alert.from.regime, alert.from.label)} → ${nameRegime(alert.to.regime, alert.to.label)}`),
    ` since round ${alert.since_round.toLocaleString()} `, h("span", { class: "soft" }, formatTime(alert.created_at)),
    alert.delivery ? h("div", { class: alert.delivery.status === "sent" ? "good" : alert.delivery.status === "failed" ? "bad" : "warn" },
      `Webhook: ${DELIVERY[alert.delivery.status]}`, alert.delivery.status === "sent" ? "" : `, ${pluralize(alert.delivery.attempts, "attempt")}`,
      alert.delivery.failure && alert.delivery.status !== "sent" ? h("span", { class: "soft" }, ` (${alert.delivery.failure})`) : null) : null))),
  nextCursor ? h("p", { class: "soft" }, `Showing the latest ${alerts.length}.`) : "", note);
}

export function drawStages(place, { stages }) {
  if (!stages.length) { place.replaceChildren(h("p", {}, "No model yet: the first one is computed at the end of the first stage.")); return; }
  const times = stages.map((stage) => stage.seconds);
  place.replaceChildren(h("div", { class: "two" },
    h("div", {}, h("p", {}, drawSpark([...times].reverse(), `Computing time of the last ${times.length} models, in seconds`)),
      h("p", { class: "soft" }, `The last ${times.length} took ${formatDuration(Math.min(...times))} to ${formatDuration(Math.max(...times))} each.`)),
    makeTable(["model", "reason", "after round", "time"], stages.slice(0, MAX_STAGES).map((stage) => [
      stage.model_version.toLocaleString(), MODEL_KINDS[stage.kind], stage.round.toLocaleString(), formatDuration(stage.seconds),
    ]), [0, 2, 3])));
}

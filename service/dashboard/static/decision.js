// Explains one decision. Its id is in the fragment and is only sent in a request body, never in an address (R25).

import { get, post } from "./api.js";
import { $, formatTime, h, makeTable } from "./dom.js";
import { makeBeliefBar } from "./charts/law.js";
import { definePatterns } from "./charts/marks.js";
import { makeScoreScale, makeScoreTable } from "./charts/scores.js";
import { describeMode, formatAmount, formatDuration, formatShare, nameRegime, nameRegimes, pluralize } from "./words.js";

const name = document.body.dataset.name;
const path = `/campaigns/${encodeURIComponent(name)}`;
const place = $("#answer");

const SOURCES = {
  client: "reported", subject: "reported for the person", correction: "corrected", import: "imported with the decision",
  default: "default, because none was reported in time",
};

const makeCard = (title, ...content) => h("section", { class: "card" }, h("h2", {}, title), ...content);

const readId = () => {
  const text = location.hash.slice(1);
  try { return decodeURIComponent(text); } catch { return text; }
};

async function explain() {
  const id = readId();
  if (id) $("#decision-id").value = id; // otherwise keep what was typed while this script was loading
  document.title = `Why this action? · ${name} · Undercurrent`;
  if (!id) {
    place.replaceChildren(h("p", { class: "soft" }, "Enter a decision ID: the decision_id that your system sent to /decide or received from it."));
    return;
  }
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => place.replaceChildren(h("p", { class: "soft" }, "Reconstructing the model that decided … For an old decision this takes a few seconds.")), 400);
  try {
    const [decision, state] = await Promise.all([post(`${path}/explain`, { decision_id: id }), get(path)]);
    if (id !== readId()) return;
    place.replaceChildren(...makeExplanation(decision, state));
    $("#announcement").textContent = `Decision ${id}: ${decision.action}`;
  } catch (error) {
    if (id !== readId()) return;
    place.replaceChildren(makeFailure(error, id));
  } finally {
    clearTimeout(slow);
    place.removeAttribute("aria-busy");
  }
}

function makeFailure(error, id) {
  const [title, text] = {
    404: ["Decision not found", `${error.message}. IDs must match exactly.`],
    410: ["This decision was erased", "The customer's data was erased, including this decision's context, scores and reward. Its ID is kept so that it cannot be used again."],
    403: ["Your key does not give access to this", error.message],
    422: ["Not a valid ID", error.fields?.map((field) => `${field.message}; allowed: ${field.allowed ?? "other text"}`).join("; ") ?? error.message],
  }[error.status] ?? ["The service is not responding", error.status ? error.message : "Try again in a moment."];
  $("#announcement").textContent = title;
  return h("section", { class: "card", role: "alert" }, h("h2", {}, title), h("p", {}, text), h("p", { class: "soft" }, `Decision ID: ${id}`));
}

function makeExplanation(decision, state) {
  const { config } = state;
  const names = nameRegimes(decision.belief.length, config.regime_labels);
  return [
    h("p", { class: "lead" }, "It chose ", h("strong", { class: "action" }, decision.action), ". ",
      describeMode({ ...decision, excluded: decision.excluded_actions.length }, config.control)),
    h("dl", { class: "facts" }, listFacts(decision).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
    h("div", { class: "cards" },
      makeScores(decision),
      makeCard("The customer", makeContext(decision)),
      makeCard("What it believed", decision.belief.length > 1 ? makeBeliefBar(decision.belief, names, "Belief")
        : h("p", {}, "Only one regime was in use, so there was nothing to infer."),
      decision.belief.length > 1 ? h("p", { class: "soft" }, "After seeing this customer's signals.") : ""),
      makeCard("Reward", makeReward(decision, config)),
      decision.reward_history.length ? makeHistory(decision.reward_history) : "",
      makeRegimes(decision)),
  ];
}

const listFacts = (decision) => [
  ["decision", decision.decision_id],
  ["time", formatTime(decision.decided_at)],
  ["round", decision.round.toLocaleString()],
  ["stage", decision.stage.toLocaleString()],
  ["model", decision.model_version ? decision.model_version.toLocaleString() : "none yet"],
  ["probability of this action", decision.propensity === null ? "unknown" : formatShare(decision.propensity)],
];

function makeScores(decision) {
  if (!decision.scores.length) return makeCard("What each action was worth", h("p", {}, "No scores: this decision was not made by a model of this campaign."));
  const marks = { [decision.action]: "chosen" };
  const card = makeCard("What each action was worth",
    h("p", { class: "soft" }, "The thick bar is the expected reward, the thin bar the bonus for what is still uncertain."),
    makeScoreTable(decision.scores, marks, "Scores, highest first"),
    decision.excluded_actions.length ? h("p", { class: "soft" }, `Excluded by the request: ${decision.excluded_actions.join(", ")}.`) : "");
  card.classList.add("wide");
  return card;
}

function makeReward(decision, config) {
  const { reward } = decision;
  const { wait_seconds: wait, default: defaultReward } = config.rewards;
  const due = wait === null ? null : new Date(Date.parse(decision.decided_at) + 1000 * wait);
  if (reward) {
    const waits = due !== null && due > Date.parse(reward.received_at) && due > new Date() && reward.source !== "import";
    return [h("p", { class: "big" }, formatAmount(reward.reward)), h("p", { class: "soft" }, `${SOURCES[reward.source]}, ${formatTime(reward.received_at)}`),
      waits ? h("p", { class: "soft" }, `Reports count it from ${due.toLocaleString()}, when the wait of ${formatDuration(wait)} is over.`) : ""];
  }
  return [h("p", { class: "big" }, "none yet"), h("p", { class: "soft" }, wait === null
    ? "No reward has arrived and there is no default, so the campaign has not learned from this decision."
    : `If none arrives within ${formatDuration(wait)} (${due < new Date() ? "which ended" : "by"} ${due.toLocaleString()}), the default of ${formatAmount(defaultReward)} counts.`)];
}

function makeHistory(history) {
  const rows = history.map((each) => [formatTime(each.received_at), SOURCES[each.source], each.reward_id ?? "–",
    each.amount === null ? "–" : formatAmount(each.amount), formatAmount(each.reward)]);
  const card = makeCard("Every reward that came", makeTable(["came", "how", "id", "sent", "altogether"], rows, [3, 4]));
  card.classList.add("wide");
  return card;
}

function makeContext(decision) {
  if (decision.context === null) return h("p", {}, "Unknown: the decision was imported without its context.");
  return h("table", { class: "context" }, h("tbody", {}, Object.entries(decision.context).map(([variable, value]) =>
    h("tr", {}, h("th", { scope: "row" }, variable), h("td", {}, typeof value === "number" ? value.toLocaleString() : String(value))))));
}

function makeRegimes(decision) {
  const card = makeCard("If the regime had been known");
  card.classList.add("wide");
  if (decision.regimes === null) {
    card.append(h("p", {}, decision.regimes_missing));
  } else if (decision.regimes.length < 2) {
    card.append(h("p", {}, "Only one regime was in use."));
  } else {
    const x = makeScoreScale(decision.regimes.flatMap((regime) => regime.scores));
    const choices = new Set(decision.regimes.map((regime) => regime.action));
    card.append(
      h("p", {}, choices.size > 1 ? "The regime mattered: the model would have chosen differently." : `The regime did not matter: the model would have chosen ${decision.regimes[0].action} in ${decision.regimes.length === 2 ? "both regimes" : `all ${pluralize(decision.regimes.length, "regime")}`}.`),
      h("div", { class: "two" }, decision.regimes.map((regime) => h("div", {},
        h("h3", {}, `In ${nameRegime(regime.regime, regime.label)}: ${regime.action}`),
        makeScoreTable(regime.scores, { [regime.action]: "highest" }, "Scores if this regime were certain", x)))));
  }
  return card;
}

definePatterns();
$("#lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("#decision-id").value;
  if (encodeURIComponent(id) === location.hash.slice(1)) explain(); else location.hash = encodeURIComponent(id);
});
$("#lookup button").disabled = false; // until now the browser would have submitted the form itself
addEventListener("hashchange", explain);
explain();

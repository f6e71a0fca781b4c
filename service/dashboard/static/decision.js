// Why this action? A decision as it was made, from its id. The id stands behind the # and is sent in a body only (R25).

import { get, post } from "./api.js";
import { $, h, when } from "./dom.js";
import { lawBar } from "./charts/law.js";
import { definePatterns } from "./charts/marks.js";
import { scoreScale, scoreTable } from "./charts/scores.js";
import { amount, modeSentence, plural, regimeName, regimeNames, seconds, share } from "./words.js";

const name = document.body.dataset.name;
const path = `/campaigns/${encodeURIComponent(name)}`;
const place = $("#answer");

const card = (title, ...content) => h("section", { class: "card" }, h("h2", {}, title), ...content);

const wanted = () => {
  const text = location.hash.slice(1);
  try { return decodeURIComponent(text); } catch { return text; }
};

async function explain() {
  const id = wanted();
  if (id) $("#decision-id").value = id; // else it stays: somebody may have typed before this script was here
  document.title = `Why this action? · ${name} · Undercurrent`;
  if (!id) {
    place.replaceChildren(h("p", { class: "soft" }, "Enter the id of a decision: the decision_id that your system sent to /decide, or that the answer carried."));
    return;
  }
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => place.replaceChildren(h("p", { class: "soft" }, "Finding the model that decided … for an old decision this takes a few seconds.")), 400);
  try {
    const [decision, state] = await Promise.all([post(`${path}/explain`, { decision_id: id }), get(path)]);
    if (id !== wanted()) return;
    place.replaceChildren(...explanation(decision, state));
    $("#spoken").textContent = `Decision ${id}: ${decision.action}`;
  } catch (error) {
    if (id !== wanted()) return;
    place.replaceChildren(refusal(error, id));
  } finally {
    clearTimeout(slow);
    place.removeAttribute("aria-busy");
  }
}

function refusal(error, id) {
  const words = {
    404: ["There is no such decision", `${error.message}. Ids are compared letter by letter.`],
    410: ["This decision was erased", "Somebody's data was erased, and with it the context, the scores and the reward of this decision. Its id is kept so that it cannot be used again."],
    403: ["Your key may not see this", error.message],
    422: ["This cannot be an id", error.fields?.map((field) => `${field.message}; allowed: ${field.allowed ?? "other text"}`).join("; ") ?? error.message],
  }[error.status] ?? ["The service did not answer", error.status ? error.message : "Try again in a moment."];
  $("#spoken").textContent = words[0];
  return h("section", { class: "card", role: "alert" }, h("h2", {}, words[0]), h("p", {}, words[1]), h("p", { class: "soft" }, `Asked for: ${id}`));
}

function explanation(decision, state) {
  const { config } = state;
  const names = regimeNames(decision.belief.length, config.regime_labels);
  return [
    h("p", { class: "lead" }, "It took ", h("strong", { class: "action" }, decision.action), ". ",
      modeSentence({ ...decision, excluded: decision.excluded_actions.length }, config.control)),
    h("dl", { class: "facts" }, facts(decision).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
    h("div", { class: "cards" },
      scores(decision),
      card("Who it was", context(decision)),
      card("What it believed", decision.belief.length > 1 ? lawBar(decision.belief, names, "Belief")
        : h("p", {}, "There was one regime in use: nothing to believe."),
      decision.belief.length > 1 ? h("p", { class: "soft" }, "After this customer's signals were seen.") : ""),
      card("Its reward", reward(decision, config)),
      others(decision)),
  ];
}

const facts = (decision) => [
  ["decision", decision.decision_id],
  ["decided", when(decision.decided_at)],
  ["round", decision.round.toLocaleString()],
  ["stage", decision.stage.toLocaleString()],
  ["model", decision.model_version ? decision.model_version.toLocaleString() : "none yet"],
  ["probability of this action", decision.propensity === null ? "not known" : share(decision.propensity)],
];

function scores(decision) {
  if (!decision.scores.length) return card("What each action was worth", h("p", {}, "There are no scores: no model of this campaign made the decision."));
  const marks = { [decision.action]: "chosen" };
  const made = card("What each action was worth",
    h("p", { class: "soft" }, "The thick bar is the reward expected; the thin one on top is the bonus for what is still to be learned."),
    scoreTable(decision.scores, marks, "Scores, highest first"),
    decision.excluded_actions.length ? h("p", { class: "soft" }, `Excluded by the request: ${decision.excluded_actions.join(", ")}.`) : "");
  made.classList.add("wide");
  return made;
}

function reward(decision, config) {
  const { reward: found } = decision;
  const { wait_seconds: wait, default: standard } = config.rewards;
  if (found) {
    const from = { client: "reported", import: "imported with the decision", default: "the default: none was reported in time" }[found.source];
    return [h("p", { class: "big" }, amount(found.reward)), h("p", { class: "soft" }, `${from}, ${when(found.received_at)}`)];
  }
  const due = wait === null ? null : new Date(Date.parse(decision.decided_at) + 1000 * wait);
  return [h("p", { class: "big" }, "awaited"), h("p", { class: "soft" }, wait === null
    ? "None has come, and no default is set: this decision has taught nothing so far."
    : `None has come. If none does within ${seconds(wait)} (${due < new Date() ? "that was" : "that is"} ${due.toLocaleString()}), ${amount(standard)} counts from the next stage's end on.`)];
}

function context(decision) {
  if (decision.context === null) return h("p", {}, "The context is not known: the decision was imported without it.");
  return h("table", { class: "context" }, h("tbody", {}, Object.entries(decision.context).map(([variable, value]) =>
    h("tr", {}, h("th", { scope: "row" }, variable), h("td", {}, typeof value === "number" ? value.toLocaleString() : String(value))))));
}

function others(decision) {
  const made = card("Had the regime been known");
  made.classList.add("wide");
  if (decision.regimes === null) {
    made.append(h("p", {}, decision.regimes_missing));
  } else if (decision.regimes.length < 2) {
    made.append(h("p", {}, "There was one regime in use: nothing else could have been believed."));
  } else {
    const x = scoreScale(decision.regimes.flatMap((regime) => regime.scores));
    const picked = new Set(decision.regimes.map((regime) => regime.action));
    made.append(
      h("p", {}, picked.size > 1 ? "The regime mattered: the model would have chosen differently." : `The regime did not matter: the model would have chosen ${decision.regimes[0].action} in ${decision.regimes.length === 2 ? "both" : `all ${plural(decision.regimes.length, "regime")}`}.`),
      h("div", { class: "two" }, decision.regimes.map((regime) => h("div", {},
        h("h3", {}, `In ${regimeName(regime.regime, regime.label)}: ${regime.action}`),
        scoreTable(regime.scores, { [regime.action]: "highest" }, "Scores if this regime were certain", x)))));
  }
  return made;
}

definePatterns();
$("#lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("#decision-id").value;
  if (encodeURIComponent(id) === location.hash.slice(1)) explain(); else location.hash = encodeURIComponent(id);
});
$("#lookup button").disabled = false; // before, the browser itself would send the form
addEventListener("hashchange", explain);
explain();

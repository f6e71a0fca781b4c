// API results as names, numbers and sentences for people. Nothing here touches the page.

import { formatNumber } from "./dom.js";

export const nameRegime = (regime, label) => label || `regime ${regime}`;
export const nameRegimes = (count, labels) =>
  Array.from({ length: count }, (_, h) => nameRegime(h + 1, labels[h]));

export const pluralize = (count, word) => `${count.toLocaleString()} ${word}${count === 1 ? "" : "s"}`;

// Probabilities near 0 and 1 keep one more digit: 99.4 % is not 100 %.
export function formatShare(value) {
  if (value === null || value === undefined) return "–";
  const digits = value > 0.0005 && value < 0.0995 ? 1 : value > 0.9005 && value < 0.9995 ? 1 : 0;
  return `${(100 * value).toFixed(digits)}\u00a0%`; // a line never breaks before the sign
}

export const formatAmount = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return Math.round(value).toLocaleString();
  if (size >= 0.01) return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
  return formatNumber(value, 2);
};
export const formatSigned = (value) => (value > 0 ? `+${formatAmount(value)}` : formatAmount(value).replace("-", "−"));

export function formatDuration(value) {
  if (value < 1e-3) return `${Math.max(1, Math.round(value * 1e6))} µs`;
  if (value < 1) return `${formatNumber(value * 1000, 2)} ms`;
  if (value < 90) return `${formatNumber(value, 2)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 129600) return `${Math.round(value / 3600)} h`;
  return pluralize(Math.round(value / 86400), "day");
}

export function formatAgo(text, now = Date.now()) {
  const passed = (now - Date.parse(text)) / 1000;
  return passed < 10 ? "just now" : `${formatDuration(passed)} ago`;
}

// How an action was chosen. If the model decided and another action has a higher score, the propensity floor chose.
export function describeMode({ mode, action, scores, excluded = 0 }, control) {
  if (mode === "warm_start") {
    return "At random: in the warm start every action is equally likely, so that the campaign learns about all of them.";
  }
  if (mode === "control") {
    const how = control?.kind === "baseline" ? "took the baseline" : "drew an action at random";
    return `By control: this decision bypassed the model and ${how}, to give a comparison for the model's rewards. `
      + "The scores below are the model's.";
  }
  if (mode === "imported") return "Imported: the decision was made elsewhere, not by a model of this campaign.";
  const best = Math.max(...scores.map((score) => score.score));
  const own = scores.find((score) => score.action === action);
  if (own && own.score < best) {
    return "By chance: another action had a higher score, but every action keeps a small probability (the propensity "
      + "floor), and this one was drawn.";
  }
  const among = excluded ? " among the actions that were not excluded" : "";
  return `Highest score${among}: the expected reward plus a bonus for what is still uncertain about the action.`;
}

export function describeLift(lift) {
  const { difference, low, high } = lift;
  if (difference === null) return null;
  const more = difference >= 0 ? "more" : "less";
  const span = difference >= 0 ? [low, high] : [-high, -low];
  const caveat = low > 0 || high < 0 ? "" : " So far this may be chance: the interval includes 0.";
  return `The model earns ${formatAmount(Math.abs(difference))} ${more} per decision than control (95 % interval: `
    + `${formatAmount(span[0])} to ${formatAmount(span[1])}).${caveat}`;
}

export function describeRevision(revision) {
  if (revision.kind === "rollback") return `Rolled back to model ${revision.restored_model_version}`;
  if (revision.kind === "erasure") return `${pluralize(revision.erased_decisions ?? 0, "decision")} erased`;
  if (revision.kind === "created") return "Campaign created";
  return revision.changed.length ? `Configuration changed: ${revision.changed.join(", ")}` : "Configuration changed";
}

export const MODEL_KINDS = {
  update: "stage update", estimation: "regimes re-estimated", actions: "action or level added", rollback: "rollback",
  erasure: "rebuilt after an erasure",
};

export function namePolicy(value, baseline) {
  if (value.policy === "action") return `always “${value.action}”`;
  if (value.policy === "baseline") return `the baseline, “${baseline}”`;
  return `model ${value.model_version}, frozen`;
}

export function describeBelief(belief, names) {
  return belief.map((value, h) => `${names[h]} ${formatShare(value)}`).join(", ");
}

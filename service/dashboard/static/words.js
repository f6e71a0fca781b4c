// What the API says, in the words of a person: names, numbers and sentences. Nothing here touches the page.

import { number, percent } from "./dom.js";

export const regimeName = (regime, label) => label || `regime ${regime}`;
export const regimeNames = (count, labels) =>
  Array.from({ length: count }, (_, h) => regimeName(h + 1, labels[h]));

export const plural = (count, word) => `${count.toLocaleString()} ${word}${count === 1 ? "" : "s"}`;

// Probabilities near 0 and 1 keep a digit more: 99.4 % and 100 % are not the same.
export function share(value) {
  if (value === null || value === undefined) return "–";
  const digits = value > 0.0005 && value < 0.0995 ? 1 : value > 0.9005 && value < 0.9995 ? 1 : 0;
  return `${(100 * value).toFixed(digits)} %`;
}

export const amount = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return Math.round(value).toLocaleString();
  if (size >= 0.01) return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
  return number(value, 2);
};
export const signed = (value) => (value > 0 ? `+${amount(value)}` : amount(value).replace("-", "−"));

export function seconds(value) {
  if (value < 1e-3) return `${Math.max(1, Math.round(value * 1e6))} µs`;
  if (value < 1) return `${number(value * 1000, 2)} ms`;
  if (value < 90) return `${number(value, 2)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 129600) return `${Math.round(value / 3600)} h`;
  return plural(Math.round(value / 86400), "day");
}

export function ago(text, now = Date.now()) {
  const passed = (now - Date.parse(text)) / 1000;
  return passed < 10 ? "just now" : `${seconds(passed)} ago`;
}

export const MODES = {
  warm_start: "at random, in the warm start",
  optimistic: "by the model",
  control: "by the control group",
  imported: "elsewhere, imported",
};

// How an action was chosen. `scores` may show that the best one was not taken: then the floor's chance was.
export function modeSentence({ mode, action, scores, excluded = 0 }, control) {
  if (mode === "warm_start") {
    return "At random: the campaign was in its warm start, in which every action has the same chance, so that it learns "
      + "about all of them.";
  }
  if (mode === "control") {
    const how = control?.kind === "baseline" ? "took the baseline" : "drew an action at random";
    return `By the control group: this decision did not ask the model and ${how}, so that what the model earns can be `
      + "compared with something. The scores below are what the model thought.";
  }
  if (mode === "imported") return "Elsewhere: the decision was imported, no model of this campaign made it.";
  const best = Math.max(...scores.map((score) => score.score));
  const own = scores.find((score) => score.action === action);
  if (own && own.score < best) {
    return "By chance: the model would have taken the highest score, but every action keeps a small probability (the "
      + "propensity floor), and this one was drawn.";
  }
  const among = excluded ? " of the actions that were not excluded" : "";
  return `Highest score${among}: the reward expected, plus a bonus for what is still to be learned about the action.`;
}

export function liftSentence(lift) {
  const { difference, low, high } = lift;
  if (difference === null) return null;
  const more = difference >= 0 ? "more" : "less";
  const span = difference >= 0 ? [low, high] : [-high, -low];
  const sure = low > 0 ? "" : high < 0 ? "" : " So far this may be chance: the interval includes 0.";
  return `The model earns ${amount(Math.abs(difference))} ${more} a decision than control, between ${amount(span[0])} and `
    + `${amount(span[1])} (95 % interval).${sure}`;
}

export const NOTES = { created: "created", configuration: "configuration changed", rollback: "rolled back", erasure: "erasure" };

export function noteSentence(note) {
  if (note.kind === "rollback") return `Rolled back to model ${note.restored_model_version}`;
  if (note.kind === "erasure") return `${plural(note.erased_decisions ?? 0, "decision")} erased`;
  if (note.kind === "created") return "Campaign created";
  return note.changed.length ? `Configuration changed: ${note.changed.join(", ")}` : "Configuration changed";
}

export const KINDS = {
  update: "stage update", estimation: "regimes re-estimated", actions: "action added", rollback: "rollback",
  erasure: "made anew after an erasure",
};

export function policyName(value, baseline) {
  if (value.policy === "action") return `always “${value.action}”`;
  if (value.policy === "baseline") return `the baseline, “${baseline}”`;
  return `model ${value.model_version}, frozen`;
}

export function beliefWords(law, names) {
  return law.map((value, h) => `${names[h]} ${share(value)}`).join(", ");
}

export { percent };

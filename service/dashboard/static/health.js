// A campaign's health in few words: pure functions from the API's answers to what the list shows.

const MINUTE = 60, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const LEAST_REWARDS = 20; // of each group, before the service compares them

// "3 min ago"
export function ago(text, now = Date.now()) {
  const seconds = Math.max(0, (now - new Date(text).getTime()) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < MINUTE) return `${10 * Math.floor(seconds / 10)} s ago`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ago`;
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)} h ago`;
  return `${Math.floor(seconds / DAY)} days ago`;
}

// The likeliest regime, counted from 0, and what people call it.
export function regimeNow(belief, labels = []) {
  const likeliest = belief.indexOf(Math.max(...belief));
  return { likeliest, label: labels[likeliest] ?? `Regime ${likeliest + 1}`, probability: belief[likeliest] };
}

// [[round, mean reward], …] of the buckets that have any.
export const means = (buckets) =>
  buckets.filter(({ rewards }) => rewards.count).map((b) => [(b.first_round + b.last_round) / 2, b.rewards.sum / b.rewards.count]);

const total = (buckets, mode) => buckets.reduce((sum, { modes }) => sum + (modes[mode] ?? 0), 0);

// {difference, low, high, control_mean} of everything so far, or {why} there is none yet.
export function liftOf(buckets) {
  if (!buckets.length) return { why: "no decisions" };
  const { lift } = buckets.at(-1);
  if (lift.difference !== null) return lift;
  const chosen = total(buckets, "optimistic"), held = total(buckets, "control");
  if (!chosen && !held) return { why: total(buckets, "warm_start") ? "still in the warm start" : "no decisions of its own" };
  if (!held) return { why: "no decision of a control group" };
  if (lift.control_rewards < LEAST_REWARDS) return { why: `${lift.control_rewards} of ${LEAST_REWARDS} rewards of control` };
  if (lift.decided_rewards < LEAST_REWARDS) return { why: `${lift.decided_rewards} of ${LEAST_REWARDS} rewards` };
  return { why: "rewards of too few people" };
}

// "better", "worse" or "unclear": is zero outside of the interval?
export const verdictOn = ({ low, high }) => (low > 0 ? "better" : high < 0 ? "worse" : "unclear");

// Decimals that a number deserves whose uncertainty is this wide.
export const decimals = (width) => (width > 0 ? Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(width)))) : 2);

const RANK = { problem: 3, warning: 2, begun: 1, fine: 0 };
const BEGINNING = new Set(["no_decisions", "warm_start"]);

// The worst finding's severity: "problem" or "warning"; else "begun" or "fine".
export function worst(findings) {
  const found = findings.map(({ code, severity }) => (severity === "info" ? (BEGINNING.has(code) ? "begun" : "fine") : severity));
  return found.reduce((most, one) => (RANK[one] > RANK[most] ? one : most), "fine");
}

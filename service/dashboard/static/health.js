// Summaries for the list of campaigns: pure functions of the API's results.

const MINUTE = 60, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const MIN_REWARDS = 20; // per group, before the service compares them

// "3 min ago"
export function formatAgo(text, now = Date.now()) {
  const seconds = Math.max(0, (now - new Date(text).getTime()) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < MINUTE) return `${10 * Math.floor(seconds / 10)} s ago`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ago`;
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)} h ago`;
  return `${Math.floor(seconds / DAY)} days ago`;
}

// The most likely regime, counted from 0, and its name.
export function findMostLikelyRegime(belief, labels = []) {
  const index = belief.indexOf(Math.max(...belief));
  return { index, label: labels[index] ?? `Regime ${index + 1}`, probability: belief[index] };
}

// [[round, mean reward], …] of the buckets that have rewards.
export const computeMeans = (buckets) =>
  buckets.filter(({ rewards }) => rewards.count).map((b) => [(b.first_round + b.last_round) / 2, b.rewards.sum / b.rewards.count]);

const countDecisions = (buckets, mode) => buckets.reduce((sum, { modes }) => sum + (modes[mode] ?? 0), 0);

// {difference, low, high, control_mean} over the whole campaign, or {why} there is no lift yet.
export function getLift(buckets) {
  if (!buckets.length) return { why: "no decisions yet" };
  const { lift } = buckets.at(-1);
  if (lift.difference !== null) return lift;
  const chosen = countDecisions(buckets, "optimistic"), held = countDecisions(buckets, "control");
  if (!chosen && !held) return { why: countDecisions(buckets, "warm_start") ? "still in the warm start" : "no decisions by the model" };
  if (!held) return { why: "no control decisions" };
  if (lift.control_rewards < MIN_REWARDS) return { why: `${lift.control_rewards} of ${MIN_REWARDS} control rewards` };
  if (lift.decided_rewards < MIN_REWARDS) return { why: `${lift.decided_rewards} of ${MIN_REWARDS} model rewards` };
  return { why: "rewards from too few people" };
}

// "better" or "worse" if the interval excludes 0, else "unclear".
export const judgeLift = ({ low, high }) => (low > 0 ? "better" : high < 0 ? "worse" : "unclear");

// How many decimals to show for a value whose interval has this width.
export const chooseDecimals = (width) => (width > 0 ? Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(width)))) : 2);

const RANK = { problem: 3, warning: 2, begun: 1, fine: 0 };
const START_CODES = new Set(["no_decisions", "warm_start"]);

// The most serious severity, "problem" or "warning"; without one, "begun" or "fine".
export function findWorst(findings) {
  const levels = findings.map(({ code, severity }) => (severity === "info" ? (START_CODES.has(code) ? "begun" : "fine") : severity));
  return levels.reduce((most, one) => (RANK[one] > RANK[most] ? one : most), "fine");
}

// Scales from numbers to pixels, and ticks along an axis. All functions are pure.

export const makeScale = (from, to, start, end) => {
  const span = to - from || 1;
  return (value) => start + ((value - from) / span) * (end - start);
};

export function chooseTicks(from, to, most) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const values = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k += 1) values.push(Number((k * step).toPrecision(12)));
  return values;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, MINUTE, 2 * MINUTE, 5 * MINUTE,
  10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY,
  90 * DAY, 365 * DAY, 3650 * DAY];

// Ticks at round local times: {at, words}, in milliseconds.
export function chooseTimeTicks(from, to, most) {
  const step = STEPS.find((size) => (to - from) / size <= most) ?? STEPS.at(-1);
  const offset = new Date(from).getTimezoneOffset() * MINUTE;
  const values = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) values.push({ at, words: formatTick(at, step) });
  return values;
}

function formatTick(at, step) {
  const date = new Date(at);
  if (step >= DAY) return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  const clock = { hour: "2-digit", minute: "2-digit" };
  if (step < MINUTE) clock.second = "2-digit";
  if (step < 1000) clock.fractionalSecondDigits = 3;
  if (step >= HOUR && date.getHours() === 0) return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return date.toLocaleTimeString(undefined, clock);
}

// The range of the finite values, with a margin; `zero` includes 0.
export function findExtent(values, { zero = false } = {}) {
  const known = values.filter((value) => Number.isFinite(value));
  if (zero) known.push(0);
  if (!known.length) return [0, 1];
  let min = Infinity, max = -Infinity;
  for (const value of known) { min = Math.min(min, value); max = Math.max(max, value); }
  const margin = (max - min || Math.abs(max) || 1) * 0.06;
  return [min < 0 || !zero ? min - margin : 0, max > 0 || !zero ? max + margin : 0];
}

// The time range that the charts show. Times are integer microseconds since 1970. All functions are pure.

export const HOUR = 3_600_000_000;
export const DAY = 24 * HOUR;
export const ALL = { kind: "all" };
const SHORTEST = 1_000; // microseconds

export function parseMicros(text) {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? "";
  return Date.parse(text) * 1000 + Number(fraction.padEnd(6, "0").slice(3, 6));
}

function formatMicros(value) {
  const whole = Math.floor(value / 1000);
  return new Date(whole).toISOString().replace("Z", `${String(Math.round(value - whole * 1000)).padStart(3, "0")}Z`);
}

// [from, to) or nulls. `extent` holds the times of the first and the last decision.
function getBounds(view, extent) {
  if (view.kind === "between") return [view.from, view.to];
  if (view.kind === "last" && extent) return [extent[1] - view.span, null];
  return [null, null];
}

export function buildQuery(view, extent) {
  const [from, to] = getBounds(view, extent);
  const parts = [];
  if (from !== null) parts.push(`from=${formatMicros(from)}`);
  if (to !== null) parts.push(`to=${formatMicros(to)}`);
  return parts.join("&");
}

// A range between two times, or ALL if it covers every decision.
export function makeRange(from, to, extent) {
  if (extent && from <= extent[0] && to > extent[1]) return ALL;
  return { kind: "between", from: Math.floor(from), to: Math.max(Math.floor(to), Math.floor(from) + SHORTEST) };
}

// Scale a range by a factor, around a given time or its centre.
export function scaleRange(view, extent, factor, around = null) {
  if (!extent) return view;
  const [from, to] = getBounds(view, extent).map((value, end) => value ?? extent[end] + end);
  const centre = around ?? (from + to) / 2;
  const half = Math.max(SHORTEST, ((to - from) * factor) / 2);
  return makeRange(centre - half, centre + half, extent);
}

export const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

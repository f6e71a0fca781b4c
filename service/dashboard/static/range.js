// Which part of a campaign's time is looked at. Times are microseconds since 1970, as whole numbers. All pure.

export const HOUR = 3_600_000_000;
export const DAY = 24 * HOUR;
export const ALL = { kind: "all" };
export const SHORTEST = 1_000; // microseconds

export function micros(text) {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? "";
  return Date.parse(text) * 1000 + Number(fraction.padEnd(6, "0").slice(3, 6));
}

export function isoTime(value) {
  const whole = Math.floor(value / 1000);
  return new Date(whole).toISOString().replace("Z", `${String(Math.round(value - whole * 1000)).padStart(3, "0")}Z`);
}

// From (included) and to (not included), or nulls; `extent` is the first and the last decision's time.
export function bounds(view, extent) {
  if (view.kind === "between") return [view.from, view.to];
  if (view.kind === "last" && extent) return [extent[1] - view.span, null];
  return [null, null];
}

export function query(view, extent) {
  const [from, to] = bounds(view, extent);
  const parts = [];
  if (from !== null) parts.push(`from=${isoTime(from)}`);
  if (to !== null) parts.push(`to=${isoTime(to)}`);
  return parts.join("&");
}

// A view between two times, or everything if it covers all there is.
export function between(from, to, extent) {
  if (extent && from <= extent[0] && to > extent[1]) return ALL;
  return { kind: "between", from: Math.floor(from), to: Math.max(Math.floor(to), Math.floor(from) + SHORTEST) };
}

// Half as much time, or twice as much, around a moment or the middle.
export function scaled(view, extent, factor, around = null) {
  if (!extent) return view;
  const [from, to] = bounds(view, extent).map((value, end) => value ?? extent[end] + end);
  const centre = around ?? (from + to) / 2;
  const half = Math.max(SHORTEST, ((to - from) * factor) / 2);
  return between(centre - half, centre + half, extent);
}

export const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

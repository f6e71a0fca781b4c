// θ̂: what each coefficient adds to the expected reward, as a dot with its 95 % interval.

import { h, s } from "../dom.js";
import { signed } from "../words.js";
import { regimeLook } from "./marks.js";
import { extentOf, linear, ticks } from "./scales.js";

const ROW = 24;
const Z = 1.96;
const MOST = 80; // dots; the table has all of them

export const interval = ({ estimate, standard_error: error }) =>
  error === null ? null : [estimate - Z * error, estimate + Z * error];

// Rows of a term, by action: [{action, rows: [{words, regime, …coefficient}]}].
export function grouped(coefficients, term, regimeNames) {
  const groups = new Map();
  for (const found of coefficients) {
    if (found.term !== term) continue;
    const words = [found.level, found.regime === null ? null : regimeNames[found.regime - 1]].filter(Boolean).join(", ") || "in every regime";
    const action = found.action ?? "whatever the action";
    if (!groups.has(action)) groups.set(action, []);
    groups.get(action).push({ ...found, words });
  }
  return [...groups].map(([action, rows]) => ({ action, rows }));
}

export function whiskers(groups, width, name) {
  const rows = groups.flatMap(({ action, rows: each }) => [{ heading: action }, ...each]).slice(0, MOST);
  const left = Math.min(210, Math.max(110, width * 0.34)), right = width - 14;
  const values = rows.flatMap((row) => (row.heading ? [] : interval(row) ?? [row.estimate]));
  const range = extentOf(values, { zero: true });
  const spread = (range[1] - range[0]) * 0.03;
  const x = linear(range[0] - spread, range[1] + spread, left, right);
  const height = rows.length * ROW + 30;
  const fits = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const letters = Math.floor((left - 14) / 6.6);
  return s("svg", { role: "img", "aria-label": `${name}; the table below has the numbers`, viewBox: `0 0 ${width} ${height}`, height },
    ticks(...range, (right - left) / 80).map((value) => s("g", { class: "tick" },
      s("line", { x1: x(value), x2: x(value), y1: 4, y2: height - 24 }),
      s("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, signed(value)))),
    s("line", { class: "zero", x1: x(0), x2: x(0), y1: 4, y2: height - 24 }),
    rows.map((row, i) => {
      const y = i * ROW + 20;
      if (row.heading) return s("text", { class: "heading", x: 0, y }, fits(row.heading, letters + 4));
      const span = interval(row);
      const look = row.regime === null ? { colour: "k8" } : regimeLook(row.regime - 1);
      return s("g", { class: look.colour },
        s("text", { class: "direct", x: left - 10, y, "text-anchor": "end" }, fits(row.words, letters)),
        span ? s("path", { class: "whisker", d: `M${x(span[0])} ${y - 4}H${x(span[1])}M${x(span[0])} ${y - 8}v8M${x(span[1])} ${y - 8}v8` }) : null,
        dot(row.regime, x(row.estimate), y - 4));
    }));
}

// Regimes differ in shape too.
function dot(regime, x, y) {
  if (regime === null || regime % 3 === 1) return s("circle", { class: "dot", cx: x, cy: y, r: 4.5 });
  if (regime % 3 === 2) return s("rect", { class: "dot", x: x - 4, y: y - 4, width: 8, height: 8 });
  return s("path", { class: "dot", d: `M${x} ${y - 5}l5 9h-10z` });
}

export function whiskerTable(groups) {
  return h("table", {},
    h("thead", {}, h("tr", {}, ["action", "where", "adds", "95 % interval"].map((head, i) => h("th", { scope: "col", class: i > 1 ? "number" : null }, head)))),
    h("tbody", {}, groups.flatMap(({ action, rows }) => rows.map((row) => {
      const span = interval(row);
      return h("tr", {}, h("td", {}, action), h("td", {}, row.words), h("td", { class: "number" }, signed(row.estimate)),
        h("td", { class: "number" }, span ? `${signed(span[0])} to ${signed(span[1])}` : "not known"));
    }))));
}

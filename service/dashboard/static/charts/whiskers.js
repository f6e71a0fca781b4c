// The coefficients θ̂: what each adds to the expected reward, as a dot with its 95 % interval.

import { h, s } from "../dom.js";
import { formatSigned } from "../words.js";
import { chooseRegimeLook } from "./marks.js";
import { chooseTicks, findExtent, makeScale } from "./scales.js";

const ROW_HEIGHT = 24;
const Z = 1.96;
const MAX_ROWS = 80; // in the chart; the table has them all

const computeInterval = ({ estimate, standard_error: error }) =>
  error === null ? null : [estimate - Z * error, estimate + Z * error];

// The coefficients of a term, by action: [{action, rows: [{words, …coefficient}]}].
export function groupByAction(coefficients, term, regimeNames) {
  const groups = new Map();
  for (const coefficient of coefficients) {
    if (coefficient.term !== term) continue;
    const words = [coefficient.level, coefficient.regime === null ? null : regimeNames[coefficient.regime - 1]].filter(Boolean).join(", ") || "in every regime";
    const action = coefficient.action ?? "any action";
    if (!groups.has(action)) groups.set(action, []);
    groups.get(action).push({ ...coefficient, words });
  }
  return [...groups].map(([action, rows]) => ({ action, rows }));
}

export function drawWhiskers(groups, width, name) {
  const rows = groups.flatMap(({ action, rows: each }) => [{ heading: action }, ...each]).slice(0, MAX_ROWS);
  const left = Math.min(210, Math.max(110, width * 0.34)), right = width - 14;
  const values = rows.flatMap((row) => (row.heading ? [] : computeInterval(row) ?? [row.estimate]));
  const range = findExtent(values, { zero: true });
  const spread = (range[1] - range[0]) * 0.03;
  const x = makeScale(range[0] - spread, range[1] + spread, left, right);
  const height = rows.length * ROW_HEIGHT + 30;
  const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const letters = Math.floor((left - 14) / 6.6);
  return s("svg", { role: "img", "aria-label": `${name}; the table below has the numbers`, viewBox: `0 0 ${width} ${height}`, height },
    chooseTicks(...range, (right - left) / 80).map((value) => s("g", { class: "tick" },
      s("line", { x1: x(value), x2: x(value), y1: 4, y2: height - 24 }),
      s("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, formatSigned(value)))),
    s("line", { class: "zero", x1: x(0), x2: x(0), y1: 4, y2: height - 24 }),
    rows.map((row, i) => {
      const y = i * ROW_HEIGHT + 20;
      if (row.heading) return s("text", { class: "heading", x: 0, y }, shorten(row.heading, letters + 4));
      const span = computeInterval(row);
      const look = row.regime === null ? { colour: "k8" } : chooseRegimeLook(row.regime - 1);
      return s("g", { class: look.colour },
        s("text", { class: "direct", x: left - 10, y, "text-anchor": "end" }, shorten(row.words, letters)),
        span ? s("path", { class: "whisker", d: `M${x(span[0])} ${y - 4}H${x(span[1])}M${x(span[0])} ${y - 8}v8M${x(span[1])} ${y - 8}v8` }) : null,
        drawDot(row.regime, x(row.estimate), y - 4));
    }));
}

// Regimes differ by shape as well as colour.
function drawDot(regime, x, y) {
  if (regime === null || regime % 3 === 1) return s("circle", { class: "dot", cx: x, cy: y, r: 4.5 });
  if (regime % 3 === 2) return s("rect", { class: "dot", x: x - 4, y: y - 4, width: 8, height: 8 });
  return s("path", { class: "dot", d: `M${x} ${y - 5}l5 9h-10z` });
}

export function makeWhiskerTable(groups) {
  return h("table", {},
    h("thead", {}, h("tr", {}, ["action", "applies to", "adds", "95 % interval"].map((head, i) => h("th", { scope: "col", class: i > 1 ? "number" : null }, head)))),
    h("tbody", {}, groups.flatMap(({ action, rows }) => rows.map((row) => {
      const span = computeInterval(row);
      return h("tr", {}, h("td", {}, action), h("td", {}, row.words), h("td", { class: "number" }, formatSigned(row.estimate)),
        h("td", { class: "number" }, span ? `${formatSigned(span[0])} to ${formatSigned(span[1])}` : "unknown"));
    }))));
}

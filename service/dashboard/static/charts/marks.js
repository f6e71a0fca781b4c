// Shapes and swatches shared by all charts. Colours are classes (k1 … k8). Most also have a pattern, so that no chart relies
// on colour alone.

import { h, s } from "../dom.js";

const REGIMES = [1, 2, 3, 4, 5, 6, 7, 8];
const ACTIONS = [8, 3, 4, 6, 7, 5, 1, 2];
const PATTERNS = ["", "lines", "dots", "cross"];

export const chooseRegimeLook = (index) => ({ colour: `k${REGIMES[index % 8]}`, pattern: PATTERNS[index % 4] });
export const chooseActionLook = (index) => ({ colour: `k${ACTIONS[index % 8]}`, pattern: PATTERNS[(index + Math.floor(index / 8)) % 4] });

export function definePatterns() {
  const tile = (id, ...marks) => s("pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, ...marks);
  document.body.append(s("svg", { class: "patterns", "aria-hidden": "true", width: 0, height: 0 }, s("defs", {},
    tile("lines", s("path", { d: "M-2 2l4-4M0 8l8-8M6 10l4-4" })),
    tile("dots", s("circle", { cx: 2, cy: 2, r: 1.2 }), s("circle", { cx: 6, cy: 6, r: 1.2 })),
    tile("cross", s("path", { d: "M0 0l8 8M0 8l8-8" })))));
}

// A shape in a colour, with its pattern drawn on top.
export function drawFilled(tag, look, attributes) {
  const shapes = [s(tag, { ...attributes, class: `fill ${look.colour}` })];
  if (look.pattern) shapes.push(s(tag, { ...attributes, class: "pattern", fill: `url(#${look.pattern})` }));
  return shapes;
}

export const makeSwatch = (look) =>
  s("svg", { class: "swatch", width: 14, height: 14, "aria-hidden": "true" }, ...drawFilled("rect", look, { width: 14, height: 14, rx: 3 }));
export const makeLineSwatch = (look, dashed = false) =>
  s("svg", { class: "swatch", width: 18, height: 14, "aria-hidden": "true" }, s("line", { class: `line ${look.colour}${dashed ? " dashed" : ""}`, x1: 0, x2: 18, y1: 7, y2: 7 }));

export const makeLegend = (entries) =>
  h("ul", { class: "legend" }, entries.map(([mark, name]) => h("li", {}, mark, " ", name)));

// The path of a stepped area between two heights, interrupted where buckets have no values.
function buildStepArea(spans, lower, upper, x, y) {
  let path = "";
  for (let from = 0; from < spans.length; from += 1) {
    if (upper[from] === null) continue;
    let to = from;
    while (to + 1 < spans.length && upper[to + 1] !== null) to += 1;
    path += `M${x(spans[from].start).toFixed(1)} ${y(upper[from]).toFixed(1)}`;
    for (let i = from; i <= to; i += 1) path += `V${y(upper[i]).toFixed(1)}H${x(spans[i].end).toFixed(1)}`;
    for (let i = to; i >= from; i -= 1) path += `V${y(lower[i]).toFixed(1)}H${x(spans[i].start).toFixed(1)}`;
    path += "Z";
    from = to;
  }
  return path;
}

// Stack shares that add up to 1, from the bottom. Bands that are thick enough get a label at the right.
export function drawStacked({ spans, x, y, inner, roomy }, shares, looks, names) {
  const lower = spans.map(() => 0);
  const marks = [];
  const labels = [];
  looks.forEach((look, layer) => {
    const upper = spans.map((_, i) => (shares[i] === null ? null : Math.min(1, lower[i] + shares[i][layer])));
    const path = buildStepArea(spans, lower, upper, x, y);
    if (path) marks.push(...drawFilled("path", look, { d: path }));
    const last = shares.length - 1;
    if (roomy && shares[last] !== null && y(lower[last]) - y(upper[last]) > 14) {
      const middle = (y(lower[last]) + y(upper[last])) / 2 + 4;
      labels.push(s("text", { class: "direct", x: inner.right + 6, y: middle }, shorten(names[layer], 13)));
    }
    upper.forEach((value, i) => { if (value !== null) lower[i] = value; });
  });
  return [...marks, ...labels];
}

export const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function buildLinePath(points) {
  let path = "", open = false;
  for (const [x, y] of points) {
    if (y === null) { open = false; continue; }
    path += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    open = true;
  }
  return path;
}

export function buildBandPath(points) {
  const known = points.filter(([, low]) => low !== null);
  if (known.length < 2) return "";
  const there = known.map(([x, , high]) => `${x.toFixed(1)} ${high.toFixed(1)}`);
  const back = known.reverse().map(([x, low]) => `${x.toFixed(1)} ${low.toFixed(1)}`);
  return `M${there.join("L")}L${back.join("L")}Z`;
}

// The probability of each regime over time, with every regime change marked.

import { s } from "../dom.js";
import { formatShare, nameRegimes } from "../words.js";
import { Frame, MANY } from "./frame.js";
import { chooseRegimeLook, drawStacked, makeLegend, makeSwatch, shorten } from "./marks.js";

const LABEL_ROWS = 3; // above the plot
const LETTER_WIDTH = 7; // pixels, roughly

export function addBeliefChart(timeline, holder, legendPlace) {
  const listNames = () => nameRegimes(countRegimes(timeline.series), timeline.series.regime_labels);
  new Frame(timeline, holder, {
    name: "Belief over time: the probability of each regime",
    height: 270,
    top: 14 + LABEL_ROWS * 15,
    marked: true,
    yRange: () => [0, 1],
    formatY: (value) => `${Math.round(100 * value)} %`,
    read: (bucket) => {
      const single = isSingleRegime(timeline.series, bucket);
      return listNames().map((name, h) => [makeSwatch(chooseRegimeLook(h)), name, single ? "one regime in use" : bucket.belief ? formatShare(bucket.belief[h]) : "erased"]);
    },
    draw: (area) => {
      const labels = listNames();
      legendPlace.replaceChildren(labels.length < 2 ? "" : makeLegend(labels.map((name, h) => [makeSwatch(chooseRegimeLook(h)), name])));
      const shares = area.spans.map(({ bucket }) => (isSingleRegime(timeline.series, bucket) ? null : bucket.belief));
      const drawn = drawStacked(area, shares, labels.map((_, h) => chooseRegimeLook(h)), labels);
      return [...drawn, ...drawSingleRegime(area), ...drawChangeLabels(area)];
    },
  });
}

const countRegimes = (series) => Math.max(1, ...series.buckets.map((bucket) => bucket.belief?.length ?? 1));

function countRegimesInUse(series, round) {
  return series.regimes_in_use.findLast((from) => from.round <= round)?.regimes ?? series.regimes;
}

const isSingleRegime = (series, { belief, first_round: first, last_round: last }) =>
  belief !== null && countRegimesInUse(series, first) === 1 && countRegimesInUse(series, last) === 1;

// Rounds with only one regime in use have no belief to draw.
function drawSingleRegime({ timeline, x, inner }) {
  const { series } = timeline;
  return series.regimes_in_use.flatMap((from, i) => {
    if (from.regimes > 1) return [];
    const next = series.regimes_in_use[i + 1]?.round ?? series.last_round + 1;
    const left = x(timeline.getPosition(from.round - 1));
    const right = next > series.last_round ? inner.right : x(timeline.getPosition(next - 1));
    const words = "one regime";
    return [
      s("rect", { class: "alone", x: left, width: Math.max(0, right - left), y: inner.top, height: inner.bottom - inner.top }),
      right - left > words.length * LETTER_WIDTH
        ? s("text", { class: "direct", x: (left + right) / 2, y: (inner.top + inner.bottom) / 2, "text-anchor": "middle" }, words) : null,
    ].filter(Boolean);
  });
}

// Draw as many labels as fit into the rows above the plot, newest first; zooming in shows the others. A label goes above those
// it would overlap so that their lines pass below it. If no such row is free, it takes any free row and covers their lines.
function drawChangeLabels({ timeline, x, inner, width }) {
  const rows = timeline.series.regime_changes.length > MANY ? 1 : LABEL_ROWS;
  const placed = [];
  for (const event of timeline.events.filter(({ kind }) => kind === "regime").reverse()) {
    const words = shorten(event.short, 22);
    const wide = words.length * LETTER_WIDTH + 8;
    const from = Math.max(2, Math.min(x(event.at) - 2, width - wide));
    const taken = placed.filter((label) => label.from < from + wide && label.to > from).map((label) => label.row);
    const above = Math.max(-1, ...taken) + 1;
    const row = above < rows ? above : [...Array(rows).keys()].find((free) => !taken.includes(free));
    if (row !== undefined) placed.push({ from, to: from + wide, row, words, line: x(event.at), y: inner.top - 8 - row * 15 });
  }
  return [
    s("g", { class: "flag" }, placed.map(({ line, y }) => s("line", { x1: line, x2: line, y1: y + 2, y2: inner.top }))),
    ...placed.map(({ from, words, y }) => s("g", { class: "flag" }, s("text", { x: from + 3, y }, words))),
  ];
}


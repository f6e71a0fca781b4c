// What the service believed: the probability of every regime, with each change of the likeliest one marked.

import { s } from "../dom.js";
import { regimeNames, share } from "../words.js";
import { Frame, MANY } from "./frame.js";
import { legend, regimeLook, short, stacked, swatch } from "./marks.js";

const ROWS = 3; // of labels above the plot
const LETTER = 7; // pixels, about

export function beliefChart(timeline, holder, legendPlace) {
  const names = () => regimeNames(most(timeline.series), timeline.series.regime_labels);
  new Frame(timeline, holder, {
    name: "Belief over time: the probability of each regime",
    height: 270,
    top: 14 + ROWS * 15,
    marked: true,
    yRange: () => [0, 1],
    yWords: (value) => `${Math.round(100 * value)} %`,
    read: (bucket) => {
      const alone = isAlone(timeline.series, bucket);
      return names().map((name, h) => [swatch(regimeLook(h)), name, alone ? "one regime in use" : bucket.belief ? share(bucket.belief[h]) : "erased"]);
    },
    draw: (area) => {
      const labels = names();
      legendPlace.replaceChildren(labels.length < 2 ? "" : legend(labels.map((name, h) => [swatch(regimeLook(h)), name])));
      const shares = area.spans.map(({ bucket }) => (isAlone(timeline.series, bucket) ? null : bucket.belief));
      const drawn = stacked(area, shares, labels.map((_, h) => regimeLook(h)), labels);
      return [...drawn, ...alone(area), ...changeLabels(area)];
    },
  });
}

const most = (series) => Math.max(1, ...series.buckets.map((bucket) => bucket.belief?.length ?? 1));

function regimesIn(series, round) {
  return series.regimes_in_use.findLast((from) => from.round <= round)?.regimes ?? series.regimes;
}

const isAlone = (series, { belief, first_round: first, last_round: last }) =>
  belief !== null && regimesIn(series, first) === 1 && regimesIn(series, last) === 1;

// Where one regime was in use, there was nothing to believe.
function alone({ timeline, x, inner }) {
  const { series } = timeline;
  return series.regimes_in_use.flatMap((from, i) => {
    if (from.regimes > 1) return [];
    const next = series.regimes_in_use[i + 1]?.round ?? series.last_round + 1;
    const left = x(timeline.place(from.round - 1));
    const right = next > series.last_round ? inner.right : x(timeline.place(next - 1));
    const words = "one regime";
    return [
      s("rect", { class: "alone", x: left, width: Math.max(0, right - left), y: inner.top, height: inner.bottom - inner.top }),
      right - left > words.length * LETTER
        ? s("text", { class: "direct", x: (left + right) / 2, y: (inner.top + inner.bottom) / 2, "text-anchor": "middle" }, words) : null,
    ].filter(Boolean);
  });
}

// As many labels as fit into the rows above the plot, the newest first; zooming in shows the others. A label stands higher
// than those it would run into, so that their lines pass under it; where none is left there, its words hide the line.
function changeLabels({ timeline, x, inner, width }) {
  const rows = timeline.series.regime_changes.length > MANY ? 1 : ROWS;
  const placed = [];
  for (const event of timeline.events.filter(({ kind }) => kind === "regime").reverse()) {
    const words = short(event.short, 22);
    const wide = words.length * LETTER + 8;
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


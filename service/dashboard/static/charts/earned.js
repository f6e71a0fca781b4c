// The model's cumulative reward compared with control, and the lift.

import { s } from "../dom.js";
import { formatAmount, formatSigned } from "../words.js";
import { Frame } from "./frame.js";
import { buildBandPath, buildLinePath, makeLegend, makeLineSwatch } from "./marks.js";
import { findExtent } from "./scales.js";

const MODEL = { colour: "k1" };
const CONTROL = { colour: "k6" };

// The sum of the model's rewards, and what the same number of decisions would have earned at control's mean.
function sumRewards({ lift }) {
  const count = lift.decided_rewards;
  const known = lift.difference !== null;
  return {
    model: lift.decided_mean === null ? null : count * lift.decided_mean,
    control: lift.control_mean === null || !known ? null : count * lift.control_mean,
    low: known ? count * (lift.decided_mean - lift.high) : null,
    high: known ? count * (lift.decided_mean - lift.low) : null,
  };
}

const scaleOrNull = (scale, value) => (value === null ? null : scale(value));

export function addEarnedChart(timeline, holder, legendPlace) {
  legendPlace.replaceChildren(makeLegend([
    [makeLineSwatch(MODEL), "model"],
    [makeLineSwatch(CONTROL, true), "control, for the same number of decisions (band: 95 % interval)"],
  ]));
  new Frame(timeline, holder, {
    name: "Cumulative reward of the model compared with control",
    explainEmpty: (buckets) => (buckets.at(-1).lift.decided_rewards ? null : "Nothing to compare yet: the model's decisions have no rewards that count from a time when control was on."),
    formatY: (value) => (Math.abs(value) < 10_000 ? formatAmount(value) : value.toLocaleString(undefined, { notation: "compact" })),
    yRange: (buckets) => findExtent(buckets.flatMap((bucket) => Object.values(sumRewards(bucket))).map((value) => value ?? NaN), { zero: true }),
    read: (bucket) => {
      const { model, control, low, high } = sumRewards(bucket);
      return [
        [makeLineSwatch(MODEL), "model", formatAmount(model)],
        [makeLineSwatch(CONTROL, true), "control would have earned", formatAmount(control)],
        [null, "95 % interval", low === null ? "too early" : `${formatAmount(low)} to ${formatAmount(high)}`],
      ];
    },
    draw: ({ spans, x, y, inner, roomy }) => {
      const each = spans.map((span) => [x(span.end), sumRewards(span.bucket)]);
      const last = each.at(-1)[1];
      const makeLabel = (value, words) => (roomy && value !== null ? s("text", { class: "direct", x: inner.right + 6, y: y(value) + 4 }, words) : null);
      return [
        s("path", { class: `band ${CONTROL.colour}`, d: buildBandPath(each.map(([at, e]) => [at, scaleOrNull(y, e.low), scaleOrNull(y, e.high)])) }),
        s("path", { class: `line dashed ${CONTROL.colour}`, d: buildLinePath(each.map(([at, e]) => [at, scaleOrNull(y, e.control)])) }),
        s("path", { class: `line ${MODEL.colour}`, d: buildLinePath(each.map(([at, e]) => [at, scaleOrNull(y, e.model)])) }),
        makeLabel(last.model, "model"), makeLabel(last.control, "control"),
      ].filter(Boolean);
    },
  });
}

export function addLiftChart(timeline, holder) {
  new Frame(timeline, holder, {
    name: "Lift so far: how much more the model earns per decision than control",
    explainEmpty: (buckets) => (buckets.some(({ lift }) => lift.difference !== null) ? null : "No interval yet: the model and control each need 20 rewards."),
    formatY: formatSigned,
    // The first intervals are wide. The axis fits the later ones and clips the rest.
    yRange: (buckets) => {
      const known = buckets.map(({ lift }) => lift).filter(({ difference }) => difference !== null);
      const later = known.slice(Math.floor(known.length / 5));
      return findExtent(later.flatMap(({ low, high }) => [low, high]), { zero: true });
    },
    read: ({ lift }) => [
      [makeLineSwatch(MODEL), "lift per decision", lift.difference === null ? "too early" : formatSigned(lift.difference)],
      [null, "95 % interval", lift.difference === null ? "–" : `${formatSigned(lift.low)} to ${formatSigned(lift.high)}`],
      [null, "rewards, model / control", `${lift.decided_rewards.toLocaleString()} / ${lift.control_rewards.toLocaleString()}`],
    ],
    draw: ({ spans, x, y, inner, range }) => {
      const clip = (value) => y(Math.max(range[0], Math.min(range[1], value)));
      const each = spans.map((span) => [x(span.end), span.bucket.lift]);
      return [
        s("path", { class: `band ${MODEL.colour}`, d: buildBandPath(each.map(([at, l]) => [at, scaleOrNull(clip, l.low), scaleOrNull(clip, l.high)])) }),
        s("path", { class: `line ${MODEL.colour}`, d: buildLinePath(each.map(([at, l]) => [at, scaleOrNull(clip, l.difference)])) }),
        s("line", { class: "zero", x1: inner.left, x2: inner.right, y1: y(0), y2: y(0) }),
      ];
    },
  });
}

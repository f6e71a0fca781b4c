// What the service earned: the model's rewards so far against what control would have earned, and the lift.

import { s } from "../dom.js";
import { amount, signed } from "../words.js";
import { Frame } from "./frame.js";
import { bandPath, legend, linePath, lineSwatch } from "./marks.js";
import { extentOf } from "./scales.js";

const MODEL = { colour: "k1" };
const CONTROL = { colour: "k6" };

// What the model's rewards add up to, and what as many decisions would have earned at control's mean.
function earned({ lift }) {
  const count = lift.decided_rewards;
  const known = lift.difference !== null;
  return {
    model: lift.decided_mean === null ? null : count * lift.decided_mean,
    control: lift.control_mean === null || !known ? null : count * lift.control_mean,
    low: known ? count * (lift.decided_mean - lift.high) : null,
    high: known ? count * (lift.decided_mean - lift.low) : null,
  };
}

const maybe = (scale, value) => (value === null ? null : scale(value));

export function earnedChart(timeline, holder, legendPlace) {
  legendPlace.replaceChildren(legend([
    [lineSwatch(MODEL), "model, so far"],
    [lineSwatch(CONTROL, true), "control, for as many decisions (band: 95 % interval)"],
  ]));
  new Frame(timeline, holder, {
    name: "Cumulative reward of the model against control",
    lacking: (buckets) => (buckets.at(-1).lift.decided_rewards ? null : "Nothing to compare yet: no decision of the model's own has a reward while control was on."),
    yWords: (value) => (Math.abs(value) < 10_000 ? amount(value) : value.toLocaleString(undefined, { notation: "compact" })),
    yRange: (buckets) => extentOf(buckets.flatMap((bucket) => Object.values(earned(bucket))).map((value) => value ?? NaN), { zero: true }),
    read: (bucket) => {
      const { model, control, low, high } = earned(bucket);
      return [
        [lineSwatch(MODEL), "model", amount(model)],
        [lineSwatch(CONTROL, true), "control would have", amount(control)],
        [null, "95 % interval", low === null ? "too early" : `${amount(low)} to ${amount(high)}`],
      ];
    },
    draw: ({ spans, x, y, inner, roomy }) => {
      const each = spans.map((span) => [x(span.end), earned(span.bucket)]);
      const last = each.at(-1)[1];
      const label = (value, words) => (roomy && value !== null ? s("text", { class: "direct", x: inner.right + 6, y: y(value) + 4 }, words) : null);
      return [
        s("path", { class: `band ${CONTROL.colour}`, d: bandPath(each.map(([at, e]) => [at, maybe(y, e.low), maybe(y, e.high)])) }),
        s("path", { class: `line dashed ${CONTROL.colour}`, d: linePath(each.map(([at, e]) => [at, maybe(y, e.control)])) }),
        s("path", { class: `line ${MODEL.colour}`, d: linePath(each.map(([at, e]) => [at, maybe(y, e.model)])) }),
        label(last.model, "model"), label(last.control, "control"),
      ].filter(Boolean);
    },
  });
}

export function liftChart(timeline, holder) {
  new Frame(timeline, holder, {
    name: "Lift so far: what a decision of the model earns more than one of control",
    lacking: (buckets) => (buckets.some(({ lift }) => lift.difference !== null) ? null : "No interval yet: the model and control need 20 rewards each."),
    yWords: signed,
    // The first intervals are wide: the axis fits the later ones, and what is beyond is cut off.
    yRange: (buckets) => {
      const known = buckets.map(({ lift }) => lift).filter(({ difference }) => difference !== null);
      const later = known.slice(Math.floor(known.length / 5));
      return extentOf(later.flatMap(({ low, high }) => [low, high]), { zero: true });
    },
    read: ({ lift }) => [
      [lineSwatch(MODEL), "lift a decision", lift.difference === null ? "too early" : signed(lift.difference)],
      [null, "95 % interval", lift.difference === null ? "–" : `${signed(lift.low)} to ${signed(lift.high)}`],
      [null, "rewards, model / control", `${lift.decided_rewards.toLocaleString()} / ${lift.control_rewards.toLocaleString()}`],
    ],
    draw: ({ spans, x, y, inner, range }) => {
      const inside = (value) => y(Math.max(range[0], Math.min(range[1], value)));
      const each = spans.map((span) => [x(span.end), span.bucket.lift]);
      return [
        s("path", { class: `band ${MODEL.colour}`, d: bandPath(each.map(([at, l]) => [at, maybe(inside, l.low), maybe(inside, l.high)])) }),
        s("path", { class: `line ${MODEL.colour}`, d: linePath(each.map(([at, l]) => [at, maybe(inside, l.difference)])) }),
        s("line", { class: "zero", x1: inner.left, x2: inner.right, y1: y(0), y2: y(0) }),
      ];
    },
  });
}

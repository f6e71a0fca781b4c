// What the service did: the share of every action over time.

import { share } from "../words.js";
import { Frame } from "./frame.js";
import { actionLook, legend, stacked, swatch } from "./marks.js";

const MOST_BANDS = 7; // rarer actions are drawn as one
const MOST_STEPS = 100;
const LEAST_ROUNDS = 10; // in a step: shares of a handful of decisions would only flicker

export function actionsChart(timeline, holder, legendPlace) {
  let bands = [], steps = [];
  const stepOf = (bucket) => steps.find((step) => step.last >= bucket.last_round);
  new Frame(timeline, holder, {
    name: "Actions over time: the share of decisions that took each",
    yRange: () => [0, 1],
    yWords: (value) => `${Math.round(100 * value)} %`,
    read: (bucket) => {
      const { shares, first, last } = stepOf(bucket);
      const rows = shares.map((value, i) => [swatch(bands[i].look), bands[i].name, share(value)]);
      return first === bucket.first_round && last === bucket.last_round ? rows
        : [...rows, [null, "of rounds", `${first.toLocaleString()}–${last.toLocaleString()}`]];
    },
    draw: (area) => {
      bands = bandsOf(timeline.series);
      steps = stepsOf(timeline, bands);
      legendPlace.replaceChildren(legend(bands.map((band) => [swatch(band.look), band.name])));
      return stacked({ ...area, spans: steps }, steps.map((step) => step.shares), bands.map((band) => band.look), bands.map((band) => band.name));
    },
  });
}

// Buckets next to each other, taken together; a regime change always begins a new step.
function stepsOf({ spans, events }, bands) {
  const rounds = spans.at(-1).bucket.last_round - spans[0].bucket.first_round + 1;
  const size = Math.ceil(spans.length * Math.max(1 / MOST_STEPS, LEAST_ROUNDS / rounds));
  const turns = new Set(events.filter((event) => event.kind === "regime").map((event) => event.bucket));
  const steps = [];
  spans.forEach(({ bucket, start, end }, i) => {
    let step = steps.at(-1);
    if (!step || step.buckets >= size || turns.has(i)) {
      step = { start, first: bucket.first_round, buckets: 0, counts: bands.map(() => 0) };
      steps.push(step);
    }
    step.buckets += 1;
    step.end = end;
    step.last = bucket.last_round;
    bands.forEach((band, b) => { for (const name of band.actions) step.counts[b] += bucket.actions[name]; });
  });
  for (const step of steps) {
    const total = step.counts.reduce((sum, count) => sum + count, 0) || 1;
    step.shares = step.counts.map((count) => count / total);
  }
  return steps;
}

function bandsOf({ action_names: names, buckets }) {
  const each = names.map((name, i) => ({ name, actions: [name], look: actionLook(i) }));
  if (each.length <= MOST_BANDS + 1) return each;
  const count = (name) => buckets.reduce((sum, bucket) => sum + bucket.actions[name], 0);
  const often = new Set([...names].sort((one, other) => count(other) - count(one)).slice(0, MOST_BANDS));
  const rare = names.filter((name) => !often.has(name));
  return [...each.filter((band) => often.has(band.name)), { name: `${rare.length} others`, actions: rare, look: { colour: "k8", pattern: "cross" } }];
}

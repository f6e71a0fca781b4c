// The share of each action over time.

import { formatShare } from "../words.js";
import { Frame } from "./frame.js";
import { chooseActionLook, drawStacked, makeLegend, makeSwatch } from "./marks.js";

const MAX_BANDS = 7; // rarer actions are drawn as one
const MAX_STEPS = 100;
const MIN_ROUNDS = 10; // per step: the shares of only a few decisions would flicker

export function addActionsChart(timeline, holder, legendPlace) {
  let bands = [], steps = [];
  const findStep = (bucket) => steps.find((step) => step.last >= bucket.last_round);
  new Frame(timeline, holder, {
    name: "Actions over time: the share of decisions that took each",
    yRange: () => [0, 1],
    formatY: (value) => `${Math.round(100 * value)} %`,
    read: (bucket) => {
      const { shares, first, last } = findStep(bucket);
      const rows = shares.map((value, i) => [makeSwatch(bands[i].look), bands[i].name, formatShare(value)]);
      return first === bucket.first_round && last === bucket.last_round ? rows
        : [...rows, [null, "rounds", `${first.toLocaleString()}–${last.toLocaleString()}`]];
    },
    draw: (area) => {
      bands = buildBands(timeline.series);
      steps = buildSteps(timeline, bands);
      legendPlace.replaceChildren(makeLegend(bands.map((band) => [makeSwatch(band.look), band.name])));
      return drawStacked({ ...area, spans: steps }, steps.map((step) => step.shares), bands.map((band) => band.look), bands.map((band) => band.name));
    },
  });
}

// Merge neighbouring buckets into steps; a regime change always starts a new one.
function buildSteps({ spans, events }, bands) {
  const rounds = spans.at(-1).bucket.last_round - spans[0].bucket.first_round + 1;
  const size = Math.ceil(spans.length * Math.max(1 / MAX_STEPS, MIN_ROUNDS / rounds));
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

function buildBands({ action_names: names, buckets }) {
  const each = names.map((name, i) => ({ name, actions: [name], look: chooseActionLook(i) }));
  if (each.length <= MAX_BANDS + 1) return each;
  const count = (name) => buckets.reduce((sum, bucket) => sum + bucket.actions[name], 0);
  const often = new Set([...names].sort((one, other) => count(other) - count(one)).slice(0, MAX_BANDS));
  const rare = names.filter((name) => !often.has(name));
  return [...each.filter((band) => often.has(band.name)), { name: `${rare.length} others`, actions: rare, look: { colour: "k8", pattern: "cross" } }];
}

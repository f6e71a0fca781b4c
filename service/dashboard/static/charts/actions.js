// What the service did: the share of every action over time.

import { share } from "../words.js";
import { Frame } from "./frame.js";
import { actionLook, legend, stacked, swatch } from "./marks.js";

const MOST = 7; // bands; rarer actions are drawn as one

export function actionsChart(timeline, holder, legendPlace) {
  let bands = [];
  const shares = ({ actions }) => {
    const total = Object.values(actions).reduce((sum, count) => sum + count, 0) || 1;
    return bands.map((band) => band.actions.reduce((sum, name) => sum + actions[name], 0) / total);
  };
  new Frame(timeline, holder, {
    name: "Actions over time: the share of decisions that took each",
    yRange: () => [0, 1],
    yWords: (value) => `${Math.round(100 * value)} %`,
    read: (bucket) => shares(bucket).map((value, i) => [swatch(bands[i].look), bands[i].name, share(value)]),
    draw: (area) => {
      bands = bandsOf(timeline.series);
      legendPlace.replaceChildren(legend(bands.map((band) => [swatch(band.look), band.name])));
      return stacked(area, area.spans.map(({ bucket }) => shares(bucket)), bands.map((band) => band.look), bands.map((band) => band.name));
    },
  });
}

function bandsOf({ action_names: names, buckets }) {
  const each = names.map((name, i) => ({ name, actions: [name], look: actionLook(i) }));
  if (each.length <= MOST + 1) return each;
  const count = (name) => buckets.reduce((sum, bucket) => sum + bucket.actions[name], 0);
  const often = new Set([...names].sort((one, other) => count(other) - count(one)).slice(0, MOST));
  const rare = names.filter((name) => !often.has(name));
  return [...each.filter((band) => often.has(band.name)), { name: `${rare.length} others`, actions: rare, look: { colour: "k8", pattern: "cross" } }];
}

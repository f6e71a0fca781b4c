// A belief as one stacked bar, with each regime's name and probability.

import { h, s } from "../dom.js";
import { describeBelief, formatShare } from "../words.js";
import { chooseRegimeLook, drawFilled, makeSwatch } from "./marks.js";

export function makeBeliefBar(belief, names, name) {
  let from = 0;
  const parts = belief.flatMap((value, index) => {
    const shapes = drawFilled("rect", chooseRegimeLook(index), { x: 400 * from, width: 400 * value, height: 22 });
    from += value;
    return shapes;
  });
  return h("div", { class: "law" },
    s("svg", { role: "img", "aria-label": `${name}: ${describeBelief(belief, names)}`, viewBox: "0 0 400 22", preserveAspectRatio: "none", height: 22 }, parts),
    h("ul", { class: "legend" }, belief.map((value, index) => h("li", {}, makeSwatch(chooseRegimeLook(index)), ` ${names[index]} `, h("strong", {}, formatShare(value))))));
}

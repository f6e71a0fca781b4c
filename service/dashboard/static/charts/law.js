// A belief as one bar, with each regime's name and probability.

import { h, s } from "../dom.js";
import { beliefWords, share } from "../words.js";
import { filled, regimeLook, swatch } from "./marks.js";

export function lawBar(law, names, name) {
  let from = 0;
  const parts = law.flatMap((value, index) => {
    const shapes = filled("rect", regimeLook(index), { x: 400 * from, width: 400 * value, height: 22 });
    from += value;
    return shapes;
  });
  return h("div", { class: "law" },
    s("svg", { role: "img", "aria-label": `${name}: ${beliefWords(law, names)}`, viewBox: "0 0 400 22", preserveAspectRatio: "none", height: 22 }, parts),
    h("ul", { class: "legend" }, law.map((value, index) => h("li", {}, swatch(regimeLook(index)), ` ${names[index]} `, h("strong", {}, share(value))))));
}

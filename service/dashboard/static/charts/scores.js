// Scores: for each action the reward expected of it, and on top of that the bonus. A table with a bar in every row.

import { h, s } from "../dom.js";
import { amount } from "../words.js";
import { linear } from "./scales.js";

const WIDTH = 240;

// Estimates begin at 0, bonuses where the estimate ends; a negative estimate goes to the left.
export function scoreScale(all) {
  const ends = all.flatMap(({ estimate, score }) => [estimate, score, 0]);
  return linear(Math.min(...ends), Math.max(...ends), 6, WIDTH - 6);
}

function bar({ estimate, score }, x, chosen) {
  const [from, to] = [x(0), x(estimate)].sort((one, other) => one - other);
  return s("svg", { class: "scorebar", "aria-hidden": "true", viewBox: `0 0 ${WIDTH} 20`, preserveAspectRatio: "none" },
    s("rect", { class: `fill ${chosen ? "k1" : "k8"}`, x: from, width: Math.max(0.5, to - from), y: 3, height: 14 }),
    s("rect", { class: `bonus ${chosen ? "k1" : "k8"}`, x: x(estimate), width: Math.max(0, x(score) - x(estimate)), y: 6, height: 8 }),
    s("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 20 }));
}

// `marks` names actions: {action: "chosen"}.
export function scoreTable(scores, marks, caption, x = scoreScale(scores)) {
  const best = [...scores].sort((one, other) => other.score - one.score);
  return h("table", { class: "scores" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "action"), ["estimate", "bonus", "score"].map((head) => h("th", { scope: "col", class: "number" }, head)))),
    h("tbody", {}, best.map((score) => h("tr", { class: marks[score.action] ? "chosen" : null },
      h("th", { scope: "row" }, h("span", {}, score.action), marks[score.action] ? h("span", { class: "tag" }, marks[score.action]) : null, bar(score, x, Boolean(marks[score.action]))),
      h("td", { class: "number" }, amount(score.estimate)), h("td", { class: "number" }, `+ ${amount(score.bonus)}`), h("td", { class: "number" }, amount(score.score))))));
}

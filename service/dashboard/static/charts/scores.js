// Scores: the expected reward of each action plus its bonus. A table with a bar in each row.

import { h, s } from "../dom.js";
import { formatAmount } from "../words.js";
import { makeScale } from "./scales.js";

const WIDTH = 240;

// Estimates start at 0 and bonuses at the end of the estimate; negative estimates extend to the left.
export function makeScoreScale(scores) {
  const ends = scores.flatMap(({ estimate, score }) => [estimate, score, 0]);
  return makeScale(Math.min(...ends), Math.max(...ends), 6, WIDTH - 6);
}

function drawBar({ estimate, score }, x, chosen) {
  const [from, to] = [x(0), x(estimate)].sort((one, other) => one - other);
  return s("svg", { class: "scorebar", "aria-hidden": "true", viewBox: `0 0 ${WIDTH} 20`, preserveAspectRatio: "none" },
    s("rect", { class: `fill ${chosen ? "k1" : "k8"}`, x: from, width: Math.max(0.5, to - from), y: 3, height: 14 }),
    s("rect", { class: `bonus ${chosen ? "k1" : "k8"}`, x: x(estimate), width: Math.max(0, x(score) - x(estimate)), y: 6, height: 8 }),
    s("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 20 }));
}

// `marks` maps actions to a tag: {action: "chosen"}.
export function makeScoreTable(scores, marks, caption, x = makeScoreScale(scores)) {
  const sorted = [...scores].sort((one, other) => other.score - one.score);
  return h("table", { class: "scores" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "action"), ["estimate", "bonus", "score"].map((head) => h("th", { scope: "col", class: "number" }, head)))),
    h("tbody", {}, sorted.map((score) => h("tr", { class: marks[score.action] ? "chosen" : null },
      h("th", { scope: "row" }, h("span", {}, score.action), marks[score.action] ? h("span", { class: "tag" }, marks[score.action]) : null, drawBar(score, x, Boolean(marks[score.action]))),
      h("td", { class: "number" }, formatAmount(score.estimate)), h("td", { class: "number" }, `+ ${formatAmount(score.bonus)}`), h("td", { class: "number" }, formatAmount(score.score))))));
}

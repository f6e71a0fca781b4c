// A small line chart without axes.

import { s } from "../dom.js";
import { makeScale } from "./scales.js";

export function drawSpark(values, name, width = 260, height = 44) {
  const most = Math.max(...values, 1e-12);
  const x = makeScale(0, Math.max(1, values.length - 1), 4, width - 4);
  const y = makeScale(0, most, height - 4, 4);
  const points = values.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`);
  return s("svg", { class: "spark", role: "img", "aria-label": name, viewBox: `0 0 ${width} ${height}`, width, height },
    s("path", { class: "line k1", d: `M${points.join("L")}` }),
    s("circle", { class: "dot k1", cx: x(values.length - 1), cy: y(values.at(-1)), r: 3.5 }));
}

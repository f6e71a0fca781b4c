// A trend as a small line with its end marked and a description as the accessible name.

import { formatNumber, s } from "./dom.js";

const WIDTH = 120, HEIGHT = 32, MARGIN = 4;

// `points`: [[x, y], …], sorted by x.
export function drawSparkline(points, what) {
  if (points.length < 2) return null;
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const low = Math.min(...ys), high = Math.max(...ys);
  const place = ([x, y]) => [
    MARGIN + ((x - xs[0]) / (xs.at(-1) - xs[0] || 1)) * (WIDTH - 2 * MARGIN),
    high === low ? HEIGHT / 2 : HEIGHT - MARGIN - ((y - low) / (high - low)) * (HEIGHT - 2 * MARGIN),
  ];
  const placed = points.map(place), [endX, endY] = placed.at(-1);
  const description = `${what}: from ${formatNumber(ys[0])} to ${formatNumber(ys.at(-1))}, lowest ${formatNumber(low)}, highest ${formatNumber(high)}`;
  return s("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": description },
    s("title", {}, description),
    s("polyline", { points: placed.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ") }),
    s("circle", { cx: endX.toFixed(1), cy: endY.toFixed(1), r: 2.5 }));
}

// One time chart: axes, cursor, tooltip, keyboard control and the brush for zooming. Its owner supplies what is drawn inside.

import { h, makeScroller, s } from "../dom.js";
import { chooseTicks, makeScale } from "./scales.js";

const LEFT = 50;
const BOTTOM = 26;
const MIN_DRAG = 6; // pixels; less is a click
export const MANY = 60; // regime changes; more lines than this would hide the chart
const EVENT_MARKS = { configuration: "C", rollback: "R", erasure: "E" };

export class Frame {
  // `draw(area)` returns the plot's elements, `read(bucket)` rows of [swatch, name, value], and `explainEmpty(buckets)` a text
  // if there is nothing to draw.
  constructor(timeline, holder, { name, height = 200, top = 10, axis = true, marked = false, formatY = String, yRange, draw, read, explainEmpty = () => null }) {
    Object.assign(this, { timeline, name, height, top, axis, marked, formatY, yRange, draw, read, explainEmpty });
    this.svg = s("svg", { role: "img", "aria-label": name });
    this.tip = h("div", { class: "tip", hidden: true });
    this.body = h("div", { class: "chart", tabindex: 0, role: "group", "aria-label": `${name}. Use the arrow keys to move, plus and minus to zoom.` }, this.svg, this.tip);
    this.empty = h("p", { class: "soft empty", hidden: true }, "");
    this.alternative = h("details", { class: "alternative" }, h("summary", {}, "As a table"), makeScroller(`${name}, as a table`, { class: "short" }));
    this.alternative.addEventListener("toggle", () => this._fillTable());
    holder.replaceChildren(this.body, this.empty, this.alternative);
    this._listen();
    new ResizeObserver(() => { if (this.body.clientWidth !== this.width) this.redraw(); }).observe(this.body);
    timeline.add(this);
  }

  redraw() {
    const { timeline } = this;
    const message = !timeline.series ? null : !timeline.series.round ? "No decisions yet."
      : !timeline.spans.length ? "No decisions in this range." : this.explainEmpty(timeline.series.buckets);
    const isEmpty = message !== null || !timeline.spans.length;
    this.body.hidden = isEmpty;
    this.alternative.hidden = isEmpty;
    this.empty.hidden = message === null;
    this.empty.textContent = message ?? "";
    this.width = this.body.clientWidth;
    if (isEmpty || !this.width) return;
    const roomy = this.width > 560;
    const inner = { left: LEFT, right: this.width - (roomy ? 90 : 10), top: this.top, bottom: this.height - (this.axis ? BOTTOM : 6) };
    const x = makeScale(...timeline.extent, inner.left, inner.right);
    const range = this.yRange(timeline.series.buckets);
    const y = makeScale(...range, inner.bottom, inner.top);
    const area = { timeline, spans: timeline.spans, x, y, inner, width: this.width, roomy, range };
    this.area = area;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.cursorLayer = s("g", { class: "cursor" });
    this.brushLayer = s("rect", { class: "brush", y: inner.top, height: inner.bottom - inner.top, width: 0 });
    this.svg.replaceChildren(...this._drawYAxis(area), ...this.draw(area), ...this._drawEvents(area), ...this._drawXAxis(area), this.brushLayer, this.cursorLayer);
    this.showCursor();
    this._fillTable();
  }

  // --- axes ---------------------------------------------------------------------------------------------------

  _drawYAxis({ y, inner, range }) {
    return chooseTicks(...range, Math.max(2, (inner.bottom - inner.top) / 45)).map((value) => s("g", { class: "tick" },
      s("line", { x1: inner.left, x2: inner.right, y1: y(value), y2: y(value) }),
      s("text", { x: inner.left - 6, y: y(value) + 4, "text-anchor": "end" }, this.formatY(value))));
  }

  _drawXAxis({ x, inner, timeline }) {
    const line = s("line", { class: "base", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom });
    if (!this.axis) return [line];
    const marks = timeline.chooseTicks(Math.max(2, (inner.right - inner.left) / 95));
    return [line, ...marks.map(({ at, words }, i) => s("g", { class: "tick x" },
      s("line", { x1: x(at), x2: x(at), y1: inner.bottom, y2: inner.bottom + 4 }),
      s("text", { x: x(at), y: inner.bottom + 17, "text-anchor": i === 0 && x(at) < inner.left + 20 ? "start" : x(at) > inner.right - 24 && inner.right > this.width - 24 ? "end" : "middle" }, words)))];
  }

  // Draw a line for every regime change, and a dashed line with a letter for everything people changed.
  _drawEvents({ x, inner, timeline }) {
    const lines = { regime: [], other: [] };
    const marks = [];
    for (const event of timeline.events) {
      lines[event.kind === "regime" ? "regime" : "other"].push(`M${x(event.at).toFixed(1)} ${inner.top}V${inner.bottom}`);
      if (this.marked && event.kind !== "regime") {
        const place = Math.max(inner.left + 7, Math.min(inner.right - 7, x(event.at)));
        marks.push(s("g", { class: "mark" },
          s("circle", { cx: place, cy: inner.bottom - 9, r: 7 }),
          s("text", { x: place, y: inner.bottom - 5, "text-anchor": "middle" }, EVENT_MARKS[event.kind])));
      }
    }
    const many = lines.regime.length > MANY;
    const look = many ? (this.marked ? " many" : " away") : this.marked ? "" : " faint";
    return [s("path", { class: `change${look}`, d: lines.regime.join("") }), s("path", { class: "done", d: lines.other.join("") }), ...marks.slice(-40)];
  }

  // --- the cursor ---------------------------------------------------------------------------------------------

  showCursor() {
    const index = this.timeline.cursor;
    if (!this.cursorLayer || !this.area) return;
    const span = index === null ? null : this.timeline.spans[index];
    if (!span) { this.cursorLayer.replaceChildren(); this.tip.hidden = true; return; }
    const { x, inner } = this.area;
    const [from, to] = [x(span.start), x(span.end)];
    this.cursorLayer.replaceChildren(s("rect", { x: from, width: Math.max(1, to - from), y: inner.top, height: inner.bottom - inner.top }));
    const showsTip = this.pointed || this.body.matches(":focus-visible");
    this.tip.hidden = !showsTip;
    if (!showsTip) return;
    this.tip.replaceChildren(...this._makeTip(span, index));
    const half = (from + to) / 2;
    const left = half > this.width / 2 ? half - this.tip.offsetWidth - 12 : half + 12;
    this.tip.style.setProperty("transform", `translate(${Math.round(Math.max(0, Math.min(this.width - this.tip.offsetWidth, left)))}px, ${this.top + 6}px)`);
  }

  _makeTip(span, index) {
    const events = this.timeline.events.filter((event) => event.bucket === index).slice(0, 4);
    return [
      h("p", { class: "soft" }, this.timeline.describeTime(span.bucket)),
      h("table", {}, h("tbody", {}, this.read(span.bucket).map(([swatch, name, value]) =>
        h("tr", {}, h("td", {}, swatch, " ", name), h("td", { class: "number" }, value))))),
      ...events.map((event) => h("p", { class: "event" }, event.words)),
    ];
  }

  _describeCursor() {
    const { cursor, spans, events } = this.timeline;
    const { bucket } = spans[cursor];
    const values = this.read(bucket).map(([, name, value]) => `${name} ${value}`);
    const happened = events.filter((event) => event.bucket === cursor).map((event) => event.words);
    return [this.timeline.describeTime(bucket), ...values, ...happened].join("; ");
  }

  // --- pointer and keys ---------------------------------------------------------------------------------------

  _findValue(event) {
    const { inner, timeline } = this.area;
    const place = event.clientX - this.svg.getBoundingClientRect().left;
    const [from, to] = timeline.extent;
    const part = (place - inner.left) / (inner.right - inner.left);
    return from + Math.max(0, Math.min(1, part)) * (to - from);
  }

  _listen() {
    const { body, timeline } = this;
    let start = null;
    const stopDrag = () => { start = null; this.brushLayer?.setAttribute("width", 0); };
    body.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.area) return;
      start = { place: event.clientX, value: this._findValue(event) };
      body.setPointerCapture(event.pointerId);
    });
    body.addEventListener("pointermove", (event) => {
      if (!this.area) return;
      const value = this._findValue(event);
      this.pointed = true;
      timeline.moveCursor(timeline.findSpan(value));
      if (start) {
        const [from, to] = [start.value, value].sort((one, other) => one - other).map(this.area.x);
        this.brushLayer.setAttribute("x", from);
        this.brushLayer.setAttribute("width", to - from);
      }
    });
    body.addEventListener("pointerup", (event) => {
      if (!start) return;
      const [from, to] = [start.value, this._findValue(event)].sort((one, other) => one - other);
      const dragged = Math.abs(event.clientX - start.place) >= MIN_DRAG;
      stopDrag();
      if (dragged) timeline.onZoom(...timeline.getTimes(from, to));
    });
    body.addEventListener("pointercancel", stopDrag);
    body.addEventListener("pointerleave", () => { this.pointed = false; if (!start) timeline.moveCursor(null); });
    body.addEventListener("blur", () => { if (!this.pointed) timeline.moveCursor(null); });
    body.addEventListener("keydown", (event) => { if (this._handleKey(event)) event.preventDefault(); else if (event.key === "Escape") stopDrag(); });
  }

  _handleKey(event) {
    const { timeline } = this;
    if (event.ctrlKey || event.metaKey || event.altKey || !timeline.spans.length) return false;
    const last = timeline.spans.length - 1;
    const size = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowRight: (timeline.cursor ?? -1) + size, ArrowLeft: (timeline.cursor ?? last + 1) - size, Home: 0, End: last,
    };
    if (event.key in moves) {
      timeline.moveCursor(moves[event.key]);
      document.querySelector("#announcement").textContent = this._describeCursor();
      return true;
    }
    const action = { "+": "in", "=": "in", "-": "out", 0: "all", Backspace: "back" }[event.key];
    if (action) timeline.onStep(action);
    return Boolean(action);
  }

  // --- the same as a table ------------------------------------------------------------------------------------

  _fillTable() {
    if (!this.alternative.open || !this.timeline.spans.length) return;
    const rows = this.timeline.spans.map(({ bucket }) => [this.timeline.describeTime(bucket), ...this.read(bucket).map(([, , value]) => value)]);
    const heads = ["when", ...this.read(this.timeline.spans[0].bucket).map(([, name]) => name)];
    this.alternative.querySelector(".scroll").replaceChildren(h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: i ? "number" : null }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: i ? "number" : null }, cell)))))));
  }
}

// What all time charts of a page share: the buckets, one x-axis (by round or by time) and one cursor.

import { DAY, HOUR, micros } from "../range.js";
import { noteSentence, plural, regimeName } from "../words.js";
import { ticks, timeTicks } from "./scales.js";

export class Timeline {
  constructor({ zoomed, step }) {
    Object.assign(this, { zoomed, step, axis: "round", cursor: null, series: null, spans: [], charts: [], events: [] });
  }

  add(chart) { this.charts.push(chart); }

  show(series) {
    this.series = series;
    this.cursor = null;
    this._measure();
    this.redraw();
  }

  byAxis(axis) {
    this.axis = axis;
    this._measure();
    this.redraw();
  }

  redraw() { for (const chart of this.charts) chart.redraw(); }

  point(index) {
    const last = this.spans.length - 1;
    this.cursor = index === null || last < 0 ? null : Math.max(0, Math.min(last, index));
    for (const chart of this.charts) chart.showCursor();
  }

  // --- the axis -----------------------------------------------------------------------------------------------

  _measure() {
    const { buckets } = this.series;
    const starts = buckets.map((bucket) => this._start(bucket));
    this.spans = buckets.map((bucket, i) => ({ bucket, start: starts[i], end: starts[i + 1] ?? this._end(bucket) }));
    this.events = this._events();
  }

  _start(bucket) { return this.axis === "round" ? bucket.first_round - 1 : micros(bucket.first_decided_at); }

  _end(bucket) { return this.axis === "round" ? bucket.last_round : micros(bucket.last_decided_at) + 1; }

  get extent() { return this.spans.length ? [this.spans[0].start, this.spans.at(-1).end] : [0, 1]; }

  // Where something that happened when so many rounds had been decided is on the axis.
  place(rounds) {
    if (this.axis === "round") return rounds;
    const span = this.spans[this.bucketOf(rounds + 1)];
    const { first_round: first, last_round: last } = span.bucket;
    return span.start + ((rounds + 1 - first) / (last - first + 1)) * (span.end - span.start);
  }

  bucketOf(round) {
    const found = this.spans.findIndex(({ bucket }) => bucket.last_round >= round);
    return found < 0 ? this.spans.length - 1 : found;
  }

  at(value) {
    let low = 0, high = this.spans.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle].end <= value) low = middle + 1; else high = middle;
    }
    return low;
  }

  ticks(most) {
    const [from, to] = this.extent;
    if (this.axis === "round") {
      return ticks(from, to, most).filter(Number.isInteger).map((at) => ({ at, words: at.toLocaleString() }));
    }
    return timeTicks(from / 1000, to / 1000, most).map(({ at, words }) => ({ at: at * 1000, words }));
  }

  // The times (from, to) between two values of the axis.
  times(from, to) {
    if (this.axis === "time") return [from, to];
    const [first, last] = [this.spans[this.at(from)], this.spans[this.at(to)]];
    return [micros(first.bucket.first_decided_at), micros(last.bucket.last_decided_at) + 1];
  }

  // --- in words -----------------------------------------------------------------------------------------------

  when(bucket) {
    const { first_round: first, last_round: last } = bucket;
    const rounds = first === last ? `round ${first.toLocaleString()}` : `rounds ${first.toLocaleString()}–${last.toLocaleString()}`;
    return `${rounds} · ${this._moment(bucket.first_decided_at)}`;
  }

  _moment(text) {
    const { buckets } = this.series;
    const span = micros(buckets.at(-1).last_decided_at) - micros(buckets[0].first_decided_at);
    const parts = { hour: "2-digit", minute: "2-digit" };
    if (span < HOUR) parts.second = "2-digit";
    if (span > DAY / 2) Object.assign(parts, { day: "numeric", month: "short" });
    return new Date(text).toLocaleString(undefined, parts);
  }

  // Regime changes and what people did, by the axis.
  _events() {
    if (!this.spans.length) return [];
    const changes = this.series.regime_changes.map((change) => ({
      kind: "regime",
      round: change.since_round - 1,
      regime: change.after,
      short: `${regimeName(change.after, change.after_label)} · ${change.since_round.toLocaleString()}`,
      words: `${regimeName(change.after, change.after_label)} likeliest from round ${change.since_round.toLocaleString()} on`,
      when: change.decided_at,
    }));
    const notes = this.series.revisions.filter((note) => note.kind !== "created").map((note) => ({
      kind: note.kind,
      round: note.round,
      words: `${noteSentence(note)}, after round ${note.round.toLocaleString()}`,
      when: note.created_at,
    }));
    const all = [...changes, ...notes].map((event) => ({
      ...event, at: this.place(event.round), bucket: this.bucketOf(event.round + 1),
    }));
    return all.sort((one, other) => one.round - other.round);
  }

  get range() {
    const { series } = this;
    if (!series?.buckets.length) return "nothing was decided in this range";
    const count = plural(series.last_round - series.first_round + 1, "decision");
    const { buckets, regime_changes: changes } = series;
    const turns = changes.length ? `; ${plural(changes.length + series.regime_changes_left_out, "regime change")}` : "";
    return `${count}, rounds ${series.first_round.toLocaleString()} to ${series.last_round.toLocaleString()}, `
      + `${this._moment(buckets[0].first_decided_at)} to ${this._moment(buckets.at(-1).last_decided_at)}${turns}`;
  }
}


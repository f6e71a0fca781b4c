// State shared by all time charts of a page: the buckets, one x-axis (by round or by time) and one cursor.

import { DAY, HOUR, parseMicros } from "../range.js";
import { describeRevision, nameRegime, pluralize } from "../words.js";
import { chooseTicks, chooseTimeTicks } from "./scales.js";

export class Timeline {
  constructor({ onZoom, onStep }) {
    Object.assign(this, { onZoom, onStep, axis: "round", cursor: null, series: null, spans: [], charts: [], events: [] });
  }

  add(chart) { this.charts.push(chart); }

  show(series) {
    this.series = series;
    this.cursor = null;
    this._measure();
    this.redraw();
  }

  setAxis(axis) {
    this.axis = axis;
    this._measure();
    this.redraw();
  }

  redraw() { for (const chart of this.charts) chart.redraw(); }

  moveCursor(index) {
    const last = this.spans.length - 1;
    this.cursor = index === null || last < 0 ? null : Math.max(0, Math.min(last, index));
    for (const chart of this.charts) chart.showCursor();
  }

  // --- the axis -----------------------------------------------------------------------------------------------

  _measure() {
    const { buckets } = this.series;
    const starts = buckets.map((bucket) => this._getStart(bucket));
    this.spans = buckets.map((bucket, i) => ({ bucket, start: starts[i], end: starts[i + 1] ?? this._getEnd(bucket) }));
    this.events = this._listEvents();
  }

  _getStart(bucket) { return this.axis === "round" ? bucket.first_round - 1 : parseMicros(bucket.first_decided_at); }

  _getEnd(bucket) { return this.axis === "round" ? bucket.last_round : parseMicros(bucket.last_decided_at) + 1; }

  get extent() { return this.spans.length ? [this.spans[0].start, this.spans.at(-1).end] : [0, 1]; }

  // The position on the axis of something that happened after this many rounds.
  getPosition(rounds) {
    if (this.axis === "round") return rounds;
    const span = this.spans[this.findBucket(rounds + 1)];
    const { first_round: first, last_round: last } = span.bucket;
    return span.start + ((rounds + 1 - first) / (last - first + 1)) * (span.end - span.start);
  }

  findBucket(round) {
    const index = this.spans.findIndex(({ bucket }) => bucket.last_round >= round);
    return index < 0 ? this.spans.length - 1 : index;
  }

  findSpan(value) {
    let low = 0, high = this.spans.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle].end <= value) low = middle + 1; else high = middle;
    }
    return low;
  }

  chooseTicks(most) {
    const [from, to] = this.extent;
    if (this.axis === "round") {
      return chooseTicks(from, to, most).filter(Number.isInteger).map((at) => ({ at, words: at.toLocaleString() }));
    }
    return chooseTimeTicks(from / 1000, to / 1000, most).map(({ at, words }) => ({ at: at * 1000, words }));
  }

  // The times [from, to) between two values on the axis.
  getTimes(from, to) {
    if (this.axis === "time") return [from, to];
    const [first, last] = [this.spans[this.findSpan(from)], this.spans[this.findSpan(to)]];
    return [parseMicros(first.bucket.first_decided_at), parseMicros(last.bucket.last_decided_at) + 1];
  }

  // --- as text ------------------------------------------------------------------------------------------------

  describeTime(bucket) {
    const { first_round: first, last_round: last } = bucket;
    const rounds = first === last ? `round ${first.toLocaleString()}` : `rounds ${first.toLocaleString()}–${last.toLocaleString()}`;
    return `${rounds} · ${this._formatTime(bucket.first_decided_at)}`;
  }

  _formatTime(text) {
    const { buckets } = this.series;
    const span = parseMicros(buckets.at(-1).last_decided_at) - parseMicros(buckets[0].first_decided_at);
    const parts = { hour: "2-digit", minute: "2-digit" };
    if (span < HOUR) parts.second = "2-digit";
    if (span > DAY / 2) Object.assign(parts, { day: "numeric", month: "short" });
    return new Date(text).toLocaleString(undefined, parts);
  }

  // Regime changes and changes made by people, in order.
  _listEvents() {
    if (!this.spans.length) return [];
    const changes = this.series.regime_changes.map((change) => ({
      kind: "regime",
      round: change.since_round - 1,
      regime: change.after,
      short: `${nameRegime(change.after, change.after_label)} · ${change.since_round.toLocaleString()}`,
      words: `${nameRegime(change.after, change.after_label)} most likely from round ${change.since_round.toLocaleString()} on`,
      when: change.decided_at,
    }));
    const revisions = this.series.revisions.filter(({ kind }) => kind !== "created").map((revision) => ({
      kind: revision.kind,
      round: revision.round,
      words: `${describeRevision(revision)}, after round ${revision.round.toLocaleString()}`,
      when: revision.created_at,
    }));
    const all = [...changes, ...revisions].map((event) => ({
      ...event, at: this.getPosition(event.round), bucket: this.findBucket(event.round + 1),
    }));
    return all.sort((one, other) => one.round - other.round);
  }

  describeRange() {
    const { series } = this;
    if (!series?.buckets.length) return "No decisions in this range";
    const count = pluralize(series.last_round - series.first_round + 1, "decision");
    const { buckets, regime_changes: changes } = series;
    const turns = changes.length ? `; ${pluralize(changes.length + series.regime_changes_left_out, "regime change")}` : "";
    return `${count}, rounds ${series.first_round.toLocaleString()} to ${series.last_round.toLocaleString()}, `
      + `${this._formatTime(buckets[0].first_decided_at)} to ${this._formatTime(buckets.at(-1).last_decided_at)}${turns}`;
  }
}


// The list of campaigns: first their names, then each one's health, as it comes into view.

import { address, get } from "./api.js";
import { $, h, number, tell, when, whole } from "./dom.js";
import { ago, decimals, liftOf, means, regimeNow, verdictOn, worst } from "./health.js";
import { offerDemo, playing } from "./play.js";
import { sparkline } from "./sparkline.js";
import { me } from "./who.js";
import { share as portion } from "./words.js";

const REFRESH_MS = 10_000, STALE_MS = 60_000, PAGE = 50, AT_ONCE = 4, SEARCH_FROM = 10, MOST_PAGES = 40;
const MARKS = { problem: "✕", warning: "!", begun: "○", fine: "✓" };
const HEALTH = { problem: "Problem", warning: "Warning", begun: "Just begun", fine: "Fine" };
const COLUMNS = ["name", "round", "last", "regime", "trend", "lift", "health"];
const TITLES = ["Campaign", "Decisions", "Last decision", "Regime now", "Reward trend", "Lift over control", "Health"];

const rows = new Map(); // name -> Row, in the order of the page
let archived = location.hash === "#archived", pages = 1, more = null;

// --- one campaign -----------------------------------------------------------------------------------------------------

class Row {
  constructor(summary) {
    this.cells = Object.fromEntries(COLUMNS.map((column, i) => [
      column, h("td", { role: "cell", "data-title": TITLES[i], class: column === "round" ? "round number" : column })]));
    this.element = h("tr", { role: "row" }, Object.values(this.cells));
    this.element.row = this;
    this.shown = {};
    this.asked = { key: null, at: 0 };
    this.update(summary);
  }

  // A cell is made anew only if what it shows has changed, so nothing flickers and selections stay.
  show(column, data, children) {
    const key = JSON.stringify(data);
    if (this.shown[column] === key) return;
    this.shown[column] = key;
    this.cells[column].replaceChildren(...[children()].flat().filter((child) => child !== null));
  }

  update(summary) {
    this.summary = summary;
    const { name, paused, round } = summary;
    this.show("name", [name, paused], () => [
      h("a", { href: address(`/view/${encodeURIComponent(name)}`) }, name),
      paused ? h("span", { class: "tag" }, "paused") : null]);
    this.show("round", round, () => whole(round));
    this.details();
  }

  details() {
    const { belief, round } = this.summary, { series, diagnostics } = this;
    if (!series) {
      for (const column of ["last", "regime", "trend", "lift"]) this.show(column, "…", () => h("span", { class: "soft waiting" }, "…"));
    } else {
      const last = series.buckets.at(-1)?.last_decided_at;
      this.show("last", last ? [ago(last), last] : null, () => (last ? h("time", { datetime: last, title: when(last) }, ago(last)) : soft("none yet")));
      this.show("regime", [belief, series.regime_labels, !round], () => regimeCell(belief, series.regime_labels, round));
      const points = means(series.buckets);
      this.show("trend", points, () => trendCell(points));
      const lift = liftOf(series.buckets);
      this.show("lift", lift, () => liftCell(lift));
    }
    if (!diagnostics) this.show("health", "…", () => h("span", { class: "soft waiting" }, "…"));
    else {
      const { findings, verdict } = diagnostics, found = worst(findings);
      this.show("health", [found, verdict], () => [
        h("span", { class: `mark of-${found}` }, h("span", { "aria-hidden": "true" }, MARKS[found]), ` ${HEALTH[found]}`),
        h("span", { class: "verdict soft" }, verdict.replace(/^Just begun: /, ""))]);
    }
  }

  get stale() {
    return this.asked.key !== this.freshness || Date.now() - this.asked.at > STALE_MS;
  }

  get freshness() {
    const { round, rewards_received, model_version, paused, archived_at } = this.summary;
    return [round, rewards_received, model_version, paused, archived_at].join();
  }

  async load() {
    this.asked = { key: this.freshness, at: Date.now() };
    const path = `/campaigns/${encodeURIComponent(this.summary.name)}`;
    const [series, diagnostics] = await Promise.allSettled([get(`${path}/series?points=30`), get(`${path}/diagnostics`)]);
    this.series = series.value ?? this.series;
    this.diagnostics = diagnostics.value ?? this.diagnostics;
    this.details();
    for (const [column, { reason }, had] of [["lift", series, this.series], ["health", diagnostics, this.diagnostics]]) {
      if (reason && !had) this.show(column, reason.message, () => h("span", { class: "bad" }, reason.message));
    }
  }
}

const soft = (text) => h("span", { class: "soft" }, text);

function regimeCell(belief, labels, round) {
  if (!round) return soft("nothing seen yet");
  if (belief.length < 2) return [h("span", {}, labels[0] ?? "One regime"), soft("no other found so far")];
  const { likeliest, label, probability } = regimeNow(belief, labels);
  const parts = belief.map((share, i) => {
    const part = h("span", { class: `part c${i + 1}` });
    part.style.setProperty("--share", `${100 * share}%`);
    return part;
  });
  const told = belief.map((share, i) => `${labels[i] ?? `Regime ${i + 1}`} ${portion(share)}`).join(", ");
  return [
    h("span", {}, h("span", { class: `dot c${likeliest + 1}`, "aria-hidden": "true" }), ` ${label} `, soft(portion(probability))),
    h("span", { class: "beliefs", role: "img", "aria-label": `Belief: ${told}`, title: told }, parts)];
}

function trendCell(points) {
  const line = sparkline(points, "Mean reward of a decision");
  return line ? [line, soft(`${number(points.at(-1)[1])} lately`)] : soft(points.length ? "not enough yet" : "no rewards yet");
}

function liftCell(lift) {
  if (lift.why) return [h("span", {}, "Not yet"), soft(lift.why)];
  const signed = (value, digits = 0) => {
    const text = Math.abs(value).toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return `${!/[1-9]/.test(text) ? "" : value > 0 ? "+" : "−"}${text}`;
  };
  const digits = decimals(lift.high - lift.low);
  const verdict = verdictOn(lift), sign = { better: "▲", worse: "▼", unclear: "≈" }[verdict];
  const relative = lift.control_mean > 0 ? ` (${signed((100 * lift.difference) / lift.control_mean)} %)` : "";
  return [
    h("span", { class: { better: "good", worse: "bad", unclear: "" }[verdict] },
      h("span", { "aria-hidden": "true" }, `${sign} `), h("b", {}, signed(lift.difference, digits)), relative),
    soft(`${signed(lift.low, digits)} to ${signed(lift.high, digits)} a decision`),
    verdict === "unclear" ? soft("may be chance") : null];
}

// --- details, as rows come into view ----------------------------------------------------------------------------------

const waiting = new Set();
let busy = 0;

function next() {
  for (const row of waiting) {
    if (busy >= AT_ONCE) return;
    waiting.delete(row);
    busy += 1;
    row.load().finally(() => { busy -= 1; next(); });
  }
}

const inView = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      inView.add(target.row);
      if (target.row.stale) waiting.add(target.row);
    } else {
      inView.delete(target.row);
      waiting.delete(target.row);
    }
  }
  next();
}, { rootMargin: "200px" });

// --- the list ---------------------------------------------------------------------------------------------------------

async function listed() {
  const found = [];
  let cursor = "";
  for (let page = 0; page < pages; page += 1) {
    const answer = await get(`/campaigns?limit=${PAGE}&archived=${archived}&cursor=${encodeURIComponent(cursor)}`);
    found.push(...answer.campaigns);
    cursor = answer.next_cursor;
    if (cursor === null) break;
  }
  return { found, cursor };
}

function place(found) {
  const names = new Set(found.map(({ name }) => name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    observer.unobserve(row.element);
    inView.delete(row);
    waiting.delete(row);
    row.element.remove();
    rows.delete(name);
  }
  let before = $("#rows").firstElementChild;
  for (const summary of found) {
    const known = rows.get(summary.name);
    if (known) {
      known.update(summary);
      before = known.element.nextElementSibling;
    } else {
      const row = new Row(summary);
      rows.set(summary.name, row);
      $("#rows").insertBefore(row.element, before);
      observer.observe(row.element);
    }
  }
}

function filtered() {
  const wanted = $("#filter").value.trim().toLowerCase();
  let seen = 0;
  for (const [name, { element }] of rows) {
    element.hidden = !name.toLowerCase().includes(wanted);
    seen += !element.hidden;
  }
  const nothing = $("#nothing");
  nothing.hidden = seen > 0;
  $("#list").hidden = seen === 0;
  nothing.textContent = wanted ? `No campaign is called “${wanted}”.` : archived ? "No campaign is archived." : "No campaign is in use.";
}

let asking = null, anew = false;

// One at a time; asked for meanwhile, once more afterwards.
function refresh() {
  if (asking) { anew = true; return asking; }
  asking = refreshed().finally(() => {
    asking = null;
    if (anew) { anew = false; refresh(); }
  });
  return asking;
}

async function refreshed() {
  const of = archived;
  try {
    const { found, cursor } = await listed();
    const none = !found.length && !of && !(await get("/campaigns?limit=1&archived=true")).campaigns.length;
    if (of !== archived || playing) return;
    more = cursor;
    $("#failed").hidden = true;
    $("#tools").hidden = none;
    place(found);
    $("#first").hidden = !none;
    $("#search").hidden = rows.size <= SEARCH_FROM && !$("#filter").value;
    $("#more").hidden = more === null;
    filtered();
    if (none) $("#nothing").hidden = true;
    for (const row of inView) if (row.stale) waiting.add(row);
    next();
  } catch (error) {
    $("#failed").textContent = `The campaigns cannot be read: ${error.message}. Trying again.`;
    $("#failed").hidden = false;
  }
  $("#loading").hidden = true;
}

function choose(wanted) {
  archived = wanted;
  pages = 1;
  history.replaceState(null, "", archived ? "#archived" : location.pathname);
  $("#in-use").setAttribute("aria-pressed", !archived);
  $("#archived").setAttribute("aria-pressed", archived);
  refresh();
}

$("#in-use").addEventListener("click", () => choose(false));
$("#archived").addEventListener("click", () => choose(true));
$("#more").addEventListener("click", () => { pages += 1; refresh(); });
$("#filter").addEventListener("input", async () => {
  filtered();
  if (more === null) return;
  pages = MOST_PAGES; // whoever looks for a name looks among all
  await refresh();
  if (more !== null) tell(`Only the first ${whole(rows.size)} campaigns were searched.`);
});
me.then((who) => { // a stranger is on the way to the login page
  if (who.keys && !who.role) return;
  choose(archived);
  offerDemo();
  setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
  setInterval(() => { for (const row of inView) row.details(); }, REFRESH_MS / 2); // "… ago"
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
});

// The page of a campaign: asks the API, looks again every few seconds, and hands each card what it shows.

import { get } from "./api.js";
import { $, h } from "./dom.js";
import { ALL, between, micros, query, same, scaled } from "./range.js";
import { actionsChart } from "./charts/actions.js";
import { beliefChart } from "./charts/belief.js";
import { earnedChart, liftChart } from "./charts/earned.js";
import { definePatterns } from "./charts/marks.js";
import { Timeline } from "./charts/timeline.js";
import * as cards from "./campaign_cards.js";
import * as learned from "./campaign_model.js";
import { reportCards } from "./campaign_report.js";

const EVERY = 5_000; // milliseconds between two looks
const SELDOM = 30_000; // for what also changes without a decision: diagnostics by the clock, deliveries
const PATIENCE = 10; // a report is asked for again after ten times as long as it took
const MOST_POINTS = 400;

const path = `/campaigns/${encodeURIComponent(document.body.dataset.name)}`;
const known = {}; // the last answer of each kind, as text: what did not change is not drawn again
const page = { state: null, view: ALL, earlier: [], extent: null, seldom: 0, stamp: "" };

const timeline = new Timeline({
  zoomed: (from, to) => look(between(from, to, page.extent)),
  step: (action) => step(action),
});

// --- asking -------------------------------------------------------------------------------------------------------

function changed(kind, found) {
  const text = JSON.stringify(found);
  const different = known[kind] !== text;
  known[kind] = text;
  return different;
}

async function show(kind, address, draw, signal) {
  const found = await get(address, signal);
  const { round, ...shown } = found; // which every decision moves, and no card but the head shows
  if (changed(kind, shown)) draw(found);
  return found;
}

const points = () => Math.max(60, Math.min(MOST_POINTS, Math.floor($("#belief .plot").clientWidth / 2)));

let asking = null; // for the series: a newer zoom replaces an older question

async function showSeries() {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const range = query(page.view, page.extent);
  const series = await get(`${path}/series?points=${points()}${range && `&${range}`}`, signal);
  const whole = page.view === ALL ? series : await get(`${path}/series?points=10`, signal);
  if (whole.buckets.length) {
    page.extent = [micros(whole.buckets[0].first_decided_at), micros(whole.buckets.at(-1).last_decided_at)];
    page.lastDecided = whole.buckets.at(-1).last_decided_at;
  }
  if (changed("series", series)) {
    timeline.show(series);
    cards.events($("#belief .events > div"), timeline);
    $("#shown").textContent = timeline.range;
  }
  if (reports.range !== range) cards.liftWords(series);
}

// Reports read the whole log: seldom enough never to keep the service busy, and one at a time.
const reports = { asked: null, next: 0, running: false };

async function showReport() {
  const range = query(page.view, page.extent);
  const wanted = `${range}|${page.stamp}`;
  if (reports.running || reports.asked === wanted || (Date.now() < reports.next && reports.range === range)) return;
  reports.running = true;
  const began = Date.now();
  try {
    const report = await get(`${path}/report${range && `?${range}`}`);
    const wait = page.state.config.rewards.wait_seconds;
    const due = wait === null ? null : new Date(Date.now() - 1000 * wait);
    const overdue = due && page.extent && due > page.extent[0] / 1000 ? await get(`${path}/report?to=${due.toISOString()}`) : null;
    Object.assign(reports, { asked: wanted, range });
    if (changed("report", [report, overdue?.rewards, page.state.config])) {
      reportCards(report, page.state, page.view !== ALL);
      cards.rewards($("#rewards .body"), report, overdue, page.state, page.view !== ALL);
    }
  } finally {
    reports.running = false;
    reports.next = Date.now() + PATIENCE * (Date.now() - began);
  }
  if (range !== query(page.view, page.extent)) await showReport();
}

async function refresh() {
  const early = page.state ? null : showSeries(); // at first the charts need not wait for anything else
  early?.catch(() => {}); // told below
  const state = await get(path);
  await early?.catch(() => {}); // nothing competes with what the charts wait for
  const stamp = [state.round, state.rewards_received, state.model_version, state.archived_at, JSON.stringify(state.config)].join();
  const moved = stamp !== page.stamp;
  page.state = state;
  const seldom = Date.now() > page.seldom;
  if (moved || seldom) {
    page.seldom = Date.now() + SELDOM;
    const each = [
      show("alerts", `${path}/alerts?limit=5`, (found) => cards.alerts($("#alerts .body"), found, state)),
      show("health", `${path}/diagnostics`, (found) => cards.health($("#health .body"), found)),
    ];
    if (moved) {
      each.push(
        (early ?? showSeries()).catch(unlessReplaced),
        show("stages", `${path}/stages?limit=50`, (found) => cards.stages($("#stages .body"), found)),
        show("model", `${path}/model`, (found) => learned.modelCards(found, state)),
        get(`${path}/regimes`).then((found) => { page.regimes = found; }),
      );
    }
    const [, health] = await Promise.all(each);
    Object.assign(page, { health, stamp }); // now, so that what failed is asked for again
  }
  cards.head(page);
  showReport().catch(failed);
}

// --- looking ------------------------------------------------------------------------------------------------------

function look(view, keep = true) {
  if (same(view, page.view)) return;
  if (keep) page.earlier.push(page.view);
  page.view = view;
  toolbar();
  $("#page").setAttribute("aria-busy", "true");
  showSeries().then(() => showReport()).catch(failed).finally(() => $("#page").removeAttribute("aria-busy"));
}

function step(action) {
  if (action === "all") look(ALL);
  if (action === "back" && page.earlier.length) look(page.earlier.pop(), false);
  if (action !== "in" && action !== "out") return;
  const span = timeline.cursor === null ? null : timeline.spans[timeline.cursor].bucket;
  const around = span && action === "in" ? (micros(span.first_decided_at) + micros(span.last_decided_at)) / 2 : null;
  look(scaled(page.view, page.extent, action === "in" ? 0.5 : 2, around));
}

// A question that a newer one has replaced did not fail.
function unlessReplaced(error) {
  if (error.name !== "AbortError") throw error;
}

function toolbar() {
  for (const button of document.querySelectorAll("[data-view]")) {
    const own = button.dataset.view === "all" ? ALL : last(Number(button.dataset.view));
    button.setAttribute("aria-pressed", same(own, page.view));
  }
  $("[data-step=back]").disabled = !page.earlier.length;
}

const last = (seconds) => ({ kind: "last", span: seconds * 1_000_000 });

function failed(error) {
  if (error.name === "AbortError") return;
  const place = $("#failed");
  const words = error.status === 404 ? "There is no such campaign." : error.status === 403 ? "Your key may not see this campaign."
    : error.status ? error.message : "The service does not answer. This page keeps trying.";
  if (place.textContent !== words) place.replaceChildren(h("p", {}, words));
  place.hidden = false;
  if (error.status === 404 || error.status === 403) {
    $("#page").hidden = true;
    $("#now").hidden = true;
    $(".links").hidden = true;
  }
  return error;
}

async function watch() {
  if (!document.hidden) {
    try {
      await refresh();
      $("#failed").hidden = true;
    } catch (error) {
      if (failed(error)?.status === 404) return;
    }
  }
  clearTimeout(page.timer);
  page.timer = setTimeout(watch, EVERY);
}

definePatterns();
beliefChart(timeline, $("#belief .plot"), $("#belief .keys"));
actionsChart(timeline, $("#actions .plot"), $("#actions .keys"));
earnedChart(timeline, $("#earned-plot"), $("#earned .keys"));
liftChart(timeline, $("#lift-plot"));
document.querySelector(".toolbar").addEventListener("click", ({ target }) => {
  const { view, step: action, axis } = target.dataset;
  if (view) look(view === "all" ? ALL : last(Number(view)));
  if (action) step(action);
  if (axis) {
    timeline.byAxis(axis);
    for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button === target);
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(page.timer); watch(); } });
watch();

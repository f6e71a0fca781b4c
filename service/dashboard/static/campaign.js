// A campaign's page: polls the API every few seconds and passes each card its data.

import { get } from "./api.js";
import { $, h } from "./dom.js";
import { ALL, buildQuery, isSame, makeRange, parseMicros, scaleRange } from "./range.js";
import { addActionsChart } from "./charts/actions.js";
import { addBeliefChart } from "./charts/belief.js";
import { addEarnedChart, addLiftChart } from "./charts/earned.js";
import { definePatterns } from "./charts/marks.js";
import { Timeline } from "./charts/timeline.js";
import * as cards from "./campaign_cards.js";
import { drawModelCards } from "./campaign_model.js";
import { drawReportCards } from "./campaign_report.js";

const POLL_MS = 5_000;
const SLOW_POLL_MS = 30_000; // for data that also changes without a decision: diagnostics, webhook deliveries
const REPORT_PAUSE = 10; // wait this many times as long as a report took before requesting the next
const MAX_POINTS = 400;

const path = `/campaigns/${encodeURIComponent(document.body.dataset.name)}`;
const known = {}; // the last result of each kind, as text: unchanged results are not redrawn
const page = { state: null, view: ALL, history: [], extent: null, slowPollAt: 0, version: "" };

const timeline = new Timeline({
  onZoom: (from, to) => showView(makeRange(from, to, page.extent)),
  onStep: step,
});

// --- loading ------------------------------------------------------------------------------------------------------

function hasChanged(kind, result) {
  const text = JSON.stringify(result);
  const different = known[kind] !== text;
  known[kind] = text;
  return different;
}

async function loadCard(kind, address, draw) {
  const result = await get(address);
  const { round, ...content } = result; // every decision changes the round, but only the head shows it
  if (hasChanged(kind, content)) draw(result);
  return result;
}

const countPoints = () => Math.max(60, Math.min(MAX_POINTS, Math.floor($("#belief .plot").clientWidth / 2)));

let loading = null; // of the series: a newer request replaces an older one

async function loadSeries() {
  loading?.abort();
  loading = new AbortController();
  const { signal } = loading;
  const range = buildQuery(page.view, page.extent);
  const series = await get(`${path}/series?points=${countPoints()}${range && `&${range}`}`, signal);
  const whole = page.view === ALL ? series : await get(`${path}/series?points=10`, signal);
  if (whole.buckets.length) {
    page.extent = [parseMicros(whole.buckets[0].first_decided_at), parseMicros(whole.buckets.at(-1).last_decided_at)];
    page.lastDecided = whole.buckets.at(-1).last_decided_at;
  }
  if (hasChanged("series", series)) {
    timeline.show(series);
    cards.drawEvents($("#belief .events > div"), timeline);
    $("#range").textContent = timeline.describeRange();
  }
  if (reports.range !== range) cards.drawLiftSentence(series);
}

// Reports read the whole log, so they are requested one at a time and with pauses that keep the service free.
const reports = { shown: null, next: 0, running: false };

async function loadReport() {
  const range = buildQuery(page.view, page.extent);
  const wanted = `${range}|${page.version}`;
  if (reports.running || reports.shown === wanted || (Date.now() < reports.next && reports.range === range)) return;
  reports.running = true;
  const began = Date.now();
  try {
    const report = await get(`${path}/report${range && `?${range}`}`);
    Object.assign(reports, { shown: wanted, range });
    if (hasChanged("report", [report, page.state.config])) {
      drawReportCards(report, page.state, page.view !== ALL);
      cards.drawRewards($("#rewards .body"), report, page.state, page.view !== ALL);
    }
  } finally {
    reports.running = false;
    reports.next = Date.now() + REPORT_PAUSE * (Date.now() - began);
  }
  if (range !== buildQuery(page.view, page.extent)) await loadReport();
}

async function refresh() {
  const early = page.state ? null : loadSeries(); // the first time, the charts wait for nothing else
  early?.catch(() => {}); // reported below
  const state = await get(path);
  await early?.catch(() => {}); // let the charts load first
  const version = [state.round, state.rewards_received, state.model_version, state.archived_at, JSON.stringify(state.config)].join();
  const changed = version !== page.version;
  page.state = state;
  const isSlowPoll = Date.now() > page.slowPollAt;
  if (changed || isSlowPoll) {
    page.slowPollAt = Date.now() + SLOW_POLL_MS;
    const requests = [
      loadCard("alerts", `${path}/alerts?limit=5`, (result) => cards.drawAlerts($("#alerts .body"), result, state)),
      loadCard("health", `${path}/diagnostics`, (result) => cards.drawHealth($("#health .body"), result)),
    ];
    if (changed) {
      requests.push(
        (early ?? loadSeries()).catch(ignoreAbort),
        loadCard("stages", `${path}/stages?limit=50`, (result) => cards.drawStages($("#stages .body"), result)),
        loadCard("model", `${path}/model`, (result) => drawModelCards(result, state)),
        get(`${path}/regimes`).then((result) => { page.regimes = result; }),
      );
    }
    const [, health] = await Promise.all(requests);
    Object.assign(page, { health, version }); // only now, so that failed requests are repeated
  }
  cards.drawHead(page);
  loadReport().catch(showFailure);
}

// --- the view -----------------------------------------------------------------------------------------------------

function showView(view, remember = true) {
  if (isSame(view, page.view)) return;
  if (remember) page.history.push(page.view);
  page.view = view;
  updateToolbar();
  $("#page").setAttribute("aria-busy", "true");
  loadSeries().then(() => loadReport()).catch(showFailure).finally(() => $("#page").removeAttribute("aria-busy"));
}

function step(action) {
  if (action === "all") showView(ALL);
  if (action === "back" && page.history.length) showView(page.history.pop(), false);
  if (action !== "in" && action !== "out") return;
  const span = timeline.cursor === null ? null : timeline.spans[timeline.cursor].bucket;
  const around = span && action === "in" ? (parseMicros(span.first_decided_at) + parseMicros(span.last_decided_at)) / 2 : null;
  showView(scaleRange(page.view, page.extent, action === "in" ? 0.5 : 2, around));
}

// A request that was replaced by a newer one did not fail.
function ignoreAbort(error) {
  if (error.name !== "AbortError") throw error;
}

function updateToolbar() {
  for (const button of document.querySelectorAll("[data-view]")) {
    const own = button.dataset.view === "all" ? ALL : makeLast(Number(button.dataset.view));
    button.setAttribute("aria-pressed", isSame(own, page.view));
  }
  $("[data-step=back]").disabled = !page.history.length;
}

const makeLast = (seconds) => ({ kind: "last", span: seconds * 1_000_000 });

function showFailure(error) {
  if (error.name === "AbortError") return;
  const place = $("#failed");
  const message = error.status === 404 ? "Campaign not found." : error.status === 403 ? "Your key does not give access to this campaign."
    : error.status ? error.message : "The service is not responding. Retrying.";
  if (place.textContent !== message) place.replaceChildren(h("p", {}, message));
  place.hidden = false;
  if (error.status === 404 || error.status === 403) {
    $("#page").hidden = true;
    $("#now").hidden = true;
    $(".links").hidden = true;
  }
  return error;
}

async function poll() {
  if (!document.hidden) {
    try {
      await refresh();
      $("#failed").hidden = true;
    } catch (error) {
      if (showFailure(error)?.status === 404) return;
    }
  }
  clearTimeout(page.timer);
  page.timer = setTimeout(poll, POLL_MS);
}

definePatterns();
addBeliefChart(timeline, $("#belief .plot"), $("#belief .keys"));
addActionsChart(timeline, $("#actions .plot"), $("#actions .keys"));
addEarnedChart(timeline, $("#earned-plot"), $("#earned .keys"));
addLiftChart(timeline, $("#lift-plot"));
document.querySelector(".toolbar").addEventListener("click", ({ target }) => {
  const { view, step: action, axis } = target.dataset;
  if (view) showView(view === "all" ? ALL : makeLast(Number(view)));
  if (action) step(action);
  if (axis) {
    timeline.setAxis(axis);
    for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button === target);
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(page.timer); poll(); } });
poll();

// The list of campaigns: names first, then the details of each row as it scrolls into view.

import { get, toUrl } from "./api.js";
import { $, formatInteger, formatNumber, formatTime, h, notify } from "./dom.js";
import { chooseDecimals, computeMeans, findMostLikelyRegime, findWorst, formatAgo, getLift, judgeLift } from "./health.js";
import { isPlaying, offerDemo } from "./play.js";
import { drawSparkline } from "./sparkline.js";
import { me } from "./who.js";
import { formatShare } from "./words.js";

const REFRESH_MS = 10_000, STALE_MS = 60_000, PAGE_SIZE = 50, MAX_LOADING = 4, SEARCH_FROM = 10, MAX_PAGES = 40;
const MARKS = { problem: "✕", warning: "!", begun: "○", fine: "✓" };
const HEALTH = { problem: "Problem", warning: "Warning", begun: "Just started", fine: "Good" };
const COLUMNS = ["name", "round", "last", "regime", "trend", "lift", "health"];
const TITLES = ["Campaign", "Decisions", "Last decision", "Current regime", "Reward trend", "Lift over control", "Health"];

const rows = new Map(); // name -> Row, in page order
let archived = location.hash === "#archived", pages = 1, nextCursor = null;

// --- one campaign -----------------------------------------------------------------------------------------------------

class Row {
  constructor(summary) {
    this.cells = Object.fromEntries(COLUMNS.map((column, i) => [
      column, h("td", { role: "cell", "data-title": TITLES[i], class: column === "round" ? "round number" : column })]));
    this.element = h("tr", { role: "row" }, Object.values(this.cells));
    this.element.row = this;
    this.shown = {};
    this.loaded = { key: null, at: 0 };
    this.update(summary);
  }

  // Redraw a cell only if its data changed, so that nothing flickers and selections stay.
  drawCell(column, data, makeChildren) {
    const key = JSON.stringify(data);
    if (this.shown[column] === key) return;
    this.shown[column] = key;
    this.cells[column].replaceChildren(...[makeChildren()].flat().filter((child) => child !== null));
  }

  update(summary) {
    this.summary = summary;
    const { name, paused, round } = summary;
    this.drawCell("name", [name, paused], () => [
      h("a", { href: toUrl(`/view/${encodeURIComponent(name)}`) }, name),
      paused ? h("span", { class: "tag" }, "paused") : null]);
    this.drawCell("round", round, () => formatInteger(round));
    this.drawDetails();
  }

  drawDetails() {
    const { belief, round } = this.summary, { series, diagnostics } = this;
    if (!series) {
      for (const column of ["last", "regime", "trend", "lift"]) this.drawCell(column, "…", () => h("span", { class: "soft waiting" }, "…"));
    } else {
      const last = series.buckets.at(-1)?.last_decided_at;
      this.drawCell("last", last ? [formatAgo(last), last] : null, () => (last ? h("time", { datetime: last, title: formatTime(last) }, formatAgo(last)) : makeSoft("none yet")));
      this.drawCell("regime", [belief, series.regime_labels, !round], () => makeRegimeCell(belief, series.regime_labels, round));
      const points = computeMeans(series.buckets);
      this.drawCell("trend", points, () => makeTrendCell(points, this.summary.rewards_received));
      const lift = getLift(series.buckets);
      this.drawCell("lift", lift, () => makeLiftCell(lift));
    }
    if (!diagnostics) this.drawCell("health", "…", () => h("span", { class: "soft waiting" }, "…"));
    else {
      const { findings, verdict } = diagnostics, worst = findWorst(findings);
      this.drawCell("health", [worst, verdict], () => [
        h("span", { class: `mark of-${worst}` }, h("span", { "aria-hidden": "true" }, MARKS[worst]), ` ${HEALTH[worst]}`),
        h("span", { class: "verdict soft" }, worst === "begun" ? verdict.replace(/^[^:]+: /, "") : verdict)]);
    }
  }

  get isStale() {
    return this.loaded.key !== this.version || Date.now() - this.loaded.at > STALE_MS;
  }

  get version() {
    const { round, rewards_received, model_version, paused, archived_at } = this.summary;
    return [round, rewards_received, model_version, paused, archived_at].join();
  }

  async load() {
    this.loaded = { key: this.version, at: Date.now() };
    const path = `/campaigns/${encodeURIComponent(this.summary.name)}`;
    const [series, diagnostics] = await Promise.allSettled([get(`${path}/series?points=30`), get(`${path}/diagnostics`)]);
    this.series = series.value ?? this.series;
    this.diagnostics = diagnostics.value ?? this.diagnostics;
    this.drawDetails();
    for (const [column, { reason }, had] of [["lift", series, this.series], ["health", diagnostics, this.diagnostics]]) {
      if (reason && !had) this.drawCell(column, reason.message, () => h("span", { class: "bad" }, reason.message));
    }
  }
}

const makeSoft = (text) => h("span", { class: "soft" }, text);

function makeRegimeCell(belief, labels, round) {
  if (!round) return makeSoft("no decisions yet");
  if (belief.length < 2) return [h("span", {}, labels[0] ?? "One regime"), makeSoft("no others found yet")];
  const { index, label, probability } = findMostLikelyRegime(belief, labels);
  const parts = belief.map((share, i) => {
    const part = h("span", { class: `part c${i + 1}` });
    part.style.setProperty("--share", `${100 * share}%`);
    return part;
  });
  const description = belief.map((share, i) => `${labels[i] ?? `Regime ${i + 1}`} ${formatShare(share)}`).join(", ");
  return [
    h("span", {}, h("span", { class: `dot c${index + 1}`, "aria-hidden": "true" }), ` ${label} `, makeSoft(formatShare(probability))),
    h("span", { class: "beliefs", role: "img", "aria-label": `Belief: ${description}`, title: description }, parts)];
}

function makeTrendCell(points, received) {
  const line = drawSparkline(points, "Mean reward per decision");
  return line ? [line, makeSoft(`${formatNumber(points.at(-1)[1])} recently`)] : makeSoft(points.length ? "not enough rewards yet" : received ? `${received.toLocaleString()} rewards received, none counts yet` : "no rewards yet");
}

function makeLiftCell(lift) {
  if (lift.why) return [h("span", {}, "Not yet"), makeSoft(lift.why)];
  const formatSigned = (value, digits = 0) => {
    const text = Math.abs(value).toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return `${!/[1-9]/.test(text) ? "" : value > 0 ? "+" : "−"}${text}`;
  };
  const digits = chooseDecimals(lift.high - lift.low);
  const verdict = judgeLift(lift), sign = { better: "▲", worse: "▼", unclear: "≈" }[verdict];
  const relative = lift.control_mean > 0 ? ` (${formatSigned((100 * lift.difference) / lift.control_mean)} %)` : "";
  return [
    h("span", { class: { better: "good", worse: "bad", unclear: "" }[verdict] },
      h("span", { "aria-hidden": "true" }, `${sign} `), h("b", {}, formatSigned(lift.difference, digits)), relative),
    makeSoft(`${formatSigned(lift.low, digits)} to ${formatSigned(lift.high, digits)} per decision`),
    verdict === "unclear" ? makeSoft("may be chance") : null];
}

// --- loading details as rows scroll into view -------------------------------------------------------------------------

const queue = new Set();
let loadingCount = 0;

function loadNext() {
  for (const row of queue) {
    if (loadingCount >= MAX_LOADING) return;
    queue.delete(row);
    loadingCount += 1;
    row.load().finally(() => { loadingCount -= 1; loadNext(); });
  }
}

const visibleRows = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      visibleRows.add(target.row);
      if (target.row.isStale) queue.add(target.row);
    } else {
      visibleRows.delete(target.row);
      queue.delete(target.row);
    }
  }
  loadNext();
}, { rootMargin: "200px" });

// --- the list ---------------------------------------------------------------------------------------------------------

async function fetchCampaigns() {
  const campaigns = [];
  let cursor = "";
  for (let i = 0; i < pages; i += 1) {
    const page = await get(`/campaigns?limit=${PAGE_SIZE}&archived=${archived}&cursor=${encodeURIComponent(cursor)}`);
    campaigns.push(...page.campaigns);
    cursor = page.next_cursor;
    if (cursor === null) break;
  }
  return { campaigns, cursor };
}

function drawRows(campaigns) {
  const names = new Set(campaigns.map(({ name }) => name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    observer.unobserve(row.element);
    visibleRows.delete(row);
    queue.delete(row);
    row.element.remove();
    rows.delete(name);
  }
  let before = $("#rows").firstElementChild;
  for (const summary of campaigns) {
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

function applyFilter() {
  const wanted = $("#filter").value.trim().toLowerCase();
  let matches = 0;
  for (const [name, { element }] of rows) {
    element.hidden = !name.toLowerCase().includes(wanted);
    matches += !element.hidden;
  }
  const nothing = $("#nothing");
  nothing.hidden = matches > 0;
  $("#list").hidden = matches === 0;
  nothing.textContent = wanted ? `No campaign matches “${wanted}”.` : archived ? "No archived campaigns." : "No active campaigns.";
}

let refreshing = null, again = false;

// One refresh at a time; calls made meanwhile lead to one more.
function refresh() {
  if (refreshing) { again = true; return refreshing; }
  refreshing = loadList().finally(() => {
    refreshing = null;
    if (again) { again = false; refresh(); }
  });
  return refreshing;
}

async function loadList() {
  const requested = archived;
  try {
    const { campaigns, cursor } = await fetchCampaigns();
    const none = !campaigns.length && !requested && !(await get("/campaigns?limit=1&archived=true")).campaigns.length;
    if (requested !== archived || isPlaying) return;
    nextCursor = cursor;
    $("#failed").hidden = true;
    $("#tools").hidden = none;
    drawRows(campaigns);
    $("#first").hidden = !none;
    $("#search").hidden = rows.size <= SEARCH_FROM && !$("#filter").value;
    $("#more").hidden = nextCursor === null;
    applyFilter();
    if (none) $("#nothing").hidden = true;
    for (const row of visibleRows) if (row.isStale) queue.add(row);
    loadNext();
  } catch (error) {
    $("#failed").textContent = `Cannot load the campaigns: ${error.message}. Retrying.`;
    $("#failed").hidden = false;
  }
  $("#loading").hidden = true;
}

function showList(wantArchived) {
  archived = wantArchived;
  pages = 1;
  history.replaceState(null, "", archived ? "#archived" : location.pathname);
  $("#active").setAttribute("aria-pressed", !archived);
  $("#archived").setAttribute("aria-pressed", archived);
  refresh();
}

$("#active").addEventListener("click", () => showList(false));
$("#archived").addEventListener("click", () => showList(true));
$("#more").addEventListener("click", () => { pages += 1; refresh(); });
$("#filter").addEventListener("input", async () => {
  applyFilter();
  if (nextCursor === null) return;
  pages = MAX_PAGES; // search all campaigns, not only those listed so far
  await refresh();
  if (nextCursor !== null) notify(`Only the first ${formatInteger(rows.size)} campaigns were searched.`);
});
me.then((who) => { // without a valid key, who.js is already redirecting to the login page
  if (who.keys && !who.role) return;
  showList(archived);
  offerDemo();
  setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
  setInterval(() => { for (const row of visibleRows) row.drawDetails(); }, REFRESH_MS / 2); // "… ago"
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
});

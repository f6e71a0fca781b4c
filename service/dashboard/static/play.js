// Runs the demo through the public API: creates a campaign, requests decisions for simulated customers, reports rewards.

import { toUrl, callApi, get, post } from "./api.js";
import { CUSTOMERS, DEMO, REGIMES, simulateMarket } from "./demo.js";
import { $, formatInteger } from "./dom.js";
import { disableUnlessAdmin, me } from "./who.js";

const BATCH_SIZE = 25; // customers per request
export let isPlaying = false;

// Create a campaign with the first free name. The cursor "demn" sorts just before "demo".
async function createDemo() {
  const lists = await Promise.all([false, true].map((archived) => get(`/campaigns?limit=200&cursor=demn&archived=${archived}`)));
  const taken = new Set(lists.flatMap(({ campaigns }) => campaigns.map(({ name }) => name)));
  let name = "demo";
  for (let number = 2; taken.has(name); number += 1) name = `demo-${number}`;
  return (await post("/campaigns", { name, ...DEMO })).name;
}

async function playCustomers(campaign, onProgress) {
  const customers = [...simulateMarket(CUSTOMERS)];
  for (let begin = 0; begin < customers.length; begin += BATCH_SIZE) {
    const batch = customers.slice(begin, begin + BATCH_SIZE);
    const items = batch.map(({ context }, i) => ({ decision_id: `demo-${begin + i + 1}`, context }));
    const { decisions } = await post("/decide/batch", { campaign, items });
    const rewards = decisions.map(({ decision_id, action }, i) => ({ decision_id, reward: batch[i].earned(action) }));
    await post("/reward/batch", { campaign, items: rewards });
    onProgress(begin + batch.length);
  }
}

// Users name regimes once they know what they mean; the demo knows already.
async function nameDemoRegimes(campaign) {
  const { regimes } = await get(`/campaigns/${campaign}/model`);
  if (regimes.length !== REGIMES.length) return;
  const social = regimes.map(({ signals }) => signals.source.social);
  const labels = social[0] < social[1] ? REGIMES : REGIMES.toReversed();
  await callApi("PATCH", `/campaigns/${campaign}`, { regime_labels: labels.map(({ label }) => label) });
}

async function runDemo() {
  const button = $("#demo"), bar = $("#progress"), label = $("#progress-label"), failed = $("#demo-failed");
  isPlaying = true;
  button.hidden = true;
  failed.textContent = "";
  $("#playing").hidden = false;
  try {
    const campaign = await createDemo();
    await playCustomers(campaign, (done) => {
      bar.value = done / CUSTOMERS;
      label.textContent = `${formatInteger(done)} of ${formatInteger(CUSTOMERS)} customers`;
    });
    await nameDemoRegimes(campaign);
    location.assign(toUrl(`/view/${campaign}`));
  } catch (error) {
    failed.textContent = `The demo stopped: ${error.message}`;
    button.hidden = false;
    button.textContent = "Try again";
    $("#playing").hidden = true;
    isPlaying = false;
  }
}

// Set up the controls shown while there are no campaigns.
export async function offerDemo() {
  $("#demo").addEventListener("click", runDemo);
  const key = (await me).keys ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  const example = `{
  "name": "my-offers",
  "actions": ["none", "mail"],
  "variables": [
    {"name": "risk", "levels": ["low", "high"]}
  ]
}`;
  $("#curl").textContent = `curl ${location.origin}${toUrl("/campaigns")}${key} -d '${example}'`;
  await disableUnlessAdmin($("#demo"));
  await disableUnlessAdmin($("#first-new"));
}

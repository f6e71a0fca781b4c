// Playing the demo through the public API: create a campaign, let it decide for simulated customers, report what they earn.

import { address, ask, get, post } from "./api.js";
import { CUSTOMERS, DEMO, REGIMES, market } from "./demo.js";
import { $, whole } from "./dom.js";
import { adminOnly, me } from "./who.js";

const AT_ONCE = 25; // customers a request
export let playing = false;

// A campaign of the first name that is free. The cursor is the name before.
async function created() {
  const lists = await Promise.all([false, true].map((archived) => get(`/campaigns?limit=200&cursor=demn&archived=${archived}`)));
  const taken = new Set(lists.flatMap(({ campaigns }) => campaigns.map(({ name }) => name)));
  let name = "demo";
  for (let number = 2; taken.has(name); number += 1) name = `demo-${number}`;
  return (await post("/campaigns", { name, ...DEMO })).name;
}

async function played(campaign, told) {
  const customers = [...market(CUSTOMERS)];
  for (let begin = 0; begin < customers.length; begin += AT_ONCE) {
    const batch = customers.slice(begin, begin + AT_ONCE);
    const items = batch.map(({ context }, i) => ({ decision_id: `demo-${begin + i + 1}`, context }));
    const { decisions } = await post("/decide/batch", { campaign, items });
    const rewards = decisions.map(({ decision_id, action }, i) => ({ decision_id, reward: batch[i].earned(action) }));
    await post("/reward/batch", { campaign, items: rewards });
    told(begin + batch.length);
  }
}

// People give regimes their names once they see what they are; here it is known.
async function named(campaign) {
  const { regimes } = await get(`/campaigns/${campaign}/model`);
  if (regimes.length !== REGIMES.length) return;
  const social = regimes.map(({ signals }) => signals.source.social);
  const labels = social[0] < social[1] ? REGIMES : REGIMES.toReversed();
  await ask("PATCH", `/campaigns/${campaign}`, { regime_labels: labels.map(({ label }) => label) });
}

async function play() {
  const button = $("#demo"), bar = $("#progress"), told = $("#progress-told"), failed = $("#demo-failed");
  playing = true;
  button.hidden = true;
  failed.textContent = "";
  $("#playing").hidden = false;
  try {
    const campaign = await created();
    await played(campaign, (done) => {
      bar.value = done / CUSTOMERS;
      told.textContent = `${whole(done)} of ${whole(CUSTOMERS)} customers`;
    });
    await named(campaign);
    location.assign(address(`/view/${campaign}`));
  } catch (error) {
    failed.textContent = `The demo stopped: ${error.message}`;
    button.hidden = false;
    button.textContent = "Try again";
    $("#playing").hidden = true;
    playing = false;
  }
}

// The controls of the page that has no campaign yet.
export async function offerDemo() {
  $("#demo").addEventListener("click", play);
  const key = (await me).keys ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  const example = `{
  "name": "my-offers",
  "actions": ["none", "mail"],
  "variables": [
    {"name": "risk", "levels": ["low", "high"]}
  ]
}`;
  $("#curl").textContent = `curl ${location.origin}${address("/campaigns")}${key} -d '${example}'`;
  await adminOnly($("#demo"));
  await adminOnly($("#first-new"));
}

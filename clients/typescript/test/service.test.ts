/** The client, and OpenFeature's official provider, with the real service. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { OFREPProvider } from "@openfeature/ofrep-provider";
import { ErrorCode, OpenFeature } from "@openfeature/server-sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Client, ConflictError, InvalidError, NotFoundError, RewardQueue } from "../src/index.js";
import { FileStorage } from "../src/node.js";
import { CAMPAIGN, CUSTOMER, Service } from "./service.js";

const ROUNDS = 1_000;
const PATIENCE = { patienceMs: 600_000, timeoutMs: 600_000, deadlineMs: 600_000 };
const service = new Service();

beforeAll(() => service.start());
afterAll(() => service.kill());

test("the whole surface", async () => {
  const client = new Client(service.url, PATIENCE);
  const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as { version: string };
  expect(await client.getVersion()).toBe(version);
  expect((await client.checkCampaign(CAMPAIGN)).actions).toEqual(CAMPAIGN.actions);
  const config = await client.createCampaign(CAMPAIGN);
  expect((await client.getCampaign("spring-offers")).config).toEqual(config);
  const decision = await client.decide("spring-offers", CUSTOMER, { baseline: "none" });
  const { decision_id } = decision;
  expect(await client.decide("spring-offers", CUSTOMER, { decision_id })).toEqual(decision);
  const bad = { context: { risk: "odd", revenue: 1 } };
  const items = [{ context: CUSTOMER, decision_id: "b1" }, bad, { context: CUSTOMER }];
  const refused = await client.decideBatch("spring-offers", items).catch((error: unknown) => error as InvalidError);
  expect(refused).toBeInstanceOf(InvalidError);
  expect((refused as InvalidError).fields[0]?.field).toBe("items[1].context.risk");
  const batch = await client.decideBatch("spring-offers", items, { on_error: "skip" });
  expect([batch.decisions.length, batch.skipped.map(({ item }) => item)]).toEqual([2, [1]]);
  expect((await client.reward("spring-offers", decision_id, 1.25)).reward).toBe(1.25);
  const rewards = [decision_id, "b1", "unknown"].map((id) => ({ decision_id: id, reward: 2 }));
  const results = await client.rewardBatch("spring-offers", rewards);
  expect(results[0]?.error).toBeInstanceOf(ConflictError);
  expect(results[1]?.committed?.reward).toBe(2);
  expect(results[2]?.error).toBeInstanceOf(NotFoundError);
  expect((await client.changeCampaign("spring-offers", { control: { share: 0.1 } })).config.control?.share).toBe(0.1);
  expect((await client.report("spring-offers", { from: new Date(0) })).decisions.total).toBe(3);
  const log = await new Response(await client.export("spring-offers")).text();
  expect(log.trim().split("\n").length).toBe(3);
  expect((await client.archiveCampaign("spring-offers")).archived_at).toBeTruthy();
  expect(await client.listCampaigns()).toEqual([]);
  expect((await client.listCampaigns({ archived: true }))[0]?.rewards_received).toBe(2);
  await client.unarchiveCampaign("spring-offers");
  await client.archiveCampaign("spring-offers");
  await client.deleteCampaign("spring-offers");
  await expect(client.getCampaign("spring-offers")).rejects.toThrow(NotFoundError);
});

test("rewards that change", async () => {
  const client = new Client(service.url, PATIENCE);
  const rewards = { range: [-10, 100] as [number, number], wait_seconds: 604_800, default: 0, correct_seconds: 2_592_000 };
  await client.createCampaign({ ...CAMPAIGN, name: "changing", rewards });
  const { decision_id } = await client.decide("changing", CUSTOMER, { subject: "someone" });
  const sale = { mode: "add", reward_id: "sale-1" } as const;
  const added = await client.reward("changing", decision_id, 30, sale);
  expect(added).toMatchObject({ amount: 30, reward: 30, reward_id: "sale-1", source: "client" });
  expect(await client.reward("changing", decision_id, 30, sale)).toEqual(added);
  expect((await client.reward("changing", decision_id, 12, { mode: "add" })).reward).toBe(42);
  await expect(client.reward("changing", decision_id, 31, sale)).rejects.toThrow(ConflictError);
  const corrected = await client.correct("changing", decision_id, 12, { reward_id: "cancelled-1" });
  expect(corrected).toMatchObject({ reward: 12, source: "correction" });
  const credited = await client.rewardSubject("changing", "someone", 20, { reward_id: "sale-3" });
  expect(credited).toMatchObject([{ decision_id, amount: 20, reward: 32, source: "subject" }]);
  expect(await client.rewardSubject("changing", "someone", 20, { reward_id: "sale-3" })).toEqual(credited);
  await expect(client.rewardSubject("changing", "nobody", 1)).rejects.toThrow(NotFoundError);
  const queue = await RewardQueue.open(client, new FileStorage(join(service.folder, "changing.jsonl")));
  await queue.add("changing", decision_id, 6, { mode: "add" });
  await queue.addCorrection("changing", decision_id, 5);
  await queue.close();
  expect((await client.reward("changing", decision_id, 1, { mode: "add" })).reward).toBe(6);
});

test("OpenFeature's official provider", async () => {
  await new Client(service.url, PATIENCE).createCampaign({ ...CAMPAIGN, name: "flags" });
  await OpenFeature.setProviderAndWait(new OFREPProvider({ baseUrl: service.url }));
  const flags = OpenFeature.getClient();
  const context = { targetingKey: "customer-1", decision_id: "f1", page: "basket", ...CUSTOMER };
  const details = await flags.getStringDetails("flags", "fallback", context);
  expect(CAMPAIGN.actions).toContain(details.value);
  expect(details).toMatchObject({ variant: details.value, reason: "SPLIT", flagMetadata: { decision_id: "f1" } });
  expect(await flags.getStringDetails("flags", "fallback", context)).toEqual(details);
  const unknown = await flags.getStringDetails("nowhere", "fallback", context);
  expect(unknown).toMatchObject({ value: "fallback", errorCode: ErrorCode.FLAG_NOT_FOUND });
  const wrong = await flags.getStringDetails("flags", "fallback", { risk: "odd", revenue: 1 });
  expect(wrong).toMatchObject({ value: "fallback", errorCode: ErrorCode.INVALID_CONTEXT });
  expect(wrong.errorMessage).toContain("context.risk");
  await OpenFeature.close();
});

test("nothing is lost and nothing doubled when the service is killed", async () => {
  const client = new Client(service.url, PATIENCE);
  await client.createCampaign({ ...CAMPAIGN, name: "killed" });
  const storage = new FileStorage(join(service.folder, "rewards.jsonl"));
  const queue = await RewardQueue.open(client, storage, { everyMs: 50 });
  const actions = new Map<string, string>();
  let interrupting: Promise<void> | undefined;
  let next = 0;
  const decide = async () => {
    while (next < ROUNDS) {
      const number = next++;
      if (number === 333) interrupting = service.kill().then(() => service.start());
      const decision = await client.decide("killed", CUSTOMER, { decision_id: `d${number}` });
      actions.set(decision.decision_id, decision.action);
      await queue.add("killed", decision.decision_id, number % 7);
    }
  };
  await Promise.all(Array.from({ length: 4 }, decide));
  expect(interrupting).toBeDefined();
  await interrupting;
  await queue.close();
  expect(await client.getCampaign("killed")).toMatchObject({ round: ROUNDS, rewards_received: ROUNDS });
  const lines = (await new Response(await client.export("killed")).text()).trim().split("\n");
  expect(lines.length).toBe(ROUNDS);
  for (const line of lines) {
    const { decision_id, action, reward } = JSON.parse(line) as { decision_id: string; action: string; reward: number };
    expect([action, reward]).toEqual([actions.get(decision_id), Number(decision_id.slice(1)) % 7]);
  }
});

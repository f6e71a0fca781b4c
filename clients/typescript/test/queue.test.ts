/** Reward queues: the storage survives everything, and each reward has one outcome. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import {
  BrowserStorage,
  Client,
  MemoryStorage,
  QueueError,
  RewardQueue,
  type RewardResult,
  UnreachableError,
} from "../src/index.js";
import { FileStorage } from "../src/node.js";

const NEVER = 2 ** 31 - 1; // milliseconds until a queue sends by itself
interface Batch {
  campaign: string;
  items: { decision_id: string; reward: number }[];
}

/** A service that notes each reward once, like the real one, and is away while `away` is set. */
class Books {
  readonly rewards = new Map<string, number>();
  readonly batches: number[] = [];
  away = false;
  losesAnswer = false;
  status = 200;

  client(): Client {
    return new Client("http://service.test", { patienceMs: 0, fetch: async (_, init) => this.answer(String(init?.body)) });
  }

  private answer(text: string): Response {
    if (this.away) throw new TypeError("fetch failed");
    const error = { code: "not_found", message: "no", fields: [] };
    if (this.status !== 200) return Response.json({ error }, { status: this.status });
    const { campaign, items } = JSON.parse(text) as Batch;
    this.batches.push(items.length);
    const results = items.map(({ decision_id, reward }) => {
      if (decision_id === "unknown") return { decision_id, committed: null, error };
      this.rewards.set(`${campaign} ${decision_id}`, reward);
      return { decision_id, committed: { decision_id, round: 1, reward }, error: null };
    });
    if (this.losesAnswer) {
      this.losesAnswer = false;
      throw new TypeError("lost");
    }
    return Response.json({ results });
  }
}

function makePath(): string {
  return join(mkdtempSync(join(tmpdir(), "queue-")), "rewards.jsonl");
}

async function countWaiting(path: string): Promise<number> {
  const queue = await RewardQueue.open(new Books().client(), new FileStorage(path), { everyMs: NEVER });
  const { size } = queue;
  await queue.close();
  return size;
}

test("rewards are sent in batches by campaign, each with its outcome", async () => {
  const books = new Books();
  const outcomes: RewardResult[] = [];
  const options = { everyMs: NEVER, onResult: (_: string, result: RewardResult) => outcomes.push(result) };
  const queue = await RewardQueue.open(books.client(), new MemoryStorage(), options);
  for (let number = 0; number < 1_500; number++) await queue.add(number % 3 ? "a" : "b", `d${number}`, number);
  await queue.add("a", "unknown", 1);
  expect(await queue.flush()).toEqual({ committed: 1_500, refused: 1 });
  expect([queue.size, books.rewards.size]).toEqual([0, 1_500]);
  expect(books.batches).toEqual([334, 666, 335, 166]);
  expect(outcomes.filter(({ error }) => error).map(({ error }) => error?.status)).toEqual([404]);
  await queue.close();
});

test("amounts and corrections are sent in order, and counted once", async () => {
  const sent: { path: string; body: Record<string, unknown> }[] = [];
  let lost = true;
  const answer = async (url: unknown, init?: RequestInit) => {
    const body = JSON.parse(String(init?.body)) as { items?: { decision_id: string }[]; decision_id?: string };
    sent.push({ path: new URL(String(url)).pathname, body });
    if (lost) {
      lost = false;
      throw new TypeError("lost");
    }
    const error = { code: "conflict", message: "too late", fields: [] };
    if (body.decision_id === "late") return Response.json({ error }, { status: 409 });
    if (body.items === undefined) return Response.json({ decision_id: body.decision_id, reward: 3 });
    return Response.json({ results: body.items.map(({ decision_id }) => ({ decision_id, committed: { decision_id } })) });
  };
  const client = new Client("http://service.test", { patienceMs: 0, fetch: answer });
  const outcomes: RewardResult[] = [];
  const options = { everyMs: NEVER, onResult: (_: string, result: RewardResult) => outcomes.push(result) };
  const queue = await RewardQueue.open(client, new MemoryStorage(), options);
  await queue.add("a", "d1", 1);
  await queue.add("a", "d1", 2, { mode: "add" });
  await queue.addCorrection("a", "d1", 3, { reward_id: "cancelled" });
  await queue.addCorrection("a", "late", 3);
  await queue.add("a", "d2", 4, { mode: "add", reward_id: "own" });
  await expect(queue.flush()).rejects.toThrow(UnreachableError);
  expect(await queue.flush()).toEqual({ committed: 4, refused: 1 });
  expect(sent[0]).toEqual(sent[1]);
  const paths = ["/reward/batch", "/reward/batch", "/reward/correct", "/reward/correct", "/reward/batch"];
  expect(sent.map(({ path }) => path)).toEqual(paths);
  expect(sent[2]?.body).toEqual({ campaign: "a", decision_id: "d1", reward: 3, reward_id: "cancelled" });
  expect(outcomes.map(({ reward_id }) => reward_id).slice(2)).toEqual(["cancelled", expect.any(String), "own"]);
  expect(outcomes.map(({ error }) => error?.status)).toEqual([undefined, undefined, undefined, 409, undefined]);
  await queue.close();
});

test("it sends by itself", async () => {
  const books = new Books();
  const queue = await RewardQueue.open(books.client(), new MemoryStorage(), { everyMs: 1 });
  await queue.add("a", "d1", 1);
  await vi.waitUntil(() => queue.size === 0, { timeout: 600_000 });
  expect(books.rewards.get("a d1")).toBe(1);
  await queue.close();
});

test("rewards wait in the file while the service is away, and a lost answer counts nothing twice", async () => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const [books, path] = [new Books(), makePath()];
  books.away = true;
  const first = await RewardQueue.open(books.client(), new FileStorage(path), { everyMs: NEVER });
  await first.add("a", "d1", 1);
  expect(() => new FileStorage(path)).toThrow(QueueError);
  await first.close();
  books.away = false;
  books.losesAnswer = true;
  const second = await RewardQueue.open(books.client(), new FileStorage(path), { everyMs: NEVER });
  expect(second.size).toBe(1);
  await second.close();
  const third = await RewardQueue.open(books.client(), new FileStorage(path), { everyMs: NEVER });
  await third.close();
  expect([books.batches, books.rewards.size, readFileSync(path, "utf8")]).toEqual([[1, 1], 1, ""]);
  expect(warn).toHaveBeenCalledTimes(2);
  warn.mockRestore();
});

test.each([
  [404, 0],
  [422, 0],
  [401, 1],
  [500, 1],
  [503, 1],
])("a batch refused as a whole with %i leaves %i", async (status, left) => {
  const books = new Books();
  books.status = status;
  const options = { everyMs: NEVER, onResult: () => undefined };
  const queue = await RewardQueue.open(books.client(), new MemoryStorage(), options);
  await queue.add("a", "d1", 1);
  await queue.flush().catch(() => undefined);
  expect(queue.size).toBe(left);
});

test("every prefix of a file can be read", async () => {
  const [books, storage, path] = [new Books(), new MemoryStorage(), makePath()];
  books.away = true;
  const queue = await RewardQueue.open(books.client(), storage, { everyMs: NEVER });
  for (let number = 0; number < 3; number++) await queue.add("ä", `d${number}`, 1);
  for (let length = 0; length <= storage.text.length; length += 7) {
    writeFileSync(path, storage.text.slice(0, length));
    expect(await countWaiting(path)).toBe(storage.text.slice(0, length).split("\n").length - 1);
  }
  writeFileSync(path, "nonsense\n");
  await expect(RewardQueue.open(books.client(), new FileStorage(path))).rejects.toThrow(QueueError);
});

test("a browser's storage", async () => {
  const kept = new Map<string, string>();
  const getItem = (name: string) => kept.get(name) ?? null;
  const setItem = (name: string, text: string) => void kept.set(name, text);
  const books = new Books();
  const storage = new BrowserStorage("rewards", { getItem, setItem });
  const queue = await RewardQueue.open(books.client(), storage, { everyMs: NEVER });
  await queue.add("a", "d1", 1);
  expect(kept.get("rewards")).toContain("d1");
  await queue.close();
  expect([kept.get("rewards"), books.rewards.size]).toEqual(["", 1]);
});

test("of all who take over from a process that is gone, one gets the file", async () => {
  const path = makePath();
  const gone = spawn(process.execPath, ["-e", ""]);
  await once(gone, "exit");
  const built = new URL("../dist/node.js", import.meta.url).href;
  const program = `
    import { FileStorage } from ${JSON.stringify(built)};
    process.stdin.once("data", () => {
      try {
        new FileStorage(${JSON.stringify(path)});
        console.log("mine");
      } catch (error) {
        console.log(error.name);
      }
    });
    console.log("ready");`;
  writeFileSync(`${path}.lock.7`, String(gone.pid));
  const rivals = Array.from({ length: 6 }, () => spawn(process.execPath, ["--input-type=module", "-e", program]));
  await Promise.all(rivals.map(({ stdout }) => once(stdout, "data")));
  const said = rivals.map(({ stdout }) => once(stdout, "data").then(([text]) => String(text).trim()));
  for (const { stdin } of rivals) stdin.write("go");
  const answers = await Promise.all(said);
  expect(answers.sort()).toEqual([...Array.from({ length: 5 }, () => "QueueError"), "mine"]);
  const ended = rivals.map((rival) => once(rival, "exit"));
  for (const rival of rivals) rival.kill("SIGKILL");
  await Promise.all(ended);
  expect(await countWaiting(path)).toBe(0); // the winner is gone too, and its lock holds nobody up
});

test("a killed process loses no reward, and its lock holds nobody up", async () => {
  const path = makePath();
  const built = new URL("../dist/node.js", import.meta.url).href;
  const program = `
    import { FileStorage } from ${JSON.stringify(built)};
    const storage = new FileStorage(${JSON.stringify(path)});
    for (let n = 1; ; n++) {
      storage.append(JSON.stringify({ n, campaign: "a", item: { decision_id: "d" + n, reward: 1 } }) + "\\n");
      if (n >= 500) process.stdout.write(n + "\\n");
    }`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  await once(child.stdout, "data");
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
  expect(await countWaiting(path)).toBeGreaterThanOrEqual(500);
});

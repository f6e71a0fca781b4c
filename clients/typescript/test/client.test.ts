/** What the client sends, what it repeats and for how long, and how it reads answers. */

import { expect, test } from "vitest";
import * as undercurrent from "../src/index.js";
import { Client, InvalidError, MismatchError, type Options, UnreachableError } from "../src/index.js";

const DECISION = { decision_id: "o-1", campaign: "c", round: 7, mode: "optimistic", action: "email", propensity: 0.5 };
const REWARD = { decision_id: "o-1", campaign: "c", round: 4, reward: 1 };
type Answer = { status: number; body?: unknown; headers?: Record<string, string> } | Error;

/** A connection that gives the prepared answers in order, and then repeats the last one. */
class Wire {
  readonly requests: { url: string; method: string; body: string; headers: Headers }[] = [];
  readonly waits: number[] = [];
  private now = 100;

  constructor(private readonly answers: Answer[]) {}

  client(options: Options = {}): Client {
    return new Client("http://service.test/", {
      patienceMs: 60_000,
      random: () => 1,
      now: () => this.now,
      sleep: async (milliseconds) => {
        this.waits.push(milliseconds);
        this.now += milliseconds;
      },
      fetch: async (url, init) => {
        const body = typeof init?.body === "string" ? init.body : "";
        this.requests.push({ url: String(url), method: init?.method ?? "", body, headers: new Headers(init?.headers) });
        const answer = this.answers.length > 1 ? this.answers.shift() : this.answers[0];
        if (answer === undefined || answer instanceof Error) throw answer ?? new Error("no answer");
        const { status, headers = {} } = answer;
        return new Response(answer.body === undefined ? null : JSON.stringify(answer.body), { status, headers });
      },
      ...options,
    });
  }
}

const lost = new TypeError("fetch failed");
const busy = { status: 503, body: { error: { code: "unavailable", message: "Busy", fields: [] } } };

function refusal(status: number, code: string, fields: unknown[] = []): Answer {
  return { status, body: { error: { code, message: "no", fields } } };
}

test("a decision", async () => {
  const wire = new Wire([{ status: 200, body: DECISION }]);
  const decision = await wire.client({ key: "k-1" }).decide("c", { risk: "low" }, { decision_id: "o-1", subject: "s" });
  expect(decision).toMatchObject({ action: "email", is_baseline: false, round: 7 });
  const [request] = wire.requests;
  expect(request).toMatchObject({ url: "http://service.test/decide", method: "POST" });
  const sent = { campaign: "c", decision_id: "o-1", subject: "s", context: { risk: "low" } };
  expect(JSON.parse(request?.body ?? "")).toEqual(sent);
  expect(request?.headers.get("authorization")).toBe("Bearer k-1");
});

test("a request without an answer is repeated unchanged", async () => {
  const wire = new Wire([lost, lost, { status: 200, body: DECISION }]);
  await wire.client().decide("c", {});
  expect(wire.waits).toEqual([100, 200]);
  expect(new Set(wire.requests.map((request) => request.body)).size).toBe(1);
  expect(JSON.parse(wire.requests[0]?.body ?? "").decision_id).toMatch(/^[0-9a-f]{32}$/);
});

test.each([429, 502, 503, 504])("%i is repeated after the time that it names", async (status) => {
  const wire = new Wire([{ ...busy, status, headers: { "retry-after": "3" } }, { status: 200, body: REWARD }]);
  expect((await wire.client().reward("c", "o-1", 1)).round).toBe(4);
  expect(wire.waits).toEqual([3_000]);
});

test("an amount, a correction and a reward of a subject have ids that are repeated", async () => {
  const answers = [lost, { status: 200, body: REWARD }, lost, { status: 200, body: REWARD }, lost];
  const wire = new Wire([...answers, { status: 200, body: { credited: [REWARD] } }]);
  const client = wire.client();
  await client.reward("c", "o-1", 1, { mode: "add" });
  await client.correct("c", "o-1", 0);
  expect(await client.rewardSubject("c", "someone", 1, { at: new Date(0) })).toEqual([REWARD]);
  const bodies = wire.requests.map(({ body }) => JSON.parse(body) as Record<string, unknown>);
  expect([bodies[0], bodies[2], bodies[4]]).toEqual([bodies[1], bodies[3], bodies[5]]);
  expect(new Set(bodies.map(({ reward_id }) => reward_id)).size).toBe(3);
  expect(bodies[0]).toMatchObject({ campaign: "c", decision_id: "o-1", reward: 1, mode: "add" });
  expect(bodies[5]).toMatchObject({ campaign: "c", subject: "someone", reward: 1, at: "1970-01-01T00:00:00.000Z" });
});

test("Retry-After may be a date", async () => {
  const date = new Date(Date.now() + 40_000).toUTCString();
  const wire = new Wire([{ ...busy, headers: { "retry-after": date } }, { status: 200, body: REWARD }]);
  await wire.client({ patienceMs: 100_000 }).reward("c", "o-1", 1);
  expect(wire.waits[0]).toBeGreaterThanOrEqual(0);
  expect(wire.waits[0]).toBeLessThanOrEqual(40_000);
});

test("patience runs out", async () => {
  const wire = new Wire([lost]);
  await expect(wire.client({ patienceMs: 5_000 }).reward("c", "o-1", 1)).rejects.toThrow(UnreachableError);
  expect(wire.waits).toEqual([100, 200, 400, 800, 1_600]);
  await expect(wire.client().getVersion()).rejects.toThrow(UnreachableError);
});

test.each([lost, busy, { ...busy, status: 429 }, { ...busy, status: 500 }])("the baseline after %o", async (answer) => {
  const decision = await new Wire([answer]).client().decide("c", {}, { decision_id: "o-1", baseline: "none" });
  expect(decision).toMatchObject({ action: "none", mode: "baseline", is_baseline: true, decision_id: "o-1" });
});

test("the baseline after a service that never answers", async () => {
  const never = () => new Promise<Response>(() => undefined);
  const decision = await new Client("http://a.test", { fetch: never, deadlineMs: 20 }).decide("c", {}, { baseline: "none" });
  expect(decision).toMatchObject({ is_baseline: true, problem: "no answer within 20 ms" });
});

test("nothing is sent after the deadline", async () => {
  let wake = () => {};
  const wire = new Wire([lost]);
  const client = wire.client({ deadlineMs: 200, sleep: () => new Promise((resolve) => (wake = resolve)) });
  expect((await client.decide("c", {}, { baseline: "none" })).is_baseline).toBe(true);
  wake();
  await new Promise((resolve) => setTimeout(resolve, 0));
  expect(wire.requests.length).toBe(1);
});

test("no baseline for mistakes", async () => {
  const patient = { baseline: "none", deadlineMs: 60_000 };
  await expect(new Wire([refusal(422, "invalid")]).client().decide("c", {}, patient)).rejects.toThrow(InvalidError);
  const excluded = { baseline: "none", excluded_actions: ["none"] };
  await expect(new Wire([lost]).client().decide("c", {}, excluded)).rejects.toThrow(RangeError);
});

test("a refusal names the fields", async () => {
  const fields = [{ field: "context.risk", message: "'x' is not a level", allowed: ["low", "high"] }];
  const failed = new Wire([refusal(422, "invalid", fields)]).client().decide("c", { risk: "x" });
  const error = await failed.catch((problem: unknown) => problem);
  expect(error).toBeInstanceOf(InvalidError);
  expect(error).toMatchObject({ status: 422, code: "invalid", fields, name: "InvalidError" });
  expect(String(error)).toContain('context.risk: \'x\' is not a level (allowed: ["low","high"]) (422)');
});

test.each([
  [401, "AccessError"],
  [403, "AccessError"],
  [404, "NotFoundError"],
  [409, "ConflictError"],
  [410, "GoneError"],
  [413, "TooLargeError"],
  [500, "ServiceError"],
])("%i is %s", async (status, name) => {
  await expect(new Wire([refusal(status, "code")]).client().reward("c", "o-1", 1)).rejects.toMatchObject({ name, status });
});

test("what is no answer of a service", async () => {
  expect(() => new Client("service.test")).toThrow(MismatchError);
  await expect(new Wire([{ status: 200 }]).client().getCampaign("c")).rejects.toThrow(MismatchError);
  await expect(new Wire([{ status: 200, body: {} }]).client().getVersion()).rejects.toThrow(MismatchError);
  await expect(new Wire([{ status: 404 }]).client().getVersion()).rejects.toThrow(MismatchError);
  await expect(new Wire([lost]).client().reward("c", "o-1", Number.NaN)).rejects.toThrow(RangeError);
});

test("campaigns are listed page by page", async () => {
  const pages = [
    { campaigns: [{ name: "a" }], next_cursor: "a" },
    { campaigns: [{ name: "b" }], next_cursor: null },
  ];
  const wire = new Wire(pages.map((body) => ({ status: 200, body })));
  expect((await wire.client().listCampaigns()).map(({ name }) => name)).toEqual(["a", "b"]);
  expect(wire.requests[1]?.url).toContain("cursor=a");
});

test("the public surface", () => {
  const errors = ["Access", "Client", "Conflict", "Gone", "Invalid", "Mismatch", "NotFound", "Queue", "Service"];
  errors.push("TooLarge", "TooManyRequests", "Unavailable", "Unreachable");
  const names = ["BATCH_LIMIT", "BrowserStorage", "Client", "MemoryStorage", "RewardQueue", "makeId", "makeRewardItem"];
  expect(new Set(Object.keys(undercurrent))).toEqual(new Set([...errors.map((name) => `${name}Error`), ...names]));
});

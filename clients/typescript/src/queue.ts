/**
 * A reward queue: rewards are stored at once, and sent in batches in the background.
 *
 * A reward stays in the storage until the service has answered it. If an answer is lost, it is sent again, which the
 * service recognizes by its ids: nothing is lost, and nothing is counted twice.
 */

import { type Client, nameReward } from "./client.js";
import { ClientError, QueueError, ServiceError } from "./errors.js";
import { encode } from "./exchange.js";
import { BATCH_LIMIT, type RewardItem, type RewardOptions, type RewardResult, makeId, makeRewardItem } from "./messages.js";

const LONGEST_REST_MS = 30_000; // between two tries while the service is away
const MOST_DONE = 10_000; // answered rewards in a storage, before it is written anew without them

/** Where a queue keeps its lines. `append` must be all or nothing, but for a last line that is cut. */
export interface QueueStorage {
  read(): string | Promise<string>;
  append(text: string): void | Promise<void>;
  replace(text: string): void | Promise<void>;
  close?(): void | Promise<void>;
}

/** Keeps a queue in memory: for tests, and for programs that may lose rewards. */
export class MemoryStorage implements QueueStorage {
  text = "";

  read(): string {
    return this.text;
  }

  append(text: string): void {
    this.text += text;
  }

  replace(text: string): void {
    this.text = text;
  }
}

/** Keeps a queue in a browser's `localStorage`, under a name of its own for each page that is open at a time. */
export class BrowserStorage implements QueueStorage {
  constructor(
    private readonly name: string,
    private readonly storage: Pick<Storage, "getItem" | "setItem"> = localStorage,
  ) {}

  read(): string {
    return this.storage.getItem(this.name) ?? "";
  }

  append(text: string): void {
    this.storage.setItem(this.name, this.read() + text);
  }

  replace(text: string): void {
    this.storage.setItem(this.name, text);
  }
}

export interface QueueOptions {
  /** How often what waits is sent. */
  everyMs?: number;
  /** Told the outcome of each reward; by default refusals are written to the console. */
  onResult?: (campaign: string, result: RewardResult) => void;
}

/** How many rewards were sent: committed, and refused for good. */
export interface Sent {
  committed: number;
  refused: number;
}

interface Entry {
  n: number;
  campaign: string;
  item: RewardItem | Correction;
}

interface Correction {
  decision_id: string;
  reward: number;
  mode: "correct";
  reward_id: string;
}

/** Make one with `RewardQueue.open`. */
export class RewardQueue {
  private readonly waiting = new Map<number, Entry>();
  private last = 0;
  private done = 0;
  private failures = 0;
  private closing = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private turn: Promise<unknown> = Promise.resolve();
  private storing: Promise<void> = Promise.resolve();
  private readonly everyMs: number;
  private readonly onResult: (campaign: string, result: RewardResult) => void;

  private constructor(
    private readonly client: Client,
    private readonly storage: QueueStorage,
    { everyMs = 1_000, onResult = logRefusal }: QueueOptions,
  ) {
    this.everyMs = everyMs;
    this.onResult = onResult;
  }

  /** Open a queue on a storage, with whatever waits there. */
  static async open(client: Client, storage: QueueStorage, options: QueueOptions = {}): Promise<RewardQueue> {
    const queue = new RewardQueue(client, storage, options);
    await queue.load();
    queue.rest(queue.everyMs);
    return queue;
  }

  /** How many rewards wait. */
  get size(): number {
    return this.waiting.size;
  }

  /** Add what a decision earned, as for `reward`. It is in the storage once this resolves, and will be sent. */
  async add(campaign: string, decision_id: string, reward: number, options?: RewardOptions): Promise<void> {
    return this.keep(campaign, makeRewardItem(decision_id, reward, options));
  }

  /** Add a correction, as for `correct`. It is sent after what was added before it. */
  async addCorrection(
    campaign: string,
    decision_id: string,
    reward: number,
    { reward_id = makeId() }: { reward_id?: string } = {},
  ): Promise<void> {
    return this.keep(campaign, { decision_id, reward, mode: "correct", reward_id });
  }

  private async keep(campaign: string, item: RewardItem | Correction): Promise<void> {
    const entry = { n: ++this.last, campaign, item };
    const line = `${encode(entry)}\n`;
    this.waiting.set(entry.n, entry); // before it is stored, or the storage could be written anew without it meanwhile
    try {
      await this.store(() => this.storage.append(line));
    } catch (error) {
      this.waiting.delete(entry.n);
      throw error;
    }
  }

  /** Send everything that waits. An error means that the rest still waits. */
  async flush(): Promise<Sent> {
    return this.send();
  }

  /** Send what waits, and close the storage. What cannot be sent in time stays there, for the next queue. */
  async close(): Promise<void> {
    this.closing = true;
    clearTimeout(this.timer);
    try {
      await this.send();
    } catch (error) {
      if (!(error instanceof ClientError)) throw error;
      console.warn(`${this.size} rewards stay in the queue: ${error.message}`);
    } finally {
      await this.store(() => this.storage.close?.());
    }
  }

  private async load(): Promise<void> {
    const text = await this.storage.read();
    const whole = text.lastIndexOf("\n") + 1;
    for (const line of text.slice(0, whole).split("\n").filter(Boolean)) {
      let read: Partial<Entry> & { done?: number[] };
      try {
        read = JSON.parse(line) as typeof read;
      } catch (error) {
        throw new QueueError(`the queue has a damaged line: ${line.slice(0, 80)}`, { cause: error });
      }
      const { n, campaign, item, done = [] } = read;
      if (n !== undefined && campaign !== undefined && item !== undefined) {
        this.waiting.set(n, { n, campaign, item });
        this.last = Math.max(this.last, n);
      }
      for (const number of done) this.waiting.delete(number);
    }
    // A line that is cut was never reported as added.
    if (whole < text.length) await this.storage.replace(text.slice(0, whole));
  }

  private rest(milliseconds: number): void {
    this.timer = setTimeout(() => void this.work(), milliseconds);
    if (typeof this.timer === "object") this.timer.unref(); // does not keep a program running
  }

  private async work(): Promise<void> {
    let rest = this.everyMs;
    try {
      await this.send(0);
      this.failures = 0;
    } catch (error) {
      this.failures = Math.min(this.failures + 1, 30);
      const asked = (error instanceof ServiceError ? error.retryAfterMs : undefined) ?? 0;
      const longest = Math.max(this.everyMs, LONGEST_REST_MS);
      rest = Math.max(asked, Math.min(this.everyMs * 2 ** this.failures, longest));
      if (!(error instanceof ClientError)) console.error(error);
    }
    if (!this.closing) this.rest(rest);
  }

  /** Send what waits, after whatever is being sent. */
  private send(patienceMs?: number): Promise<Sent> {
    const sending = this.turn.then(() => this.sendWaiting(patienceMs));
    this.turn = sending.catch(() => undefined);
    return sending;
  }

  private async sendWaiting(patienceMs?: number): Promise<Sent> {
    const sent = { committed: 0, refused: 0 };
    while (this.waiting.size > 0) {
      const byCampaign = new Map<string, Entry[]>();
      let count = 0;
      for (const entry of this.waiting.values()) {
        if (count++ === BATCH_LIMIT) break;
        byCampaign.set(entry.campaign, [...(byCampaign.get(entry.campaign) ?? []), entry]);
      }
      for (const [campaign, entries] of byCampaign) {
        for (const batch of split(entries)) {
          for (const result of await this.sendBatch(campaign, batch, patienceMs)) {
            this.onResult(campaign, result);
            if (result.error) sent.refused++;
            else sent.committed++;
          }
          await this.settle(batch);
        }
      }
    }
    return sent;
  }

  /** Send one batch. If the service refuses it as a whole, for example since the campaign is gone, so is each item. */
  private async sendBatch(campaign: string, batch: Entry[], patienceMs?: number): Promise<RewardResult[]> {
    const items = batch.map((entry) => entry.item);
    const [correction] = items.filter(isCorrection);
    const limits = patienceMs === undefined ? {} : { patienceMs };
    try {
      if (correction === undefined) return await this.client.rewardBatch(campaign, items as RewardItem[], limits);
      const { decision_id, reward, reward_id } = correction;
      const committed = await this.client.correct(campaign, decision_id, reward, { reward_id }, limits);
      return [{ decision_id, reward_id, committed }];
    } catch (error) {
      // A key can be replaced, and a service repaired.
      const final = [404, 410, 413, 422, ...(correction ? [409] : [])];
      if (!(error instanceof ServiceError && final.includes(error.status))) throw error;
      return items.map((item) => ({ decision_id: item.decision_id, ...nameReward(item), error }));
    }
  }

  private async settle(batch: Entry[]): Promise<void> {
    await this.store(() => this.storage.append(`${encode({ done: batch.map((entry) => entry.n) })}\n`));
    for (const entry of batch) this.waiting.delete(entry.n);
    this.done += batch.length;
    if (this.waiting.size === 0 || this.done > Math.max(MOST_DONE, this.waiting.size)) {
      this.done = 0;
      await this.store(() =>
        this.storage.replace(Array.from(this.waiting.values(), (entry) => `${encode(entry)}\n`).join("")),
      );
    }
  }

  /** Use the storage, after whatever uses it now. */
  private store(use: () => void | Promise<void>): Promise<void> {
    const storing = this.storing.then(use);
    this.storing = storing.catch(() => undefined);
    return storing;
  }
}

function isCorrection(item: RewardItem | Correction): item is Correction {
  return item.mode === "correct";
}

/** Split what waits for a campaign into batches, in order; the service takes corrections one by one. */
function split(entries: Entry[]): Entry[][] {
  const batches: Entry[][] = [];
  let open: Entry[] | undefined;
  for (const entry of entries) {
    const single = isCorrection(entry.item);
    if (open && !single) open.push(entry);
    else batches.push((open = [entry]));
    if (single) open = undefined;
  }
  return batches;
}

function logRefusal(campaign: string, { error }: RewardResult): void {
  if (error) console.warn(`a reward of campaign ${campaign} was refused: ${error.message}`);
}

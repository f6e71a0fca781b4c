/** The client: every method, what it sends, and how its answer is read. */

import { ClientError, MismatchError, ServiceError, UnreachableError, makeItemError } from "./errors.js";
import { Exchange, type Limits, type Options } from "./exchange.js";
import type {
  Campaign,
  CampaignConfig,
  CampaignSummary,
  Context,
  DecideOptions,
  Decision,
  DecisionBatch,
  Format,
  FullConfig,
  IdentifiedReward,
  Item,
  Report,
  RewardAnswer,
  RewardItem,
  RewardOptions,
  RewardResult,
} from "./messages.js";
import { makeId, makeRewardItem } from "./messages.js";
import type { components } from "./openapi.js";

type Schemas = components["schemas"];
interface Interval {
  from?: Date;
  to?: Date;
}

/** A connection to one service. */
export class Client {
  private readonly exchange: Exchange;

  constructor(url: string, options: Options = {}) {
    this.exchange = new Exchange(url, options);
  }

  get url(): string {
    return this.exchange.url;
  }

  // --- deciding ------------------------------------------------------------------------------------------------------

  /**
   * Decide which action to take for one customer.
   *
   * `decision_id` is your own id, or else a new one; the same id always gets the same answer. With a `baseline`, which is
   * the campaign's first action, the caller never waits longer than `deadlineMs` (default: the client's, 250): then it
   * gets the baseline, marked with `is_baseline`. Without one, the request is repeated until the patience runs out.
   */
  async decide(campaign: string, context: Context, options: DecideOptions = {}): Promise<Decision> {
    const { baseline, deadlineMs = this.exchange.deadlineMs, ...item } = options;
    const decision_id = item.decision_id ?? makeId();
    const request = { method: "POST", path: "/decide", body: { campaign, ...item, decision_id, context } };
    const decide = async (limits: Limits = {}): Promise<Decision> => {
      const answer = await this.exchange.fetchJson<Schemas["DecisionAnswer"]>(request, limits);
      return { ...answer, is_baseline: false };
    };
    if (baseline === undefined) return decide();
    if (item.excluded_actions?.includes(baseline)) {
      throw new RangeError(`the baseline ${JSON.stringify(baseline)} is among the excluded actions`);
    }
    const fallBack = (problem: string): Decision => {
      return { is_baseline: true, mode: "baseline", decision_id, campaign, action: baseline, problem };
    };
    return keepDeadline(decide, deadlineMs, fallBack);
  }

  /**
   * Decide for up to BATCH_LIMIT customers, exactly as one by one in this order; either all are decided or none. With
   * `on_error: "skip"` bad items are left out, and listed in `skipped`.
   */
  async decideBatch(
    campaign: string,
    items: Iterable<Item>,
    options: { on_error?: "fail" | "skip" } = {},
  ): Promise<DecisionBatch> {
    const named = Array.from(items, (item) => ({ ...item, decision_id: item.decision_id ?? makeId() }));
    const request = { method: "POST", path: "/decide/batch", body: { campaign, items: named, ...options } };
    const answer = await this.exchange.fetchJson<Schemas["PartialBatch"]>(request);
    const decisions = answer.decisions.map((decision) => ({ ...decision, is_baseline: false as const }));
    return { decisions, skipped: answer.skipped ?? [] };
  }

  // --- rewards -------------------------------------------------------------------------------------------------------

  /**
   * Report what a decision earned. Repeating the same reward changes nothing.
   *
   * With `mode: "add"` it is one of several amounts, which add up. `reward_id` is your own id of this amount, or else a
   * new one; an amount counts once under its id.
   */
  async reward(
    campaign: string,
    decision_id: string,
    reward: number,
    options: { mode: "add"; reward_id?: string },
  ): Promise<IdentifiedReward>;
  async reward(campaign: string, decision_id: string, reward: number, options?: RewardOptions): Promise<RewardAnswer>;
  async reward(campaign: string, decision_id: string, reward: number, options?: RewardOptions): Promise<RewardAnswer> {
    const body = { campaign, ...makeRewardItem(decision_id, reward, options) };
    return this.exchange.fetchJson({ method: "POST", path: "/reward", body });
  }

  /**
   * Replace the reward of a decision by what it earned altogether, after a cancelled or a late sale. The campaign's
   * `rewards.correct_seconds` says for how long. `reward_id` is your own id of this correction, or else a new one.
   */
  async correct(
    campaign: string,
    decision_id: string,
    reward: number,
    options: { reward_id?: string } = {},
    limits: Limits = {},
  ): Promise<IdentifiedReward> {
    const body = { campaign, decision_id, reward, reward_id: options.reward_id ?? makeId() };
    return this.exchange.fetchJson({ method: "POST", path: "/reward/correct", body }, limits);
  }

  /**
   * Report what a person earned, without naming a decision; returns the decisions that it was credited to. The
   * campaign's `rewards.credit` says which: the last one, the first, or all evenly. `reward_id` is your own id of this
   * amount, or else a new one. `at` is when it was earned, if not now.
   */
  async rewardSubject(
    campaign: string,
    subject: string,
    reward: number,
    { reward_id = makeId(), at }: { reward_id?: string; at?: Date } = {},
  ): Promise<IdentifiedReward[]> {
    const body = { campaign, subject, reward, reward_id, ...(at ? { at: at.toISOString() } : {}) };
    const request = { method: "POST", path: "/reward/subject", body };
    return (await this.exchange.fetchJson<Schemas["CreditAnswer"]>(request)).credited;
  }

  /** Report up to BATCH_LIMIT rewards; each is committed or refused on its own. */
  async rewardBatch(campaign: string, items: Iterable<RewardItem>, limits: Limits = {}): Promise<RewardResult[]> {
    const sent = [...items];
    const request = { method: "POST", path: "/reward/batch", body: { campaign, items: sent } };
    const answer = await this.exchange.fetchJson<Schemas["RewardResults"]>(request, limits);
    return answer.results.map(({ decision_id, committed, error }, place) => ({
      decision_id,
      ...nameReward(sent[place]),
      ...(committed ? { committed } : {}),
      ...(error ? { error: makeItemError(error) } : {}),
    }));
  }

  // --- campaigns -----------------------------------------------------------------------------------------------------

  /** Create a campaign, and return its configuration with all defaults. Repeating the call changes nothing. */
  async createCampaign(config: CampaignConfig): Promise<FullConfig> {
    return this.exchange.fetchJson({ method: "POST", path: "/campaigns", body: config });
  }

  /** Check whether a campaign could be created: the same answer and errors, but nothing is created. */
  async checkCampaign(config: CampaignConfig): Promise<FullConfig> {
    return this.exchange.fetchJson({ method: "POST", path: "/campaigns/check", body: config });
  }

  /** Return the current state of a campaign, and its configuration. */
  async getCampaign(name: string): Promise<Campaign> {
    return this.exchange.fetchJson({ method: "GET", path: makePath(name) });
  }

  /** Return the campaigns that the key covers, by name: those in use, or the archived ones. */
  async listCampaigns({ archived = false } = {}): Promise<CampaignSummary[]> {
    const found: CampaignSummary[] = [];
    let cursor: string | null = "";
    while (cursor !== null) {
      const query: string = makeQuery({ limit: "200", archived: String(archived), ...(cursor ? { cursor } : {}) });
      const request = { method: "GET", path: `/campaigns${query}` };
      const page: Schemas["CampaignPage"] = await this.exchange.fetchJson<Schemas["CampaignPage"]>(request);
      found.push(...page.campaigns);
      cursor = page.next_cursor;
    }
    return found;
  }

  /** Change the configuration of a live campaign, and return its new state. */
  async changeCampaign(name: string, changes: Record<string, unknown>): Promise<Campaign> {
    return this.exchange.fetchJson({ method: "PATCH", path: makePath(name), body: changes });
  }

  /** Close a campaign. It still takes rewards for its decisions. */
  async archiveCampaign(name: string): Promise<Campaign> {
    return this.exchange.fetchJson({ method: "POST", path: `${makePath(name)}/archive` });
  }

  /** Reopen an archived campaign. */
  async unarchiveCampaign(name: string): Promise<Campaign> {
    return this.exchange.fetchJson({ method: "POST", path: `${makePath(name)}/unarchive` });
  }

  /** Delete an archived campaign with all its decisions, rewards and models. This cannot be undone. */
  async deleteCampaign(name: string): Promise<void> {
    await this.exchange.ask({ method: "DELETE", path: `${makePath(name)}${makeQuery({ confirm: name })}` });
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  /** Return the report of a campaign: its decisions, rewards, lift over control and the value of other policies. */
  async report(name: string, interval: Interval = {}): Promise<Report> {
    return this.exchange.fetchJson({ method: "GET", path: `${makePath(name)}/report${makeQuery(describe(interval))}` });
  }

  /** Return all decisions of a campaign with their rewards as a stream, whose end throws if it is not complete. */
  async export(name: string, options: Interval & { format?: Format } = {}): Promise<ReadableStream<Uint8Array>> {
    const query = makeQuery({ format: options.format ?? "ndjson", ...describe(options) });
    const response = await this.exchange.ask(
      { method: "GET", path: `${makePath(name)}/decisions${query}` },
      { timeoutMs: 2 ** 31 - 1 }, // until its end
    );
    if (response.body === null) throw new MismatchError(`${this.url} gives no file`);
    return response.body;
  }

  /** Return the service's version. Does not retry. */
  async getVersion(): Promise<string> {
    try {
      const request = { method: "GET", path: "/healthz" };
      const { version } = await this.exchange.fetchJson<{ version: unknown }>(request, { patienceMs: 0 });
      if (typeof version === "string") return version;
    } catch (error) {
      if (error instanceof UnreachableError || (error instanceof ServiceError && error.code)) throw error;
    }
    throw new MismatchError(`the server at ${this.url} is not an Undercurrent service`);
  }
}

/** The share of a deadline to wait: coming back takes a moment too. */
const IN_TIME = 0.96;

/** Give an answer in time: the service's, or else the fallback. A mistake in the request is thrown. */
async function keepDeadline<T>(
  work: (limits: Limits) => Promise<T>,
  deadlineMs: number,
  fallBack: (problem: string) => T,
): Promise<T> {
  const controller = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<T>((resolve) => {
    timer = setTimeout(() => {
      resolve(fallBack(`no answer within ${deadlineMs} ms`));
      controller.abort();
    }, IN_TIME * deadlineMs);
  });
  const working = work({ patienceMs: deadlineMs, signal: controller.signal }).catch((error: unknown) => {
    const refused = error instanceof ServiceError && error.status < 500 && error.status !== 429;
    if (refused || !(error instanceof ClientError)) throw error;
    return fallBack(error.message);
  });
  try {
    return await Promise.race([working, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** The id of an amount or a correction, as a field of its result. */
export function nameReward(item: object | undefined): { reward_id?: string } {
  return item && "reward_id" in item && typeof item.reward_id === "string" ? { reward_id: item.reward_id } : {};
}

function makePath(campaign: string): string {
  return `/campaigns/${encodeURIComponent(campaign)}`;
}

function makeQuery(parameters: Record<string, string>): string {
  const query = new URLSearchParams(parameters).toString();
  return query ? `?${query}` : "";
}

function describe({ from, to }: Interval): Record<string, string> {
  return { ...(from ? { from: from.toISOString() } : {}), ...(to ? { to: to.toISOString() } : {}) };
}

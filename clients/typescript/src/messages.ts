/** What is sent and what comes back. The shapes are those of the service's OpenAPI document. */

import type { ServiceError } from "./errors.js";
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

/** Most items that the service accepts in one request. */
export const BATCH_LIMIT = 1_000;

export type Context = Schemas["BatchItem"]["context"];
export type CampaignConfig = Schemas["CampaignConfig-Input"];
export type FullConfig = Schemas["CampaignConfig-Output"];
export type Campaign = Schemas["CampaignState"];
export type CampaignSummary = Schemas["CampaignSummary"];
export type SkippedItem = Schemas["SkippedItem"];
/** What one decision earned: its only reward, or with `mode: "add"` one of several amounts, each with its id. */
export type RewardItem =
  | { decision_id: string; reward: number; mode?: "set" }
  | { decision_id: string; reward: number; mode: "add"; reward_id: string };
export type RewardAnswer = Schemas["RewardAnswer"];
/** A committed reward that was sent with an id. */
export type IdentifiedReward = Schemas["IdentifiedReward"];
/** Whether this is the only reward or an amount to add. `reward_id` is your id of the amount, or else a new one. */
export type RewardOptions = { mode?: "set" } | { mode: "add"; reward_id?: string };
export type Report = Schemas["Report"];
export type Format = "ndjson" | "csv" | "parquet";

/** One customer to decide for. Without a `decision_id` the client makes one. */
export type Item = Omit<Schemas["BatchItem"], "decision_id"> & { decision_id?: string };

/**
 * The action to take. If the service did not answer in time, `is_baseline` is true: the action is the caller's baseline,
 * `problem` says why, and no reward must be reported, because the service may have decided something else.
 */
export type Decision =
  | (Schemas["DecisionAnswer"] & { is_baseline: false })
  | { is_baseline: true; mode: "baseline"; decision_id: string; campaign: string; action: string; problem: string };

/** The decisions of a batch, in the order of the items, and the items that were left out. */
export interface DecisionBatch {
  decisions: Extract<Decision, { is_baseline: false }>[];
  skipped: SkippedItem[];
}

/** The outcome of one reward of a batch: the committed reward, or the error that refused it. */
export interface RewardResult {
  decision_id: string;
  reward_id?: string;
  committed?: RewardAnswer | IdentifiedReward;
  error?: ServiceError;
}

export type DecideOptions = Omit<Item, "context"> & {
  /** The campaign's first action: what to return if there is no answer within the deadline. */
  baseline?: string;
  deadlineMs?: number;
};

/** Name what one decision earned. An amount without an id gets a new one. */
export function makeRewardItem(decision_id: string, reward: number, options: RewardOptions = {}): RewardItem {
  if (options.mode !== "add") return { decision_id, reward, ...options };
  return { decision_id, reward, mode: "add", reward_id: options.reward_id ?? makeId() };
}

/** Make a new id for a decision or a reward; in the order of time, so that the service's index only grows at its end. */
export function makeId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  const random = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return (1_000 * Date.now()).toString(16).padStart(14, "0") + random;
}

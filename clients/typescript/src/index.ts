/**
 * The client of Undercurrent: decide, report rewards, manage campaigns.
 *
 *     const client = new Client("http://127.0.0.1:8000");
 *     const decision = await client.decide("spring-offers", { risk: "low" }, { baseline: "none" });
 *     if (!decision.is_baseline) await client.reward("spring-offers", decision.decision_id, 1.25);
 */

export { Client } from "./client.js";
export {
  AccessError,
  ClientError,
  ConflictError,
  type ErrorDetail,
  type FieldProblem,
  GoneError,
  InvalidError,
  MismatchError,
  NotFoundError,
  QueueError,
  ServiceError,
  TooLargeError,
  TooManyRequestsError,
  UnavailableError,
  UnreachableError,
} from "./errors.js";
export type { Options } from "./exchange.js";
export * from "./messages.js";
export type { components, paths } from "./openapi.js";
export { BrowserStorage, MemoryStorage, type QueueOptions, type QueueStorage, RewardQueue, type Sent } from "./queue.js";

/**
 * The errors of the client.
 *
 * ClientError
 * ├── UnreachableError          no answer, although the request was repeated until the client's patience ran out
 * ├── MismatchError             the server is not an Undercurrent service
 * ├── QueueError                the storage of a reward queue cannot be used
 * └── ServiceError              the service refused the request: status, code, message, fields
 *     ├── AccessError           401, 403: the key is missing, unknown or not sufficient
 *     ├── NotFoundError         404
 *     ├── ConflictError         409: for example, the id was used for a different request
 *     ├── GoneError             410: the decision was erased
 *     ├── TooLargeError         413
 *     ├── InvalidError          422: `fields` says which fields are wrong, why, and what is allowed
 *     ├── TooManyRequestsError  429: `retryAfterMs` says how long to wait
 *     └── UnavailableError      502, 503, 504: temporarily unavailable, and safe to retry
 */

import type { components } from "./openapi.js";

export type FieldProblem = components["schemas"]["FieldProblem"];
export type ErrorDetail = components["schemas"]["ErrorDetail"];

export class ClientError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

export class UnreachableError extends ClientError {}
export class MismatchError extends ClientError {}
export class QueueError extends ClientError {}

/** An answer other than success. The code is empty if the answer is not in the service's own format. */
export class ServiceError extends ClientError {
  readonly code: string;
  readonly fields: readonly FieldProblem[];

  constructor(
    readonly status: number,
    readonly detail: ErrorDetail,
    readonly retryAfterMs?: number,
  ) {
    const problems = (detail.fields ?? []).map(
      ({ field, message, allowed }) => `${field}: ${message}` + (allowed ? ` (allowed: ${JSON.stringify(allowed)})` : ""),
    );
    super(`${problems.join("; ") || detail.message} (${status})`);
    this.code = detail.code;
    this.fields = detail.fields ?? [];
  }
}

export class AccessError extends ServiceError {}
export class NotFoundError extends ServiceError {}
export class ConflictError extends ServiceError {}
export class GoneError extends ServiceError {}
export class TooLargeError extends ServiceError {}
export class InvalidError extends ServiceError {}
export class TooManyRequestsError extends ServiceError {}
export class UnavailableError extends ServiceError {}

const KINDS: Record<number, typeof ServiceError> = {
  401: AccessError,
  403: AccessError,
  404: NotFoundError,
  409: ConflictError,
  410: GoneError,
  413: TooLargeError,
  422: InvalidError,
  429: TooManyRequestsError,
  502: UnavailableError,
  503: UnavailableError,
  504: UnavailableError,
};
/** The HTTP status that stands for the code of one item's error in a batch. */
const STATUSES: Record<string, number> = { not_found: 404, conflict: 409, gone: 410, too_large: 413, invalid: 422 };

/** Make the error of the class that belongs to a status. */
export function makeServiceError(status: number, detail: ErrorDetail, retryAfterMs?: number): ServiceError {
  return new (KINDS[status] ?? ServiceError)(status, detail, retryAfterMs);
}

/** Make the error of one item of a batch. */
export function makeItemError(detail: ErrorDetail): ServiceError {
  return makeServiceError(STATUSES[detail.code] ?? 400, detail);
}

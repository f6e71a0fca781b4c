/** One request and its retries. */

import { type ClientError, type ErrorDetail, MismatchError, UnreachableError, makeServiceError } from "./errors.js";

const SHORTEST_WAIT_MS = 100; // before a retry; doubles up to the longest
const LONGEST_WAIT_MS = 2_000;
const RETRIED = new Set([429, 502, 503, 504]);

export interface Options {
  /** A key, made with `undercurrent keys create`. A service without keys needs none. */
  key?: string;
  /** How long a request is repeated after it first failed. */
  patienceMs?: number;
  /** How long one try may take. */
  timeoutMs?: number;
  /** How long `decide` waits before it returns the baseline. */
  deadlineMs?: number;
  fetch?: typeof fetch;
  sleep?: (milliseconds: number) => Promise<void>;
  now?: () => number;
  /** A number from 0 to 1, to spread retries. */
  random?: () => number;
}

export interface Request {
  method: string;
  path: string;
  body?: unknown;
}

export interface Limits {
  patienceMs?: number;
  timeoutMs?: number;
  /** Ends the request and its retries. */
  signal?: AbortSignal;
}

export class Exchange {
  readonly url: string;
  private readonly options: Required<Omit<Options, "key" | "fetch">> & Pick<Options, "fetch">;
  private readonly headers: Record<string, string>;
  private readonly hasKey: boolean;

  constructor(url: string, { key, fetch: own, ...given }: Options) {
    this.url = url.replace(/\/+$/, "");
    if (!/^https?:\/\/[^/?#]+/.test(this.url)) {
      throw new MismatchError(`${JSON.stringify(url)} is not the address of a service, like http://127.0.0.1:8000`);
    }
    this.hasKey = key !== undefined;
    this.headers = { "content-type": "application/json", ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) };
    this.options = {
      patienceMs: 30_000,
      timeoutMs: 10_000,
      deadlineMs: 250,
      sleep: (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
      now: () => performance.now(),
      random: Math.random,
      ...given,
      ...(own ? { fetch: own } : {}),
    };
  }

  get deadlineMs(): number {
    return this.options.deadlineMs;
  }

  /** Send a request until it is answered, and read its answer as JSON. */
  async fetchJson<T>(request: Request, limits: Limits = {}): Promise<T> {
    const response = await this.ask(request, limits);
    try {
      return (await response.json()) as T;
    } catch (error) {
      throw new MismatchError(`${this.url}${request.path} does not answer with JSON`, { cause: error });
    }
  }

  /**
   * Send a request until it is answered; return a successful answer, and throw any other.
   *
   * A connection error, 429 and 502 to 504 are followed by another try, if it can begin within the patience after the
   * first failure.
   */
  async ask(request: Request, limits: Limits = {}): Promise<Response> {
    const { now, sleep, random } = this.options;
    const patienceMs = limits.patienceMs ?? this.options.patienceMs;
    const body = request.body === undefined ? null : encode(request.body);
    let failingSince: number | undefined;
    let longest = SHORTEST_WAIT_MS;
    for (;;) {
      let problem: ClientError;
      let wait = longest * (0.5 + 0.5 * random()); // clients that failed together must not return together
      try {
        const response = await this.send(request, body, limits);
        if (response.ok) return response;
        const refusal = await this.makeError(request, response);
        if (!RETRIED.has(response.status)) throw refusal;
        problem = refusal;
        wait = refusal.retryAfterMs ?? wait;
      } catch (error) {
        if (!(error instanceof Lost)) throw error;
        const reason = error.cause instanceof Error ? describeCause(error.cause) : String(error.cause);
        problem = new UnreachableError(`no answer from ${this.url} for ${patienceMs / 1_000} seconds: ${reason}`, {
          cause: error.cause,
        });
      }
      const failedAt = now();
      failingSince ??= failedAt;
      if (limits.signal?.aborted || failedAt + wait > failingSince + patienceMs) throw problem;
      await sleep(wait);
      if (limits.signal?.aborted) throw problem; // the caller has gone on without an answer
      longest = Math.min(2 * longest, LONGEST_WAIT_MS);
    }
  }

  private async send(request: Request, body: string | null, limits: Limits): Promise<Response> {
    const signals = [AbortSignal.timeout(limits.timeoutMs ?? this.options.timeoutMs)];
    if (limits.signal) signals.push(limits.signal);
    const { method } = request;
    const call = this.options.fetch ?? fetch;
    try {
      const init: RequestInit = { method, body, headers: this.headers, signal: anySignal(signals), redirect: "manual" };
      const response = await call(`${this.url}${request.path}`, init);
      if (request.path.includes("/decisions?")) return response; // a file: the caller reads it
      // Read the body here, so that a connection that breaks in the middle of it is a lost answer.
      const content = await response.arrayBuffer();
      const empty = [204, 205, 304].includes(response.status) || response.status === 0;
      const { status, headers } = response;
      return new Response(empty ? null : content, { status: status || 599, headers });
    } catch (error) {
      throw new Lost("no answer", { cause: error });
    }
  }

  private async makeError(request: Request, response: Response) {
    let detail: ErrorDetail;
    try {
      const { error } = (await response.json()) as { error: ErrorDetail };
      detail = { code: String(error.code), message: String(error.message), fields: error.fields ?? [] };
    } catch {
      detail = { code: "", message: `${this.url}${request.path} answers with status ${response.status}`, fields: [] };
    }
    if (response.status === 401 || response.status === 403) {
      const wrong = this.hasKey ? "wrong key" : "a key is needed";
      detail = { ...detail, message: `${wrong} for ${this.url}: ${detail.message}` };
    }
    return makeServiceError(response.status, detail, readRetryAfter(response.headers));
  }
}

class Lost extends Error {}

function describeCause(error: Error): string {
  return error.cause instanceof Error ? error.cause.message || String(error.cause) : error.message;
}

/** `AbortSignal.any`, which the first releases of Node 20 lack. */
function anySignal(signals: AbortSignal[]): AbortSignal {
  if (signals.length === 1 && signals[0]) return signals[0];
  if ("any" in AbortSignal) return AbortSignal.any(signals);
  const controller = new AbortController();
  for (const signal of signals) signal.addEventListener("abort", () => controller.abort(signal.reason), { once: true });
  return controller.signal;
}

/** Read Retry-After, which is a number of seconds or a date. */
function readRetryAfter(headers: Headers): number | undefined {
  const text = headers.get("retry-after")?.trim();
  if (!text) return undefined;
  if (/^\d+$/.test(text)) return 1_000 * Number(text);
  const date = Date.parse(text);
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

/** Encode a body as JSON, which has no numbers that are not finite. */
export function encode(body: unknown): string {
  return JSON.stringify(body, (name, value: unknown) => {
    if (typeof value === "number" && !Number.isFinite(value)) throw new RangeError(`${name} is ${value}`);
    return value;
  });
}

import { GoondanError, NO_ANSWER, errorOf, otherAnswer } from "./errors.ts";
import { type Message, messages } from "./messages.ts";

export interface ClientOptions {
  /** The address of `goondan serve` with the door `api`, with or without `/v1`. */
  url: string | URL;
  /** What opens the server; a function is asked before each request. */
  token?: string | (() => string | Promise<string>);
  /**
   * For how many seconds a request that may be sent again is, from its first failure on. Default: 60;
   * 0: never, `Infinity`: until it is answered.
   */
  retrySeconds?: number;
  /** Default: the `fetch` of the platform. */
  fetch?: typeof fetch;
}

export interface Options {
  /** Ends the request; what was begun goes on. */
  signal?: AbortSignal | undefined;
}

export interface Asked extends Options {
  query?: Record<string, string | number | boolean | null | undefined>;
  /** For how many seconds the server waits for the end of a run before it answers, 60 at most. */
  wait?: number;
  /** What is sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
}

export type Method = "GET" | "POST" | "DELETE";

/** How long an answer may take, beyond the wait that was asked for. */
const ANSWER_SECONDS = 30;
/** How long a stream may be silent: the server sends a comment every 15 s. */
const SILENT_SECONDS = 45;
const SHORTEST_PAUSE = 0.25;
const LONGEST_PAUSE = 8;
const PASSING = new Set([502, 503, 504]);

/** The requests to one server. */
export class Http {
  readonly #base: string;
  readonly #token: ClientOptions["token"];
  readonly #retrySeconds: number;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    const { origin, pathname } = new URL(options.url);
    this.#base = origin + pathname.replace(/(\/v1)?\/*$/, "");
    this.#token = options.token;
    this.#retrySeconds = options.retrySeconds ?? 60;
    this.#fetch = options.fetch ?? ((...asked) => fetch(...asked));
  }

  /** Return the answer. After a failure, what only reads or has an Idempotency-Key is sent again. */
  async request<Answer>(method: Method, path: string, asked: Asked = {}): Promise<Answer> {
    const mayRepeat = method === "GET" || new Headers(asked.headers).has("Idempotency-Key");
    const outage = new Outage(mayRepeat ? this.#retrySeconds : 0, asked.signal);
    for (;;) {
      try {
        return await this.#once<Answer>(method, path, asked);
      } catch (error) {
        await outage.pause(error);
      }
    }
  }

  /** Yield the messages of a stream until `isLast`, however often the connection is lost. */
  async *stream(
    path: string,
    after: string | undefined,
    signal: AbortSignal | undefined,
    isLast: (one: Message) => boolean,
  ): AsyncGenerator<Message, void, undefined> {
    const outage = new Outage(this.#retrySeconds, signal);
    for (;;) {
      try {
        for await (const one of this.#messages(path, after, signal)) {
          outage.end();
          if (one === null) continue; // a comment
          after = one.id || after;
          yield one;
          if (isLast(one)) return;
        }
        throw noAnswer(`${this.#base}${path} ended before its last event.`);
      } catch (error) {
        await outage.pause(error);
      }
    }
  }

  async *#messages(path: string, after: string | undefined, signal: AbortSignal | undefined) {
    const headers = { Accept: "text/event-stream", ...(after !== undefined && { "Last-Event-ID": after }) };
    const exchange = new Exchange(signal, SILENT_SECONDS);
    try {
      const response = await this.#sent("GET", path, { headers }, exchange);
      if (!response.ok) throw errorOf(response, await exchange.hears(response.text()));
      const kind = response.headers.get("content-type") ?? "";
      if (response.body === null || !kind.startsWith("text/event-stream")) throw otherAnswer(response);
      yield* messages(response.body, (chunk) => exchange.hears(chunk));
    } finally {
      exchange.end();
    }
  }

  async #once<Answer>(method: Method, path: string, asked: Asked): Promise<Answer> {
    const exchange = new Exchange(asked.signal, ANSWER_SECONDS + (asked.wait ?? 0));
    try {
      const response = await this.#sent(method, path, asked, exchange);
      const text = await exchange.hears(response.text());
      if (!response.ok) throw errorOf(response, text);
      try {
        return JSON.parse(text) as Answer;
      } catch {
        throw otherAnswer(response);
      }
    } finally {
      exchange.end();
    }
  }

  async #sent(method: Method, path: string, asked: Asked, exchange: Exchange): Promise<Response> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(asked.query ?? {})) {
      if (value !== undefined && value !== null) query.set(name, String(value));
    }
    const headers = new Headers(asked.headers);
    if (asked.wait !== undefined) {
      if (method === "GET") query.set("wait", String(asked.wait));
      else headers.set("Prefer", `wait=${asked.wait}`);
    }
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token) headers.set("Authorization", `Bearer ${token}`);
    const request: RequestInit = { method, headers, signal: exchange.signal };
    if (asked.body !== undefined) {
      headers.set("Content-Type", "application/json");
      request.body = JSON.stringify(asked.body);
    }
    const search = String(query) && `?${query}`;
    return await exchange.hears(this.#fetch(`${this.#base}${path}${search}`, request));
  }
}

/** One request and its answer, which may not be silent for too long. */
class Exchange {
  readonly signal: AbortSignal;
  readonly #theirs: AbortSignal | undefined;
  readonly #ours = new AbortController();
  readonly #seconds: number;

  constructor(theirs: AbortSignal | undefined, seconds: number) {
    this.#theirs = theirs;
    this.#seconds = seconds;
    this.signal = theirs === undefined ? this.#ours.signal : AbortSignal.any([theirs, this.#ours.signal]);
  }

  /** Wait for a part of the answer; what goes wrong is an error that `Outage` knows. */
  async hears<Part>(part: Promise<Part>): Promise<Part> {
    const silent = noAnswer(`The server was silent for ${this.#seconds} s.`);
    const timer = setTimeout(() => this.#ours.abort(silent), this.#seconds * 1000);
    try {
      return await part;
    } catch (error) {
      this.#theirs?.throwIfAborted();
      if (error instanceof GoondanError) throw error;
      throw noAnswer(`The server did not answer: ${reason(error)}.`, error);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Let go of the connection, if there is still something to come. */
  end(): void {
    this.#ours.abort();
  }
}

/** The failures of a request in a row. */
class Outage {
  readonly #seconds: number;
  readonly #signal: AbortSignal | undefined;
  #since: number | undefined;
  #pause = SHORTEST_PAUSE;

  constructor(seconds: number, signal: AbortSignal | undefined) {
    this.#seconds = seconds;
    this.#signal = signal;
  }

  /** Wait after a failure; throw it if it does not pass by itself, or has lasted too long. */
  async pause(error: unknown): Promise<void> {
    this.#signal?.throwIfAborted();
    if (!(error instanceof GoondanError) || !passes(error)) throw error;
    this.#since ??= Date.now();
    const seconds = Math.max(this.#pause * (0.5 + Math.random() / 2), error.retryAfter ?? 0);
    this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE);
    if ((Date.now() - this.#since) / 1000 + seconds > this.#seconds) throw error;
    await sleep(seconds, this.#signal);
  }

  /** Note that the server answers. */
  end(): void {
    this.#since = undefined;
    this.#pause = SHORTEST_PAUSE;
  }
}

/** Wait so many seconds, or throw what the signal is aborted with. */
export async function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const timer = setTimeout(finish, seconds * 1000);
    function finish(): void {
      clearTimeout(timer);
      signal?.removeEventListener("abort", finish);
      signal?.aborted ? reject(signal.reason) : resolve();
    }
    signal?.addEventListener("abort", finish);
    if (signal?.aborted) finish();
  });
}

function passes(error: GoondanError): boolean {
  return error.code === NO_ANSWER || (error.status !== undefined && PASSING.has(error.status));
}

function noAnswer(message: string, cause?: unknown): GoondanError {
  const suggestion = "Check that goondan serve runs at the address, and send the request again.";
  return new GoondanError({ code: NO_ANSWER, message, suggestion }, { cause });
}

/** Return what fetch says; in Node the reason is that of its cause. */
function reason(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}

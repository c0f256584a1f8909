import { GoondanError } from "./errors.ts";
import { type Asked, type ClientOptions, Http, type Method, type Options, sleep } from "./http.ts";
import type {
  ApprovalView,
  CallBody,
  CallView,
  DecisionBody,
  FailureText,
  InstanceInfo,
  InstanceRemoval,
  Message,
  Page,
  Removals,
  TurnBody,
  TurnEvent,
  TurnView,
} from "./types.ts";

/** An event of a Turn or call. `cursor` is its place: `events(id, { after })` goes on from there. */
export type Followed = TurnEvent & { cursor: string };

export interface BeginOptions extends Options {
  /**
   * The Idempotency-Key: the same key with the same body is the same Turn or call. Default: a new one, so
   * that a begin that is sent again after a failure begins nothing twice.
   */
  requestKey?: string | undefined;
}

export interface FollowOptions extends Options {
  /** The cursor of the last event that came. Default: from the beginning. */
  after?: string | undefined;
}

export interface ListOptions extends Options {
  /** Only what belongs to this agent. */
  agent?: string | undefined;
}

/** Below the minute after which many proxies give up; the server waits 60 s at most. */
const WAIT_SECONDS = 50;
/** How soon a wait is begun again that was cut short, because the server ends. */
const AGAIN_SECONDS = 1;

/** A client of the HTTP API of `goondan serve`. It holds no connection, and need not be closed. */
export class Client {
  readonly turns: Turns;
  readonly calls: Calls;
  readonly approvals: Approvals;
  readonly instances: Instances;
  readonly #http: Http;

  constructor(options: ClientOptions) {
    this.#http = new Http(options);
    this.turns = new Turns(this.#http, "turns");
    this.calls = new Calls(this.#http, "calls");
    this.approvals = new Approvals(this.#http);
    this.instances = new Instances(this.#http);
  }

  /** Ask for what has no method here; the types of bodies and answers are exported. */
  async request<Answer>(method: Method, path: string, asked?: Asked): Promise<Answer> {
    return await this.#http.request<Answer>(method, path, asked);
  }

  /** Yield the items of a list that has no method here, page by page. */
  items<Item>(path: string, asked?: Asked): AsyncGenerator<Item, void, undefined> {
    return items<Item>(this.#http, path, asked);
  }
}

/** What Turns and calls have in common. */
class Runs<View extends TurnView | CallView> {
  protected readonly http: Http;
  readonly #kind: string;

  constructor(http: Http, kind: "turns" | "calls") {
    this.http = http;
    this.#kind = kind;
  }

  /** Return how it is now. */
  async get(id: string, options: Options = {}): Promise<View> {
    return await this.http.request<View>("GET", this.path(id), options);
  }

  /** Wait for the end, however long that takes; `outcome` says how it has ended. */
  async wait(id: string, options: Options = {}): Promise<View> {
    for (;;) {
      const begun = Date.now();
      const run = await this.http.request<View>("GET", this.path(id), { ...options, wait: WAIT_SECONDS });
      if (hasEnded(run)) return run;
      if (Date.now() - begun < 1000 * AGAIN_SECONDS) await sleep(AGAIN_SECONDS, options.signal);
    }
  }

  /** Yield its events until the last one, which is `end`. A lost connection is made again where it broke. */
  async *events(id: string, options: FollowOptions = {}): AsyncGenerator<Followed, void, undefined> {
    const isLast = (one: { event: string }) => one.event === "end";
    const { after, signal } = options;
    for await (const one of this.http.stream(`${this.path(id)}/events`, after, signal, isLast)) {
      yield { ...(JSON.parse(one.data) as TurnEvent), cursor: one.id };
    }
  }

  /** Cancel it, and return how it is then. */
  async cancel(id: string, options: Options = {}): Promise<View> {
    return await this.http.request<View>("POST", `${this.path(id)}/cancel`, options);
  }

  protected path(id: string): string {
    return path`/v1/${this.#kind}/${id}`;
  }

  protected async begin(agent: string, body: unknown, options: BeginOptions, wait?: number): Promise<View> {
    const headers = { "Idempotency-Key": options.requestKey ?? newKey() };
    const asked: Asked = { body, headers, signal: options.signal, ...(wait !== undefined && { wait }) };
    return await this.http.request<View>("POST", path`/v1/agents/${agent}/${this.#kind}`, asked);
  }

  protected async beginAndWait(agent: string, body: unknown, options: BeginOptions): Promise<View> {
    const run = await this.begin(agent, body, options, WAIT_SECONDS);
    return hasEnded(run) ? run : await this.wait(run.id, { signal: options.signal });
  }
}

/** The Turns of agents. */
export class Turns extends Runs<TurnView> {
  /** Begin a Turn. */
  async start(agent: string, body: TurnBody, options: BeginOptions = {}): Promise<TurnView> {
    return await this.begin(agent, body, options);
  }

  /** Begin a Turn, and wait for its end. */
  async run(agent: string, body: TurnBody, options: BeginOptions = {}): Promise<TurnView> {
    return await this.beginAndWait(agent, body, options);
  }
}

/** The calls of agents' tools. */
export class Calls extends Runs<CallView> {
  /** Submit a call. */
  async submit(agent: string, body: CallBody, options: BeginOptions = {}): Promise<CallView> {
    return await this.begin(agent, body, options);
  }

  /** Submit a call, and wait for its end: of a pending call, too, which a person or a program completes or approves. */
  async run(agent: string, body: CallBody, options: BeginOptions = {}): Promise<CallView> {
    return await this.beginAndWait(agent, body, options);
  }

  /** Return the output, one that is too large for the view (`outputFile`) included. */
  async output(id: string, options: Options = {}): Promise<unknown> {
    return await this.http.request("GET", `${this.path(id)}/output`, options);
  }

  /** Complete a pending call with its output. */
  async resolve(id: string, output: unknown, options: Options = {}): Promise<CallView> {
    return await this.http.request("POST", `${this.path(id)}/resolve`, { ...options, body: { output } });
  }

  /** Complete a pending call with an error. */
  async fail(id: string, error: FailureText, options: Options = {}): Promise<CallView> {
    return await this.http.request("POST", `${this.path(id)}/fail`, { ...options, body: { error } });
  }
}

/** The calls that wait for an approval. */
export class Approvals {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Yield them, the oldest first; `tool` is a glob of names. */
  list(options: ListOptions & { tool?: string } = {}): AsyncGenerator<ApprovalView, void, undefined> {
    const { agent, tool, signal } = options;
    return items(this.#http, "/v1/approvals", { query: { agent, tool }, signal });
  }

  /**
   * Approve a call, which then runs, with `args` if they are given, in place of its own.
   * `by`, another name than that of the token, needs the scope `admin`.
   */
  async approve(id: string, options: Options & { by?: string; args?: DecisionBody["args"] } = {}): Promise<CallView> {
    return await this.#decide(id, "approve", options);
  }

  /** Deny a call, which ends it; the agent reads the reason. */
  async deny(id: string, options: Options & { by?: string; reason?: string } = {}): Promise<CallView> {
    return await this.#decide(id, "deny", options);
  }

  async #decide(id: string, decision: DecisionBody["decision"], options: Options): Promise<CallView> {
    const { signal, ...more } = options;
    const body = { decision, ...more };
    return await this.#http.request("POST", path`/v1/approvals/${id}`, { body, signal });
  }
}

/** The instances of agents. */
export class Instances {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Yield them, the one used last first. */
  list(options: ListOptions = {}): AsyncGenerator<InstanceInfo, void, undefined> {
    const { agent, signal } = options;
    return items(this.#http, "/v1/instances", { query: { agent }, signal });
  }

  /** Return one. */
  async get(agent: string, key: string, options: Options = {}): Promise<InstanceInfo> {
    return await this.#http.request("GET", path`/v1/instances/${agent}/${key}`, options);
  }

  /** Yield the messages of an agent that thinks, the first first. */
  messages(agent: string, key: string, options: Options = {}): AsyncGenerator<Message, void, undefined> {
    return items(this.#http, path`/v1/instances/${agent}/${key}/messages`, options);
  }

  /** Delete one with its files, or say with `dryRun` what would be deleted. */
  async delete(
    agent: string,
    key: string,
    options: Options & { dryRun?: boolean } = {},
  ): Promise<InstanceRemoval[]> {
    const { dryRun, signal } = options;
    const asked = { query: { dryRun }, signal };
    const removed = await this.#http.request<Removals>("DELETE", path`/v1/instances/${agent}/${key}`, asked);
    return removed.items;
  }
}

/** Whether the result is final. */
export function hasEnded(run: TurnView | CallView): boolean {
  return run.status === "done" || run.status === "dead";
}

/**
 * Return the output of what has ended; throw the error if there is one.
 *
 * The output of a call with an `outputFile` is not in its view: `calls.output` reads it.
 */
export function outputOf(run: TurnView | CallView): unknown {
  if (run.error !== null) throw new GoondanError(run.error);
  return run.output;
}

async function* items<Item>(
  http: Http,
  place: string,
  asked: Asked = {},
): AsyncGenerator<Item, void, undefined> {
  let cursor: string | null | undefined = undefined;
  do {
    const query: Asked["query"] = { ...asked.query, cursor };
    const page: Page<Item> = await http.request<Page<Item>>("GET", place, { ...asked, query });
    yield* page.items;
    cursor = page.nextCursor;
  } while (cursor);
}

/** Return a path with these names. */
function path(texts: TemplateStringsArray, ...names: string[]): string {
  if (names.includes("")) throw new TypeError('"" is no name.');
  // a URL cannot have dots alone as a part of its path: the server takes a tilde before them away
  return String.raw({ raw: texts }, ...names.map((name) => encodeURIComponent(name.replace(/^~*\.\.?$/, "~$&"))));
}

/** Return a new Idempotency-Key; `crypto.randomUUID` is missing in pages that came without TLS. */
function newKey(): string {
  const bytes = Array.from(crypto.getRandomValues(new Uint8Array(16)));
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

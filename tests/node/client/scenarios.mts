// What programs do with @goondan/client: `scenarios.mts NAME URL` runs one of them, and prints what it saw
// as lines of JSON.
import { mock } from "node:test";
import { setImmediate } from "node:timers/promises";
import {
  type ApprovalView,
  type CallView,
  Client,
  type ClientOptions,
  GoondanError,
  hasEnded,
  outputOf,
} from "../../../clients/typescript/src/index.ts";

const [name = "", url = "", argument = ""] = process.argv.slice(2);
const PATIENCE = 60_000;

function see(seen: unknown): void {
  console.log(JSON.stringify(seen));
}

function client(options: Partial<ClientOptions> = {}): Client {
  return new Client({ url, ...options });
}

async function errorOf(work: Promise<unknown>): Promise<unknown> {
  try {
    return { unexpected: await work };
  } catch (error) {
    if (!(error instanceof GoondanError)) return { name: (error as Error).name };
    const { code, status, message, suggestion, helpUrl } = error;
    return { code, status, message, suggestion, helpUrl };
  }
}

/** Wait until a call is pending, and return its id. */
async function pending(submitted: Promise<CallView>): Promise<string> {
  const { id } = await submitted;
  while ((await client().calls.get(id)).status !== "pending");
  return id;
}

/** A `fetch` whose answers get lost as often as told, after the server has begun what was asked. */
function forgetful(times: number, sent: Request[]): typeof fetch {
  return async (input, init) => {
    const request = new Request(input, init);
    sent.push(request);
    const answer = await fetch(request);
    if (sent.length > times) return answer;
    await answer.text();
    throw new TypeError("fetch failed", { cause: new Error("the answer is lost") });
  };
}

/** A `fetch` whose streams end after each message, in order, as when a proxy has had enough. */
function brief(sent: Request[]): typeof fetch {
  return async (input, init) => {
    const request = new Request(input, init);
    sent.push(request);
    const answer = await fetch(request);
    if (answer.body === null || !request.url.endsWith("/events")) return answer;
    const reader = answer.body.getReader();
    let text = "";
    while (!/^id: .*\n(.*\n)*\n/m.test(text)) {
      const { done, value } = await reader.read();
      if (done) break;
      text += new TextDecoder().decode(value);
    }
    await reader.cancel();
    const [head = "", first = ""] = text.split("\n\n");
    // in pieces, which end anywhere
    const frames = [head, ":", first, "id: lost"].join("\n\n");
    const bytes = new TextEncoder().encode(frames.replaceAll("\n", "\r\n"));
    const pieces = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += 7) controller.enqueue(bytes.slice(at, at + 7));
        controller.close();
      },
    });
    return new Response(pieces, { status: answer.status, headers: answer.headers });
  };
}

const scenarios: Record<string, () => Promise<void>> = {
  async calls() {
    const { calls } = client({ token: async () => "unused" });
    const ended = await calls.run("builder", { tool: "guarded__look", args: { a: "ü/?" } });
    see([hasEnded(ended), outputOf(ended), await calls.output(ended.id)]);
    const job = await pending(calls.submit("builder", { tool: "jobs__begin" }));
    see(outputOf(await calls.resolve(job, { n: 1 })));
    const other = await pending(calls.submit("builder", { tool: "jobs__begin", args: { handle: "job-2" } }));
    see(await errorOf(calls.fail(other, { message: "no", code: "E_OWN" }).then(outputOf)));
    const late = await calls.submit("builder", { tool: "guarded__look", delay: 3600 });
    see((await calls.cancel(late.id)).error?.code);
  },

  async turn() {
    const { turns } = client();
    const turn = await turns.start("builder", { input: "Build it.", instanceKey: argument });
    for await (const event of turns.events(turn.id)) {
      see(event.type);
      break; // and the connection does not keep the program alive
    }
    const seen = [];
    for await (const event of turns.events(turn.id, { signal: AbortSignal.timeout(PATIENCE) })) {
      seen.push(event);
    }
    see(seen);
    const first = seen[0];
    const rest = [];
    for await (const event of turns.events(turn.id, { after: first?.cursor })) rest.push(event);
    see(rest);
    see(outputOf(await turns.wait(turn.id)));
  },

  async brief() {
    const sent: Request[] = [];
    const { turns } = client({ fetch: brief(sent) });
    const turn = await turns.start("builder", { input: "Build it.", instanceKey: argument });
    const seen = [];
    for await (const event of turns.events(turn.id)) seen.push(event);
    see(seen);
    see(sent.slice(1).map((request) => request.headers.get("last-event-id")));
  },

  async approvals() {
    const { approvals, calls } = client();
    const held: string[] = [];
    for (const disk of ["sda", "sdb"]) {
      const body = { tool: "guarded__wipe", args: { disk }, instanceKey: argument };
      held.push(await pending(calls.submit("builder", body)));
    }
    const listed = [];
    for await (const one of approvals.list({ agent: "builder", tool: "guarded__w*" })) {
      if (held.includes(one.id)) listed.push(one.args);
    }
    see(listed);
    const paged: string[] = [];
    const asked = { query: { limit: 1 } };
    for await (const one of client().items<ApprovalView>("/v1/approvals", asked)) paged.push(one.id);
    see(held.every((id) => paged.includes(id)));
    const [yes = "", no = ""] = held;
    see(await errorOf(approvals.approve(yes, { args: { disk: 7 } })));
    const approved = await approvals.approve(yes, { by: "ann", args: { disk: "sdc" } });
    see([approved.approvedBy, approved.edited?.asked, approved.edited?.args]);
    see(outputOf(await calls.wait(yes)));
    see(await errorOf(approvals.deny(no, { reason: "not today" }).then(outputOf)));
    see(await errorOf(approvals.approve(no)));
  },

  async instances() {
    const { instances, calls } = client();
    await calls.run("builder", { tool: "guarded__look", instanceKey: argument });
    const keys = [];
    for await (const one of instances.list({ agent: "builder" })) keys.push(one.instanceKey);
    see([keys.includes(argument), (await instances.get("builder", argument)).target]);
    see((await instances.delete("builder", argument, { dryRun: true })).map((one) => one.removed));
    const messages = [];
    for await (const one of instances.messages("builder", argument)) messages.push(one);
    see(messages);
    await calls.run("builder", { tool: "guarded__look", instanceKey: ".." });
    see((await instances.get("builder", "..")).instanceKey);
    see(await errorOf(instances.get("builder", "")));
  },

  async errors() {
    const { calls, turns } = client();
    see(await errorOf(calls.get("none")));
    see(await errorOf(turns.start("nobody", { input: 1 })));
    see(await errorOf(new Client({ url: `${url}/elsewhere` }).calls.get("none")));
    see(await errorOf(new Client({ url: argument, retrySeconds: 0 }).calls.get("none")));
    see(await errorOf(new Client({ url, token: "a\nb" }).calls.get("none")));
  },

  async abort() {
    const { calls, turns } = client();
    const late = await calls.submit("builder", { tool: "guarded__look", delay: 3600, keep: 60 });
    see(await errorOf(calls.wait(late.id, { signal: AbortSignal.timeout(100) })));
    const events = calls.events(late.id, { signal: AbortSignal.timeout(100) });
    see(await errorOf(events.next()));
    const away = new Client({ url: argument, retrySeconds: Infinity });
    see(await errorOf(away.calls.wait(late.id, { signal: AbortSignal.timeout(100) })));
    see(await errorOf(turns.start("builder", { input: 1 }, { signal: AbortSignal.abort() })));
    see((await calls.cancel(late.id)).status);
  },

  async silent() {
    mock.timers.enable({ apis: ["setTimeout"] });
    const headers = { "content-type": "text/event-stream" };
    const whenAborted = (init: RequestInit | undefined, then: (reason: unknown) => void) => {
      init?.signal?.addEventListener("abort", () => then(init.signal?.reason));
    };
    const answer: typeof fetch = (_, init) => new Promise((_, reject) => whenAborted(init, reject));
    const stream: typeof fetch = async (_, init) => {
      const start = (body: ReadableStreamDefaultController) =>
        whenAborted(init, (reason) => body.error(reason));
      return new Response(new ReadableStream({ start }), { headers });
    };
    for (const [fetch, seconds] of [[answer, 80], [stream, 45]] as const) {
      const { calls } = client({ fetch, retrySeconds: 0 });
      const asked = fetch === answer ? calls.wait("c-1") : calls.events("c-1").next();
      let error: unknown = null;
      void errorOf(asked).then((one) => (error = one));
      await setImmediate();
      mock.timers.tick(1000 * seconds - 1);
      await setImmediate();
      see(error);
      mock.timers.tick(1);
      await setImmediate();
      see(error);
    }
  },

  async repeat() {
    const sent: Request[] = [];
    const { turns, calls } = client({ fetch: forgetful(2, sent) });
    const turn = await turns.start("builder", { input: 1, instanceKey: argument, delay: 3600 });
    const keys = new Set(sent.map((request) => request.headers.get("idempotency-key")));
    see([sent.length, keys.size, turn.status]);
    sent.length = 0;
    see(await errorOf(turns.cancel(turn.id)));
    see(sent.length);
    const body = { tool: "guarded__look", instanceKey: argument };
    const twice = [];
    for (let time = 0; time < 2; time++) {
      twice.push((await calls.submit("builder", body, { requestKey: `key-${argument}` })).id);
    }
    see(new Set(twice).size);
    const other = { ...body, args: { a: 2 } };
    see(await errorOf(calls.submit("builder", other, { requestKey: `key-${argument}` })));
  },
};

for (const one of name.split(",")) await scenarios[one]?.();

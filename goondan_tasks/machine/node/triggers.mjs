// Calls the entry of a Connector of agents.example.io/v1alpha1 for each thing that its triggers name, as
// connectors/triggers.py does for Python.

import { randomUUID } from 'node:crypto';

const { parse } = JSON;
const { Array, Error, Object, Promise, Response, URLSearchParams } = globalThis; // files may replace them
const now = () => new Date().toISOString();
/** The longest sleep until a slot, in ms. */
const LONGEST_SLEEP = 30_000;
/** What the events of canonical Connectors are called, by the type of the trigger. */
const EVENT_TYPES = { http: 'webhook', cron: 'cron', cli: 'message', custom: 'custom' };

/** Return the function of a trigger: the export that it names, or the file's only one. */
function functionOf(module, file, { handler }) {
  if (handler === null) {
    const entry = typeof module.default === 'function' ? module.default : module.connect;
    if (typeof entry === 'function') return entry;
    throw new Error(`${file} exports no connector. Write: export default async function (context) { … }`);
  }
  const found = module[handler] ?? module.default?.[handler];
  if (typeof found === 'function') return found;
  throw new Error(`${file} does not export the function '${handler}', which a trigger of the Connector names.`);
}

/**
 * Return what runs the triggers of a Connector, until all of them have ended.
 *
 * `called` is what the start message says of the Connector, `ask` asks the program that has started this process.
 */
export function triggered(module, file, called, ask) {
  const functions = called.triggers.map((declared) => functionOf(module, file, declared));
  return async (ctx) => {
    const { signal } = ctx;
    const triggers = called.triggers.map((declared, number) => {
      const call = caller(called, declared, functions[number], ctx, ask);
      return { number, declared, call, signal, ask, readLine: ctx.readLine, logger: ctx.logger };
    });
    const asked = triggers.filter((trigger) => trigger.declared.type === 'http');
    const others = triggers.filter((trigger) => trigger.declared.type !== 'http');
    const running = others.map((trigger) => SOURCES[trigger.declared.type](trigger));
    await Promise.all(asked.length > 0 ? [...running, requests(asked, called, ctx)] : running);
  };
}

function caller(called, declared, entry, ctx, ask) {
  const { connection, connector, canonical, oauth, verify } = called;
  const { type } = declared;
  return (payload, callId = null) => {
    let emits = 0;
    const received = type === 'custom' ? null : payload;
    const timestamp = now();
    const event = canonical
      ? { type: EVENT_TYPES[type], payload, timestamp }
      : { type: 'connector.trigger', trigger: { type, payload }, timestamp };
    const context = Object.freeze({
      event,
      connection,
      connector,
      emit: (one) => ctx.emit({ event: one, id: callId && `${callId}:${++emits}`, payload: received }),
      logger: ctx.logger,
      ...(oauth ? { oauth: { getAccessToken: (request = {}) => ask('oauth.token', request) } } : {}),
      ...(verify ? { verify } : {}),
      config: ctx.config,
      secrets: ctx.secrets,
      signal: ctx.signal,
    });
    return canonical ? entry(event, connection, context) : entry(context);
  };
}

/** Call the entry; its error is logged, and ends nothing. */
async function tryCall(trigger, payload, callId) {
  try {
    await trigger.call(payload, callId);
  } catch (error) {
    trigger.logger.error(`connector.call-failed ${trigger.declared.type}`, String(error?.stack ?? error));
  }
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}

async function slots(trigger) {
  const { number, declared, signal, ask } = trigger;
  while (!signal.aborted) {
    const due = await ask('cron.next', number);
    if (due === null) return;
    if (due.slot === undefined) {
      await sleep(Math.min(due.inSeconds * 1000, LONGEST_SLEEP), signal);
      continue;
    }
    const { slot, scheduledAt } = due;
    await tryCall(trigger, { schedule: declared.schedule, scheduledAt }, `cron:${number}:${scheduledAt}`);
    await ask('cron.done', { trigger: number, slot });
  }
}

async function lines(trigger) {
  for (let line; !trigger.signal.aborted && (line = await trigger.readLine()) !== null; ) {
    await tryCall(trigger, { text: line.text }, `line:${line.program}:${line.number}`);
  }
}

/** Return a request as the payload of its trigger; `path` is the declared one. */
function received({ method, headers, body }, path, canonical) {
  const rawBody = body.toString();
  let read;
  try {
    read = parse(rawBody);
  } catch {
    read = null; // or a form
  }
  if (typeof read !== 'object' || read === null || Array.isArray(read)) {
    // JSON goes first: curl says that whatever it sends is a form
    const isForm = headers['content-type']?.startsWith('application/x-www-form-urlencoded');
    read = isForm ? Object.fromEntries(new URLSearchParams(rawBody)) : {};
  }
  const fields = { method, path, headers, body: read, rawBody };
  return canonical ? { requestId: randomUUID(), ...fields } : { request: fields };
}

/** Answer requests, each by the trigger of its method; what the function returns is the answer. */
function requests(triggers, { canonical }, ctx) {
  return ctx.http((request) => {
    const trigger = triggers.find(({ declared }) => declared.endpoint.method === request.method);
    if (trigger === undefined) return new Response(null, { status: 405 });
    return trigger.call(received(request, trigger.declared.endpoint.path, canonical));
  });
}

const SOURCES = { cron: slots, cli: lines, custom: (trigger) => trigger.call({ signal: trigger.signal }) };

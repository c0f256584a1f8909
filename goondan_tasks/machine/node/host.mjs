// Runs the handlers of a bundle's TypeScript and JavaScript for one worker, in Node or Bun.
//
// `host.mjs DIRECTORY serve BYTES [alone]`: the worker starts it with a socket as descriptor 3; it works in DIRECTORY. Messages are JSON, one a
// line, of at most BYTES bytes. With `alone` it runs one call at a time. Those to the worker have the length of their JSON before them, as in `23:{"t":"pong","id":4}`:
// that shows whether a handler has written to the descriptor, too. Many calls run at once; messages carry the `id`
// of their call. Standard output is the worker's log, so `console.log` does not disturb the messages. The process
// ends with the socket.
//
//     {"t": "call", "id": 1, "entry": "/…/index.ts", "export": "read", "input": {}, "ctx": {…}}   to run
//                                            with "does": what extension.mjs does instead of calling a tool
//     {"t": "abort", "id": 1, "error": {…}}    the call is cancelled, or past its limit
//     {"t": "answer", "ask": 7, "value": …}    or "error", to what a handler has asked
//     {"t": "ping", "id": 4}                   is the event loop blocked?
//
//     {"t": "value", "id": 1, "value": …}      or "pending" or "error": how a call has ended
//     {"t": "log", "id": 1, "level": "info", "event": "…"}    id 0: of no call
//     {"t": "progress", "id": 1, "args": […]}
//     {"t": "output", "id": 1, "events": [{"chunk": …}]}      what handlers emit; {"truncated": true} after too much
//     {"t": "ask", "id": 1, "ask": 7, "method": "runtime.request", "args": […]}
//     {"t": "pong", "id": 4}
//
// `host.mjs DIRECTORY inspect KIND FILE` imports one file instead, and writes what is in it to descriptor 3.

import { AsyncLocalStorage } from 'node:async_hooks';
import { writeSync } from 'node:fs';
import { Socket } from 'node:net';

import { describe, found, inspected } from './entry.mjs';
import { newContext, Pending } from './context.mjs';
import { takeConsole } from './console.mjs';
import { invoke, register } from './extension.mjs';
import { requireJson } from './values.mjs';

const CHANNEL = 3;
/** Log lines are dropped while more characters than this wait to be sent. */
const MOST_UNSENT = 16_000_000;
/** Of what a handler emits: the largest chunk, and all of a call, in bytes (goondan_tasks/contract/output.py). */
const LARGEST_CHUNK = 65_536;
const MOST_EMITTED_BYTES = 1_048_576;
/** How long chunks are gathered, in ms. */
const GATHER_MS = 20;

// handlers may replace globals
const { parse, stringify } = JSON;
const { AbortController, AbortSignal, Buffer, Promise, fetch, setImmediate, setTimeout } = globalThis;
const byteLength = Buffer.byteLength.bind(Buffer);
const exit = process.exit.bind(process);

const [directory, mode, ...operands] = process.argv.slice(2);
process.chdir(directory); // it has started elsewhere, see javascript.py
/** The limit of a message's JSON, both ways. */
const mostBytes = mode === 'serve' ? Number(operands[0]) : Infinity;
/** Whether it runs one call at a time, each of which finds the process as its entry files have left it. */
const isAlone = operands[1] === 'alone';

/** The call that the running code belongs to. */
const running = new AsyncLocalStorage();

/** Running calls, by id. @type {Map<number, Call>} */
const calls = new Map();

/** Open questions to the worker, by number. @type {Map<number, {resolve: Function, reject: Function}>} */
const asked = new Map();
let asks = 0;

let send;
let write;
/** Returns how many characters wait to be sent. */
let unsent;

/** One call: its order, and the signal that its handler gets. */
class Call {
  constructor(order) {
    this.order = order;
    this.id = order.id;
    this.abort = new AbortController();
    this.emitted = [];
    this.emittedBytes = 0;
  }

  /** Whether the worker still waits for it. */
  get isLive() {
    return calls.has(this.id);
  }

  /** Whether it runs the handler of a tool, not an extension's own function. */
  get isOfTool() {
    return !this.order.does || this.order.kind === 'tool';
  }

  /** Ask the worker for something on behalf of the call; rejects with the worker's error. */
  ask(method, ...args) {
    return new Promise((resolve, reject) => {
      if (!this.isLive) {
        throw new Error('The call has ended: its context cannot be used any more.');
      }
      asks += 1;
      send({ t: 'ask', id: this.id, ask: asks, method, args });
      asked.set(asks, { resolve, reject });
    });
  }

  say(kind, fields) {
    send({ t: kind, id: this.id, ...fields });
  }

  /** Gather output of the handler, to be sent in a moment if anybody follows it. */
  emit(chunk) {
    const { value, bytes } = checkedChunk(chunk);
    if (!this.order.ctx.followed || !this.isLive || this.emittedBytes > MOST_EMITTED_BYTES) {
      return;
    }
    this.emittedBytes += bytes;
    this.emitted.push(this.emittedBytes > MOST_EMITTED_BYTES ? { truncated: true } : { chunk: value });
    if (this.emitted.length === 1) {
      setTimeout(() => this.sendEmitted(), GATHER_MS);
    }
  }

  /** Send what was emitted since the last time. */
  sendEmitted() {
    const events = this.emitted;
    this.emitted = [];
    if (events.length > 0) {
      this.say('output', { events });
    }
  }

  end(message) {
    if (calls.delete(this.id)) {
      this.sendEmitted();
      try {
        if (this.isOfTool && message.t !== 'error') {
          requireJson(message.value, 'output');
        }
        send(message);
      } catch (error) {
        const told = error instanceof PayloadTooLargeError ? error : new ToolOutputError(describe(error).message);
        send({ t: 'error', id: this.id, error: describe(told) });
      }
    }
  }

  fail(error) {
    this.end({ t: 'error', id: this.id, error: describe(error) });
  }
}

const cwd = process.cwd.bind(process);
const chdir = process.chdir.bind(process);

/** Directory, environment and umask, before the first call and after each import. */
let state = stateNow();

function stateNow() {
  return { directory: cwd(), environment: { ...process.env }, umask: process.umask() };
}

function restore({ directory, environment, umask }) {
  chdir(directory);
  for (const name of Object.keys(process.env)) {
    if (!Object.hasOwn(environment, name)) {
      delete process.env[name];
    }
  }
  Object.assign(process.env, environment);
  process.umask(umask);
}

/** What orders with `does` run. */
const does = { register, invoke };

async function handled(call, order) {
  if (isAlone) {
    restore(state);
  }
  const handler = await found(order.entry, order.export);
  if (isAlone) {
    state = stateNow();
  }
  return await handler(newContext(call), order.input);
}

async function run(call) {
  const { order, id } = call;
  try {
    const value = await (order.does ? does[order.does](call, running) : handled(call, order));
    const kind = value instanceof Pending ? 'pending' : 'value';
    call.end({ t: kind, id, value: value === undefined ? null : value });
  } catch (error) {
    call.fail(error);
  }
}

const receive = {
  __proto__: null,
  call(order) {
    const call = new Call(order);
    calls.set(call.id, call);
    running.run(call, run, call);
  },
  abort({ id, error }) {
    const reason = Object.assign(new Error(error.message), { name: 'AbortError', code: error.code });
    calls.get(id)?.abort.abort(reason);
  },
  answer({ ask, value, error }) {
    const waiting = asked.get(ask);
    asked.delete(ask);
    if (error) {
      waiting?.reject(Object.assign(new Error(error.message), error));
    } else {
      waiting?.resolve(value);
    }
  },
  ping({ id }) {
    // unbatched: the worker holds back calls until it arrives
    write(encoded({ t: 'pong', id }));
  },
};

/** Return a function that takes chunks of bytes, and calls `receive` with each whole line in them. */
function lines() {
  const rest = [];
  let size = 0;
  return (chunk) => {
    let start = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, start)) {
      rest.push(chunk.subarray(start, end));
      const message = parsed(rest.length === 1 ? rest[0] : Buffer.concat(rest));
      rest.length = 0;
      size = 0;
      start = end + 1;
      receive[message.t](message);
    }
    if (start < chunk.length) {
      rest.push(chunk.subarray(start));
      size += chunk.length - start;
      if (size > mostBytes) {
        broken(`more than ${mostBytes} bytes without an end of line`);
      }
    }
  };
}

/**
 * Return the message in a line; ends the process if there is none: a handler has read from the descriptor.
 * A handler may have added fields to what all objects inherit, as careless code that merges its input does.
 */
function parsed(line) {
  try {
    const message = { __proto__: null, ...parse(line.toString()) };
    if (message.ctx) {
      message.ctx = { __proto__: null, ...message.ctx };
    }
    if (receive[message.t]) {
      return message;
    }
  } catch {
    // as below
  }
  return broken('not a message');
}

function broken(reason) {
  writeSync(2, `The connection to the worker is broken (${reason}): the process ends.\n`);
  exit(1);
}

/**
 * Return a message as the worker reads it, also if a handler has changed what all objects inherit.
 * Throws if it is not JSON, or too large.
 */
function encoded(message) {
  const text = stringify({ __proto__: null, ...message });
  const bytes = byteLength(text);
  if (bytes > mostBytes) {
    throw new PayloadTooLargeError(
      `The handler's message to the worker takes ${bytes} bytes; at most ${mostBytes} are allowed.`,
    );
  }
  return `${bytes}:${text}\n`;
}

/** Return a chunk of output as it is now, and its size as text or JSON; throws if it is neither, or too large. */
function checkedChunk(chunk) {
  if (typeof chunk !== 'string') {
    requireJson(chunk, 'emit: the chunk');
  }
  const text = typeof chunk === 'string' ? chunk : (stringify(chunk) ?? 'null');
  const bytes = byteLength(text);
  if (bytes > LARGEST_CHUNK) {
    throw new PayloadTooLargeError(`emit: the chunk takes ${bytes} bytes; at most ${LARGEST_CHUNK} are allowed.`);
  }
  return { value: typeof chunk === 'string' ? chunk : parse(text), bytes };
}

class PayloadTooLargeError extends Error {
  name = 'PayloadTooLargeError';
  code = 'E_PAYLOAD_TOO_LARGE';
  /** It was not raised by the handler. */
  stack = undefined;
  suggestion = 'Write large data into a file of the workdir, and return its path.';
}

class ToolOutputError extends Error {
  name = 'ToolOutputError';
  code = 'E_TOOL_BAD_OUTPUT';
  suggestion = 'Return only plain objects, arrays, strings, finite numbers, booleans and null.';
  /** It was not raised by the handler. */
  stack = undefined;

  constructor(reason) {
    super(`What the handler returns is not JSON: ${reason}.`);
  }
}

/** Return a `send` that writes all messages of one round of the event loop at once. */
function batched(waiting) {
  let batch = '';
  unsent = () => batch.length + waiting();
  return (message) => {
    if (batch === '') {
      setImmediate(() => {
        const text = batch;
        batch = '';
        write(text);
      });
    }
    batch += encoded(message);
  };
}

function writeAll(text) {
  const bytes = Buffer.from(text);
  for (let done = 0; done < bytes.length; ) {
    done += writeSync(CHANNEL, bytes, done);
  }
}

async function serve() {
  const feed = lines();
  if (process.versions.bun) {
    // Bun's net.Socket takes no descriptor
    write = writeAll;
    send = batched(() => 0);
    for await (const chunk of Bun.file(CHANNEL).stream()) {
      feed(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
    }
    exit(0);
  } else {
    const channel = new Socket({ fd: CHANNEL, readable: true, writable: true });
    write = (text) => channel.write(text);
    send = batched(() => channel.writableLength);
    channel.on('data', feed);
    channel.on('error', () => exit(0));
    channel.on('close', () => exit(0));
  }
}

/** An uncaught error fails its call. One that belongs to no running call is logged. */
function uncaught(error) {
  // Bun does not say to which call it belongs
  const call = running.getStore() ?? (calls.size === 1 ? calls.values().next().value : undefined);
  if (call?.extension?.isRegistered && !(call.isLive && call.order.does === 'invoke')) {
    call.extension.logger.error(error); // from its background work
  } else if (call?.isLive) {
    call.fail(error);
  } else {
    const { message, stack } = describe(error);
    send({ t: 'log', id: 0, level: 'error', event: `not caught: ${stack ?? message}` });
  }
}

process.on('uncaughtException', uncaught);
process.on('unhandledRejection', uncaught);

// paths that JavaScript resolves are relative to the instance's workdir; the process's directory is shared
process.cwd = () => running.getStore()?.order.ctx?.workdir ?? cwd();

// in the directory of one instance, calls of others would read and write its files
process.chdir = (to) => {
  if (!isAlone && running.getStore()?.isOfTool) {
    const error = new Error('process.chdir would change the directory of the other calls in this process, too.');
    error.suggestion = 'Use absolute paths, and `cwd` of child processes; or declare `isolation: process`.';
    throw error;
  }
  chdir(to);
};

// cancelling a call aborts its fetches
globalThis.fetch = (input, init) => {
  const call = running.getStore();
  const signals = [call?.abort.signal, init?.signal ?? input?.signal].filter(Boolean);
  return fetch(input, call ? { ...init, signal: AbortSignal.any(signals) } : init);
};
Object.assign(globalThis.fetch, fetch); // Bun's has `preconnect`

if (mode === 'inspect') {
  takeConsole(() => {});
  writeAll(stringify(await inspected(...operands)));
  exit(0);
}
let dropped = 0;
takeConsole((level, event) => {
  if (unsent() > MOST_UNSENT) {
    dropped += 1;
    return;
  }
  if (dropped > 0) {
    send({ t: 'log', id: 0, level: 'warning', event: `${dropped} lines came too fast, and were dropped` });
    dropped = 0;
  }
  send({ t: 'log', id: running.getStore()?.id ?? 0, level, event: event.toWellFormed() });
});
await serve();

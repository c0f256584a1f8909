// Runs the handlers of a bundle's TypeScript and JavaScript for one worker, in Node or Bun.
//
// The worker starts it with a socket as descriptor 3. Messages are lines of JSON, both ways. Many calls run at
// once; what belongs to a call carries its `id`. Standard output is the worker's log, so `console.log` cannot
// disturb the messages. The process ends with the socket.
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
//     {"t": "ask", "id": 1, "ask": 7, "method": "runtime.request", "args": […]}
//     {"t": "pong", "id": 4}
//
// `host.mjs inspect KIND FILE` imports one file instead, and writes what is in it to descriptor 3.

import { AsyncLocalStorage } from 'node:async_hooks';
import { writeSync } from 'node:fs';
import { Socket } from 'node:net';

import { describe, found, inspected } from './entry.mjs';
import { newContext, Pending } from './context.mjs';
import { takeConsole } from './console.mjs';
import { invoke, register } from './extension.mjs';

const CHANNEL = 3;
/** Lines of the log are dropped while the worker is behind by so many characters. */
const MOST_UNSENT = 16_000_000;

// handlers may replace what is global
const { parse, stringify } = JSON;
const { AbortController, AbortSignal, Buffer, Promise, fetch, setImmediate } = globalThis;

/** The call that the code runs for, wherever it has come to since. */
const running = new AsyncLocalStorage();

/** Calls on their way, by id. @type {Map<number, Call>} */
const calls = new Map();

/** What handlers have asked the worker, by number. @type {Map<number, {resolve: Function, reject: Function}>} */
const asked = new Map();
let asks = 0;

let send;
let write;
/** How many characters are still to be written. */
let unsent;

/** One call: what it was ordered with, and the signal that its handler gets. */
class Call {
  constructor(order) {
    this.order = order;
    this.id = order.id;
    this.abort = new AbortController();
  }

  /** Whether the worker still waits for it. */
  get isLive() {
    return calls.has(this.id);
  }

  /** Ask the worker for something on behalf of the call; rejects with the error that it answers. */
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

  end(message) {
    if (calls.delete(this.id)) {
      try {
        send(message);
      } catch (error) {
        send({ t: 'error', id: this.id, error: describe(notJson(describe(error).message)) });
      }
    }
  }

  fail(error) {
    this.end({ t: 'error', id: this.id, error: describe(error) });
  }
}

/** What is ordered besides calls of tools. */
const does = { register, invoke };

async function handled(call, order) {
  const handler = await found(order.entry, order.export);
  return await handler(newContext(call), order.input);
}

async function run(call) {
  const { order, id } = call;
  try {
    const value = await (order.does ? does[order.does](call, running) : handled(call, order));
    if (typeof value === 'function' || typeof value === 'symbol') {
      call.fail(notJson(`a ${typeof value}`));
    } else if (value instanceof Pending) {
      call.end({ t: 'pending', id, value });
    } else {
      call.end({ t: 'value', id, value: value === undefined ? null : value });
    }
  } catch (error) {
    call.fail(error);
  }
}

const receive = {
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
    // at once: what comes after a ping without a pong has not begun
    write(encoded({ t: 'pong', id }));
  },
};

/** Return a function that takes chunks of bytes, and calls `receive` with each whole line in them. */
function lines() {
  const rest = [];
  return (chunk) => {
    let start = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, start)) {
      rest.push(chunk.subarray(start, end));
      const message = parse(rest.length === 1 ? rest[0].toString() : Buffer.concat(rest).toString());
      rest.length = 0;
      start = end + 1;
      receive[message.t](message);
    }
    if (start < chunk.length) {
      rest.push(chunk.subarray(start));
    }
  };
}

/** JSON as the worker reads it, also if a handler has changed what all objects inherit; throws if there is none. */
const encoded = (message) => `${stringify({ __proto__: null, ...message })}\n`;

const notJson = (reason) =>
  Object.assign(new TypeError(`What the handler returns is not JSON: ${reason}.`), { code: 'E_TOOL_BAD_OUTPUT' });

/** Send what one round of the event loop has produced with one write. */
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
    // its net.Socket takes no descriptor
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

/** What nobody caught fails the call that it belongs to, unless that has ended; else the others go on. */
function uncaught(error) {
  // Bun does not say which it is
  const call = running.getStore() ?? (calls.size === 1 ? calls.values().next().value : undefined);
  if (call?.extension?.isRegistered && !(call.isLive && call.order.does === 'invoke')) {
    call.extension.logger.error(error); // it did that in the background
  } else if (call?.isLive) {
    call.fail(error);
  } else {
    const { message, stack } = describe(error);
    send({ t: 'log', id: 0, level: 'error', event: `not caught: ${stack ?? message}` });
  }
}

const exit = process.exit.bind(process);
process.on('uncaughtException', uncaught);
process.on('unhandledRejection', uncaught);

// relative paths start in the instance's workdir, as far as they are resolved in JavaScript
const cwd = process.cwd.bind(process);
process.cwd = () => running.getStore()?.order.ctx?.workdir ?? cwd();

// a call that is cancelled ends what it fetches
globalThis.fetch = (input, init) => {
  const call = running.getStore();
  const signals = [call?.abort.signal, init?.signal ?? input?.signal].filter(Boolean);
  return fetch(input, call ? { ...init, signal: AbortSignal.any(signals) } : init);
};
Object.assign(globalThis.fetch, fetch); // Bun's has `preconnect`

const [mode, kind, file] = process.argv.slice(2);
if (mode === 'inspect') {
  takeConsole(() => {});
  writeAll(JSON.stringify(await inspected(kind, file)));
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

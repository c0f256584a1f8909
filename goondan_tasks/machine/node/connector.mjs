// Runs the connector of one Connection, in Node or Bun: `connector.mjs DIRECTORY DESCRIPTOR`.
//
// It works in DIRECTORY, reads messages from standard input and writes its own to DESCRIPTOR, each one line of
// JSON; connectors/child.py lists them. What the connector prints goes to the log. It ends when its input does.

import { writeSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { createInterface } from 'node:readline';
import { newConsole } from './console.mjs';
import { ConnectorError, refused, verify } from './verify.mjs';

import { triggered } from './triggers.mjs';

const { parse, stringify } = JSON;
const { Buffer, Error, Map, Object, Promise, Response } = globalThis; // files may replace them
const exit = process.exit.bind(process);
const [directory, descriptor] = process.argv.slice(2);
process.chdir(directory); // it has started elsewhere, see javascript.py

/** The exit code of a process whose lease was not renewed. */
const LEASE_OVER = 75;
/** Of the texts about an error, in characters. */
const LONGEST = 4_000;

/** What was asked and not answered yet, by number. @type {Map<number, {resolve: Function, reject: Function}>} */
const asked = new Map();
let asks = 0;

/** Of a message, in bytes, and of a log line whose message would be larger, in characters. */
const LARGEST_MESSAGE = 4_194_304;
const LONGEST_LOGGED = 65_536;

/** Write a message, or if it is too large, what stands for it. */
function write(message, instead) {
  let data = Buffer.from(stringify(message) + '\n');
  if (instead && data.length > LARGEST_MESSAGE) data = Buffer.from(stringify(instead(data.length)) + '\n');
  while (data.length > 0) {
    try {
      data = data.subarray(writeSync(Number(descriptor), data));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

/** Rejects if the value is not JSON. */
async function ask(name, value = null) {
  const id = ++asks;
  const answer = new Promise((resolve, reject) => asked.set(id, { resolve, reject }));
  write({ type: 'ask', id, name, value }, (bytes) => ({ type: 'ask', id, name, bytes }));
  return answer;
}

function answered({ id, value, error }) {
  const open = asked.get(id);
  asked.delete(id);
  if (error === undefined) open?.resolve(value);
  else open?.reject(new ConnectorError(error));
}

/** Of a body, in bytes. */
const LARGEST_BODY = 2_097_152;
/** The handler of requests. @type {Function | undefined} */
let handler;

function serve(isDeclared, signal, given) {
  if (!isDeclared) throw new ConnectorError({ message: "The Connector declares no requests: add 'http: {}' to its spec." });
  if (typeof given !== 'function') throw new ConnectorError({ message: 'ctx.http takes a function.' });
  if (handler) throw new ConnectorError({ message: 'ctx.http was called twice: let one handler look at request.path.' });
  handler = given;
  write({ type: 'serving' });
  return new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
}

function requestOf({ method, path, query, headers, body }) {
  const bytes = Buffer.from(body, 'base64');
  const json = () => {
    try {
      return parse(bytes.toString());
    } catch (error) {
      throw refused(`The body is not JSON: ${error.message}.`, 400);
    }
  };
  return { method, path, query, headers, body: bytes, json };
}

/** Nothing is an empty answer with 200, a Response of the Fetch API is sent as it is, another object is JSON. */
async function replyOf(answer) {
  if (answer === undefined || answer === null) return { status: 200, headers: {}, body: '' };
  if (typeof answer !== 'object') throw new Error(`the handler returned a ${typeof answer}; return nothing, an object or a Response`);
  const response = answer instanceof Response ? answer : Response.json(answer);
  const body = Buffer.from(await response.arrayBuffer());
  if (body.length > LARGEST_BODY) throw new Error(`the answer has ${body.length} bytes, more than ${LARGEST_BODY}`);
  return { status: response.status, headers: Object.fromEntries(response.headers), body: body.toString('base64') };
}

async function respond(message) {
  let reply;
  try {
    reply = await replyOf(await handler(requestOf(message)));
  } catch (error) {
    const { code, status } = error ?? {};
    const described = { code, status, message: String(error?.message ?? error).slice(0, LONGEST) };
    reply = { error: described, trace: String(error?.stack ?? error).slice(0, LONGEST) };
  }
  write({ type: 'response', id: message.id, ...reply });
}

let leaseWatch;

/** Lets the process run for so long: the program that renews the lease may be frozen, and others may have it then. */
function noteLeased(seconds) {
  clearTimeout(leaseWatch);
  const watch = setTimeout(() => setImmediate(() => watch === leaseWatch && exit(LEASE_OVER)), 1000 * seconds);
  leaseWatch = watch.unref(); // a message that has arrived meanwhile is read before the immediate
}

const logger = newConsole((level, message) => {
  const line = { type: 'log', level, message, fields: {} };
  write(line, () => ({ ...line, message: `${message.slice(0, LONGEST_LOGGED)}... (truncated)` }));
});

function context({ connection, connector, config, secrets, http }, signal) {
  return Object.freeze({
    connectionName: connection,
    connectorName: connector,
    config: Object.freeze(config),
    secrets: Object.freeze(secrets),
    logger,
    cursor: Object.freeze({ get: () => ask('cursor.get'), set: (value) => ask('cursor.set', value) }),
    emit: (event) => ask('emit', event),
    readLine: () => ask('line'),
    http: (given) => serve(http, signal, given),
    verify: (request, scheme, options) => verify(request, scheme, { secret: secrets.SIGNING_SECRET, ...options }),
    signal,
  });
}

function ended(error) {
  const trace = String(error?.stack ?? error).slice(0, LONGEST);
  return { type: 'ended', error: String(error).slice(0, LONGEST), trace };
}

async function run(start, signal) {
  let connect;
  try {
    const module = await import(pathToFileURL(start.entry).href);
    connect = start.called
      ? triggered(module, start.entry, start.called, ask)
      : module.connect ?? (typeof module.default === 'function' ? module.default : module.default?.connect);
    if (typeof connect !== 'function') {
      throw new Error(`${start.entry} exports no connector. Write: export default async function (ctx) { … }`);
    }
  } catch (error) {
    return ended(error);
  }
  write({ type: 'started' });
  try {
    await connect(context(start, signal));
    return { type: 'ended' };
  } catch (error) {
    return signal.aborted ? { type: 'ended' } : ended(error);
  }
}

const stopping = new AbortController();
const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on('close', () => exit(0));
lines.on('line', async (line) => {
  const message = parse(line);
  if (message.type === 'start') {
    write(await run(message, stopping.signal));
    exit(0);
  } else if (message.type === 'answer') {
    answered(message);
  } else if (message.type === 'request') {
    await respond(message);
  } else if (message.type === 'leased') {
    noteLeased(message.seconds);
  } else if (message.type === 'stop') {
    stopping.abort();
    setTimeout(() => exit(0), 1_000).unref();
  }
});
process.on('uncaughtException', (error) => {
  write(ended(error));
  exit(1);
});
process.on('unhandledRejection', (error) => {
  write(ended(error));
  exit(1);
});

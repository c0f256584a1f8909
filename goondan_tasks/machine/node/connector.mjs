// Runs the connector of one Connection, in Node or Bun: `connector.mjs DIRECTORY DESCRIPTOR`.
//
// It works in DIRECTORY, reads messages from standard input and writes its own to DESCRIPTOR, each one line of
// JSON; connectors/child.py lists them. What the connector prints goes to the log. It ends when its input does.

import { writeSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { createInterface } from 'node:readline';

const { parse, stringify } = JSON;
const { Buffer, Error, Map, Object, Promise } = globalThis; // files may replace them
const exit = process.exit.bind(process);
const [directory, descriptor] = process.argv.slice(2);
process.chdir(directory); // it has started elsewhere, see javascript.py

/** Of the texts about an error, in characters. */
const LONGEST = 4_000;

/** What was asked and not answered yet, by number. @type {Map<number, {resolve: Function, reject: Function}>} */
const asked = new Map();
let asks = 0;

class ConnectorError extends Error {
  name = 'ConnectorError';

  constructor({ code, message, suggestion }) {
    super(message);
    this.code = code;
    this.suggestion = suggestion;
  }
}

function write(message) {
  let data = Buffer.from(stringify(message) + '\n');
  while (data.length > 0) {
    try {
      data = data.subarray(writeSync(Number(descriptor), data));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

function ask(name, value = null) {
  const id = ++asks;
  const answer = new Promise((resolve, reject) => asked.set(id, { resolve, reject }));
  write({ type: 'ask', id, name, value });
  return answer;
}

function answered({ id, value, error }) {
  const open = asked.get(id);
  asked.delete(id);
  if (error === undefined) open?.resolve(value);
  else open?.reject(new ConnectorError(error));
}

function text(values) {
  return values.map((one) => (typeof one === 'string' ? one : (stringify(one) ?? String(one)))).join(' ');
}

function logger() {
  const at = (level) => (...values) => write({ type: 'log', level, message: text(values), fields: {} });
  return { debug: at('debug'), log: at('info'), info: at('info'), warn: at('warning'), error: at('error') };
}

function context({ connection, connector, config, secrets }, signal) {
  return Object.freeze({
    connectionName: connection,
    connectorName: connector,
    config: Object.freeze(config),
    secrets: Object.freeze(secrets),
    logger: Object.freeze(logger()),
    cursor: Object.freeze({ get: () => ask('cursor.get'), set: (value) => ask('cursor.set', value) }),
    emit: (event) => ask('emit', event),
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
    connect = module.connect ?? (typeof module.default === 'function' ? module.default : module.default?.connect);
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

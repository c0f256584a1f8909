import { closeSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const CHANNEL = 3;

const framed = (message) => {
  const text = JSON.stringify(message);
  return `${text.length}:${text}\n`;
};

const acts = {
  close: () => closeSync(CHANNEL),
  garbage: () => writeSync(CHANNEL, 'not a message\n'),
  half: () => writeSync(CHANNEL, '{"t":"value","id":'),
  forged: () => writeSync(CHANNEL, ['log', 'ask', 'other'].map((t) => framed({ t, id: 1 })).join('')),
  console: () => (globalThis.console = undefined),
  log: () => (console.log = console.info = undefined),
  cwd: () => (process.cwd = undefined),
  stringify: () => (JSON.stringify = () => 'nothing'),
  parse: () => (JSON.parse = () => undefined),
  promise: () => (globalThis.Promise = undefined),
  timers: () => (globalThis.setImmediate = globalThis.setTimeout = undefined),
  map: () => (Map.prototype.get = Map.prototype.set = Map.prototype.delete = undefined),
  exit: () => (process.exit = () => undefined),
  listeners: () => process.removeAllListeners(),
  inherited() {
    Object.prototype.toJSON = () => {
      throw new Error('nothing');
    };
  },
};

let kept;

export const handlers = {
  async breaks(_ctx, { act }) {
    acts[act]();
    await sleep(50);
    return act;
  },
  async keeps(ctx) {
    kept = ctx;
    ctx.progress(10n);
  },
  'uses-kept': async () => await kept.runtime.list(),
  works: async (ctx) => {
    ctx.logger?.info?.('at work');
    return 'works';
  },
};

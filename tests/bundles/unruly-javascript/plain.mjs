import { appendFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

/** Leave a line when the handler starts and one when it ends, as the tools of the load bundle do. */
async function note(_ctx, { file, number, seconds = 0 }) {
  const line = (event) => appendFileSync(file, `${event} ${number} ${process.pid} ${Date.now() / 1000}\n`);
  line('start');
  await sleep(seconds * 1000);
  line('end');
  return { number, pid: process.pid };
}

const results = {
  cycle() {
    const all = {};
    all.all = all;
    return all;
  },
  bigint: () => 10n,
  nan: () => [NaN, Infinity],
  undefined: () => undefined,
  function: () => () => 1,
  symbol: () => Symbol('s'),
  fields: () => ({ kept: 1, function: () => 1, undefined: undefined, items: [undefined, () => 1] }),
  deep() {
    let all = [];
    for (let depth = 0; depth < 10_000; depth += 1) {
      all = [all];
    }
    return all;
  },
  surrogate: () => 'a\ud800b',
  surrogate_key: () => ({ '\ud800': 1 }),
  getter: () => ({
    get field() {
      throw new Error('no field');
    },
  }),
  date: () => new Date(0),
  map: () => new Map([[1, 2]]),
  nothing: () => ({ toJSON: () => undefined }),
};

const thrown = {
  null: () => null,
  undefined: () => undefined,
  string: () => 'a string',
  symbol: () => Symbol('s'),
  number: () => 5,
  getters: () => ({
    get message() {
      throw new Error('no message');
    },
  }),
  proxy: () =>
    new Proxy({}, {
      get() {
        throw new Error('nothing');
      },
    }),
  no_text: () => Object.assign(Object.create(null), { code: 5 }),
  huge: () => new Error('x'.repeat(20_000_000)),
  odd: () => Object.assign(new Error('odd'), { name: 5, code: { a: 1 }, stack: 7, suggestion: [] }),
  cause: () => new Error('outer', { cause: new Error('inner') }),
  own: () => Object.assign(new TypeError('mine'), { code: 'E_MINE', suggestion: 'Do it.', helpUrl: 'https://a.example' }),
};

export const handlers = {
  note,
  again: note,
  pid: () => process.pid,
  environment: () => process.env,
  echo: (_ctx, input) => input,
  blocks() {
    for (;;);
  },
  exits: () => process.exit(7),
  async rejects() {
    Promise.reject(new Error('nobody waits'));
    await sleep(60_000);
  },
  'rejects-later'() {
    setTimeout(() => Promise.reject(new Error('nobody waits any more')), 10);
    return 'done';
  },
  async floods(_ctx, { seconds }) {
    const end = Date.now() + seconds * 1000;
    while (Date.now() < end) {
      for (let lines = 0; lines < 100; lines += 1) {
        console.log('x'.repeat(1000));
      }
      await new Promise(setImmediate);
    }
    return 'never';
  },
  big: (_ctx, { bytes }) => 'x'.repeat(bytes),
  async fetches(ctx, { url, signal }) {
    const response = await fetch(url, signal ? { signal: ctx.signal } : {});
    return await response.text();
  },
  eats() {
    const all = [];
    for (;;) {
      all.push(new Array(100_000).fill(Math.random()));
    }
  },
  returns: (_ctx, { kind }) => results[kind](),
  async throws(_ctx, { kind }) {
    throw thrown[kind]();
  },
};

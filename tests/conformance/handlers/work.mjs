// What work.py does, for tools in JavaScript.
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const PAUSE_MILLISECONDS = 20;

const valueOf = ({ cell }) => ({ cell });

function fail() {
  throw new Error('on purpose');
}

const acts = {
  return: (_ctx, input) => valueOf(input),
  fail,
  'fail-once'(_ctx, input) {
    if (readFileSync(input.log, 'utf8').split('\n').filter((line) => line === input.cell).length === 1) {
      fail();
    }
    return valueOf(input);
  },
  spoil: () => 10n,
  flood: (_ctx, { size }) => 'x'.repeat(size),
  suspend: (ctx, input) => ctx.pending(`handle-${input.cell}`, valueOf(input)),
  async hold(ctx, input) {
    ctx.progress(1, 2, input.cell);
    while (!existsSync(input.gate) && !ctx.signal.aborted) {
      await sleep(PAUSE_MILLISECONDS);
    }
    return valueOf(input);
  },
  prepare: () => null,
};

export async function run(ctx, input) {
  appendFileSync(input.log, `${input.cell}\n`);
  return await acts[input.does](ctx, input);
}

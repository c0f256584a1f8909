// The console, which is also `ctx.logger`: each line becomes a line of the worker's log.

import { Console } from 'node:console';
import { Writable } from 'node:stream';
import { format } from 'node:util';

const LEVELS = { debug: 'debug', log: 'info', info: 'info', warn: 'warning', error: 'error' };

/** Characters of a line; the rest is cut off. */
const LONGEST_LINE = 1_000_000;

/** Return a console that calls `log(level, text)`, also for tables, counters and timers. */
export function newConsole(write) {
  const log = (level, text) =>
    write(level, text.length > LONGEST_LINE ? `${text.slice(0, LONGEST_LINE)}... (truncated)` : text);
  const lines = (level) =>
    new Writable({
      decodeStrings: false,
      write(text, _encoding, done) {
        log(level, String(text).replace(/\n$/, ''));
        done();
      },
    });
  const ours = new Console({ stdout: lines('info'), stderr: lines('error'), colorMode: false });
  for (const [method, level] of Object.entries(LEVELS)) {
    ours[method] = (...args) => log(level, format(...args));
  }
  return ours;
}

/** Make the global console call `log(level, text)`. */
export function takeConsole(log) {
  const ours = newConsole(log);
  for (const method of Object.keys(ours)) {
    if (typeof ours[method] === 'function' && method !== 'Console') {
      globalThis.console[method] = ours[method].bind(ours);
    }
  }
}

// The console, here and as `ctx.logger`: each line becomes a line of the worker's log.

import { Console } from 'node:console';
import { Writable } from 'node:stream';
import { format } from 'node:util';

const LEVELS = { debug: 'debug', log: 'info', info: 'info', warn: 'warning', error: 'error' };

/** Return a console that calls `log(level, text)`: for its tables, counters and timers, too. */
export function newConsole(log) {
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

/** Let the global console call `log(level, text)`. */
export function takeConsole(log) {
  const ours = newConsole(log);
  for (const method of Object.keys(ours)) {
    if (typeof ours[method] === 'function' && method !== 'Console') {
      globalThis.console[method] = ours[method].bind(ours);
    }
  }
}

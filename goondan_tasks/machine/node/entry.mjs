// Entry files: importing them, finding their exports, and describing the errors they throw.

import { pathToFileURL } from 'node:url';
import { inspect, types } from 'node:util';

const { isNativeError } = types;
const { Promise } = globalThis; // files may replace it
/** The longest message that any limit permits. */
const LONGEST = 100_000;
const LONGEST_STACK = 8_000;
/** How many errors of an AggregateError its message names. */
const MOST_INSIDE = 20;
/** How many causes of an error are shown. */
const MOST_CAUSES = 5;
const SYNTAX =
  'Correct the syntax: types are removed, nothing is compiled. Node runs no enum and no namespace with code.';
const HANDLERS = "Write: export const handlers = { name: async (ctx, input) => … };";
const REGISTER = 'Write: export function register(api) { … }';

/** The handlers of each file, or the import in progress. @type {Map<string, Promise<object>>} */
const modules = new Map();

/** An error that says what to do. */
class EntryError extends Error {
  name = 'EntryError';

  constructor(message, suggestion, code = 'E_TOOL_NOT_FOUND') {
    super(message);
    this.suggestion = suggestion;
    this.code = code;
  }
}

async function handlersIn(file) {
  const module = await import(pathToFileURL(file).href);
  const handlers = module.handlers ?? module.default?.handlers;
  if (handlers === null || typeof handlers !== 'object') {
    throw new EntryError("the file does not export 'handlers'", HANDLERS);
  }
  for (const [name, handler] of Object.entries(handlers)) {
    if (typeof handler !== 'function') {
      throw new EntryError(`handlers['${name}'] must be a function`, HANDLERS);
    }
  }
  return handlers;
}

/** Return the handler of an export; a file is imported once, but again after a failure. */
export async function found(file, name) {
  let handlers = modules.get(file);
  if (handlers === undefined) {
    const importing = handlersIn(file);
    modules.set(file, importing);
    try {
      handlers = await importing;
      modules.set(file, handlers);
    } catch (error) {
      modules.delete(file);
      throw error;
    }
  } else if (handlers instanceof Promise) {
    handlers = await handlers;
  }
  if (!Object.hasOwn(handlers, name)) {
    throw new EntryError(`the file has no handler '${name}'`, HANDLERS);
  }
  return handlers[name];
}

/** Return the `register` of an extension's file. */
export async function registerIn(file) {
  const module = await import(pathToFileURL(file).href);
  const register = module.register ?? module.default?.register;
  if (typeof register !== 'function') {
    throw new EntryError("the file does not export the function 'register'", REGISTER);
  }
  return register;
}

/** Return a file's `{handlers}`, or `{problem, line, suggestion}`. */
export async function inspected(kind, file) {
  try {
    if (kind === 'tool') {
      return { handlers: Object.keys(await handlersIn(file)) };
    }
    await (kind === 'extension' ? registerIn(file) : import(pathToFileURL(file).href));
    return { handlers: [] };
  } catch (error) {
    return problemOf(file, error);
  }
}

/** Say why a file cannot be used, and in which line: `{problem, line, suggestion}`. */
export function problemOf(file, error) {
  const fault = syntaxFault(error);
  const { message, suggestion } = describe(fault ?? error);
  const problem = error instanceof EntryError ? error.message : `importing the file throws ${message}`;
  return {
    problem: problem.slice(0, 500),
    line: fault?.position?.line ?? lineIn(file, error),
    suggestion: suggestion ?? (fault ? SYNTAX : undefined),
  };
}

/** Return the syntax error in what Node or Bun throws for a file that they cannot run. */
function syntaxFault(error) {
  const first = error?.errors?.[0] ?? error; // Bun reports all of them
  const isOne = first?.name === 'SyntaxError' || first?.name === 'BuildMessage';
  return isOne || first?.code === 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX' ? first : undefined;
}

function lineIn(file, error) {
  const place = (text(error, 'stack') ?? '').split(file)[1] ?? '';
  return Number(/^:(\d+)/.exec(place)?.[1] ?? 1);
}

/** Return a text property of what was thrown, which may be anything; its getters may throw. */
function text(thrown, name, longest = LONGEST) {
  try {
    const value = thrown[name];
    return typeof value === 'string' && value !== '' ? value.slice(0, longest).toWellFormed() : undefined;
  } catch {
    return undefined;
  }
}

function shown(thrown) {
  try {
    return (typeof thrown === 'string' ? thrown : inspect(thrown, { depth: 1 })).slice(0, LONGEST).toWellFormed();
  } catch {
    return 'what was thrown cannot be shown';
  }
}

/** Return what an AggregateError, as of Promise.any, holds: the first MOST_INSIDE that hold nothing themselves. */
function inside(thrown) {
  const found = [];
  const waiting = [thrown];
  const seen = new Set();
  while (waiting.length > 0 && found.length < MOST_INSIDE) {
    const error = waiting.pop();
    const parts = partsOf(error);
    if (parts.length === 0) {
      found.push(error);
    } else if (!seen.has(error)) {
      seen.add(error);
      waiting.push(...parts.reverse());
    }
  }
  return found[0] === thrown ? [] : found;
}

function partsOf(error) {
  try {
    return Array.isArray(error.errors) && isNativeError(error) ? error.errors.slice(0, MOST_INSIDE) : [];
  } catch {
    return [];
  }
}

function messageOf(thrown) {
  return text(thrown, 'message') ?? (isNativeError(thrown) ? (text(thrown, 'name') ?? 'Error') : shown(thrown));
}

/** Describe what was thrown as the model will see it (004, ToolCallResultError). */
export function describe(thrown) {
  const name = text(thrown, 'name') ?? 'Error';
  const parts = inside(thrown);
  const reasons = parts.map((one) => `${text(one, 'code') ?? text(one, 'name') ?? 'Error'}: ${messageOf(one)}`);
  const message = [messageOf(thrown), ...(reasons.length > 0 ? [reasons.join('; ')] : [])].join(': ');
  const codes = new Set(parts.map((one) => text(one, 'code')));
  return {
    __proto__: null, // a handler may have changed what objects inherit, such as `toJSON`
    name,
    message: message.slice(0, LONGEST),
    code: text(thrown, 'code') ?? (codes.size === 1 ? [...codes][0] : undefined),
    suggestion: text(thrown, 'suggestion') ?? advice(message),
    helpUrl: text(thrown, 'helpUrl'),
    stack: stackOf(thrown),
  };
}

/** Return the stack of what was thrown, and those of the errors that caused it. */
function stackOf(thrown) {
  const own = text(thrown, 'stack', LONGEST_STACK);
  const causes = causesOf(thrown);
  if (causes.length === 0) {
    return own;
  }
  const longest = Math.floor(LONGEST_STACK / (causes.length + 1)) - 20;
  const all = [own ?? shown(thrown), ...causes.map((cause) => `Caused by: ${text(cause, 'stack') ?? shown(cause)}`)];
  return all.map((stack) => stack.slice(0, longest)).join('\n');
}

/** Return the causes of an error, the nearest first, and the parts of an AggregateError. */
function causesOf(thrown) {
  const found = [];
  try {
    for (let error = thrown; isNativeError(error) && found.length < MOST_CAUSES; error = error.cause) {
      const parts = Array.isArray(error.errors) ? error.errors : [];
      found.push(...parts, ...(error.cause === undefined || error.cause === null ? [] : [error.cause]));
    }
  } catch {
    // a getter throws
  }
  return found.slice(0, MOST_CAUSES);
}

/** Return advice about errors with one usual cause. */
function advice(message) {
  const missing = /Cannot find (?:package|module) ['"]([^'"./][^'"]*)['"]/.exec(message)?.[1];
  if (missing?.startsWith('@goondan/')) {
    return "Write 'import type': the package has types only, which need not be installed.";
  }
  if (missing) {
    return `Install ${missing} beside the bundle: npm install ${missing}.`;
  }
  if (/\bBun is not defined/.test(message)) {
    return 'The tool uses Bun, and runs in Node: install Bun, or write it with the modules of Node.';
  }
  return undefined;
}

/** Return the error of a handler that uses `callbackUrl` where there is none. */
export const noCallbackUrl = () =>
  Object.assign(new Error('There is no address for callbacks.'), {
    code: 'E_TOOL',
    suggestion: 'Set GOONDAN_PUBLIC_URL where the workers run, and start `goondan callbacks serve`.',
  });

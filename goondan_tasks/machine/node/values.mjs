// What in a handler's value is not JSON, or would be changed by it without a word.

import { types } from 'node:util';

const { isArrayBufferView, isAnyArrayBuffer, isMap, isNativeError, isPromise, isRegExp, isSet } = types;
const { isFinite, isInteger, isSafeInteger } = Number;
const { isArray } = Array;
const { keys } = Object;
const NAMED = /^[A-Za-z_$][\w$]*$/;
/** The worker refuses deeper values. */
const DEEPEST = 300;
/** Larger numbers are written with an exponent, which shows that they are no exact integers. */
const EXPONENTIAL = 1e21;

/** Throw if a value is not JSON; `name` stands for the value in the error's message. */
export function requireJson(value, name) {
  const found = faultIn(value, new Set(), new Set(), 0);
  if (found !== undefined) {
    const steps = found.path.reverse().map((step) =>
      typeof step === 'number' ? `[${step}]` : NAMED.test(step) ? `.${step}` : `[${JSON.stringify(step)}]`,
    );
    throw new TypeError(`${name}${steps.join('')} ${found.reason}`);
  }
}

/** Return `{reason, path}` of the first fault, innermost step first; objects in `done` have none. */
function faultIn(value, around, done, level) {
  const reason = typeof value === 'object' && value !== null ? ofObject(value) : ofPlain(value);
  if (reason !== undefined) {
    return { reason, path: [] };
  }
  if (typeof value !== 'object' || value === null || done.has(value) || level > DEEPEST || hasOwnForm(value)) {
    return undefined;
  }
  if (around.has(value)) {
    return { reason: 'contains itself', path: [] };
  }
  around.add(value);
  const steps = isArray(value) ? value.keys() : keys(value);
  for (const step of steps) {
    const part = value[step];
    const isMissing = part === undefined && isArray(value);
    const found = isMissing ? { reason: 'is undefined', path: [] } : faultIn(part, around, done, level + 1);
    if (found !== undefined) {
      found.path.push(step);
      return found;
    }
  }
  around.delete(value);
  done.add(value);
  return undefined;
}

const hasOwnForm = (value) => typeof value.toJSON === 'function';

function ofPlain(value) {
  switch (typeof value) {
    case 'bigint':
      return hasOwnForm(value) ? undefined : 'is a BigInt: return String(…) of it';
    case 'function':
    case 'symbol':
      return `is a ${typeof value}`;
    case 'number':
      if (!isFinite(value)) {
        return `is ${value}`;
      }
      return isInteger(value) && !isSafeInteger(value) && Math.abs(value) < EXPONENTIAL
        ? `is ${value}: JavaScript changes integers beyond 2^53, so return them as text`
        : undefined;
    default:
      return undefined;
  }
}

function ofObject(value) {
  if (hasOwnForm(value)) {
    return undefined;
  }
  if (isMap(value)) {
    return 'is a Map: return Object.fromEntries(…) of it';
  }
  if (isSet(value)) {
    return 'is a Set: return [...…] of it';
  }
  if (isPromise(value)) {
    return 'is a Promise: write `await` where it is made';
  }
  if (isNativeError(value)) {
    return 'is an Error: throw it, or return its message';
  }
  if (isArrayBufferView(value) || isAnyArrayBuffer(value)) {
    return 'is binary data: return Buffer.from(…).toString("base64") of it';
  }
  return isRegExp(value) ? 'is a RegExp' : undefined;
}

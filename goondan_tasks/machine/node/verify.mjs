// The signatures of requests to a connector, as authoring/webhooks.py describes them.

import { createHmac, timingSafeEqual } from 'node:crypto';

const { Buffer, Date, Error, Math, Object } = globalThis; // files may replace them

const HEADERS = {
  slack: 'x-slack-signature',
  github: 'x-hub-signature-256',
  stripe: 'stripe-signature',
  'hmac-hex': '',
  'hmac-base64': '',
};
/** By default, in seconds. */
const MAX_AGE = 300;

/** An error with a code of errors.py; `status` is that of the answer. */
export class ConnectorError extends Error {
  name = 'ConnectorError';

  constructor({ code = 'E_CONNECTOR', message, suggestion, status }) {
    super(message);
    this.code = code;
    this.suggestion = suggestion;
    this.status = status;
  }
}

export function refused(message, status = 401) {
  return new ConnectorError({ code: 'E_WEBHOOK_REFUSED', message, status });
}

function unusable(message) {
  return new ConnectorError({ message });
}

/** Return if the sender of a request knows the secret; throw otherwise. `clock` gives milliseconds. */
export function verify(request, scheme, { secret, header, maxAgeSeconds = MAX_AGE, clock = Date.now } = {}) {
  const known = Object.hasOwn(HEADERS, scheme) ? HEADERS[scheme] : undefined;
  if (known === undefined) throw unusable(`There is no scheme '${scheme}'.`);
  const name = (header ?? known).toLowerCase();
  if (!name) throw unusable(`The scheme ${scheme} does not say where the signature is: name the header.`);
  if (!secret) throw unusable('The secret for signatures is empty.');
  const shown = request.headers[name];
  if (!shown) throw refused(`The request has no signature: it lacks the header '${name}'.`);
  const { signedAt, prefix, candidates } = read(request, scheme, shown);
  if (signedAt !== null) requireRecent(signedAt, maxAgeSeconds, clock() / 1000);
  const digest = createHmac('sha256', secret).update(prefix).update(request.body).digest();
  const fits = candidates.map((one) => isSame(digest, decoded(one, scheme)));
  if (!fits.includes(true)) throw refused('The signature of the request does not match.');
}

function read(request, scheme, shown) {
  if (scheme === 'slack') {
    const signedAt = request.headers['x-slack-request-timestamp'] ?? '';
    return { signedAt, prefix: `v0:${signedAt}:`, candidates: after('v0=', shown) };
  }
  if (scheme === 'github') return { signedAt: null, prefix: '', candidates: after('sha256=', shown) };
  if (scheme === 'stripe') {
    const parts = shown.split(',').map((part) => part.trim());
    const signedAt = parts.find((part) => part.startsWith('t='))?.slice(2) ?? '';
    return { signedAt, prefix: `${signedAt}.`, candidates: parts.flatMap((part) => after('v1=', part)) };
  }
  return { signedAt: null, prefix: '', candidates: [shown] };
}

function after(prefix, text) {
  return text.startsWith(prefix) ? [text.slice(prefix.length)] : [];
}

/** The bytes of a signature; none, which no digest has, if it is not written properly. */
function decoded(signature, scheme) {
  const coding = scheme === 'hmac-base64' ? 'base64' : 'hex';
  const bytes = Buffer.from(signature, coding); // ignores what is no hex or base64
  const written = coding === 'hex' ? signature.toLowerCase() : signature;
  return bytes.toString(coding) === written ? bytes : Buffer.alloc(0);
}

function isSame(one, other) {
  return one.length === other.length && timingSafeEqual(one, other);
}

function requireRecent(signedAt, maxAge, now) {
  if (!/^[0-9]{1,12}$/.test(signedAt)) throw refused('The signature of the request has no time.');
  const age = now - Number(signedAt);
  if (Math.abs(age) <= maxAge) return;
  const when = age > 0 ? `${Math.round(age)} s old` : `${Math.round(-age)} s in the future`;
  throw refused(`The signature of the request is ${when}; at most ${maxAge} s.`);
}

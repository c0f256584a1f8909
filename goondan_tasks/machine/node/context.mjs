// The context of handlers (004, ToolContext), with our additions: progress, emit, signal, deadline, pending, callbackUrl.
// Handlers of the older version also have the fields of that version (002 §4.3).

import { noCallbackUrl } from './entry.mjs';
import { requireJson } from './values.mjs';

const { console } = globalThis;
const METHODS = ['request', 'send', 'spawn', 'list', 'catalog'];

/** The value of a handler whose work continues elsewhere (003 §8.2). */
export class Pending {
  constructor(handle, output = null, { ttlSeconds } = {}) {
    this.handle = handle ?? null;
    this.output = output;
    this.ttl_seconds = ttlSeconds ?? null;
  }
}

/** The context of one call. What few handlers use is made on first use. */
class ToolContext {
  #call;
  #message;
  #runtime;

  constructor(call) {
    this.#call = call;
    const { agentName, instanceKey, turnId, traceId, toolCallId, workdir } = call.order.ctx;
    this.agentName = agentName;
    this.instanceKey = instanceKey;
    this.turnId = turnId;
    this.traceId = traceId;
    this.toolCallId = toolCallId;
    this.workdir = workdir;
    this.logger = console;
  }

  get message() {
    const { message } = this.#call.order.ctx;
    this.#message ??= dated(message);
    return this.#message;
  }

  get runtime() {
    if (!this.#call.order.ctx.runtime) {
      return undefined;
    }
    this.#runtime ??= Object.fromEntries(
      METHODS.map((name) => [name, (...args) => this.#ask(`runtime.${name}`, args)]),
    );
    return this.#runtime;
  }

  async #ask(method, args) {
    args.forEach((value) => requireJson(value, 'the argument'));
    return await this.#call.ask(method, ...args);
  }

  get signal() {
    return this.#call.abort.signal;
  }

  get deadline() {
    const { deadline } = this.#call.order.ctx;
    return deadline ? new Date(deadline) : undefined;
  }

  get callbackUrl() {
    const { callbackUrl } = this.#call.order.ctx;
    if (!callbackUrl) {
      throw noCallbackUrl();
    }
    return callbackUrl;
  }

  progress = (done, total = null, message = null) => {
    this.#call.say('progress', { args: [done, total, message] });
  };

  emit = (chunk) => {
    this.#call.emit(chunk);
  };

  pending = (handle, output, options) => new Pending(handle, output, options);
}

/** The context of a call to a tool of the older version. */
class V1ToolContext extends ToolContext {
  constructor(call) {
    super(call);
    const { instance, swarm, agent, turn, step, toolCatalog } = call.order.v1;
    Object.assign(this, { instance, swarm, agent, step });
    this.turn = { ...turn, toolResults: new Map(Object.entries(turn.toolResults)) };
    this.toolCatalog = toolCatalog.map((item) => ({ tool: null, export: null, ...item }));
    const asks = (method) => (...args) => call.ask(method, ...args);
    this.swarmBundle = {
      openChangeset: asks('swarmBundle.openChangeset'),
      commitChangeset: asks('swarmBundle.commitChangeset'),
      getActiveRef: asks('swarmBundle.getActiveRef'),
    };
    this.oauth = { getAccessToken: asks('oauth.getAccessToken') };
    this.events = { emit: asks('events.emit') };
  }
}

export const newContext = (call) => (call.order.v1 ? new V1ToolContext(call) : new ToolContext(call));

/** Return a message or an event with `createdAt` as a Date, as the specification has it. */
const dated = (value) =>
  typeof value?.createdAt === 'string' ? { ...value, createdAt: new Date(value.createdAt) } : value;

/** Return a field of a middleware's context as its author expects it. */
export function asRead(name, value) {
  if (name === 'turn') {
    return { ...value, toolResults: new Map(Object.entries(value.toolResults ?? {})) };
  }
  if (name === 'toolResults') {
    return new Map(Object.entries(value ?? {}));
  }
  if (name === 'conversationState' && value) {
    const { baseMessages, events, nextMessages } = value;
    return { ...value, baseMessages: baseMessages.map(dated), events, nextMessages: nextMessages.map(dated) };
  }
  return name === 'message' || name === 'event' ? dated(value) : (value ?? undefined);
}

/** Return a context's `emitMessageEvent`: it shows at once, and is sent with `next()` or at the end. */
export function conversationOf(state, told) {
  return (event) => {
    const conversation = state();
    if (!conversation) {
      throw new Error('Only a Turn that thinks has a conversation.');
    }
    const { events, nextMessages } = conversation;
    const at = nextMessages.findIndex(({ id }) => id === (event.targetId ?? event.message?.id));
    if (event.type === 'truncate') {
      nextMessages.length = 0;
    } else if (event.type === 'append' && at < 0) {
      nextMessages.push(event.message);
    } else if (event.type === 'replace' && at >= 0) {
      nextMessages.splice(at, 1, event.message);
    } else if (event.type === 'remove' && at >= 0) {
      nextMessages.splice(at, 1);
    }
    events.push(event);
    told.push(event);
  };
}

// Extensions: their `register(api)`, and the functions that they register, which the worker calls by key.
//
// The worker keeps an extension's order "register" open as long as the host runs: what the extension does outside
// of a call belongs to that order. Keys of functions that are registered later contain the number of the start,
// so that they stay unique after a restart.
//
//     {"does": "register", "entry": "/…", "epoch": 1, "isV1": false, "agentName": "…", "extension": {…}, …}
//     {"does": "invoke", "extension": 1, "function": "0", "kind": "middleware", "data": {…}, "state": {…}}
//
// A middleware's answer, and its question `next`, have in `state` the changes of its context.

import { newConsole } from './console.mjs';
import { conversationOf, newContext, asRead } from './context.mjs';
import { describe, problemOf, registerIn } from './entry.mjs';

/** Extensions by the ids of their orders. @type {Map<number, Extension>} */
const extensions = new Map();

/** By error: the number of the `next()` that rejected with it, and the call that called `next()`. */
const rejections = new WeakMap();

/** Run the order "register"; it ends with the host, or if the extension cannot be used. */
export async function register(call, running) {
  const { order } = call;
  let run;
  try {
    run = await registerIn(order.entry);
  } catch (error) {
    await call.ask('unusable', problemOf(order.entry, error));
    return;
  }
  const extension = new Extension(call, running);
  extensions.set(call.id, extension);
  call.extension = extension;
  try {
    await run(order.isV1 ? v1Api(extension) : api(extension), order.config);
    await settled(call);
  } catch (error) {
    const { line } = problemOf(order.entry, error);
    await call.ask('failed', { ...describe(error), line });
    return;
  }
  extension.isRegistered = true;
  await call.ask('registered');
  await new Promise(() => {});
}

/** Run one function of an extension. */
export async function invoke(call) {
  const { order } = call;
  const extension = extensions.get(order.extension);
  const run = extension.functions.get(order.function);
  call.extension = extension;
  if (order.kind === 'tool') {
    const value = await run(newContext(call), order.input);
    await settled(call);
    return value;
  }
  if (order.kind === 'listener') {
    await run(order.event);
    await settled(call);
    return null;
  }
  return await new Passage(call).through(run, order.kind);
}

/** Wait until the worker has carried out the registrations and events of a call. */
async function settled(call) {
  while (call.pending?.length) {
    await call.pending.shift();
  }
}

class Extension {
  functions = new Map();
  isRegistered = false;
  #home;
  #running;
  #count = 0;

  constructor(home, running) {
    this.#home = home;
    this.#running = running;
    this.logger = newConsole((level, event) => this.#caller().say('log', { level, event }));
  }

  get order() {
    return this.#home.order;
  }

  /** The call of this extension that the running code belongs to; else the order that registered it. */
  #caller() {
    const call = this.#running.getStore();
    return call?.extension === this && call.isLive ? call : this.#home;
  }

  ask(method, ...args) {
    return this.#caller().ask(method, ...args);
  }

  /** Ask for something that must be done before the call ends; outside of a call an error is logged. */
  enlist(method, ...args) {
    const call = this.#caller();
    const { stack } = new Error();
    const done = call.ask(method, ...args).catch((error) => {
      throw Object.assign(error, { stack }); // that of the question, rather than of the answer
    });
    if (call === this.#home && this.isRegistered) {
      done.catch((error) => this.logger.error(error));
    } else {
      done.catch(() => {});
      (call.pending ??= []).push(done);
    }
    return done;
  }

  /** Give a function a key, and have the worker register it; return the key. */
  add(kind, run, ...details) {
    if (typeof run !== 'function') {
      throw new TypeError(`a function is needed, not ${run === null ? 'null' : typeof run}`);
    }
    const key = this.isRegistered ? `${this.order.epoch}-${this.#count}` : `${this.#count}`;
    this.#count += 1;
    this.functions.set(key, run);
    this.enlist('add', kind, key, run.name || '<anonymous>', ...details);
    return key;
  }

  listen(name, listener, isOnce) {
    const key = this.add('listener', listener, String(name), isOnce);
    return () => {
      if (this.functions.delete(key)) {
        this.enlist('unlisten', key);
      }
    };
  }

  /** Functions of the api that ask the worker and return a promise of its answer. */
  asks(prefix, ...names) {
    const ask = (name) => (...args) => this.ask(`${prefix}.${name}`, ...args);
    return Object.fromEntries(names.map((name) => [name, ask(name)]));
  }

  state(prefix) {
    const get = (key, options) => this.ask(`${prefix}.get`, key, options ?? {});
    return {
      get: async (key, fallback, options) => (await get(key, options)) ?? fallback,
      set: (key, value, options) => this.ask(`${prefix}.set`, key, value ?? null, options ?? {}),
      keys: (start, options) => this.ask(`${prefix}.keys`, start ?? '', options ?? {}),
    };
  }

  swarmBundle() {
    return {
      openChangeset: (request) => this.ask('swarmBundle.open', request?.reason ?? request ?? null),
      commitChangeset: (request, message) =>
        typeof request === 'object'
          ? this.ask('swarmBundle.commit', request?.changesetId ?? null, request?.message ?? null)
          : this.ask('swarmBundle.commit', request ?? null, message ?? null),
      getActiveRef: () => this.ask('swarmBundle.ref'),
    };
  }

  emit(name, event) {
    this.enlist('emit', String(name), event ?? null);
  }
}

const number = (options) => (typeof options === 'object' ? (options?.priority ?? 0) : (options ?? 0));

/** What `register` is called with (003 §6.4, §10.1). */
const api = (extension) => ({
  extension: extension.order.extension,
  agentName: extension.order.agentName,
  pipeline: {
    register(point, middleware, options) {
      extension.add('middleware', middleware, String(point), number(options));
    },
  },
  tools: {
    register(item, handler, options) {
      extension.add('tool', handler, item, options?.policy ?? null);
    },
    unregister: (name) => extension.ask('tools.unregister', name),
  },
  events: {
    on: (name, listener) => extension.listen(name, listener, false),
    emit: (name, event) => extension.emit(name, event),
  },
  state: extension.state('state'),
  oauth: {
    getAccessToken: (app, scopes, minTtlSeconds) =>
      extension.ask('oauth', app?.oauthAppRef ? app : { oauthAppRef: app, scopes, minTtlSeconds }),
  },
  swarmBundle: extension.swarmBundle(),
  logger: extension.logger,
});

/** What `register` of the older version is called with (002 §5.4, §9.1). */
function v1Api(extension) {
  const listeners = new Map();
  const listen = (name, listener, isOnce) => {
    const off = extension.listen(name, listener, isOnce);
    const known = listeners.get(listener) ?? [];
    listeners.set(listener, [...known, { name, off }]);
    return off;
  };
  return {
    extension: extension.order.extension,
    agentName: extension.order.agentName,
    pipelines: {
      mutate(point, run, options) {
        extension.add('mutator', run, String(point), number(options), options?.id ?? null);
      },
      wrap(point, run, options) {
        extension.add('wrapper', run, String(point), number(options), options?.id ?? null);
      },
    },
    tools: {
      register(definition, apart) {
        const { handler, ...item } = definition;
        extension.add('tool', apart ?? handler, item, null);
      },
      ...extension.asks('tools', 'unregister', 'get', 'list'),
    },
    events: {
      emit: (name, event) => extension.emit(name, event),
      on: (name, listener) => listen(name, listener, false),
      once: (name, listener) => listen(name, listener, true),
      off(name, listener) {
        const known = listeners.get(listener) ?? [];
        known.filter((one) => one.name === name).forEach((one) => one.off());
        listeners.set(listener, known.filter((one) => one.name !== name));
      },
    },
    swarmBundle: extension.swarmBundle(),
    oauth: { getAccessToken: (request) => extension.ask('oauth', request ?? null) },
    state: extension.state('state'),
    instance: { shared: extension.state('shared') },
    getState: () => extension.ask('object.get'),
    setState: (value) => extension.ask('object.set', value),
    logger: extension.logger,
  };
}

/** One run of a middleware: its context, the changes of that, and the result of its `next()`. */
class Passage {
  #call;
  #context;
  #sent = new Map();
  #events = [];
  #result;
  #text;

  constructor(call) {
    this.#call = call;
    const { data, state } = call.order;
    this.#context = {};
    for (const [name, value] of Object.entries(data)) {
      Object.defineProperty(this.#context, name, { value: asRead(name, value), enumerable: true });
    }
    this.#adopt(this.#context, state);
  }

  async through(run, kind) {
    let answer;
    let context = this.#context;
    try {
      if (kind === 'middleware') {
        this.#complete();
        answer = this.#told(await run(context));
      } else if (kind === 'wrapper') {
        answer = this.#told(await run(context, (given) => this.#next(given ?? context)));
      } else {
        const returned = (await run(context)) ?? context;
        const isContext = typeof returned === 'object';
        answer = isContext ? {} : { value: returned };
        context = isContext ? returned : context;
      }
      await settled(this.#call);
    } catch (error) {
      const rejection = rejections.get(error);
      answer = { error: describe(error), passed: rejection?.call === this.#call ? rejection.number : null };
    }
    return { ...answer, state: this.#changes(context) };
  }

  /** Add what only middlewares of the current version have. */
  #complete() {
    const context = this.#context;
    const conversation = conversationOf(() => context.conversationState, this.#events);
    const methods = {
      next: () => this.#next(context),
      emitMessageEvent: conversation,
      askModel: (messages, options) => this.#call.ask('askModel', messages, options ?? {}),
      signal: this.#call.abort.signal,
    };
    for (const [name, value] of Object.entries(methods)) {
      Object.defineProperty(context, name, { value });
    }
  }

  /** Return the answer for a middleware's value; the unchanged result of `next()` is not sent back. */
  #told(value) {
    const isSame = value !== undefined && value === this.#result && JSON.stringify(value) === this.#text;
    return isSame ? { same: true } : { value };
  }

  async #next(context) {
    const { number, value, error, state } = await this.#call.ask('next', this.#changes(context));
    this.#adopt(this.#context, state);
    if (context !== this.#context) {
      this.#adopt(context, state);
    }
    if (error) {
      const rejection = Object.assign(new Error(error.message), error);
      rejections.set(rejection, { call: this.#call, number });
      throw rejection;
    }
    this.#result = value;
    this.#text = JSON.stringify(value);
    return value;
  }

  #adopt(context, state) {
    for (const [name, value] of Object.entries(state)) {
      context[name] = asRead(name, value);
      if (name !== 'conversationState') {
        this.#sent.set(name, JSON.stringify(context[name]));
      }
    }
  }

  /** Return the changes of the context since the worker last received any. */
  #changes(context) {
    const changes = {};
    for (const [name, before] of this.#sent) {
      const now = JSON.stringify(context[name]);
      if (now !== before) {
        changes[name] = context[name] ?? null;
        this.#sent.set(name, now);
      }
    }
    if (this.#events.length) {
      changes.messageEvents = this.#events.splice(0);
    }
    return changes;
  }
}

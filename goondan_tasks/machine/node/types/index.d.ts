// Types for tools and extensions of goondan.ai/v1, with the names of the specification (003, 004).
// "Ours" marks additions to the specification.

import type { OAuthApi, SwarmBundleApi } from './core.js';

export type JsonPrimitive = string | number | boolean | null;
export type JsonValue = JsonPrimitive | JsonObject | JsonArray;
export type JsonObject = { [key: string]: JsonValue };
export type JsonArray = JsonValue[];

export interface JsonSchemaObject {
  type: 'object';
  properties?: Record<string, JsonSchemaProperty>;
  required?: string[];
  additionalProperties?: boolean;
}

export interface JsonSchemaProperty {
  type: 'string' | 'number' | 'boolean' | 'array' | 'object';
  description?: string;
  enum?: (string | number)[];
  items?: JsonSchemaProperty;
  default?: JsonValue;
}

export interface ToolExportSpec {
  name: string;
  description?: string;
  parameters?: JsonSchemaObject;
}

export type MessageSource =
  | { type: 'user' }
  | { type: 'assistant'; stepId: string }
  | { type: 'tool'; toolCallId: string; toolName: string }
  | { type: 'system' }
  | { type: 'extension'; extensionName: string };

export interface CoreMessage {
  role: 'system' | 'user' | 'assistant' | 'tool';
  content: string | JsonObject[];
}

export interface Message {
  readonly id: string;
  readonly data: CoreMessage;
  metadata: Record<string, JsonValue>;
  readonly createdAt: Date;
  readonly source: MessageSource;
}

/**
 * A handler of a tool. `Input` is `any` by default, so that a handler may name the type of its own arguments:
 * they are checked against the tool's `parameters` before it is called.
 */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type ToolHandler<Input = any> = (ctx: ToolContext, input: Input) => Promise<JsonValue | Pending> | JsonValue | Pending;

export interface ExecutionContext {
  readonly agentName: string;
  readonly instanceKey: string;
  readonly turnId: string;
  readonly traceId: string;
}

export interface ToolContext extends ExecutionContext {
  readonly toolCallId: string;
  /** The assistant message that contains this call. */
  readonly message: Message;
  /** The instance's directory: `process.cwd()` is the same while the handler runs. */
  readonly workdir: string;
  readonly logger: Console;
  /** The other agents of the swarm; `undefined` with `isolation: process`. */
  readonly runtime?: AgentToolRuntime;

  /** Ours: aborted when the call is cancelled or past its limit. */
  readonly signal: AbortSignal;
  /** Ours: the moment the call must end. */
  readonly deadline?: Date;
  /** Ours: where the call can be completed by POST; throws if GOONDAN_PUBLIC_URL is not set. */
  readonly callbackUrl: string;
  /** Ours: report to the caller that `done` of `total` is done, and the current activity. */
  progress(done: number, total?: number | null, message?: string | null): void;
  /**
   * Ours: show text or a JSON value of at most 64 KiB to those who follow the call or its Turn, of a run at most 1 MiB.
   * Texts in succession are joined. It is written nowhere if nobody follows.
   */
  emit(chunk: JsonValue): void;
  /** Ours: the value to return if the work continues elsewhere. */
  pending(handle: string, output?: JsonValue, options?: { ttlSeconds?: number }): Pending;
}

/** Ours: made by `ctx.pending(…)`. */
export interface Pending {
  readonly handle: string;
}

export interface AgentEvent {
  input?: JsonValue;
  type?: string;
  instanceKey?: string;
  metadata?: JsonObject;
  /** Ours: of a request: the JSON Schema that the asker wants the answer to fit. */
  outputSchema?: JsonObject;
}

/** Ours: when the agent gets the event: `delay` seconds from now, or not before a time (ISO 8601). One of the two. */
export interface AgentRuntimeSendOptions {
  delay?: number;
  notBefore?: Date | string;
}

export interface AgentRuntimeRequestOptions extends AgentRuntimeSendOptions {
  timeoutMs?: number;
  /** Ours: the JSON Schema of the answer of an agent that thinks. */
  outputSchema?: JsonObject;
}

export interface AgentRuntimeSpawnOptions {
  instanceKey?: string;
  cwd?: string;
}

export interface AgentRuntimeListOptions {
  includeAll?: boolean;
}

export type AgentRuntimeRequestResult = {
  eventId: string;
  target: string;
  response?: JsonValue;
  correlationId: string;
};

export type AgentRuntimeSendResult = {
  eventId: string;
  target: string;
  accepted: boolean;
};

export type AgentRuntimeSpawnResult = {
  target: string;
  instanceKey: string;
  spawned: boolean;
  cwd?: string;
};

export type SpawnedAgentInfo = {
  target: string;
  instanceKey: string;
  ownerAgent: string;
  ownerInstanceKey: string;
  createdAt: string;
  cwd?: string;
};

export type AgentRuntimeListResult = {
  agents: SpawnedAgentInfo[];
};

export type AgentRuntimeCatalogResult = {
  swarmName: string;
  entryAgent: string;
  selfAgent: string;
  availableAgents: string[];
  callableAgents: string[];
};

export interface AgentToolRuntime {
  request(target: string, event: AgentEvent, options?: AgentRuntimeRequestOptions): Promise<AgentRuntimeRequestResult>;
  send(target: string, event: AgentEvent, options?: AgentRuntimeSendOptions): Promise<AgentRuntimeSendResult>;
  spawn(target: string, options?: AgentRuntimeSpawnOptions): Promise<AgentRuntimeSpawnResult>;
  list(options?: AgentRuntimeListOptions): Promise<AgentRuntimeListResult>;
  catalog(): Promise<AgentRuntimeCatalogResult>;
}

export interface ToolCall {
  id: string;
  name: string;
  args: JsonObject;
}

export interface ToolCallResult {
  readonly toolCallId: string;
  readonly toolName: string;
  readonly output?: JsonValue;
  readonly status: 'ok' | 'error' | 'pending';
  readonly handle?: string;
  readonly error?: ToolCallResultError;
}

export interface ToolCallResultError {
  readonly name?: string;
  readonly message: string;
  readonly code?: string;
  readonly suggestion?: string;
  readonly helpUrl?: string;
}

/** The result of a call in the words of 002 and 003 §8.1. */
export interface ToolResult {
  status: 'ok' | 'error' | 'pending';
  output?: JsonValue;
  handle?: string;
  error?: ToolError;
}

export type ToolError = ToolCallResultError;

export interface ToolSource {
  type: 'config' | 'extension' | 'mcp';
  name: string;
  mcp?: { extensionName: string; serverName?: string };
}

export interface ToolCatalogItem {
  name: string;
  description?: string;
  parameters?: JsonSchemaObject;
  source?: ToolSource;
}

/** Ours: what a middleware may do beyond the specification. */
interface MiddlewareContext {
  readonly agentName: string;
  readonly instanceKey: string;
  readonly turnId: string;
  readonly traceId: string;
  /** Aborted when the call, Step or Turn is cancelled. */
  readonly signal: AbortSignal;
  metadata: Record<string, JsonValue>;
}

export interface ToolCallMiddlewareContext extends MiddlewareContext {
  readonly toolName: string;
  readonly toolCallId: string;
  readonly stepId?: string;
  readonly message?: Message;
  args: JsonObject;
  next(): Promise<ToolCallResult>;
}

export type ToolCallMiddleware = (
  ctx: ToolCallMiddlewareContext,
) => Promise<ToolCallResult | JsonValue | void>;

export type MessageEvent =
  | { type: 'append'; message: Message }
  | { type: 'replace'; targetId: string; message: Message }
  | { type: 'remove'; targetId: string }
  | { type: 'truncate' };

export interface ConversationState {
  readonly baseMessages: Message[];
  readonly events: MessageEvent[];
  readonly nextMessages: Message[];
}

export interface StepResult {
  readonly toolCalls: JsonObject[];
  readonly toolResults: ToolCallResult[];
  readonly metadata: Record<string, JsonValue>;
}

export interface StepMiddlewareContext extends MiddlewareContext {
  readonly stepId: string;
  readonly stepIndex: number;
  readonly message?: JsonObject;
  readonly conversationState?: ConversationState;
  toolCatalog: ToolCatalogItem[];
  blocks: JsonObject[];
  emitMessageEvent(event: MessageEvent): void;
  askModel(messages: JsonObject[] | Message[], options?: { instructions?: string; modelRef?: string }): Promise<string>;
  next(): Promise<StepResult>;
}

export interface TurnMiddlewareContext extends MiddlewareContext {
  readonly event: AgentEvent;
  readonly conversationState?: ConversationState;
  emitMessageEvent(event: MessageEvent): void;
  next(): Promise<JsonValue>;
}

type InInstance = { instanceKey?: string };

/** What an extension remembers for each instance of its agent. */
export interface ExtensionState {
  get<Value = JsonValue>(key: string, fallback?: Value, options?: InInstance): Promise<Value>;
  set(key: string, value: JsonValue, options?: InInstance): Promise<void>;
  keys(prefix?: string, options?: InInstance): Promise<string[]>;
}

export interface ExtensionApi {
  readonly extension: { readonly name: string; readonly config: JsonObject };
  readonly agentName: string;
  readonly pipeline: {
    register(point: 'toolCall', middleware: ToolCallMiddleware, options?: { priority?: number }): void;
    register(
      point: 'step',
      middleware: (ctx: StepMiddlewareContext) => Promise<StepResult | void>,
      options?: { priority?: number },
    ): void;
    register(
      point: 'turn',
      middleware: (ctx: TurnMiddlewareContext) => Promise<JsonValue | void>,
      options?: { priority?: number },
    ): void;
  };
  readonly tools: {
    register(item: ToolCatalogItem, handler: ToolHandler, options?: { policy?: JsonObject }): void;
    unregister(name: string): Promise<boolean>;
  };
  readonly events: {
    on(name: string, listener: (event: JsonObject) => unknown): () => void;
    emit(name: string, event?: JsonObject): void;
  };
  readonly state: ExtensionState;
  readonly oauth: OAuthApi;
  readonly swarmBundle: SwarmBundleApi;
  readonly logger: Console;
}

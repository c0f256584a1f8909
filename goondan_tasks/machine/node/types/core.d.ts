// @goondan/core: the same types. 002 and 003 each import their own ToolContext of this name from it: this one has
// the fields of both. Fields of only one version are missing at run time in the other.

import type {
  AgentEvent,
  ExtensionState,
  JsonObject,
  JsonSchemaObject,
  JsonValue,
  Pending,
  ToolCatalogItem,
  ToolContext as Current,
  ToolResult,
  ToolSource,
} from './index.js';

export type * from './index.js';

// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type ToolHandler<Input = any> = (ctx: ToolContext, input: Input) => Promise<JsonValue | Pending> | JsonValue | Pending;

/** A handler's context; the fields here are those of `apiVersion: agents.example.io/v1alpha1` (002 §4.3). */
export interface ToolContext extends Current {
  readonly instance: SwarmInstance;
  readonly swarm: Resource;
  readonly agent: Resource;
  readonly turn: Turn;
  readonly step: Step;
  readonly toolCatalog: V1CatalogItem[];
  readonly swarmBundle: SwarmBundleApi;
  readonly oauth: OAuthApi;
  readonly events: EventBus;
}

export interface Resource<Spec = JsonObject> {
  apiVersion: string;
  kind: string;
  metadata: { name: string; labels?: Record<string, string> };
  spec: Spec;
}

export interface SwarmInstance {
  id: string;
  key: string;
  swarmName: string;
  dynamicTools: V1CatalogItem[];
}

export type LlmMessage =
  | { role: 'system'; content: string }
  | { role: 'user'; content: string }
  | { role: 'assistant'; content?: string; toolCalls?: V1ToolCall[] }
  | { role: 'tool'; toolCallId: string; toolName: string; output: JsonValue };

export interface V1ToolCall {
  id: string;
  name: string;
  arguments: JsonObject;
}

export interface Turn {
  id: string;
  instanceId: string;
  agentName: string;
  messages: LlmMessage[];
  toolResults: Map<string, ToolResult>;
  origin?: JsonObject;
  auth?: JsonObject;
  metadata?: JsonObject;
}

export interface Step {
  id: string;
  index: number;
  turnId: string;
  llmResult?: { message: LlmMessage };
  pendingToolCalls?: V1ToolCall[];
}

export interface V1CatalogItem {
  name: string;
  description?: string;
  parameters?: JsonSchemaObject;
  tool?: Resource | null;
  export?: JsonObject | null;
  source?: ToolSource;
}

export interface SwarmBundleApi {
  openChangeset(request?: { reason?: string }): Promise<JsonObject>;
  commitChangeset(request: { changesetId: string; message?: string }): Promise<JsonObject>;
  getActiveRef(): Promise<string>;
}

export type ObjectRef = { kind: string; name: string; apiVersion?: string };

export interface OAuthApi {
  getAccessToken(request: OAuthTokenRequest): Promise<OAuthTokenResult>;
}

export interface OAuthTokenRequest {
  oauthAppRef: ObjectRef;
  scopes?: string[];
  minTtlSeconds?: number;
}

export type OAuthTokenResult = OAuthTokenReady | OAuthAuthorizationRequired | OAuthTokenError;

export interface OAuthTokenReady {
  status: 'ready';
  accessToken: string;
  tokenType: string;
  expiresAt?: string;
  scopes: string[];
}

export interface OAuthAuthorizationRequired {
  status: 'authorization_required';
  authSessionId: string;
  authorizationUrl: string;
  expiresAt: string;
  message: string;
}

export interface OAuthTokenError {
  status: 'error';
  error: { code: string; message: string };
}

export interface EventBus {
  emit(name: string, event?: JsonObject): Promise<void>;
}

interface PipelineContext {
  readonly turn: Turn;
  readonly effectiveConfig: JsonObject;
  metadata: JsonObject;
}

/** One tool call as it passes the pipeline (002 §5.3). */
export interface ToolCallExecContext extends PipelineContext {
  toolCall: V1ToolCall;
  toolResult?: ToolResult;
  readonly step: Step;
  readonly toolCatalog: V1CatalogItem[];
}

export interface StepPipelineContext extends PipelineContext {
  readonly instance: SwarmInstance;
  readonly swarm: Resource;
  readonly agent: Resource;
  readonly step: Step;
  readonly toolResults: Map<string, ToolResult>;
  toolCatalog: V1CatalogItem[];
  blocks: JsonObject[];
}

export interface TurnPipelineContext extends PipelineContext {
  readonly instance: SwarmInstance;
  readonly swarm: Resource;
  readonly agent: Resource;
  readonly event: AgentEvent;
  result?: JsonValue;
}

type Mutator<Context> = (ctx: Context) => Context | void | Promise<Context | void>;
type PipelineOptions = { priority?: number; id?: string };

/** What `register` of an extension of the older version is called with (002 §5.4, §9.1). */
export interface V1ExtensionApi {
  readonly extension: Resource<{ config: JsonObject; [name: string]: JsonValue }>;
  readonly agentName: string;
  readonly pipelines: {
    mutate(
      point: 'toolCall.pre' | 'toolCall.post',
      run: Mutator<ToolCallExecContext>,
      options?: PipelineOptions,
    ): void;
    mutate(
      point: 'step.pre' | 'step.config' | 'step.tools' | 'step.blocks' | 'step.post',
      run: Mutator<StepPipelineContext>,
      options?: PipelineOptions,
    ): void;
    mutate(point: 'turn.pre' | 'turn.post', run: Mutator<TurnPipelineContext>, options?: PipelineOptions): void;
    wrap(
      point: 'toolCall.exec',
      run: (
        ctx: ToolCallExecContext,
        next: (ctx?: ToolCallExecContext) => Promise<ToolResult>,
      ) => Promise<ToolResult | JsonValue>,
      options?: PipelineOptions,
    ): void;
  };
  readonly tools: {
    register(definition: ToolCatalogItem & { handler: ToolHandler }): void;
    register(definition: ToolCatalogItem, handler: ToolHandler): void;
    unregister(name: string): Promise<boolean>;
    get(name: string): Promise<V1CatalogItem | null>;
    list(): Promise<V1CatalogItem[]>;
  };
  readonly events: {
    emit(name: string, event?: unknown): void;
    on(name: string, listener: (event: JsonObject) => unknown): () => void;
    once(name: string, listener: (event: JsonObject) => unknown): () => void;
    off(name: string, listener: (event: JsonObject) => unknown): void;
  };
  readonly state: ExtensionState;
  readonly instance: { readonly shared: ExtensionState };
  readonly oauth: OAuthApi;
  readonly swarmBundle: SwarmBundleApi;
  readonly logger: Console;
  getState(): Promise<JsonObject>;
  setState(state: JsonObject): Promise<void>;
}

// Made from the OpenAPI document by `python -m tests.docs.typescript_types`. Changes are lost.

/** A part of a list. `nextCursor` leads to the next one, and is null in the last one. */
export interface Page<Item> {
  items: Item[];
  nextCursor?: string | null;
}

/** The state of a proposed revision among the workers. */
export interface Activation {
  status: "active" | "proposed" | "failed" | "superseded" | "unfollowed";
  ref: string;
  code?: string | null;
  reason?: string | null;
  behind?: string[] | null;
}

/** A revision to be activated. */
export interface ActivationBody {
  /** `git:` and the 40 digits of a commit. */
  ref: string;
}

/** An agent with its Tool Catalog: the tools that can be called, with the schemas of their arguments. */
export interface AgentDetails {
  name: string;
  swarm: string;
  workspace: string;
  tools: string[];
  workers: string[];
  backlog: number;
  running: number;
  state: AgentState;
  orchestrated: boolean;
  crashes: number;
  nextStartSeconds: number | null;
  reason: string | null;
  paused: Pause[];
  catalog: Record<string, unknown>[];
}

/** What an agent's workers are doing. */
export type AgentState = "paused" | "running" | "idle" | "starting" | "crashLoopBackOff" | "none";

/** An agent, and what its workers are doing. */
export interface AgentView {
  name: string;
  swarm: string;
  workspace: string;
  tools: string[];
  workers: string[];
  backlog: number;
  running: number;
  state: AgentState;
  orchestrated: boolean;
  crashes: number;
  nextStartSeconds: number | null;
  reason: string | null;
  paused: Pause[];
}

/**
 * The model is asked again in this Step: its text and reasoning of the Step so far are void.
 *
 * The worker died, the stream was cut, or the answer could not be used.
 */
export interface AnswerRestarted {
  type: "restart";
  step: number;
  answerId: string;
}

/** A call that waits for an approval, with what it would do. */
export interface ApprovalView {
  id: string;
  agent: string;
  instanceKey: string;
  status: "scheduled" | "queued" | "running" | "pending" | "done" | "dead";
  outcome: "ok" | "error" | null;
  output: unknown;
  error: ToolCallError | null;
  correlationId: string;
  traceId: string;
  attempt: number;
  worker: string | null;
  cancelled: boolean;
  waitingFor: string | null;
  notBefore: string | null;
  queuedAt: string;
  startedAt: string | null;
  finishedAt: string | null;
  usage: Record<string, number> | null;
  links: Record<string, string>;
  tool: string;
  awaits: "completion" | "approval" | null;
  expiresAt: string | null;
  handle: string | null;
  approvedBy: string | null;
  edited: EditView | null;
  replayedBy: string | null;
  progress: Progress | null;
  outputFile: string | null;
  args: unknown;
  /** Whether it may run again if its worker dies; null if that is not known. */
  idempotent?: boolean | null;
}

/** An act that was done: who did it, when, by which door, to what. */
export interface AuditEntry {
  v: number;
  act: string;
  by: string;
  inNameOf?: string | null;
  door: string;
  kind: string;
  target: string;
  agent?: string | null;
  count?: number | null;
  outcome: string;
  id: string;
  at: string;
}

/** An agent of a bundle, and the tools that it may call. */
export interface BundleAgent {
  name: string;
  swarm: string;
  tools: string[];
}

/** A bundle, as its workspace knows it: its agents, and its revisions. */
export interface BundleState {
  workspace: string;
  agents: BundleAgent[];
  revisions?: RevisionState | null;
  fault?: string | null;
  workers: Record<string, string | null>;
}

/** One call of a tool. */
export interface CallBody {
  /** The conversation. Default: `default`. */
  instanceKey?: string | null;
  /** ISO 8601: it begins at this time. */
  notBefore?: string | null;
  /** In seconds: it begins so much later. */
  delay?: number | null;
  /** For how many seconds after the end its events can be followed; `null`: they cannot. */
  keep?: number | null;
  /** For whom tools act, as tools and middlewares see it. */
  auth?: Record<string, unknown> | null;
  origin?: Record<string, unknown> | null;
  correlationId?: string | null;
  /** The full name, such as `bash__exec`. */
  tool: string;
  /** What the tool's schema asks for. */
  args?: unknown;
  /** Limits the run of the tool. */
  timeoutSeconds?: number | null;
  /** Calls of the tool with the same key share one result, also across users. */
  idempotencyKey?: string | null;
}

/** A call of an agent's tool. */
export interface CallView {
  id: string;
  agent: string;
  instanceKey: string;
  status: "scheduled" | "queued" | "running" | "pending" | "done" | "dead";
  outcome: "ok" | "error" | null;
  output: unknown;
  error: ToolCallError | null;
  correlationId: string;
  traceId: string;
  attempt: number;
  worker: string | null;
  cancelled: boolean;
  waitingFor: string | null;
  notBefore: string | null;
  queuedAt: string;
  startedAt: string | null;
  finishedAt: string | null;
  usage: Record<string, number> | null;
  links: Record<string, string>;
  tool: string;
  awaits: "completion" | "approval" | null;
  expiresAt: string | null;
  handle: string | null;
  approvedBy: string | null;
  edited: EditView | null;
  replayedBy: string | null;
  progress: Progress | null;
  outputFile: string | null;
}

/** How a Connection fares. Times are ISO 8601. */
export interface ConnectionStatus {
  workspace: string;
  name: string;
  connector: string;
  state: "running" | "stopped";
  process?: string | null;
  since?: string | null;
  events: number;
  refused: number;
  lastEventAt?: string | null;
  lastError?: string | null;
}

/** A decision. */
export interface DecisionBody {
  decision: "approve" | "deny";
  /** Who decides. Default: the name of the token; only `admin` may give another. */
  by?: string;
  /** Of a denial: the agent reads it. */
  reason?: string;
  /** Of an approval: arguments that replace those of the call. The agent is told. */
  args?: Record<string, unknown> | null;
}

/** What was done, where nothing else is to be said. */
export interface Done {
  id: string;
}

/** A person's change of arguments, with an approval: those that were asked for, and those that run. */
export interface EditView {
  by: string;
  at: string;
  asked?: unknown;
  args: unknown;
}

/** What a result says of such a change: `args` are the arguments that it belongs to. */
export interface EditedArguments {
  by: string;
  at: string;
  args?: unknown;
  note: string;
}

/** Why there is no other answer. `error.code` names the page that `error.helpUrl` leads to. */
export interface ErrorAnswer {
  error: ToolCallError;
}

/** The beginning of a JSON value as text without secrets, and the size of the whole in bytes. */
export interface Excerpt {
  text: string;
  size: number;
  isCut: boolean;
}

/** The error of a pending call. */
export interface Failure {
  error: FailureText;
}

/** Failures of one kind: one tool, one code, messages that differ in numbers, ids and quoted texts. */
export interface FailureGroup {
  fingerprint: string;
  tool: string;
  code: string;
  message: string;
  agents: string[];
  count: number;
  replayed: number;
  firstAt: string;
  lastAt: string;
  lastId: string;
  lastMessage: string;
}

/** Why a pending call failed. */
export interface FailureText {
  message: string;
  code?: string | null;
  suggestion?: string | null;
}

/** Failures by their kinds, the most frequent first, of equal ones the latest. */
export interface Failures {
  groups: FailureGroup[];
  counted: number;
  total: number;
}

export interface Found_CallView_ {
  items: CallView[];
  nextCursor?: string | null;
  searched: number;
  total: number;
}

/** The public part of a grant, which can be read without a key. */
export interface GrantSummary {
  oauthApp: string;
  provider: string;
  subject: string;
  flow: "authorization_code" | "device_code";
  scopesGranted: string[];
  createdAt: string;
  updatedAt: string;
  revoked: boolean;
  name: string;
  expiresAt?: string | null;
  hasRefreshToken: boolean;
  keyIds: string[];
}

/** How often one agent has passed work to another, and how often that failed. */
export interface HandoffCount {
  from: string;
  to: string;
  count: number;
  errors: number;
}

/** The hand-offs of the last hours: requests and events that were handled since a full hour. */
export interface Handoffs {
  since: string;
  seconds: number;
  edges: HandoffCount[];
}

/** A file of a workdir: its path from there, in bytes its size, and when it was changed. */
export interface InstanceFile {
  path: string;
  size: number;
  modifiedAt: string;
}

/**
 * An instance of an agent, as `goondan instances --json` prints it.
 *
 * `cwd` is a path from the parent of the workspace's instances, on any machine.
 */
export interface InstanceInfo {
  target: string;
  instanceKey: string;
  ownerAgent: string;
  ownerInstanceKey: string;
  createdAt: string;
  cwd?: string | null;
  lastUsedAt: string;
  workspace: string;
}

/** The outcome of deleting an instance, or in a dry run the plan. */
export interface InstanceRemoval {
  instanceKey: string | null;
  workspace: string;
  agents: string[];
  path: string;
  removed: boolean;
  files: "here" | "kept" | "absent" | "elsewhere" | "removed" | "left";
  reason?: string | null;
}

/** A limit with calls that wait: of exports, of a Model, of an idempotencyKey, or of a paused tool. */
export interface LimitStatus {
  limit: string;
  waiting: number;
  most: number;
  periodSeconds?: number | null;
  freeAt: string;
}

/** The mailbox of an instance of an agent. */
export interface Mailbox {
  agent: string;
  instanceKey: string;
  count: number;
  events: WaitingEvent[];
}

/** The state of an agent's MCP server in one worker process. */
export interface McpServerRecord {
  agent: string;
  name: string;
  isUp: boolean;
  tools: number;
  leftOut: Record<string, string>;
  failures: number;
  reason?: string | null;
}

/** A message of a conversation (004, Message). `data` is what the model read or wrote. */
export interface Message {
  id: string;
  data: Record<string, unknown>;
  metadata: Record<string, unknown>;
  createdAt: string;
  source: Record<string, unknown>;
}

/** A paused agent, or a paused tool of an agent. */
export interface Pause {
  v: number;
  agent: string;
  tool?: string | null;
  reason: string;
  by: string;
  at: number;
}

/** What is paused, and why. */
export interface PauseBody {
  /** One tool. Default: the agent. */
  tool?: string | null;
  reason?: string;
  by?: string;
}

/** The latest progress report of a handler, and those shortly before it. */
export interface Progress {
  done: number | number;
  total?: number | number | null;
  message?: string | null;
  updatedAt: string;
  earlier: ProgressReport[];
}

/** A progress report of a handler. */
export interface ProgressReport {
  done: number | number;
  total?: number | number | null;
  message?: string | null;
}

/** One agent's queues (DESIGN "Commands"). `backlog` waits for a worker. */
export interface QueueStatus {
  agent: string;
  queue: string;
  backlog: number;
  running: number;
  waitingForLimit: number;
  oldestSeconds?: number | null;
  workers: number;
  events: number;
  deadLetters: number;
  lateAnswers: number;
  mailboxes: number;
  pending: number;
  scheduled: number;
  lost: number;
  lostWith: string[];
  lostSeconds?: number | null;
  paused: Pause[];
}

/** The next characters of the model's reasoning, if the provider sends it. */
export interface ReasoningDelta {
  type: "reasoning";
  step: number;
  text: string;
  answerId: string;
}

/** What was deleted: one entry for each workspace with such an instance. */
export interface Removals {
  items: InstanceRemoval[];
}

/** The answer to a request; with `async: true` only that it was accepted. */
export interface RequestResult {
  id: string;
  eventId: string;
  target: string;
  response?: unknown;
  correlationId: string;
  accepted: boolean;
  async: boolean;
}

/** The output of a pending call. */
export interface Resolution {
  output?: unknown;
}

/** What is resumed. */
export interface ResumeBody {
  /** One tool. Default: the agent. */
  tool?: string | null;
}

/** A change from one revision to another, and its author: the payload of the event about it. */
export interface RevisionChange {
  type: "swarmBundle.revisionChanged";
  previousRef?: string | null;
  newRef: string;
  changesetId?: string | null;
  summary?: Record<string, unknown> | null;
  timestamp: string;
  agentName?: string | null;
  instanceKey?: string | null;
}

/** The reason why a revision is not active. */
export interface RevisionFailure {
  ref: string;
  code: string;
  reason: string;
  worker: string;
  timestamp: string;
  change?: RevisionChange | null;
}

/** The record in Redis. */
export interface RevisionState {
  v: number;
  active: string;
  change?: RevisionChange | null;
  proposed?: RevisionChange | null;
  failed?: RevisionFailure | null;
  left: string[];
}

/** What was revoked. */
export interface Revocation {
  oauthApp: string;
  subject: string;
  providerTold: boolean;
}

/** A consent to be revoked. */
export interface RevocationBody {
  oauthApp: string;
  subject: string;
}

/** What a Turn and a call have in common. `output` and `error` are those of the result. */
export interface RunView {
  id: string;
  agent: string;
  instanceKey: string;
  status: "scheduled" | "queued" | "running" | "pending" | "done" | "dead";
  outcome: "ok" | "error" | null;
  output: unknown;
  error: ToolCallError | null;
  correlationId: string;
  traceId: string;
  attempt: number;
  worker: string | null;
  cancelled: boolean;
  waitingFor: string | null;
  notBefore: string | null;
  queuedAt: string;
  startedAt: string | null;
  finishedAt: string | null;
  usage: Record<string, number> | null;
  links: Record<string, string>;
}

/** What is due, and when. `owner` is the workspace of the bundle that declares it, or empty. */
export interface Schedule {
  v: number;
  name: string;
  owner: string;
  cron?: string | null;
  every?: string | null;
  timeZone: string;
  jitterSeconds: number;
  catchUp: "skip" | "once" | "all";
  catchUpLimit: number;
  overlap: "queue" | "skip" | "cancel";
  agent: string;
  input?: unknown;
  tool?: string | null;
  args: Record<string, unknown>;
  instanceKey: string;
}

/** Who has paused a schedule, and why. */
export interface SchedulePause {
  v: number;
  reason: string;
  by: string;
  at: number;
}

/** Why a schedule is paused, and by whom. */
export interface SchedulePauseBody {
  reason?: string;
  by?: string;
}

/** A schedule, and what has become of it; times are ISO 8601. */
export interface ScheduleState {
  schedule: Schedule;
  next?: string | null;
  dueAt?: string | null;
  paused?: SchedulePause | null;
  fired: number;
  skipped: number;
  missed: number;
  damaged: number;
  lastSlot?: string | null;
  lastAt?: string | null;
  lastId?: string | null;
  lastOutcome?: string | null;
  lastError?: string | null;
  openRuns: number;
}

/** The next characters of the model's answer. */
export interface TextDelta {
  type: "text";
  step: number;
  text: string;
  answerId: string;
}

/** A model has answered: `usage` has the tokens, by `input`, `output`, `cached`, `reasoning`. */
export interface TokensUsed {
  type: "usage";
  step: number;
  usage: Record<string, number>;
  requestId: string;
}

/** A tool call has its result, which may be an interim one (`status` is `pending`). */
export interface ToolAnswered {
  type: "tool_result";
  step: number;
  id: string;
  callId: string;
  tool: string;
  status: "ok" | "error" | "pending";
  output?: unknown;
  error?: ToolCallError | null;
  durationMs?: number | null;
  awaits?: "completion" | "approval" | null;
  edited?: EditedArguments | null;
}

/** Why a call failed (004, ToolCallResultError). `message` is at most errorMessageLimit characters. */
export interface ToolCallError {
  code: string;
  name: string;
  message: string;
  suggestion?: string | null;
  helpUrl?: string | null;
}

/** The model has called a tool. */
export interface ToolCalled {
  type: "tool_call";
  step: number;
  id: string;
  callId: string;
  tool: string;
  args?: unknown;
}

/** What a tool shows with `ctx.emit` while it runs. */
export interface ToolEmitted {
  type: "tool_output";
  toolCallId: string;
  callId: string;
  tool: string;
  attempt: number;
  seq: number;
  chunk?: unknown;
  truncated: boolean;
}

/** A call runs again, because its worker died or it is tried again: its output so far is void. */
export interface ToolRestarted {
  type: "tool_restart";
  toolCallId: string;
  callId: string;
  tool: string;
  attempt: number;
  seq: number;
}

/** Related calls and handoffs: depth first, siblings by time. */
export interface Trace {
  correlationId: string;
  nodes: TraceNode[];
  expired: number;
}

/** Why a call failed. `message` has at most 500 characters; the call's result has all of it. */
export interface TraceError {
  code: string;
  message: string;
}

/** One call or handoff. `depth` is 0 for the roots of the trace. */
export interface TraceNode {
  id: string;
  kind: "call" | "request" | "event" | "answer";
  agent: string;
  instance: string;
  tool: string;
  eventType?: string | null;
  state: string;
  worker?: string | null;
  attempt: number;
  queuedAt: string;
  startedAt?: string | null;
  finishedAt?: string | null;
  lostAt?: string | null;
  waitingSeconds: number;
  runningSeconds?: number | null;
  usage?: Record<string, number> | null;
  waitingFor?: string | null;
  awaits?: string | null;
  approvedBy?: string | null;
  isEdited: boolean;
  parentId?: string | null;
  rootId?: string | null;
  replayOf?: string | null;
  correlationId: string;
  traceId: string;
  spanId: string;
  depth: number;
  error?: TraceError | null;
  note?: string | null;
}

/** A trace in one line: its first call, the number of calls, and its state. */
export interface TraceSummary {
  traceId: string;
  correlationId: string;
  id: string;
  kind: "call" | "request" | "event" | "answer";
  agent: string;
  instance: string;
  tool: string;
  eventType?: string | null;
  beganAt: string;
  latestAt: string;
  calls: number;
  state: string;
}

/** What an agent is asked. */
export interface TurnBody {
  /** The conversation. Default: `default`. */
  instanceKey?: string | null;
  /** ISO 8601: it begins at this time. */
  notBefore?: string | null;
  /** In seconds: it begins so much later. */
  delay?: number | null;
  /** For how many seconds after the end its events can be followed. Default: an hour; `null`: they cannot. */
  keep?: number | null;
  /** For whom tools act, as tools and middlewares see it. */
  auth?: Record<string, unknown> | null;
  origin?: Record<string, unknown> | null;
  correlationId?: string | null;
  /** Any JSON; an agent that thinks takes text. */
  input?: unknown;
  /** Limits the wait in the mailbox, and the handling. */
  timeoutSeconds?: number | null;
  metadata?: Record<string, unknown> | null;
  /** The JSON Schema that the answer must fit. */
  outputSchema?: Record<string, unknown> | null;
}

/** The agent has answered, or the call has ended; always the last event. */
export interface TurnEnded {
  type: "end";
  result: RequestResult;
  error?: ToolCallError | null;
  usage?: Record<string, number> | null;
  finishReason?: string | null;
  durationMs?: number | null;
}

/** The latest `ctx.progress` of the agent's code. */
export interface TurnProgress {
  type: "progress";
  progress: Progress;
}

/** A Turn of an agent. */
export interface TurnView {
  id: string;
  agent: string;
  instanceKey: string;
  status: "scheduled" | "queued" | "running" | "pending" | "done" | "dead";
  outcome: "ok" | "error" | null;
  output: unknown;
  error: ToolCallError | null;
  correlationId: string;
  traceId: string;
  attempt: number;
  worker: string | null;
  cancelled: boolean;
  waitingFor: string | null;
  notBefore: string | null;
  queuedAt: string;
  startedAt: string | null;
  finishedAt: string | null;
  usage: Record<string, number> | null;
  links: Record<string, string>;
  finishReason: string | null;
}

/**
 * What was used: of a day, an agent, a Model and a user, as far as the answer is grouped by them.
 *
 * `calls` are calls of tools, and `requests` those to models, as far as they began. `input` includes
 * `cached`, and `output` includes `reasoning`.
 */
export interface Usage {
  day?: string | null;
  agent?: string | null;
  model?: string | null;
  user?: string | null;
  calls: number;
  requests: number;
  input: number;
  cached: number;
  output: number;
  reasoning: number;
}

/** An event in a mailbox: the first is handled, or is the next; the others wait behind it. */
export interface WaitingEvent {
  id: string;
  state: string;
  kind: string;
  type?: string | null;
  sender: string;
  user?: string | null;
  since: string;
  text: Excerpt;
  correlationId?: string | null;
}

/** A live worker process. `root_id` identifies its state root; times are ISO 8601. */
export interface WorkerRecord {
  name: string;
  id: string;
  pid: number;
  host: string;
  place: string;
  agents: string[];
  concurrency: number;
  rootId: string;
  localWorkdir: string[];
  startedAt: string;
  mcpServers: McpServerRecord[];
  bundleRef?: string | null;
  swarm: string;
  workspace: string;
  isJoining: boolean;
}

/** An event of a stream; `end` is the last one. */
export type TurnEvent =
  | TextDelta
  | ReasoningDelta
  | AnswerRestarted
  | ToolCalled
  | ToolEmitted
  | ToolRestarted
  | ToolAnswered
  | TokensUsed
  | TurnProgress
  | TurnEnded;

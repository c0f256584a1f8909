"""Connectors of the older versions, as upstream's documents have them, from their YAML to the events."""

import asyncio
import json
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.authoring.webhooks import HttpRequest
from goondan_tasks.bundle import load_bundle
from goondan_tasks.connectors.connections import program_of, runnable, source_of
from goondan_tasks.connectors.runner import ConnectionRunner
from goondan_tasks.connectors.store import Lease
from goondan_tasks.connectors.terminal import TerminalLines
from goondan_tasks.connectors.triggers import received
from goondan_tasks.contract.messages import epoch_milliseconds
from tests.javascript_runtimes import NAMES, runtime
from tests.waiting import wait_until

PATIENCE = 60
MONDAY = int(epoch_milliseconds("2026-11-30T08:59:00.000Z"))
TEAM = """\
apiVersion: agents.example.io/v1alpha1
kind: Agent
metadata: { name: planner }
spec: {}
---
apiVersion: agents.example.io/v1alpha1
kind: Agent
metadata: { name: coder }
spec: {}
---
apiVersion: agents.example.io/v1alpha1
kind: Swarm
metadata: { name: default }
spec:
  entrypoint: { kind: Agent, name: planner }
  agents: [{ kind: Agent, name: planner }, { kind: Agent, name: coder }]
---
"""


@dataclass
class Store:
    """A Connection's lease, which is free, and its slots, in a time that a test sets."""

    time: float = MONDAY
    lease_seconds: float = 10.0
    slots: dict[int, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    def key(self, name: str) -> str:
        return name

    def hold(self, _lease: Lease) -> float:
        return 0

    def let_go(self, _lease: Lease, error: str = "") -> None:
        self.ended.append(error)

    def count(self, *_: Any) -> None:
        pass

    def note_error(self, _lease: Lease, error: str) -> None:
        self.ended.append(error)

    def waiting(self, _agent: str, _instance: str) -> int:
        return 0

    def now(self) -> float:
        return self.time

    def slot(self, _name: str, trigger: int, _timing: str) -> int | None:
        return self.slots.get(trigger)

    def move_slot(self, _lease: Lease, trigger: int, _timing: str, slot: int) -> None:
        self.slots[trigger] = slot


@dataclass
class Client:
    """Takes the events."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def send(self, agent: str, event: Any, *, instance_key: str, auth: Any, origin: Any) -> Any:
        self.events.append(
            {"agent": agent, "instance": instance_key, "type": event.type, "input": event.input,
             "auth": auth, "origin": origin, "id": event.id, "metadata": event.metadata}
        )  # fmt: skip
        return SimpleNamespace(target=agent, id="call")


@contextmanager
def typed(*lines: str, is_over: bool = False) -> Iterator[int]:
    """Give a descriptor that has lines, and ends if it ``is_over``."""
    read, write = os.pipe()
    os.write(write, "".join(f"{line}\n" for line in lines).encode())
    if is_over:
        os.close(write)
    yield read  # left open: a thread may look at it for a moment after the end of its run
    if not is_over:
        os.close(write)


@contextmanager
def running(
    folder: Path,
    yaml: str,
    files: Mapping[str, str],
    language: str,
    store: Store | None = None,
    tokens: Callable[[Any], Any] | None = None,
    lines: int = -1,
) -> Iterator[tuple[ConnectionRunner, Store, Client]]:
    """Run the only Connection of a bundle; ``lines`` is a descriptor to read lines from."""
    if language in NAMES:
        runtime(language)
    for name, text in {"goondan.yaml": TEAM + yaml, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    bundle = load_bundle(folder)
    [connection] = runnable(bundle)
    kept, client = store or Store(), Client()
    doubles: Any = (kept, client)
    runner = ConnectionRunner(
        program_of(bundle, connection, language if language in NAMES else None),
        source_of(bundle, connection),
        client=doubles[1], store=doubles[0], owner="here:1",
        tokens=tokens, lines=TerminalLines(lines),
    )  # fmt: skip
    runner.start()
    yield runner, kept, client
    runner.stop()
    assert runner.join(PATIENCE)


def of(language: str, python: str, typescript: str) -> tuple[str, dict[str, str]]:
    """Return the entry of a Connector in a language, and its file."""
    name = "./connectors/index.py" if language == "python" else "./connectors/index.ts"
    return name, {name: python if language == "python" else typescript}


REPORTER = """\
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata:
  name: daily-reporter
spec:
  runtime: node
  entry: "ENTRY"

  triggers:
    - type: cron
      schedule: "0 9 * * MON-FRI"

  events:
    - name: daily_report
      properties:
        scheduled_at: { type: string }
---
apiVersion: agents.example.io/v1alpha1
kind: Connection
metadata: { name: reports }
spec:
  connectorRef: { kind: Connector, name: daily-reporter }
  ingress:
    rules:
      - match: { event: daily_report }
        route: { agentRef: { kind: Agent, name: coder } }
"""
REPORT_TYPESCRIPT = """\
import type { ConnectorContext } from '@goondan/core';

export default async function (context: ConnectorContext): Promise<void> {
  const { event, emit } = context;

  if (event.type !== "connector.trigger") return;
  if (event.trigger.type !== "cron") return;

  const cronPayload = event.trigger.payload;
  const { scheduledAt } = cronPayload;

  await emit({
    type: "connector.event",
    name: "daily_report",
    message: { type: "text", text: `Report (${scheduledAt})` },
    properties: {
      scheduled_at: scheduledAt,
    },
    auth: {
      actor: { id: "system:cron" },
      subjects: { global: "cron:daily-reporter" },
    },
  });
}
"""
REPORT_PYTHON = """\
async def connect(ctx):
    if ctx.event["type"] != "connector.trigger" or ctx.event["trigger"]["type"] != "cron":
        return
    at = ctx.event["trigger"]["payload"]["scheduledAt"]
    await ctx.emit({
        "type": "connector.event",
        "name": "daily_report",
        "message": {"type": "text", "text": f"Report ({at})"},
        "properties": {"scheduled_at": at},
        "auth": {"actor": {"id": "system:cron"}, "subjects": {"global": "cron:daily-reporter"}},
    })
"""


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_cron_trigger_calls_entry_once_for_slot(tmp_path: Path, language: str) -> None:
    entry, files = of(language, REPORT_PYTHON, REPORT_TYPESCRIPT)
    store = Store(time=MONDAY + 90_000, slots={0: MONDAY - 3 * 86_400_000})
    with running(tmp_path, REPORTER.replace("ENTRY", entry), files, language, store) as (_, kept, client):
        wait_until(lambda: kept.slots[0] == MONDAY + 60_000, PATIENCE, show=lambda: kept.ended)
    # of the two slots since Friday, the latest is made up for
    [event] = client.events
    assert (event["agent"], event["instance"]) == ("coder", "reports")
    assert event["input"] == "Report (2026-11-30T09:00:00Z)"
    assert event["auth"] == {"actor": {"id": "system:cron"}, "subjects": {"global": "cron:daily-reporter"}}
    assert event["origin"] == {"scheduled_at": "2026-11-30T09:00:00Z", "connector": "reports"}
    assert event["id"].startswith("reports-")  # of the slot, not by chance


CHAT = """\
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata:
  name: cli
spec:
  runtime: node
  entry: "ENTRY"

  triggers:
    - type: cli
    - type: custom

  events:
    - name: user_input
---
apiVersion: agents.example.io/v1alpha1
kind: Connection
metadata:
  name: cli-to-default
spec:
  connectorRef: { kind: Connector, name: cli }
  swarmRef: { kind: Swarm, name: default }
  auth: { staticToken: { value: "a-static-token" } }
  verify: { webhook: { signingSecret: { value: "a-signing-secret" } } }
  ingress:
    rules:
      - route: {}
"""
CHAT_TYPESCRIPT = """\
export default async function (context: any): Promise<void> {
  const { event, emit, connection, connector, verify } = context;
  const message = (text: string, more = {}) =>
    emit({ type: "connector.event", name: "user_input", message: { type: "text", text }, ...more });
  if (event.trigger.type === "cli") {
    if (event.trigger.payload.text === "fail") throw new Error("this line fails");
    await message(event.trigger.payload.text, { properties: { instanceKey: "cli", tags: ["a"] } });
    return;
  }
  const { signal } = event.trigger.payload;
  const { staticToken } = connection.spec.auth;
  await message(`${staticToken} ${verify.webhook.signingSecret} ${connector.metadata.name}`);
  const image = { type: "image", image: "data:image/png;base64,YQ==" };
  await emit({ type: "connector.event", name: "picture", message: image });
  const paper = { type: "file", data: "YQ==", mediaType: "application/pdf" };
  await emit({ type: "connector.event", name: "paper", message: paper });
  await new Promise((resolve) => signal.addEventListener("abort", resolve));
}
"""
CHAT_PYTHON = """\
import asyncio


async def connect(ctx):
    async def message(text, **more):
        await ctx.emit({"type": "connector.event", "name": "user_input",
                        "message": {"type": "text", "text": text}, **more})

    trigger = ctx.event["trigger"]
    if trigger["type"] == "cli":
        if trigger["payload"]["text"] == "fail":
            raise RuntimeError("this line fails")
        await message(trigger["payload"]["text"], properties={"instanceKey": "cli", "tags": ["a"]})
        return
    token = ctx.connection["spec"]["auth"]["staticToken"]
    secret, name = ctx.verify["webhook"]["signingSecret"], ctx.connector["metadata"]["name"]
    await message(f"{token} {secret} {name}")
    image = {"type": "image", "image": "data:image/png;base64,YQ=="}
    await ctx.emit({"type": "connector.event", "name": "picture", "message": image})
    paper = {"type": "file", "data": "YQ==", "mediaType": "application/pdf"}
    await ctx.emit({"type": "connector.event", "name": "paper", "message": paper})
    assert not trigger["payload"]["signal"].is_set()
    await asyncio.Event().wait()
"""


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_lines_and_own_loop_reach_entry_agent(tmp_path: Path, language: str) -> None:
    entry, files = of(language, CHAT_PYTHON, CHAT_TYPESCRIPT)
    yaml = CHAT.replace("ENTRY", entry)
    with (
        typed("one", "fail", "two") as lines,
        running(tmp_path, yaml, files, language, lines=lines) as (_, store, client),
    ):
        wait_until(lambda: len(client.events) == 5, PATIENCE, show=lambda: store.ended)
    assert {one["agent"] for one in client.events} == {"planner"}
    of_lines = [one for one in client.events if one["instance"] == "cli"]
    assert [one["input"] for one in of_lines] == ["one", "two"]
    assert of_lines[0]["origin"] == {"instanceKey": "cli", "tags": '["a"]', "connector": "cli-to-default"}
    others = {one["type"]: one["input"] for one in client.events if one["instance"] == "cli-to-default"}
    assert others == {
        "user_input": "a-static-token a-signing-secret cli",
        "picture": [{"type": "image", "image": "data:image/png;base64,YQ=="}],
        "paper": [{"type": "file", "data": "YQ==", "mediaType": "application/pdf"}],
    }


CANONICAL = """\
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata:
  name: custom-webhook
spec:
  type: custom
  runtime: node
  entry: "ENTRY"
  triggers:
    - { handler: onLine, type: cli }
    - { handler: onSchedule, type: cron, schedule: "0 9 * * *" }
  ingress:
    - match: { text: to the coder }
      route: { swarmRef: { kind: Swarm, name: default }, agentName: coder }
    - route:
        swarmRef: { kind: Swarm, name: default }
        instanceKeyFrom: "$.requestId"
        inputFrom: "$.text"
"""
CANONICAL_TYPESCRIPT = """\
import type { TriggerEvent, TriggerContext, JsonObject } from '@goondan/core';

let loads = 0;
loads += 1;

export async function onLine(event: TriggerEvent, connection: JsonObject, ctx: TriggerContext) {
  await ctx.emit({ origin: { channel: "C1", loads }, metadata: { kind: event.type } });
}

export async function onSchedule(
  event: TriggerEvent,
  connection: JsonObject,
  ctx: TriggerContext
): Promise<void> {
  const scheduleName = event.payload.scheduleName || 'default';

  await ctx.emit({
    type: 'cron',
    swarmRef: { kind: 'Swarm', name: 'default' },
    instanceKey: `schedule:${scheduleName}`,
    input: `run: ${scheduleName}`,
    origin: {
      connector: ctx.connector.metadata?.name,
      source: 'cron',
      scheduleName,
    },
    auth: {
      actor: { type: 'system', id: 'scheduler' },
      subjects: { global: 'cron:default' },
    },
  });
}
"""
ON_LINE = "async def onLine(event, connection, ctx): ...\n"
CANONICAL_PYTHON = """\
loads = 1


async def onLine(event, connection, ctx):
    await ctx.emit({"origin": {"channel": "C1", "loads": loads}, "metadata": {"kind": event["type"]}})


def onSchedule(event, connection, ctx):
    name = event["payload"].get("scheduleName") or "default"
    ctx.emit({
        "type": "cron",
        "swarmRef": {"kind": "Swarm", "name": "default"},
        "instanceKey": f"schedule:{name}",
        "input": f"run: {name}",
        "origin": {"connector": ctx.connector["metadata"]["name"], "source": "cron", "scheduleName": name},
        "auth": {"actor": {"type": "system", "id": "scheduler"}, "subjects": {"global": "cron:default"}},
    })
"""


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_canonical_connector_with_rules_needs_no_connection(tmp_path: Path, language: str) -> None:
    entry, files = of(language, CANONICAL_PYTHON, CANONICAL_TYPESCRIPT)
    store, yaml = Store(slots={1: MONDAY - 86_400_000}), CANONICAL.replace("ENTRY", entry)
    with (
        typed("hello", "to the coder") as lines,
        running(tmp_path, yaml, files, language, store, lines=lines) as (_, kept, client),
    ):
        wait_until(lambda: len(client.events) == 3, PATIENCE, show=lambda: kept.ended)
    by_type = sorted((one["type"], one["agent"], one["instance"], one["input"]) for one in client.events)
    assert by_type == [
        ("cron", "planner", "schedule:default", "run: default"),
        ("message", "coder", "custom-webhook", '{"text":"to the coder"}'),
        ("message", "planner", "custom-webhook", "hello"),
    ]
    cron = next(one for one in client.events if one["type"] == "cron")
    assert cron["origin"] == {"connector": "custom-webhook", "source": "cron", "scheduleName": "default"}
    assert cron["auth"]["actor"] == {"type": "system", "id": "scheduler"}
    line = next(one for one in client.events if one["input"] == "hello")
    assert line["origin"] == {"channel": "C1", "loads": 1, "connector": "custom-webhook"}
    assert line["metadata"]["kind"] == "message"


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_missing_export_ends_run_when_entry_is_loaded(tmp_path: Path, language: str) -> None:
    entry, files = of(language, ON_LINE, "export function onLine() {}\n")
    with running(tmp_path, CANONICAL.replace("ENTRY", entry), files, language) as (_, store, _client):
        wait_until(lambda: store.ended, PATIENCE)
    assert "onSchedule" in store.ended[0]


def test_canonical_connector_of_type_cli_needs_no_entry(tmp_path: Path) -> None:
    yaml = """\
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata:
  name: cli
spec:
  type: cli
  ingress:
    - route:
        swarmRef: { kind: Swarm, name: default }
        instanceKeyFrom: "$.instanceKey"
        inputFrom: "$.text"
"""
    with (
        typed("hello", is_over=True) as lines,
        running(tmp_path, yaml, {}, "python", lines=lines) as (runner, store, client),
    ):
        wait_until(lambda: store.ended, PATIENCE)
        assert runner.join(PATIENCE)
    [event] = client.events
    assert (event["agent"], event["instance"], event["input"]) == ("planner", "cli", "hello")


TOKENS = """\
apiVersion: agents.example.io/v1alpha1
kind: OAuthApp
metadata: { name: slack-bot }
spec:
  provider: slack
  flow: authorizationCode
  subjectMode: global
  client: { clientId: { value: a }, clientSecret: { value: b } }
  endpoints: { authorizationUrl: "https://slack.com/a", tokenUrl: "https://slack.com/t" }
  scopes: ["chat:write"]
  options: { goondan: { anyone: true } }
  redirect: { callbackPath: /oauth/callback/slack-bot }
---
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata: { name: slack }
spec: { runtime: node, entry: "ENTRY", triggers: [{ type: custom }] }
---
apiVersion: agents.example.io/v1alpha1
kind: Connection
metadata: { name: slack-main }
spec:
  connectorRef: { kind: Connector, name: slack }
  auth: { oauthAppRef: { kind: OAuthApp, name: slack-bot } }
"""
TOKENS_TYPESCRIPT = """\
export default async function ({ oauth, emit, connection }: any): Promise<void> {
  const found = await oauth.getAccessToken({ subject: "slack:team:T1" });
  const text = `${found.status} ${found.accessToken} ${connection.spec.auth.oauthAppRef.name}`;
  const event = { type: "connector.event", name: "token", message: { type: "text", text } };
  await emit(event).catch((error: Error) => emit({ ...event, auth: { subjects: { global: error.name } } }));
}
"""
TOKENS_PYTHON = """\
def connect(ctx):
    found = ctx.oauth.get_access_token({"subject": "slack:team:T1"})
    name = ctx.connection["spec"]["auth"]["oauthAppRef"]["name"]
    text = {"type": "text", "text": f"{found['status']} {found['accessToken']} {name}"}
    event = {"type": "connector.event", "name": "token", "message": text}
    try:
        ctx.emit(event)
    except Exception as error:
        ctx.emit({**event, "auth": {"subjects": {"global": type(error).__name__}}})
"""


@pytest.mark.requirement("oauth.context")
@pytest.mark.parametrize("language", ["python", *NAMES])
def test_oauth_apps_connector_gets_tokens_naming_subject(tmp_path: Path, language: str) -> None:
    entry, files = of(language, TOKENS_PYTHON, TOKENS_TYPESCRIPT)
    asked: list[Any] = []

    def tokens(request: Any) -> Any:
        asked.append(request)
        return {"status": "ready", "accessToken": "xoxb"}

    yaml = TOKENS.replace("ENTRY", entry)
    with running(tmp_path, yaml, files, language, tokens=tokens) as (runner, store, client):
        wait_until(lambda: client.events or store.ended, PATIENCE)
        assert runner.join(PATIENCE)
    assert store.ended == [""]
    assert asked == [{"subject": "slack:team:T1"}]
    [event] = client.events  # the first one had no subject
    assert event["input"] == "ready xoxb slack-bot"
    assert event["auth"] == {"subjects": {"global": "ConnectorError"}}


SLACK = """\
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata: { name: slack }
spec:
  runtime: node
  entry: "ENTRY"
  triggers:
    - type: http
      endpoint:
        path: /webhook/slack/events
        method: POST
  events:
    - name: app_mention
      properties:
        channel_id: { type: string }
        ts: { type: string }
        thread_ts: { type: string, optional: true }
---
apiVersion: agents.example.io/v1alpha1
kind: Connection
metadata: { name: slack-main }
spec:
  connectorRef: { kind: Connector, name: slack }
  verify: { webhook: { signingSecret: { value: a-signing-secret } } }
  ingress:
    rules:
      - match: { event: app_mention }
        route: { agentRef: { kind: Agent, name: coder }, instanceKeyProperty: channel_id }
"""
SLACK_TYPESCRIPT = """\
export default async function (context: any): Promise<any> {
  const { event, emit, verify, logger } = context;
  if (event.type !== "connector.trigger") return;
  if (event.trigger.type !== "http") return;
  const req = event.trigger.payload.request;
  if (req.headers["x-secret"] !== verify.webhook.signingSecret) {
    logger.warn("the signature is wrong");
    return;
  }
  const body = req.body;
  if (body.type === "url_verification") return { challenge: body.challenge };
  const slackEvent = body.event;
  const { team_id } = JSON.parse(req.rawBody);
  await emit({
    type: "connector.event",
    name: slackEvent.type,
    message: { type: "text", text: `${slackEvent.text} ${req.method} ${req.path} ${team_id}` },
    properties: { channel_id: slackEvent.channel, ts: slackEvent.ts },
    auth: { actor: { id: `slack:${slackEvent.user}` }, subjects: { global: `slack:team:${body.team_id}` } },
  });
}
"""
SLACK_PYTHON = """\
import json


async def connect(ctx):
    if ctx.event["type"] != "connector.trigger" or ctx.event["trigger"]["type"] != "http":
        return None
    req = ctx.event["trigger"]["payload"]["request"]
    if req["headers"].get("x-secret") != ctx.verify["webhook"]["signingSecret"]:
        ctx.logger.warning("the signature is wrong")
        return None
    body = req["body"]
    if body.get("type") == "url_verification":
        return {"challenge": body["challenge"]}
    event, team = body["event"], json.loads(req["rawBody"])["team_id"]
    await ctx.emit({
        "type": "connector.event",
        "name": event["type"],
        "message": {"type": "text", "text": f"{event['text']} {req['method']} {req['path']} {team}"},
        "properties": {"channel_id": event["channel"], "ts": event["ts"]},
        "auth": {"actor": {"id": f"slack:{event['user']}"}, "subjects": {"global": f"slack:team:{team}"}},
    })
"""
MENTION = {"type": "app_mention", "channel": "C1", "ts": "17.1", "text": "hello", "user": "U1"}


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b"[1]", b""])
def test_non_object_body_reaches_entry_unchanged(body: bytes) -> None:
    request = received(HttpRequest("POST", "/x", body=body), "/x", is_canonical=False)["request"]

    assert (request["body"], request["rawBody"]) == ({}, body.decode("utf-8", "replace"))


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_requests_call_entry_and_get_its_answer(tmp_path: Path, language: str) -> None:
    entry, files = of(language, SLACK_PYTHON, SLACK_TYPESCRIPT)
    with running(tmp_path, SLACK.replace("ENTRY", entry), files, language) as (runner, store, client):
        open_requests = runner.requests
        assert open_requests is not None
        wait_until(lambda: open_requests.is_served, PATIENCE, show=lambda: store.ended)

        def post(body: Any, secret: str, method: str = "POST") -> tuple[int, bytes]:
            headers = {"x-secret": secret, "content-type": "application/json"}
            request = HttpRequest(method, "/x", headers=headers, body=json.dumps(body).encode())
            found = asyncio.run(open_requests.answer(request))
            return found.status, found.body if isinstance(found.body, bytes) else found.body.encode()

        whole = {"team_id": "T1", "event": MENTION}
        assert post(whole, "wrong") == (200, b"")
        assert post(whole, "a-signing-secret", "GET")[0] == 405
        assert post({"team_id": "T1"}, "a-signing-secret")[0] == 500
        assert post(whole, "a-signing-secret") == (200, b"")
        status, answer = post({"type": "url_verification", "challenge": "c"}, "a-signing-secret")
        assert (status, json.loads(answer)) == (200, {"challenge": "c"})
    [event] = client.events
    assert (event["agent"], event["instance"]) == ("coder", "C1")
    assert event["input"] == "hello POST /webhook/slack/events T1"
    assert event["auth"] == {"actor": {"id": "slack:U1"}, "subjects": {"global": "slack:team:T1"}}


WEBHOOK = """\
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata:
  name: custom-webhook
spec:
  type: custom
  runtime: node
  entry: "ENTRY"
  triggers:
    - handler: onWebhook
  ingress:
    - route:
        swarmRef: { kind: Swarm, name: default }
        instanceKeyFrom: "$.requestId"
        inputFrom: "$.body.message"
"""
WEBHOOK_TYPESCRIPT = """\
import type { TriggerEvent, TriggerContext, JsonObject } from '@goondan/core';

export async function onWebhook(
  event: TriggerEvent,
  connection: JsonObject,
  ctx: TriggerContext
): Promise<void> {
  const payload = event.payload;
  const connector = ctx.connector;
  const ingressRules = connector.spec?.ingress || [];

  for (const rule of ingressRules) {
    const route = rule.route;
    if (!route?.swarmRef) continue;

    await ctx.emit({
      type: 'webhook',
      swarmRef: route.swarmRef,
      instanceKey: String(readPath(payload, route.instanceKeyFrom) || crypto.randomUUID()),
      input: String(readPath(payload, route.inputFrom) || ''),
      origin: {
        connector: connector.metadata?.name,
        source: 'webhook',
        requestId: payload.requestId,
      },
    });
    return;
  }
}

function readPath(payload: JsonObject, expr?: string): unknown {
  if (!expr || !expr.startsWith('$.')) return undefined;
  const keys = expr.slice(2).split('.');
  let current: unknown = payload;
  for (const key of keys) {
    if (current == null || typeof current !== 'object') return undefined;
    current = (current as JsonObject)[key];
  }
  return current;
}
"""
WEBHOOK_PYTHON = """\
def onWebhook(event, connection, ctx):
    origin = {"source": "webhook", "requestId": event["payload"]["requestId"]}
    ctx.emit({"type": event["type"], "origin": origin})
"""


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_handler_alone_is_called_for_requests(tmp_path: Path, language: str) -> None:
    entry, files = of(language, WEBHOOK_PYTHON, WEBHOOK_TYPESCRIPT)
    with running(tmp_path, WEBHOOK.replace("ENTRY", entry), files, language) as (runner, store, client):
        open_requests = runner.requests
        assert open_requests is not None
        wait_until(lambda: open_requests.is_served, PATIENCE, show=lambda: store.ended)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        for body in (b'{"message": "from outside"}', b"message=a+form&x=1"):
            request = HttpRequest("POST", "/x", headers=headers, body=body)
            assert asyncio.run(open_requests.answer(request)).status == 200
    event, form = client.events
    assert (event["agent"], event["type"], event["input"]) == ("planner", "webhook", "from outside")
    assert form["input"] == "a form"
    assert event["instance"] == event["origin"]["requestId"]
    assert event["origin"]["connector"] == "custom-webhook"

"""Connectors and Connections of agents.example.io/v1alpha1, held against their documents."""

from pathlib import Path

import pytest

from tests.unit.goondan_tasks.bundle.writing import found_in, write

VERSION = "apiVersion: agents.example.io/v1alpha1\n"
TEAM = f"""\
{VERSION}kind: Agent
metadata: {{ name: planner }}
spec: {{}}
---
{VERSION}kind: Swarm
metadata: {{ name: default }}
spec: {{ entrypoint: Agent/planner, agents: [Agent/planner] }}
---
{VERSION}kind: OAuthApp
metadata: {{ name: slack-bot }}
spec:
  provider: slack
  flow: authorizationCode
  subjectMode: user
  client: {{ clientId: {{ value: a }}, clientSecret: {{ valueFrom: {{ env: SLACK_SECRET }} }} }}
  endpoints: {{ authorizationUrl: "https://slack.com/a", tokenUrl: "https://slack.com/t" }}
  scopes: ["chat:write"]
  redirect: {{ callbackPath: /oauth/callback/slack-bot }}
---
"""
#: as upstream's documents have them
POLLING = f"""\
{VERSION}kind: Connector
metadata: {{ name: polling }}
spec:
  runtime: node
  entry: "./connectors/slack/index.ts"
  triggers:
    - type: cron
      schedule: "*/5 * * * *"
    - type: cli
    - type: custom
"""
DECLARING = f"""\
{VERSION}kind: Connector
metadata:
  name: slack
spec:
  runtime: node
  entry: "./connectors/slack/index.ts"
  triggers:
    - type: http
      endpoint:
        path: /webhook/slack/events
        method: POST
  events:
    - name: app_mention
      properties:
        channel_id: {{ type: string }}
        ts: {{ type: string }}
        thread_ts: {{ type: string, optional: true }}
    - name: message.im
---
{VERSION}kind: Connection
metadata:
  name: slack-main
spec:
  connectorRef: {{ kind: Connector, name: slack }}
  swarmRef: {{ kind: Swarm, name: default }}
  auth:
    oauthAppRef: {{ kind: OAuthApp, name: slack-bot }}
  verify:
    webhook:
      signingSecret:
        valueFrom:
          secretRef: {{ ref: "Secret/slack-webhook", key: "signing_secret" }}
  ingress:
    rules:
      - match:
          event: app_mention
          properties: {{ channel_id: C-DEV-CHANNEL }}
        route:
          agentRef: {{ kind: Agent, name: planner }}
      - match:
          event: message.im
        route: {{}}
"""
CANONICAL = f"""\
{VERSION}kind: Connector
metadata:
  name: slack
spec:
  type: slack
  auth:
    oauthAppRef: {{ kind: OAuthApp, name: slack-bot }}
  runtime: node
  entry: "./connectors/slack/index.ts"
  triggers:
    - handler: onWebhook
  ingress:
    - match:
        command: "/agent"
      route:
        swarmRef: {{ kind: Swarm, name: default }}
        instanceKeyFrom: "$.event.thread_ts"
        inputFrom: "$.event.text"
    - match:
        eventType: "app_mention"
      route:
        swarmRef: {{ kind: Swarm, name: default }}
        instanceKeyFrom: "$.event.thread_ts"
        inputFrom: "$.event.text"
        agentName: planner
"""
#: the same Connector with its rules in a Connection, as in upstream's v0.9
SPLIT = f"""\
{VERSION}kind: Connector
metadata: {{ name: slack }}
spec:
  {{ type: slack, runtime: node, entry: ./connectors/slack/index.ts, triggers: [{{ handler: onWebhook }}] }}
---
{VERSION}kind: Connection
metadata: {{ name: slack-main }}
spec:
  connectorRef: {{ kind: Connector, name: slack }}
  auth:
    staticToken:
      valueFrom:
        env: "TELEGRAM_BOT_TOKEN"
  rules:
    - match: {{ command: /start }}
      route: {{ swarmRef: {{ kind: Swarm, name: default }}, instanceKeyFrom: "$.message.chat.id" }}
"""


def faults(folder: Path, text: str) -> list[tuple[str, str, str]]:
    """Return level, path and message of what is found."""
    files = {"goondan.yaml": TEAM + text, "connectors/slack/index.ts": "export default {};\n"}
    return [(one.level, one.path, one.message) for one in found_in(write(folder, files))]


@pytest.mark.parametrize("text", [POLLING, DECLARING, CANONICAL, SPLIT])
def test_documents_of_each_version_are_valid(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "path", "words"),
    [
        (POLLING, '"*/5 * * * *"', '"*/5 * * *"', "spec.triggers[0].schedule", "no text of cron"),
        (DECLARING, "path: /webhook", "path: webhook", "spec.triggers[0].endpoint.path", "is not a path"),
        (DECLARING, "method: POST", "method: PATCH", "spec.triggers[0].endpoint.method", "'GET'"),
        (POLLING, 'schedule: "*/5 * * * *"', "timeZone: UTC", "spec.triggers[0]", "needs 'schedule'"),
        (POLLING, "type: custom", "type: queue", "spec.triggers[2].type", "'http'"),
        (POLLING, "type: custom", "time: now", "spec.triggers[2].time", "unknown field"),
        (POLLING, "type: custom", "schedule: '* * * * *'", "spec.triggers[2]", "is for 'type: cron'"),
        (DECLARING, "  runtime: node\n", "", "spec", "'runtime' is required"),
        (DECLARING, '  entry: "./connectors/slack/index.ts"\n', "", "spec", "'entry' is required"),
        (
            DECLARING,
            "ts: { type: string }",
            "ts: { type: text }",
            "spec.events[0].properties.ts.type",
            "'string'",
        ),
        (DECLARING, "OAuthApp, name: slack-bot", "OAuthApp, name: slack", "spec.auth.oauthAppRef", "slack"),
        (DECLARING, "  auth:\n", "  auth:\n    staticToken: a\n", "spec.auth", "exactly one of"),
        (
            DECLARING,
            'ref: "Secret/slack-webhook"',
            "ref: slack",
            "spec.verify.webhook.signingSecret",
            "secret",
        ),
        (
            DECLARING,
            "Agent, name: planner",
            "Agent, name: coder",
            "spec.ingress.rules[0].route.agentRef",
            "coder",
        ),
        (CANONICAL, "  type: slack\n", "", "spec", "'type' is required"),
        (
            CANONICAL,
            "handler: onWebhook",
            "handler: exports.onWebhook",
            "spec.triggers[0].handler",
            "name of a function",
        ),
        (CANONICAL, "handler: onWebhook", "type: custom", "spec", "'handler' is required"),
        (CANONICAL, "  runtime: node\n", "", "spec", "'runtime' is required"),
        (CANONICAL, '"$.event.text"', '"event.text"', "spec.ingress[0].route.inputFrom", "is not a path"),
        (CANONICAL, "Swarm, name: default", "Swarm, name: other", "spec.ingress[0].route.swarmRef", "other"),
        (CANONICAL, "agentName: planner", "agentName: plan", "spec.ingress[1].route.agentName", "not among"),
        (CANONICAL, "inputFrom:", "input:", "spec.ingress[0].route.input", "unknown field"),
        (
            SPLIT,
            "instanceKeyFrom",
            "instanceKeyProperty",
            "spec.rules[0].route.instanceKeyProperty",
            "unknown",
        ),
    ],
)
def test_wrong_field_is_error_at_its_place(
    tmp_path: Path, text: str, old: str, new: str, path: str, words: str
) -> None:
    assert old in text
    errors = [one for one in faults(tmp_path, text.replace(old, new)) if one[0] == "error"]
    assert errors
    assert any(place.startswith(path) and words in message for _, place, message in errors), errors


@pytest.mark.parametrize(
    ("text", "old", "new", "path", "words"),
    [
        (POLLING, "- type: custom", "- type: cli", "spec.triggers[2]", "only one"),
        (DECLARING, "event: app_mention", "event: mention", "spec.ingress.rules[0].match.event", "no event"),
        (
            DECLARING,
            "channel_id: C-DEV",
            "channel: C-DEV",
            "spec.ingress.rules[0].match.properties.channel",
            "no property",
        ),
        (
            DECLARING,
            "          event: message.im\n        route: {}\n",
            "          event: app_mention\n          properties: { channel_id: C-DEV-CHANNEL, ts: a }\n",
            "spec.ingress.rules[1]",
            "no event reaches this rule",
        ),
        (
            DECLARING[: DECLARING.index("  triggers")] + DECLARING[DECLARING.index("  events") :],
            "",
            "",
            "spec",
            "is run as one of goondan.ai/v1",
        ),
        (
            POLLING,
            "- type: cli",
            "- { type: http, endpoint: { path: /a, method: GET } }",
            "spec.triggers[2]",
            "every process",
        ),
        (
            CANONICAL,
            "- handler: onWebhook",
            "- handler: onWebhook\n    - handler: onCron",
            "spec.triggers[1]",
            "no request",
        ),
        (CANONICAL, 'eventType: "app_mention"', 'command: "/agent"', "spec.ingress[1]", "no event reaches"),
        (
            CANONICAL,
            "  ingress:\n",
            "  egress: { updatePolicy: { mode: append } }\n  ingress:\n",
            "spec.egress",
            "'egress' has no effect here",
        ),
        (
            CANONICAL,
            "  triggers:\n    - handler: onWebhook\n",
            "",
            "spec",
            "nothing calls it",
        ),
        (
            SPLIT,
            "  rules:\n",
            "  ingress: { rules: [{ route: {} }] }\n  rules:\n",
            "spec.ingress.rules",
            "no effect",
        ),
        (
            DECLARING,
            "  ingress:\n",
            "  rules: [{ route: { swarmRef: Swarm/default } }]\n  ingress:\n",
            "spec.rules",
            "no effect",
        ),
        (SPLIT, "name: slack }\n  auth", "name: slacker }\n  auth", "spec", "nothing runs it"),
    ],
)
def test_field_without_effect_is_warning_at_its_place(
    tmp_path: Path, text: str, old: str, new: str, path: str, words: str
) -> None:
    assert old in text
    warnings = [one for one in faults(tmp_path, text.replace(old, new)) if one[0] == "warning"]
    assert [(place, words in message) for _, place, message in warnings] == [(path, True)]

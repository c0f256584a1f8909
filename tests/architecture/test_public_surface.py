"""The public surface of DESIGN §3, written out from there: other programs are written against it.

It may grow by keywords, options and fields that callers need not give. What stands here may not change.
"""

import inspect
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from broker_config import queues
from broker_config.settings import Settings
from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.tool_api import AgentRuntime, RequestResult, ToolContext
from goondan_tasks.bundle.findings import Finding
from goondan_tasks.bundle.resources import AgentSpec, Retry, RunPolicy, SwarmPolicy, ToolCallPolicy
from goondan_tasks.cli import output
from goondan_tasks.cli.program import COMMANDS
from goondan_tasks.client import AsyncTurn, Client, PendingCall
from goondan_tasks.client.status import QueueStatus
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.command_line import command
from workers import tasks
from workers.agents.call_services import AsyncRuntime, BlockingRuntime

SIGNATURES = {
    "goondan_tasks.client:Client.connect": "url=None",
    "goondan_tasks.client:Client.submit": "self, agent, tool, args=None, **fields",
    "goondan_tasks.client:Client.submit_many": "self, calls",
    "goondan_tasks.client:Client.call": "self, agent, tool, args=None, *, timeout=None, **fields",
    "goondan_tasks.client:Client.request": "self, agent, input=None, *, timeout=60.0, **fields",
    "goondan_tasks.client:PendingCall.status": "self",
    "goondan_tasks.client:PendingCall.result": "self, timeout=None, wait_pending=False",
    "goondan_tasks.client:PendingCall.cancel": "self",
    "goondan_tasks.client:PendingCall.progress": "self",
    "goondan_tasks.client:Turn.step": "self, message=None, *, timeout=None",
    "goondan_tasks.testing:LocalStack": "bundle, agents=None, workers=1, concurrency=8",
    "goondan_tasks.testing:LocalStack.start_worker": "self, agents=None, concurrency=8",
    "goondan_tasks.testing:LocalStack.stop_worker": "self, process",
    "goondan_tasks.authoring.agent_api:AgentContext.call": "self, tool, args=None, *, timeout=None",
    "goondan_tasks.authoring.agent_api:AgentContext.call_many": "self, calls",
    "goondan_tasks.authoring.tool_api:AgentRuntime.request": "self, target, event, options=None",
    "goondan_tasks.authoring.tool_api:AgentRuntime.send": "self, target, event, options=None",
    "goondan_tasks.authoring.tool_api:AgentRuntime.spawn": "self, target, options=None",
    "goondan_tasks.authoring.tool_api:AgentRuntime.list": "self, options=None",
    "goondan_tasks.authoring.tool_api:AgentRuntime.catalog": "self",
    "goondan_tasks.authoring.tool_api:ToolContext.pending": "self, handle, output=None",
    "goondan_tasks.authoring.tool_api:ReportProgress.__call__": "self, done, total=None, message=None",
    "workers.tasks:tool_call.run": "call=None",
    "workers.tasks:delegate.run": "message=None",
    "workers.tasks:delegate_result.run": "message=None",
    "workers.tasks:event.run": "message=None",
}

FIELDS_OF_A_CALL = {
    "instance_key", "turn_id", "step_id", "tool_call_id", "message", "auth", "origin", "correlation_id",
    "idempotency_key", "timeout_seconds",
}  # fmt: skip

SETTINGS = {
    "redis_url": "redis://127.0.0.1:6379/0", "bundle": None,
    "swarm": None, "workspace": None, "state_root": Path("~/.goondan"), "cache_dir": None,
    "namespace": "goondan",
    "result_ttl_seconds": 86400, "lease_seconds": 30, "max_attempts": 3, "call_timeout_seconds": 300,
    "queue_timeout_seconds": 3600, "grace_seconds": 30, "max_waiting": 256, "max_args_bytes": 1024 * 1024,
    "max_output_bytes": 256 * 1024, "max_handoff_depth": 16, "http_allow": "", "http_host": "127.0.0.1",
    "http_port": 8765, "http_token": None, "public_url": None, "oauth_key": None, "metrics_port": None,
    "help_url": "https://docs.goondan.ai/errors/", "events": "on", "log_level": "info",
    "log_format": "console",
}  # fmt: skip

#: arguments in their order, those in brackets may be left out; then options
COMMAND_LINES = {
    "demo": "",
    "dev": "[BUNDLE]",
    "worker": "--agent --concurrency",
    "orchestrator": "",
    "call": "AGENT TOOL [ARGS] --instance --turn --id --timeout --detach",
    "result": "ID",
    "cancel": "IDS",
    "resolve": "ID VALUE",
    "output": "ID",
    "calls": "",
    "trace": "CORRELATION_ID",
    "queues": "",
    "agents": "",
    "instances list": "",
    "instances delete": "KEY",
    "catalog": "AGENT",
    "dead-letters list": "",
    "dead-letters show": "ID",
    "dead-letters replay": "IDS",
    "dead-letters drop": "IDS",
    "approvals list": "",
    "approvals approve": "IDS",
    "approvals deny": "IDS",
    "gc": "",
    "request": "AGENT INPUT",
    "send": "AGENT INPUT",
    "validate": "BUNDLE --strict --format",
    "migrate": "BUNDLE",
    "init": "",
    "mcp-server": "--agent",
    "rollback": "REF",
    "doctor": "",
    "flower": "",
}

EXIT_CODES = {
    "E_TOOL": 1, "E_AGENT_FAILED": 1, "E_TOOL_TIMEOUT": 1, "E_USAGE": 2, "E_CONFIG_SCHEMA_INVALID": 3,
    "E_CONFIG_PARSE_ERROR": 3, "E_WAIT_TIMEOUT": 4, "E_BROKER_UNREACHABLE": 5,
}  # fmt: skip

FIELDS_IN_YAML: dict[type[BaseModel], set[str]] = {
    RunPolicy: {
        "timeoutSeconds", "idempotent", "maxAttempts", "retry", "isolation", "memoryMb", "maxConcurrency",
        "rateLimit", "idempotencyKey", "serial", "requiresApproval",
    },
    Retry: {"max", "backoffSeconds", "codes"},
    AgentSpec: {"entry", "idempotent", "requiredTools", "workdir"},
    SwarmPolicy: {"toolCalls", "maxStepsPerTurn", "changesets", "lifecycle"},
    ToolCallPolicy: {"allow", "approval"},
}  # fmt: skip


def faults(expected: str, function: Callable[..., Any]) -> list[str]:
    """Say how a function cannot be called any more as ``expected`` writes it."""
    signature = inspect.signature(function)
    plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    given = str(signature.replace(parameters=plain, return_annotation=signature.empty))[1:-1].split(", ")
    positional, keywords = _parts(expected.split(", "))
    given_positional, given_keywords = _parts(given)
    added = set(given_keywords) - set(keywords) - {"*"}
    return [
        *([f"positional: {given_positional}"] if given_positional != positional else []),
        *(f"missing: {one}" for one in keywords if one not in given_keywords),
        *(f"required: {one}" for one in sorted(added) if "=" not in one and not one.startswith("**")),
    ]


def _parts(parameters: list[str]) -> tuple[list[str], list[str]]:
    stars = [number for number, one in enumerate(parameters) if one.startswith("*")]
    end = stars[0] if stars else len(parameters)
    return parameters[:end], parameters[end:]


def wire_names(record: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in record.model_fields.items()}


@pytest.mark.parametrize("place", SIGNATURES)
def test_function_is_called_as_it_always_was(place: str) -> None:
    module, _, path = place.partition(":")
    function: Any = reduce(getattr, path.split("."), import_module(module))

    assert faults(SIGNATURES[place], function) == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (lambda agent, name, args=None, *, timeout=None: 0, "positional: ['agent', 'name', 'args=None']"),
        (lambda agent, tool, args, *, timeout=None: 0, "positional: ['agent', 'tool', 'args']"),
        (lambda agent, tool, args=None, timeout=None: 0, "missing: timeout=None"),
        (lambda agent, tool, args=None, *, timeout=30: 0, "missing: timeout=None"),
        (lambda agent, tool, args=None, *, timeout=None, why: 0, "required: why"),
    ],
)
def test_changed_signature_is_seen(changed: Callable[..., Any], fault: str) -> None:
    expected = "agent, tool, args=None, *, timeout=None"

    assert fault in faults(expected, changed)
    assert faults(expected, lambda agent, tool, args=None, *, timeout=None, more=1, **rest: 0) == []


def test_call_fields_are_as_listed_and_optional() -> None:
    assert set(CallFields.__annotations__) == FIELDS_OF_A_CALL | {"not_before", "delay", "keep"}
    assert CallFields.__required_keys__ == frozenset()


@pytest.mark.parametrize("name", ["request", "send", "spawn", "list", "catalog"])
def test_async_code_awaits_agents_while_plain_code_blocks(
    name: str,
) -> None:
    told, is_async, blocks = (getattr(one, name) for one in (AgentRuntime, AsyncRuntime, BlockingRuntime))

    assert (inspect.iscoroutinefunction(is_async), inspect.iscoroutinefunction(blocks)) == (True, False)
    wanted = list(inspect.signature(told).parameters)
    assert [list(inspect.signature(one).parameters) for one in (is_async, blocks)] == [wanted] * 2


def test_calls_and_results_are_read_by_these_names() -> None:
    assert {"status", "output", "handle", "error", "tool_call_id", "tool_name", "meta"} <= set(
        ToolCallResult.model_fields
    )
    assert {"response", "correlation_id", "event_id", "target", "accepted"} <= set(RequestResult.model_fields)
    assert inspect.iscoroutinefunction(AsyncTurn.step) and hasattr(PendingCall, "__await__")
    failed = HandoffError("no", code="E_AGENT_FAILED")
    assert (failed.code, failed.message) == ("E_AGENT_FAILED", "no")


def test_local_stack_is_context_manager_with_listed_members() -> None:
    assert hasattr(LocalStack, "__enter__") and hasattr(LocalStack, "__exit__")
    assert LocalStack.__annotations__["client"] is Client
    assert all(isinstance(vars(LocalStack)[name], property) for name in ("redis_url", "workers"))


def test_tool_context_has_listed_and_no_removed_members() -> None:
    documented = {
        "agent_name", "instance_key", "turn_id", "trace_id", "tool_call_id", "message", "workdir", "logger",
        "runtime", "progress", "emit", "cancelled", "deadline", "pending", "callback_url", "run_process",
    }  # fmt: skip

    assert documented <= set(dir(ToolContext))
    assert {"oauth", "swarm_bundle"}.isdisjoint(dir(ToolContext))
    assert {"call", "step"} <= set(dir(AgentContext))


def test_names_on_wire_are_these() -> None:
    assert (queues.call_queue("coder"), queues.events_queue("coder")) == ("agent.coder", "agent.coder.events")
    assert tasks.tool_call.name == "goondan.tool_call"
    assert tasks.delegate.name == "goondan.delegate"
    assert tasks.delegate_result.name == "goondan.delegate_result"
    assert tasks.event.name == "goondan.event"


def test_settings_have_these_names_and_defaults() -> None:
    assert {name: Settings.model_fields[name].default for name in SETTINGS} == SETTINGS
    assert set(Settings.variables()) >= {f"GOONDAN_{name.upper()}" for name in SETTINGS}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_command_keeps_its_arguments_and_options(name: str) -> None:
    words = COMMAND_LINES[name].split()
    parameters = command(name).params
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    required = {one.metavar or one.name.upper() for one in arguments if one.required}

    documented = [word for word in words if not word.startswith("--")]
    names = [word.strip("[]") for word in documented]
    assert [one.metavar or one.name.upper() for one in arguments][: len(names)] == names
    assert required <= set(documented)
    options = {option for one in parameters if one.param_type_name == "option" for option in one.opts}
    assert {word for word in words if word.startswith("--")} | {"--json"} <= options


def test_worker_runs_eight_calls_concurrently_by_default() -> None:
    assert [one.default for one in command("worker").params if one.name == "concurrency"] == [8]


def test_command_groups_exist() -> None:
    assert {"oauth", "changeset"} <= {name.partition(" ")[0] for name in COMMANDS}


def test_commands_end_with_these_codes() -> None:
    assert {code: output.exit_code_of(code) for code in EXIT_CODES} == EXIT_CODES
    assert (output.OK, output.FAILED, output.USAGE, output.CONFIGURATION) == (0, 1, 2, 3)
    assert (output.WAIT_TIMED_OUT, output.BROKER_UNREACHABLE) == (4, 5)


def test_programs_read_these_fields_of_queues_and_findings() -> None:
    assert wire_names(QueueStatus) >= {
        "agent", "queue", "backlog", "running", "waitingForLimit", "oldestSeconds", "workers",
    }  # fmt: skip
    finding = Finding("error", "E_CONFIG_PARSE_ERROR", "no", "goondan.yaml", 1, "spec", "Tool/bash", "Do.")
    assert set(finding.to_wire()) == {
        "level", "code", "message", "file", "line", "path", "resource", "suggestion",
    }  # fmt: skip


@pytest.mark.parametrize("model", FIELDS_IN_YAML)
def test_yaml_has_these_fields_of_ours(model: type[BaseModel]) -> None:
    assert wire_names(model) >= FIELDS_IN_YAML[model]


def test_defaults_in_yaml_are_these() -> None:
    policy = SwarmPolicy()
    assert (policy.max_steps_per_turn, policy.tool_calls.allow, policy.changesets.enabled) == (
        32,
        "catalog",
        False,
    )
    assert (AgentSpec().idempotent, AgentSpec().workdir) == (False, "shared")

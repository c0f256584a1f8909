"""Every command, and where its function stands. Nothing is imported before a command is asked for."""

from typing import NamedTuple


class CommandPlace(NamedTuple):
    """A command's function as ``module:function``, and its line in ``goondan --help``."""

    function: str
    summary: str


def _place(module: str, summary: str) -> CommandPlace:
    return CommandPlace(f"goondan_tasks.cli.{module}:{module}", summary)


COMMANDS = {
    "demo": _place("demo", "See the example swarm at work on a private Redis."),
    "dev": _place("dev", "Run Redis, workers and Flower; reload on change."),
    "worker": _place("worker", "Run a worker for one or more agents."),
    "orchestrator": _place("orchestrator", "Keep a worker for every agent that needs one."),
    "shutdown": _place("shutdown", "Ask an agent's workers, or one worker, to drain and end."),
    "metrics": _place("metrics", "Serve the figures of all queues to Prometheus."),
    "call": _place("call", "Call an agent's tool and print the result."),
    "request": _place("request", "Ask an agent and print its answer."),
    "send": _place("send", "Tell an agent something, without an answer."),
    "result": _place("result", "Print the result of a call, or how it stands."),
    "output": _place("call_output", "Write the whole output of a call, however large."),
    "cancel": _place("cancel", "Cancel a call, queued or running."),
    "resolve": _place("resolve", "Complete a pending call with an output or an error."),
    "approvals": _place("approvals", "List, approve or deny calls that wait for an approval."),
    "callbacks": _place("callbacks", "Let pending calls be completed over HTTP."),
    "calls": _place("calls", "List the most recent calls."),
    "trace": _place("trace", "Draw the calls and handoffs that belong together."),
    "dead-letters": _place("dead_letters", "List, show, replay or drop calls that killed their workers."),
    "queues": _place("queues", "Show how every agent's queue stands."),
    "agents": _place("agents", "List the agents that can be called."),
    "instances": _place("instances", "List the instances of agents, or delete one."),
    "gc": _place("gc", "Remove instances that nobody has used for long."),
    "catalog": _place("catalog", "Print the tools that an agent may call."),
    "mcp-server": _place("mcp_server", "Serve an agent's tools to MCP clients."),
    "oauth": _place("oauth", "Tokens for tools: grants, consents, callbacks, keys."),
    "validate": _place("validate", "Check a bundle: every finding at once."),
    "migrate": _place("migrate", "Rewrite a bundle for today's version of the format."),
    "changeset": _place("changeset", "Propose a change of a bundle that runs, and commit it."),
    "rollback": _place("rollback", "Bring an earlier revision of the bundle back."),
    "doctor": _place("doctor", "Check Redis, workers and bundle; say how to mend."),
    "flower": _place("flower", "Run the web monitor, set up for agents."),
}

"""What agents of ``tests/bundles/handoffs`` are told to do."""

from typing import Any

Words = dict[str, Any]

TELL: Words = {"do": "tell"}


def ask(of: str, wanted: Any, instance: str | None = None, options: Words | None = None) -> Words:
    """Let an agent ask another one."""
    event = {"input": wanted} | ({"instanceKey": instance} if instance else {})
    return {"do": "ask", "of": of, "event": event, "options": options}


def chain(agents: list[str], last: Any) -> Any:
    """Let each agent ask the next one; the last one does what ``last`` says."""
    for agent in reversed(agents):
        last = ask(agent, last)
    return last


def answers(told: Any) -> list[Any]:
    """Return what each agent of a chain was answered, the outermost first."""
    found = []
    while "answer" in told:
        found.append(told["answer"])
        told = told["answer"]["response"]
    return found

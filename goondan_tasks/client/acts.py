"""The acts of a client, by the names of their methods, and what each is done to: the audit has them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from goondan_tasks.fleet.audit import Recorded, Target

Given = Mapping[str, Any]


def _call(given: Given) -> Target:
    return Target("call", given["call_id"])


def _approval(given: Given) -> str:
    """Return the name of an approval, in which the approver may have given the arguments."""
    return "approve" if given.get("args") is None else "approve.edited"


def _failed(given: Given) -> Target | None:
    """Return the call that is completed; to answer a received event is no act of a person."""
    return Target("call", given["failed"]) if isinstance(given["failed"], str) else None


def _calls(given: Given) -> Target:
    return Target("calls", agent=given.get("agent"))


def _named_calls(given: Given) -> Target:
    ids = given["call_ids"]
    is_one = isinstance(ids, list | tuple) and len(ids) == 1
    return Target("call", ids[0]) if is_one else Target("calls")


def _dead_letter(given: Given) -> Target:
    return Target("deadLetter", given["call_id"])


def _selected(given: Given) -> Target:
    return Target("calls" if given["act"] == "cancel" else "deadLetters", agent=given.get("agent"))


def _agent_or_tool(given: Given) -> Target:
    agent, tool = given["agent"], given.get("tool")
    return Target("agent", agent, agent) if tool is None else Target("tool", tool, agent)


def _workers(given: Given) -> Target:
    agent, worker = given.get("agent"), given.get("worker")
    return Target("workers", agent=agent) if worker is None else Target("worker", worker)


def _instance(given: Given) -> Target:
    return Target("instance", given["instance_key"], given.get("agent"))


def _grant(given: Given) -> Target:
    return Target("grant", given["name"] if "name" in given else f"{given['app']} {given['subject']}")


def _schedule(given: Given) -> Target:
    return Target("schedule", given["name"], given.get("agent"))


#: programs complete, decide about and cancel calls all the time: those are recorded if a person is named
OF_OPERATORS = MappingProxyType(
    {
        "cancel_all": Recorded(_calls, is_bulk=True),
        "cancel_many": Recorded(_named_calls, is_routine=True, is_bulk=True),
        "pause": Recorded(_agent_or_tool),
        "resume": Recorded(_agent_or_tool, says_whether=True),
        "shutdown": Recorded(_workers),
    }
)
OF_CALLS = MappingProxyType(
    {
        "run_now": Recorded(_call, is_routine=True),
        "cancel": Recorded(_call, is_routine=True),
        "resolve": Recorded(_call, is_routine=True),
        "fail": Recorded(_failed, is_routine=True),
        "replay": Recorded(_dead_letter),
        "drop": Recorded(_dead_letter),
        "act_on_all": Recorded(_selected, is_bulk=True, named=lambda given: f"{given['act']}_all"),
        "delete_instance": Recorded(_instance),
        "collect_garbage": Recorded(lambda _: Target("instances"), is_bulk=True),
    }
)
OF_BUNDLES = MappingProxyType(
    {
        "activate_revision": Recorded(lambda given: Target("revision", given["ref"])),
        "revoke_grant": Recorded(_grant),
        "forget_grant": Recorded(_grant, says_whether=True),
    }
)
#: a decision about many calls is one about each of them
OF_APPROVALS = MappingProxyType(
    {
        "approve": Recorded(_call, is_routine=True, named=_approval),
        "deny": Recorded(_call, is_routine=True),
    }
)
OF_SCHEDULES = MappingProxyType(
    {name: Recorded(_schedule) for name in ("add", "pause", "resume", "run", "remove")}
)

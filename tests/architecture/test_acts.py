"""Each method of the clients is either an act, which the audit has, or known to be none."""

import inspect
from collections.abc import Mapping

import pytest

from goondan_tasks.client import Client
from goondan_tasks.client.acts import OF_APPROVALS, OF_BUNDLES, OF_CALLS, OF_OPERATORS, OF_SCHEDULES
from goondan_tasks.client.schedules import Schedules
from goondan_tasks.fleet.audit import Recorded
from goondan_tasks.fleet.http_tokens import TokenStore

ACTS: Mapping[str, Recorded] = {**OF_APPROVALS, **OF_BUNDLES, **OF_CALLS, **OF_OPERATORS}
#: what only reads, or belongs to the connection
READS = (
    "agent_statuses agents approval_count approvals audit",
    "broker_errors bundle_files bundles",
    "call_counts call_page calls catalog close connect connections conversation",
    "dead_letter dead_letters describe",
    "expect",
    "failures files follow follower",
    "grants",
    "handoffs",
    "ids_beginning_with instances",
    "limits listen look",
    "mailbox",
    "output",
    "patience paused pending",
    "queues",
    "read_file read_output record retrying",
    "time_of trace traces",
    "usage",
    "workers",
)
#: calls and Turns themselves, what becomes of those of this process, and what has a token of its own
CALLS = (
    "ask call call_off cancel_open complete_with_token following forget give_back give_up receive reply",
    "request request_stream send start_call start_turn submit submit_again submit_batches submit_drafts",
    "submit_event submit_many turn",
)
#: what consists of acts on one call each
MANY = ("approve_many deny_many",)
OTHERS = {name for line in (*READS, *CALLS, *MANY) for name in line.split()}


def methods(kind: type) -> set[str]:
    """Return the names of the public methods."""
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_each_client_method_is_act_or_exempt() -> None:
    unknown = methods(Client) - {*ACTS, *OTHERS}
    assert not unknown, f"acts go into goondan_tasks/client/acts.py, others into a list here: {unknown}"
    assert {*ACTS, *OTHERS} <= methods(Client)


def test_schedule_and_token_methods_are_acts_or_exempt() -> None:
    assert methods(Schedules) == {*OF_SCHEDULES, "list"}
    assert methods(TokenStore) == {"add", "revoke", "listed", "note_use", "tokens"}


@pytest.mark.parametrize("name", ACTS)
def test_act_reads_only_arguments_that_its_method_has(name: str) -> None:
    given = {one: f"<{one}>" for one in inspect.signature(getattr(Client, name)).parameters}
    target = ACTS[name].of(given)
    assert target is not None
    assert target.name == "" or target.name.startswith("<")

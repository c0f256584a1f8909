"""goondan resolve."""

import pytest

from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, record
from tests.unit.goondan_tasks.cli.invoke import goondan


@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        (['{"size": 3}'], {"output": {"size": 3}}),
        (["null"], {"output": None}),
        (['"text"'], {"output": "text"}),
        (["--error", "no disk"], {"error": "no disk"}),
        (["--error", ""], {"error": ""}),
    ],
)
def test_pending_call_is_completed(client: FakeClient, arguments: list[str], how: dict[str, object]) -> None:
    client.records = [record("pending")]

    done = goondan("resolve", CALL_ID[:8], *arguments)

    assert (done.exit_code, done.stdout) == (0, "bash__exec of coder: completed\n")
    assert client.completed == [{"id": CALL_ID, **how}]


def test_running_call_is_completed_when_its_handler_returns(client: FakeClient) -> None:
    client.records = [record("running")]

    done = goondan("resolve", CALL_ID, "1")

    assert done.stdout == "bash__exec of coder: will be completed as soon as its handler returns\n"


def test_output_may_stand_in_stdin(client: FakeClient) -> None:
    client.records = [record("pending")]

    document = goondan("resolve", CALL_ID, "-", "--json", stdin="[1, 2]").document

    assert (document["status"], client.completed[0]["output"]) == ("done", [1, 2])


@pytest.mark.parametrize(("status", "code"), [("done", "E_CALL_CLOSED"), ("queued", "E_CALL_NOT_PENDING")])
def test_uncompletable_call_gives_exit_code_two(client: FakeClient, status: str, code: str) -> None:
    client.records = [record(status)]

    done = goondan("resolve", CALL_ID, "1", "--json")

    assert (done.exit_code, done.document["error"]["code"]) == (2, code)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either"),
        (["1", "--error", "x"], "either"),
        (["{size: 3}"], "not JSON"),
        (["@nowhere"], "nowhere"),
    ],
)
def test_mistake_completes_nothing(client: FakeClient, arguments: list[str], said: str) -> None:
    client.records = [record("pending")]

    done = goondan("resolve", CALL_ID, *arguments)

    assert (done.exit_code, said in done.stderr, client.completed) == (2, True, [])

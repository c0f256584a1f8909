"""Connectors receive events from outside, in processes of their own, and agents handle them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.connectors.child import LEASE_OVER
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, goondan
from tests.javascript_runtimes import NAMES, runtime
from tests.processes import runs
from tests.waiting import wait_until

CONNECTORS_BUNDLE = Path(__file__).parents[1] / "bundles" / "connectors"
TOKEN = "a-token-that-nobody-else-has"
PATIENCE = 60


def note(text: str, **fields: Any) -> dict[str, Any]:
    return {"name": "note", "message": {"type": "text", "text": text}, "instanceKey": "own", **fields}


@dataclass
class Office:
    """A swarm, the file from which its connectors read events, and what became of these."""

    stack: LocalStack
    folder: Path
    environment: dict[str, str]
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def write(self, *events: dict[str, Any]) -> None:
        with (self.folder / "events").open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)

    def run(self, *names: str, lines: str = "", **variables: str) -> "subprocess.Popen[bytes]":
        """Start the program; ``lines`` are its standard input."""
        (self.folder / "lines").write_text(lines)
        log = self.folder / f"log-{len(self.processes)}"
        with log.open("wb") as stderr, (self.folder / "lines").open("rb") as stdin:
            process = subprocess.Popen(
                [*PROGRAM, "connectors", "run", *names],
                env={**self.environment, **variables},
                stdin=stdin,
                stderr=stderr,
            )
        self.processes.append(process)
        return process

    def log(self, number: int = 0) -> str:
        return (self.folder / f"log-{number}").read_text()

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def seen(self) -> list[dict[str, Any]]:
        """What the connectors have noted, but for their starts."""
        return [line for line in self.lines("seen") if "began" not in line]

    def handled(self) -> list[tuple[str, str, str]]:
        return sorted((one["agent"], one["instance"], one["input"]) for one in self.lines("handled"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalStack, Path]]:
    handled = tmp_path_factory.mktemp("office") / "handled"
    with LocalStack(CONNECTORS_BUNDLE, environment={"HANDLED_FILE": str(handled)}) as stack:
        yield stack, handled


@pytest.fixture
def office(running: tuple[LocalStack, Path], tmp_path: Path) -> Iterator[Office]:
    stack, handled = running
    handled.unlink(missing_ok=True)
    (tmp_path / "handled").symlink_to(handled)
    (tmp_path / "events").touch()
    settings = environment(
        bundle=CONNECTORS_BUNDLE, redis_url=stack.redis_url, namespace="goondan", lease_seconds=3
    )
    stack.client._redis.delete(*(stack.client._redis.keys("goondan:connection:*") or ["none"]))
    variables = {
        "EVENTS_FILE": str(tmp_path / "events"), "SEEN_FILE": str(tmp_path / "seen"),
        "SECRET_NOTES_TOKEN": TOKEN, "CANARY": "sings",
    }  # fmt: skip
    made = Office(stack, tmp_path, {**settings, **variables})
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def connection(language: str) -> str:
    if language in NAMES:
        runtime(language)
    return "notes" if language == "python" else "notes-typescript"


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_events_reach_agents_and_instances_that_rules_name(office: Office, language: str) -> None:
    name = connection(language)
    image = {"type": "image", "url": "https://x.example/a.png"}
    office.write(
        note("no property, refused"),
        note("first rule", properties={"urgent": True, "size": 3}),
        note("second rule", properties={"urgent": True, "size": 4}),
        note("third rule", properties={"room": "attic"}),
        note("fourth rule", properties={"room": 12}),
        {**note(""), "name": "photo", "message": image, "auth": {"actor": {"id": "ann"}}},
        {**note("no message"), "message": "text"},
    )
    office.run(name, GOONDAN_JAVASCRIPT="" if language == "python" else language)
    wait_until(lambda: len(office.seen()) == 7, PATIENCE, show=office.log)
    wait_until(lambda: len(office.handled()) == 5, PATIENCE)

    assert office.handled() == [
        ("clerk", "attic", "third rule"),
        ("clerk", "own", "[image] https://x.example/a.png"),
        ("clerk", "room:12", "fourth rule"),
        ("expert", "own", "second rule"),
        ("expert", "urgent", "first rule"),
    ]
    refused, *accepted, invalid = office.seen()
    assert "takes the instance from the property 'room'" in refused["error"]
    assert "The event is not valid: message" in invalid["error"]
    assert [one["agent"] for one in accepted] == ["expert", "expert", "clerk", "clerk", "clerk"]
    for one_each in ("turn", "trace"):
        assert len({one[one_each] for one in office.lines("handled")}) == 5
    photo = next(one for one in office.lines("handled") if one["type"] == "photo")
    assert photo["source"] == {"kind": "connector", "name": name}
    assert photo["auth"] == {"actor": {"id": "ann"}}
    assert photo["metadata"]["connection_name"] == name
    [status] = [one for one in json.loads(listed(office)) if one["name"] == name]
    assert (status["state"], status["events"], status["refused"]) == ("running", 5, 2)


def listed(office: Office) -> str:
    return goondan("connectors", "--json", env=office.environment).stdout


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_secrets_appear_in_no_environment_or_log(office: Office, language: str) -> None:
    process = office.run(connection(language), GOONDAN_JAVASCRIPT="" if language == "python" else language)
    wait_until(lambda: "the token is" in office.log(), PATIENCE, show=office.log)
    [began] = office.lines("seen")
    assert began["token"] == TOKEN
    assert not {"CANARY", "SECRET_NOTES_TOKEN", "GOONDAN_REDIS_URL"} & set(began["environment"])
    assert TOKEN not in office.log()
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert "Fatal" not in office.log()


def test_event_with_id_begins_one_turn(office: Office) -> None:
    event = note("once", id="update-7", properties={"room": "attic"})
    office.write(event, event, {**event, "message": {"type": "text", "text": "changed"}})
    office.run("notes")
    wait_until(lambda: len(office.seen()) == 3, PATIENCE, show=office.log)
    office.write(note("last", properties={"room": "attic"}))
    wait_until(lambda: ("clerk", "attic", "last") in office.handled(), PATIENCE)
    assert office.handled() == [("clerk", "attic", "last"), ("clerk", "attic", "once")]


def test_another_process_continues_where_killed_process_stopped(office: Office) -> None:
    numbered = [note(str(number), id=str(number), properties={"room": "attic"}) for number in range(40)]
    office.write(*numbered[:20])
    first = office.run("notes")
    wait_until(lambda: len(office.seen()) >= 20, PATIENCE, show=office.log)
    office.run("notes")
    first.send_signal(signal.SIGKILL)
    office.write(*numbered[20:])
    wait_until(lambda: len(office.handled()) >= 40, PATIENCE, show=lambda: office.log(1))
    assert sorted(int(text) for _, _, text in office.handled()) == list(range(40))
    begins = [one["pid"] for one in office.lines("seen") if "began" in one]
    assert len(begins) == 2
    wait_until(lambda: not Path(f"/proc/{begins[0]}").exists(), PATIENCE)


@pytest.mark.parametrize("language", ["python", *NAMES])
def test_frozen_process_loses_lease_and_ends_its_connector(office: Office, language: str) -> None:
    name, variables = connection(language), {"GOONDAN_JAVASCRIPT": "" if language == "python" else language}
    first = office.run(name, **variables)
    wait_until(lambda: office.lines("seen"), PATIENCE, show=office.log)
    os.kill(first.pid, signal.SIGSTOP)
    office.run(name, **variables)
    wait_until(lambda: len(office.lines("seen")) == 2, PATIENCE, show=lambda: office.log(1))
    old = office.lines("seen")[0]["pid"]
    assert not runs(old)
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: not Path(f"/proc/{old}").exists(), PATIENCE)
    wait_until(lambda: "connector.failed" in office.log(), PATIENCE)
    office.write(note("after", properties={"room": "attic"}))
    wait_until(lambda: office.handled() == [("clerk", "attic", "after")], PATIENCE)
    # whichever is seen first: the end of the connector, which has ended by itself, or that of the lease
    reasons = ("could not be renewed", "has taken its lease", f"It ended with {LEASE_OVER}.")
    assert any(reason in office.log() for reason in reasons), office.log()


def test_failing_connector_is_restarted_and_disturbs_no_other(office: Office) -> None:
    office.run("failing", "plain", "notes", SECRET_NOTES_TOKEN="")
    wait_until(lambda: office.log().count("the chat is away") >= 4, PATIENCE, show=office.log)
    assert "connector.not_started" in office.log()
    assert "Connection 'notes': " in office.log()
    assert "Running failing, plain on" in office.log()
    wait_until(lambda: len(office.seen()) == 3, PATIENCE, show=office.log)
    assert [one["cursor"] for one in office.seen()] == [{"last": 0}, {"last": 1}, {"last": 2}]
    wait_until(lambda: len(office.handled()) == 3, PATIENCE)
    [failing] = [one for one in json.loads(listed(office)) if one["name"] == "failing"]
    assert failing["lastError"] == "ConnectionError: the chat is away"


def test_hostile_connector_gets_errors_and_disturbs_no_other(office: Office) -> None:
    office.write(note("beside it", properties={"room": "attic"}))
    office.run("hostile", "notes")
    wait_until(lambda: "a message that cannot be read" in office.log(), PATIENCE, show=office.log)
    wait_until(lambda: office.handled() == [("clerk", "attic", "beside it")], PATIENCE)
    answers = [one["answer"] for one in office.seen() if "answer" in one]
    assert answers[:11] == ["ConnectorError"] * 11


def test_program_ends_when_all_connectors_have_returned(office: Office) -> None:
    assert office.run("plain").wait(PATIENCE) == 0


def test_lines_of_standard_input_are_events(office: Office) -> None:
    given = {"text": "by JSON", "instanceKey": "desk", "properties": {"urgent": True}}
    first = office.run("terminal", lines=f"hello\n\n{json.dumps(given)}\n" + '{"name": 5}\nlast')
    assert first.wait(PATIENCE) == 0
    assert office.run("terminal", lines="on the next day\n").wait(PATIENCE) == 0
    wait_until(lambda: len(office.handled()) == 4, PATIENCE, show=office.log)

    assert office.handled() == [
        ("clerk", "cli:0", "hello"),
        ("clerk", "cli:4", "last"),
        ("clerk", "cli:5", "on the next day"),
        ("clerk", "desk", "by JSON"),
    ]
    assert "The event is not valid: name" in office.log()


def test_lines_reach_connector_in_typescript(office: Office) -> None:
    runtime("node")
    assert office.run("terminal-typescript", lines="hello\nlast").wait(PATIENCE) == 0
    wait_until(lambda: len(office.handled()) == 2, PATIENCE, show=office.log)
    assert [text for _, _, text in office.handled()] == ["0 hello", "1 last"]


def test_two_connections_cannot_read_one_terminal(office: Office) -> None:
    shown = goondan("connectors", "run", "terminal", "terminal-typescript", env=office.environment)

    assert shown.exit_code == 3
    assert "terminal and terminal-typescript all read the standard input" in shown.stderr
    assert "goondan connectors run terminal" in shown.stderr


def test_events_wait_for_redis(office: Office) -> None:
    office.run("notes")
    wait_until(lambda: office.lines("seen"), PATIENCE, show=office.log)
    server = office.stack.client._redis.info("server")["process_id"]
    os.kill(server, signal.SIGSTOP)
    office.write(*(note(str(n), id=f"frozen-{n}", properties={"room": "attic"}) for n in range(3)))
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            office.processes[0].wait(1)
    finally:
        os.kill(server, signal.SIGCONT)
    wait_until(lambda: len(office.handled()) >= 3, PATIENCE, show=office.log)
    assert [text for _, _, text in office.handled()] == ["0", "1", "2"]


def test_command_shows_where_event_would_go(office: Office) -> None:
    event = json.dumps(note("hello", properties={"room": 12}))
    shown = goondan("connectors", "test", "notes", "--event", event, env=office.environment)
    assert shown.stdout == "clerk@room:12 by ingress.rules[3]\n"
    refused = goondan("connectors", "test", "notes", "--event", json.dumps(note("x")), env=office.environment)
    assert (refused.exit_code, "E_CONNECTOR" in refused.stderr) == (1, True)
    unknown = goondan("connectors", "test", "note", "--event", event, env=office.environment)
    assert unknown.exit_code == 3
    assert "Did you mean 'notes'?" in unknown.stderr


def test_doctor_says_which_connections_run(office: Office) -> None:
    office.run("notes")
    wait_until(lambda: office.lines("seen"), PATIENCE, show=office.log)
    report = json.loads(goondan("doctor", "--json", env=office.environment).stdout)
    found = {one["name"]: one for one in report["checks"] if one["name"].startswith("connection ")}
    assert found["connection notes"]["level"] == "ok"
    assert f":{office.processes[0].pid}, 0 events" in found["connection notes"]["message"]
    assert found["connection plain"]["level"] == "warning"
    assert "no process runs it" in found["connection plain"]["message"]


def test_missing_secret_ends_start(office: Office) -> None:
    del office.environment["SECRET_NOTES_TOKEN"]
    assert office.run("notes").wait(PATIENCE) == 3
    assert "SECRET_NOTES_TOKEN" in office.log()


def test_answers_go_back_by_tool_that_connection_names(
    office: Office, running: tuple[LocalStack, Path]
) -> None:
    posted = running[1].with_name("posted")
    office.write(
        note("answer to the attic", properties={"room": 12, "mood": "calm"}, id="1"),
        note("nothing to say", properties={"room": 13}),
        note("answer to all", properties={"room": 14, "urgent": True}),
    )
    office.run("notes")
    wait_until(
        lambda: posted.exists() and len(posted.read_text().splitlines()) == 2, PATIENCE, show=office.log
    )

    replies = sorted((json.loads(line) for line in posted.read_text().splitlines()), key=str)
    assert replies == [
        {"room": 12, "text": "to the attic", "agent": "clerk"},
        {"room": 14, "text": "to all", "agent": "expert"},
    ]

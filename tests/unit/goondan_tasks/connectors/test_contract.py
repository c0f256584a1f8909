"""What a connector is promised, in each language: its context, its events, and the ends of its process."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from goondan_tasks.bundle import load_bundle
from goondan_tasks.bundle.connection_spec import IngressRule
from goondan_tasks.connectors.connections import program_of
from goondan_tasks.connectors.handover import Source
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.connectors.runner import ConnectionRunner
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import AgentEvent
from goondan_tasks.fleet.crash_backoff import BackoffRules
from tests.javascript_runtimes import NAMES, runtime
from tests.unit.goondan_tasks.connectors.test_requests import FakeStore
from tests.waiting import wait_until

PATIENCE = 60
BUNDLE = Path(__file__).parents[3] / "bundles" / "connectors"
Json = dict[str, Any]

TALKING = {
    "python": """
import asyncio, json, os
from pathlib import Path

def note(text, **fields):
    return {"name": "note", "message": {"type": "text", "text": text}, "instanceKey": "own", **fields}

async def connect(ctx):
    try:
        await talk(ctx)
        await asyncio.sleep(600)
    finally:
        Path(ctx.config["FOLDER"], f"ended-{ctx.connection_name}").touch()

async def talk(ctx):
    refused = []
    async def attempt(event):
        try:
            await ctx.emit(event)
        except Exception:
            refused.append(True)
        else:
            refused.append(False)

    ctx.logger.debug("one")
    ctx.logger.info("two")
    ctx.logger.warning("three")
    ctx.logger.error("four")
    print("five")
    loop = []
    loop.append(loop)
    for wrong in [None, [1], "text", loop, note("x", auth={"a": loop}), note("x", name=""),
                  note("x", instanceKey=""), {"name": "note", "instanceKey": "own"}, note(7)]:
        await attempt(wrong)
    await attempt(note("x", message={"type": "video", "url": "u"}))
    await attempt(note("x", properties={"deep": [1]}))
    seen = {"config": dict(ctx.config), "secrets": dict(ctx.secrets), "refused": refused,
            "names": [ctx.connection_name, ctx.connector_name], "grants": hasattr(ctx, "oauth"),
            "pid": os.getpid(), "directory": os.getcwd()}
    accepted = await ctx.emit(note(json.dumps(seen), properties={"yes": True, "size": 2, "none": None}))
    assert (accepted.agent, accepted.instance_key, accepted.call_id) == ("clerk", "own", "c-1")
    await ctx.emit(note("", message={"type": "image", "url": "u:1"}, agent="expert", agentRef="Agent/expert"))
    await ctx.emit(note("", message={"type": "file", "url": "u:2", "name": "a.pdf"}, name="photo"))
""",
    "javascript": """
import { writeFileSync } from 'node:fs';

const note = (text: any, fields = {}) =>
  ({ name: 'note', message: { type: 'text', text }, instanceKey: 'own', ...fields });

export default async (ctx: any): Promise<void> => {
  const isToEnd = new Promise((resolve) => ctx.signal.addEventListener('abort', resolve));
  const refused: boolean[] = [];
  const attempt = (event: any) => ctx.emit(event).then(() => refused.push(false), () => refused.push(true));

  ctx.logger.debug('one');
  ctx.logger.log('two');
  ctx.logger.warn('three');
  ctx.logger.error('four');
  console.log('five');
  const loop: any[] = [];
  loop.push(loop);
  for (const wrong of [undefined, [1], 'text', loop, note('x', { auth: { a: 1n } }), note('x', { name: '' }),
                       note('x', { instanceKey: '' }), { name: 'note', instanceKey: 'own' }, note(7)])
    await attempt(wrong);
  await attempt(note('x', { message: { type: 'video', url: 'u' } }));
  await attempt(note('x', { properties: { deep: [1] } }));
  const { config, secrets } = ctx;
  const seen = { config, secrets, refused, names: [ctx.connectionName, ctx.connectorName],
                 grants: 'oauth' in ctx, pid: process.pid, directory: process.cwd() };
  const properties = { yes: true, size: 2, none: null };
  const accepted = await ctx.emit(note(JSON.stringify(seen), { properties }));
  if (`${accepted.agent} ${accepted.instanceKey} ${accepted.callId}` !== 'clerk own c-1') throw accepted;
  await ctx.emit(note('', { message: { type: 'image', url: 'u:1' }, agent: 'expert', agentRef: 'x' }));
  await ctx.emit(note('', { message: { type: 'file', url: 'u:2', name: 'a.pdf' }, name: 'photo' }));
  await isToEnd;
  writeFileSync(`${ctx.config.FOLDER}/ended-${ctx.connectionName}`, '');
};
""",
}


class FakeClient:
    """An agent that takes every event."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, AgentEvent, str]] = []

    def send(self, agent: str, event: AgentEvent, *, instance_key: str, **_: Any) -> Any:
        self.sent.append((agent, event, instance_key))
        return SimpleNamespace(target=agent, id="c-1")


class Run:
    """A Connection that runs, and what has come of it."""

    def __init__(self, entry: Path, javascript: str | None, *, name: str, rules: Sequence[Json] = ()) -> None:
        self.store, self.client = FakeStore(), FakeClient()
        self.store.lease_seconds = 30.0  # a slow machine must not end the run
        fakes: Any = {"store": self.store, "client": self.client}
        program = ConnectorProgram(
            entry, name, "talk", {"FOLDER": str(entry.parent)}, {"TOKEN": name}, javascript=javascript
        )
        parsed = tuple(IngressRule.model_validate(rule) for rule in rules)
        self.runner = ConnectionRunner(
            program, Source(name, "talk", parsed, "clerk"), owner="here:1",
            backoff=BackoffRules(crashes=1, first_ms=10, longest_ms=10), **fakes,
        )  # fmt: skip
        self.runner.start()

    def has_sent_three(self) -> bool:
        return len(self.client.sent) == 3


def written(folder: Path, language: str, codes: Json) -> tuple[Path, str | None]:
    """Write an entry in a language; return it and the program that runs it."""
    is_python = language == "python"
    entry = folder / ("talk.py" if is_python else "talk.ts")
    entry.write_text(codes["python" if is_python else "javascript"], encoding="utf-8")
    return entry, None if is_python else runtime(language).program


@pytest.fixture(scope="module", params=["python", *NAMES])
def talk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Json]:
    """Two Connections of one Connector that have run and were stopped, and what they have logged."""
    folder = tmp_path_factory.mktemp("talk")
    entry, javascript = written(folder, request.param, TALKING)
    with capture_logs() as lines:
        rules = [{"match": {"event": "photo"}, "route": {"agentRef": "Agent/expert", "instanceKey": "album"}}]
        runs = [Run(entry, javascript, name=name, rules=rules) for name in ("first", "second")]
        try:
            for run in runs:
                wait_until(run.has_sent_three, PATIENCE, show=lambda: lines[-20:])
        finally:
            for run in runs:
                run.runner.stop()
            assert all(run.runner.join(PATIENCE) for run in runs)
    seen = [json.loads(run.client.sent[0][1].input) for run in runs]
    yield {"runs": runs, "seen": seen, "lines": lines, "folder": folder}


def test_context_has_config_and_secrets_of_connection(talk: Json) -> None:
    folder = str(talk["folder"])
    assert [one["config"] for one in talk["seen"]] == [{"FOLDER": folder}] * 2
    assert [one["secrets"] for one in talk["seen"]] == [{"TOKEN": "first"}, {"TOKEN": "second"}]
    assert [one["names"] for one in talk["seen"]] == [["first", "talk"], ["second", "talk"]]
    assert [one["directory"] for one in talk["seen"]] == [folder] * 2


def test_connector_holds_no_grants(talk: Json) -> None:
    assert [one["grants"] for one in talk["seen"]] == [False, False]


def test_each_connection_has_its_own_process(talk: Json) -> None:
    first, second = talk["seen"]
    assert first["pid"] != second["pid"]


def test_logged_lines_have_level_and_connection(talk: Json) -> None:
    wanted = [("debug", "one"), ("info", "two"), ("warning", "three"), ("error", "four"), ("info", "five")]
    for name in ("first", "second"):
        own = [one for one in talk["lines"] if one.get("connection") == name and one["connector"] == "talk"]
        assert set(wanted) <= {(one["log_level"], one.get("line", one["event"])) for one in own}


def test_events_follow_rules_whatever_else_they_name(talk: Json) -> None:
    for run in talk["runs"]:
        went = [(agent, key, event.type) for agent, event, key in run.client.sent]
        assert went == [("clerk", "own", "note"), ("clerk", "own", "note"), ("expert", "album", "photo")]


def test_events_have_texts_and_ids_of_their_own(talk: Json) -> None:
    events = [event for run in talk["runs"] for _, event, _ in run.client.sent]
    assert [one.input for one in events[1:3]] == ["[image] u:1", "[file:a.pdf] u:2"]
    assert events[0].metadata == {
        "connection_name": "first", "connector_name": "talk", "properties": {"yes": "true", "size": "2"},
    }  # fmt: skip
    assert len({one.id for one in events}) == 6


def test_invalid_event_is_refused_to_its_connector(talk: Json) -> None:
    assert [one["refused"] for one in talk["seen"]] == [[True] * 11] * 2


def test_connector_ends_its_own_way_when_asked(talk: Json) -> None:
    assert {one.name for one in talk["folder"].glob("ended-*")} == {"ended-first", "ended-second"}
    assert [run.store.errors for run in talk["runs"]] == [[""], [""]]


@pytest.mark.parametrize("language", ["python", "node"])
def test_connector_that_returns_is_done(tmp_path: Path, language: str) -> None:
    codes = {"python": "async def connect(ctx): pass\n", "javascript": "export default async () => {};\n"}
    run = Run(*written(tmp_path, language, codes), name="short")
    assert run.runner.join(PATIENCE)
    assert run.store.errors == [""]


LATER = """
export default () => {
  setTimeout(() => { throw new Error('later'); });
  return new Promise(() => {});
};
"""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("export default async () => { throw new RangeError('is away'); };", "RangeError: is away"),
        ("export default () => Promise.reject('no Error');", "no Error"),
        (LATER, "later"),
        ("export default async () => process.exit(7);", "It ended with 7."),
        ("throw new Error('at import');", "at import"),
        ("export const value = 1;", "exports no connector"),
    ],
)  # fmt: skip
def test_failed_javascript_run_is_noted_and_restarted(tmp_path: Path, code: str, reason: str) -> None:
    run = Run(*written(tmp_path, "node", {"javascript": code}), name="bad")
    try:
        wait_until(lambda: len(run.store.errors) >= 2, PATIENCE, show=lambda: run.store.errors)
    finally:
        run.runner.stop()
        assert run.runner.join(PATIENCE)
    assert all(reason in error for error in run.store.errors[:2]), run.store.errors


LOGGING = """
export default (ctx: any) => {
  const loop: any = { name: 'loop' };
  loop.self = loop;
  ctx.logger.error('failed:', new RangeError('is away'));
  ctx.logger.info('%d of %s', 1, 'two', loop, 3n);
  ctx.logger.table([{ room: 'attic' }]);
  ctx.logger.assert(false, 'asserted');
};
"""


def test_logger_in_javascript_is_console(tmp_path: Path) -> None:
    with capture_logs() as lines:
        run = Run(*written(tmp_path, "node", {"javascript": LOGGING}), name="logs")
        assert run.runner.join(PATIENCE)
    assert run.store.errors == [""]
    said = [(one["log_level"], one["event"]) for one in lines]
    assert any(level == "error" and text.startswith("failed: RangeError: is away") for level, text in said)
    assert any(text.startswith("1 of two <ref *1> { name: 'loop'") for _, text in said)
    assert any("attic" in text for _, text in said)
    assert any("asserted" in text for _, text in said)


@pytest.mark.parametrize("name", ["notes", "notes-typescript"])
@pytest.mark.parametrize("missing", ["EVENTS_FILE", "SEEN_FILE", "SECRET_NOTES_TOKEN"])
def test_value_without_its_variable_is_error_before_start(
    monkeypatch: pytest.MonkeyPatch, name: str, missing: str
) -> None:
    for variable in ("EVENTS_FILE", "SEEN_FILE", "SECRET_NOTES_TOKEN"):
        monkeypatch.setenv(variable, f"the value of {variable}")
    bundle = load_bundle(BUNDLE)
    assert program_of(bundle, bundle.connections[name], None).config["SEEN"] == "the value of SEEN_FILE"

    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match=missing):
        program_of(bundle, bundle.connections[name], None)

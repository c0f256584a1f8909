"""Extensions in TypeScript and JavaScript: in a real host, with an api that notes what they do."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.authoring.entry import EntryError
from goondan_tasks.authoring.extension_api import ExtensionInfo, StepContext, StepResult, ToolCallContext
from goondan_tasks.bundle import BoundExtension
from goondan_tasks.contract.catalog import CatalogItem, ToolSource
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import MiddlewareError, ModelError, ToolError
from goondan_tasks.contract.messages import Message
from tests.javascript_runtimes import NAMES, runtime
from workers.javascript.extensions import ThrownError, register_of
from workers.javascript.host import HostEndedError
from workers.javascript.tools import HostedTools, Hosts


class Noted:
    """What the extension does with its api."""

    def __init__(self) -> None:
        self.extension = ExtensionInfo("notes", {"colour": "red"})
        self.agent_name = "clerk"
        self.pipeline = self.events = self.tools = self.logger = self.state = self
        self.oauth = self.swarm_bundle = self
        self.middlewares: dict[str, Callable[..., Any]] = {}
        self.tool: dict[str, Callable[..., Any]] = {}
        self.listeners: dict[str, Callable[..., Any]] = {}
        self.values: dict[str, Any] = {}
        self.said: list[str] = []

    def register(self, what: Any, function: Callable[..., Any], priority: int = 0, **fields: Any) -> None:
        if isinstance(what, str):
            self.middlewares[what] = function
        else:
            self.tool[what["name"]] = function

    def on(self, name: str, listener: Callable[..., Any]) -> Callable[[], None]:
        self.listeners[name] = listener
        return lambda: self.said.append(f"ends {name}")

    def emit(self, name: str, event: Any) -> None:
        self.said.append(f"{name} {event}")

    def info(self, text: str) -> None:
        self.said.append(text)

    debug = error = warning = info

    async def get(self, key: str, *, instance_key: str | None) -> Any:
        return self.values.get(f"{instance_key}/{key}")

    async def set(self, key: str, value: Any, *, instance_key: str | None) -> None:
        self.values[f"{instance_key}/{key}"] = value

    async def keys(self, prefix: str, *, instance_key: str | None) -> list[str]:
        return [f"{prefix}1"]

    async def get_access_token(self, app: Any, **fields: Any) -> Any:
        return {"app": app, **fields}

    async def open_changeset(self, reason: str | None) -> Any:
        return {"reason": reason}

    async def commit_changeset(self, changeset: str, message: str | None) -> Any:
        return {"changeset": changeset, "message": message}

    async def get_active_ref(self) -> str:
        return "git:1"


@pytest.fixture(params=NAMES)
def extension(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Return what runs a test with the extension of some text."""
    name = runtime(request.param).name

    def run(text: str, test: Callable[[Noted, Hosts], Awaitable[None]], *, file: str = "notes.ts") -> None:
        entry = tmp_path / file
        entry.write_text(text, "utf-8")

        async def go() -> None:
            hosts, noted = Hosts(), Noted()
            tools = HostedTools(hosts, tmp_path, "https://help/", runtime=name)
            bound = BoundExtension("notes", {"colour": "red"}, entry)
            try:
                await register_of(tools, bound)(noted, {"colour": "red"})
                await test(noted, hosts)
            finally:
                await hosts.close()

        asyncio.run(go())

    return run


def step(**fields: Any) -> StepContext:
    item = CatalogItem(name="a__b", description="B.", source=ToolSource(type="config", name="a"))
    return StepContext("clerk", "k", "t1", "trace", "s1", 0, [item], **fields)


def tool_call(**args: Any) -> ToolCallContext:
    return ToolCallContext("a__b", "c1", args, agent_name="clerk")


async def nothing(noted: Noted, hosts: Hosts) -> None:
    pass


BROKEN = "export function register(api) {\n\n  const = 1;\n}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BROKEN, "notes.ts:3: importing the file throws "),
        ("export const x = 1;\n", "notes.ts:1: the file does not export the function 'register'"),
        ("export const register = 1;\n", "notes.ts:1: the file does not export the function 'register'"),
        ("\nthrow new Error('top');\n", "notes.ts:2: importing the file throws top"),
    ],
)
def test_unusable_file_is_named_with_line(extension: Callable[..., None], text: str, message: str) -> None:
    with pytest.raises(EntryError) as raised:
        extension(text, nothing)

    assert message in raised.value.message
    assert raised.value.suggestion


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("missing.x = 1;", "ReferenceError", "missing is not defined"),
        ("api.pipeline.register('turn', 5);", "TypeError", "a function is needed, not number"),
        ("await Promise.reject(Object.assign(new Error('no'), {name: 'OwnError'}));", "OwnError", "no"),
        ("api.tools.register({name: 'a__b'}, () => 1); api.events.emit('bad');", "ValueError", "no bad"),
    ],
)
def test_error_from_register_has_name_and_line(
    extension: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    name: str,
    message: str,
) -> None:
    def emit(self: Noted, name: str, event: Any) -> None:
        raise ValueError(f"no {name}")

    monkeypatch.setattr(Noted, "emit", emit)
    with pytest.raises(ThrownError) as raised:
        extension(f"export async function register(api) {{\n  {body}\n}}\n", nothing)

    assert type(raised.value).__name__ == name
    assert message in raised.value.message
    assert raised.value.message.endswith("notes.ts:2)")


def test_register_that_ends_its_process_is_error(extension: Callable[..., None]) -> None:
    with pytest.raises(HostEndedError, match="ended with exit status 3"):
        extension("export function register(api) { process.exit(3); }", nothing)


@pytest.mark.parametrize("file", ["notes.cjs", "notes.cts"])
def test_files_of_old_module_system_register_too(extension: Callable[..., None], file: str) -> None:
    async def test(noted: Noted, hosts: Hosts) -> None:
        assert noted.said == ["registered { colour: 'red' }"]

    text = "module.exports.register = (api, config) => { console.log('registered', config); };"
    extension(text, test, file=file)


ASKS = """
export async function register(api: any, config: any) {
  const off = api.events.on('heard', (event: any) => api.logger.info('heard', event.times));
  api.events.on('late', () => off());
  const named = { instanceKey: 'k' };
  await api.state.set('a', { b: 1 }, named);
  const kept = await api.state.get('a', null, named);
  api.logger.warn('%s has', api.extension.name, kept, await api.state.keys('p'));
  api.logger.info(await api.state.get('none', 'fallback'), await api.state.get('none'));
  api.logger.info(await api.oauth.getAccessToken('OAuthApp/x', ['s'], 60));
  api.logger.info(await api.oauth.getAccessToken({ oauthAppRef: { kind: 'OAuthApp', name: 'y' } }));
  const opened = await api.swarmBundle.openChangeset({ reason: 'why' });
  api.logger.info(opened, await api.swarmBundle.getActiveRef());
  api.logger.info(await api.swarmBundle.commitChangeset({ changesetId: 'c', message: 'm' }));
  api.logger.info(await api.swarmBundle.commitChangeset('c'));
}
"""


def test_api_asks_worker(extension: Callable[..., None]) -> None:
    async def test(noted: Noted, hosts: Hosts) -> None:
        assert noted.said == [
            "notes has { b: 1 } [ 'p1' ]",
            "fallback undefined",
            "{ app: 'OAuthApp/x', scopes: [ 's' ], min_ttl_seconds: 60 }",
            "{ app: { kind: 'OAuthApp', name: 'y' } }",
            "{ reason: 'why' } git:1",
            "{ changeset: 'c', message: 'm' }",
            "{ changeset: 'c', message: null }",
        ]
        await noted.listeners["heard"]({"times": 2})
        await noted.listeners["late"]({})
        assert noted.said[-2:] == ["heard 2", "ends heard"]

    extension(ASKS, test)


FAILS_LATER = """
export function register(api: any) {
  api.events.on('now', () => {
    setTimeout(() => Promise.reject(new Error('in the background')), 0);
  });
  api.events.on('then', async () => {
    await new Promise((resolve) => setTimeout(resolve, 10));
    api.events.emit('alive', { pid: process.pid });
  });
}
"""


def test_background_failure_does_not_end_process(extension: Callable[..., None]) -> None:
    async def test(noted: Noted, hosts: Hosts) -> None:
        await noted.listeners["now"]({})
        await noted.listeners["then"]({})
        await noted.listeners["then"]({})
        first, second = (line for line in noted.said if line.startswith("alive"))
        assert first == second

    extension(FAILS_LATER, test)


CONVERSES = """
export function register(api: any) {
  api.pipeline.register('step', async (ctx: any) => {
    const before = ctx.conversationState;
    const [first] = before.nextMessages;
    const message = (id: string) =>
      ({ id, data: { role: 'user', content: id }, createdAt: new Date(0), source: { type: 'extension' } });
    ctx.emitMessageEvent({ type: 'append', message: message('m2') });
    ctx.emitMessageEvent({ type: 'replace', targetId: 'm1', message: message('m3') });
    const ids = before.nextMessages.map(({ id }: any) => id).join();
    const answer = await ctx.askModel([{ role: 'user', content: 'hi' }], { modelRef: 'Model/small' });
    ctx.blocks = [{ type: 'told', data: [ids, first.createdAt instanceof Date, answer, before.isTooLong] }];
    await ctx.next();
    ctx.emitMessageEvent({ type: 'remove', targetId: ctx.conversationState.nextMessages[0].id });
  });
  api.pipeline.register('turn', async (ctx: any) => {
    ctx.emitMessageEvent({ type: 'append' });
    return ctx.next();
  });
  api.pipeline.register('toolCall', async (ctx: any) => ctx.emitMessageEvent);
}
"""


def message(name: str) -> Message:
    return Message(id=name, data={"role": "user"}, created_at="2026-01-01T00:00:00Z", source={"type": "user"})


def test_step_middleware_changes_conversation_and_asks_model(
    extension: Callable[..., None],
) -> None:
    asked: list[Any] = []

    async def ask(messages: Any, **fields: Any) -> str:
        asked.append((messages, fields))
        return "hello"

    async def test(noted: Noted, hosts: Hosts) -> None:
        conversation = Conversation([message("m1")])
        ctx = step(conversation_state=conversation, _ask_model=ask)

        async def proceed() -> StepResult:
            assert [one.id for one in conversation.next_messages] == ["m3", "m2"]
            conversation.append(message("m4"))
            return StepResult()

        assert await noted.middlewares["step"](ctx.layer(proceed)) is None
        assert [one.id for one in conversation.next_messages] == ["m2", "m4"]
        assert ctx.blocks == [{"type": "told", "data": ["m3,m2", True, "hello", False]}]
        given = {"instructions": "", "model_ref": "Model/small"}
        assert asked == [([{"role": "user", "content": "hi"}], given)]

    extension(CONVERSES, test)


WRONG = """
export function register(api: any) {
  api.pipeline.register('step', async (ctx: any) => {
    ctx.emitMessageEvent({ type: 'append' });
    return ctx.next();
  });
  api.pipeline.register('turn', async (ctx: any) => ctx.askModel([]));
  api.pipeline.register('toolCall', async (ctx: any) => {
    const ahead = ctx.next();
    return ctx.args.waits ? { early: true } : await ahead;
  });
}
"""


def test_invalid_message_event_fails_its_middleware(extension: Callable[..., None]) -> None:
    async def test(noted: Noted, hosts: Hosts) -> None:
        with pytest.raises(MiddlewareError, match="The message event is not valid"):
            await noted.middlewares["step"](step(conversation_state=Conversation([])))
        with pytest.raises(MiddlewareError, match=r"TypeError: Only a Turn that thinks|has a conversation"):
            await noted.middlewares["step"](step())

    extension(WRONG, test)


def test_error_of_model_reaches_middleware_and_its_call(extension: Callable[..., None]) -> None:
    async def ask(*_: Any, **__: Any) -> str:
        raise ModelError("too busy")

    async def test(noted: Noted, hosts: Hosts) -> None:
        with pytest.raises(ToolError) as raised:
            await noted.middlewares["turn"](step(_ask_model=ask))
        assert (raised.value.code, type(raised.value).__name__) == ("E_MODEL", "ModelError")

    extension(WRONG, test)


def test_middleware_ends_after_its_running_next_call(extension: Callable[..., None]) -> None:
    order: list[str] = []

    async def test(noted: Noted, hosts: Hosts) -> None:
        is_inside, goes_on = asyncio.Event(), asyncio.Event()

        async def proceed() -> Any:
            is_inside.set()
            order.append("inside")
            await goes_on.wait()
            order.append("inside ended")
            return 1

        running = asyncio.create_task(noted.middlewares["toolCall"](tool_call(waits=1).layer(proceed)))
        await is_inside.wait()
        goes_on.set()
        assert await running == {"early": True}
        assert order == ["inside", "inside ended"]

    extension(WRONG, test)


def test_cancelled_middleware_cancels_its_inner_call(extension: Callable[..., None]) -> None:
    async def test(noted: Noted, hosts: Hosts) -> None:
        is_inside, is_cancelled = asyncio.Event(), asyncio.Event()

        async def proceed() -> Any:
            is_inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_cancelled.set()

        running = asyncio.create_task(noted.middlewares["toolCall"](tool_call().layer(proceed)))
        await is_inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert is_cancelled.is_set()

    extension(WRONG, test)


def test_inner_error_passing_through_is_same_exception(
    extension: Callable[..., None],
) -> None:
    error = KeyError("inside")

    async def proceed() -> Any:
        raise error

    async def test(noted: Noted, hosts: Hosts) -> None:
        with pytest.raises(KeyError) as raised:
            await noted.middlewares["toolCall"](tool_call().layer(proceed))
        assert raised.value is error

    extension(WRONG, test)


def test_non_json_result_is_error_for_middleware(extension: Callable[..., None]) -> None:
    async def proceed() -> Any:
        return {1, 2}

    async def test(noted: Noted, hosts: Hosts) -> None:
        with pytest.raises(ToolError) as raised:
            await noted.middlewares["toolCall"](tool_call().layer(proceed))
        assert raised.value.code == "E_TOOL_BAD_OUTPUT"

    extension(WRONG, test)

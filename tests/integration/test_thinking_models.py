"""Agents that think, on real workers and three APIs: what a model answers, and how it fails."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from broker_config.keys import Keys
from goondan_tasks.authoring.handoff import EventFields, outside_call
from goondan_tasks.contract.errors import HandoffError, ToolInputValidationError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.testing import LocalStack
from tests.model_server import (
    Answer,
    Asked,
    Call,
    Failure,
    ModelServer,
    Usage,
    busy,
    in_turn,
    quota,
    status,
    too_long,
    unknown_model,
    wrong_key,
)
from tests.waiting import wait_until

PATIENCE = 60
KEY = "sk-canary-of-the-thinking-models"
APIS = {"chat": ("openai-chat", "any"), "responses": ("openai", "gpt-5"), "claude": ("anthropic", "claude-x")}
STEPS = 4
LONG_EXPORT = "write-into-the-book-that-everybody-reads-every-morning-before-work"

TOOL = '''
import time
from pathlib import Path
from threading import Event


def meet(ctx, input):
    """Return when the others have come as well."""
    Path(ctx.workdir, input["name"]).touch()
    end = time.monotonic() + 30
    while not all(Path(ctx.workdir, name).exists() for name in input["others"]):
        if time.monotonic() > end:
            raise TimeoutError("the others have not come")
        time.sleep(0.01)
    return {"met": input["others"]}


def write(ctx, input):
    with Path(ctx.workdir, "book").open("a") as book:
        book.write(f"{input['text']}\\n")
    return f"written: {input['text']}"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def picture(ctx, input):
    return [{"type": "image", "data": PIXEL}]


handlers = {"picture": picture, "meet": meet, "LONG_EXPORT": write, "write": write}
'''
ENTRY = """
async def handle(ctx, event):
    if event.input == "pass it on":
        options = {"outputSchema": event.output_schema}
        return (await ctx.runtime.request("chat", {"input": "hello"}, options)).response
    if event.input == "think":
        return [await ctx.think(), await ctx.think([{"role": "user", "content": "hello"}])]
    return ["seen", event.output_schema]
"""
BUNDLE = """
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: desk }
spec:
  entry: ./tools/desk.py
  exports:
    - { name: meet, parameters: { type: object } }
    - { name: picture, parameters: { type: object } }
    - name: write
      parameters: { type: object, properties: { text: { type: string } }, required: [text] }
    - { name: LONG_EXPORT, parameters: { type: object } }
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: thinkers }
spec:
  entryAgent: Agent/chat
  agents: [AGENTS]
  policy: { maxStepsPerTurn: STEPS, budget: { tokensPerTurn: 1000 } }
"""
SCHEMA = "{ type: object, properties: { city: { type: string } }, required: [city] }"
#: agents on a Model of their own: its fields, and the Agent's
OTHERS = {
    "careful": ("timeoutSeconds: 10", "fallbackRefs: [Model/chat]", ""),
    "typed": ("timeoutSeconds: 10", "", f"outputSchema: {SCHEMA},"),
    "listed": ("timeoutSeconds: 10", "", "outputSchema: { type: array, items: { type: integer } },"),
    "named": ("timeoutSeconds: 10", "", "outputSchema: { type: [string, 'null'] },"),
    "narrow": ("maxConcurrency: 2", "", ""),
    "rare": ("rateLimit: 2/h", "", ""),
    "metered": ("tokensPerMinute: 20", "", ""),
}


def model(name: str, provider: str, named: str, url: str, more: str = "timeoutSeconds: 20") -> str:
    spec = f"provider: {provider}, model: {named}, baseUrl: '{url}', apiKey: {{ value: {KEY} }}, {more}"
    return f"---\napiVersion: goondan.ai/v1\nkind: Model\nmetadata: {{ name: {name} }}\nspec: {{ {spec} }}\n"


def agent(name: str, config: str = "", more: str = "") -> str:
    spec = f"{more} modelConfig: {{ modelRef: Model/{name}, {config} }}, tools: [Tool/desk]"
    prompt = "prompts: { system: 'You are {{agentName}} in {{instanceKey}}.' }"
    head = f"---\napiVersion: goondan.ai/v1\nkind: Agent\nmetadata: {{ name: {name} }}\n"
    return f"{head}spec: {{ {spec}, {prompt} }}\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="module")
def stack(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Two workers on one bundle for all tests."""
    folder = tmp_path_factory.mktemp("thinkers")
    text = BUNDLE.replace("LONG_EXPORT", LONG_EXPORT).replace("STEPS", str(STEPS))
    text = text.replace("AGENTS", ", ".join(f"Agent/{name}" for name in (*APIS, *OTHERS, "entry")))
    for name, (provider, named) in APIS.items():
        url = server.root_url if provider == "anthropic" else server.url
        text += model(name, provider, named, url) + agent(name)
    for name, (fields, config, more) in OTHERS.items():
        text += model(name, "openai-chat", name, server.url, fields) + agent(name, config, more)
    text += agent("chat", "", "entry: ./entry.py,").replace("{ name: chat }", "{ name: entry }")
    (folder / "entry.py").write_text(ENTRY, "utf-8")
    (folder / "tools").mkdir()
    (folder / "tools/desk.py").write_text(TOOL.replace("LONG_EXPORT", LONG_EXPORT), "utf-8")
    (folder / "goondan.yaml").write_text(text, "utf-8")
    with LocalStack(folder, workers=2, concurrency=8) as running:
        yield running


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(stack: LocalStack, agent: str, text: str = "hello", instance: str | None = None) -> ToolCallResult:
    """Ask in a new instance unless one is named; return what the Turn has come to."""
    key = instance or f"i-{next(_NUMBERS)}"
    _, pending = stack.client.ask(agent, text, timeout=PATIENCE, instance_key=key)
    return pending.result(PATIENCE)


_NUMBERS = iter(range(10**6))


def at_once(stack: LocalStack, agent: str, count: int) -> list[ToolCallResult]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: ask(stack, agent), range(count)))


def code_of(result: ToolCallResult) -> str | None:
    assert KEY not in str(result)
    return None if result.error is None else result.error.code


def workdir(stack: LocalStack, instance: str) -> Path:
    return (
        stack.state_root
        / "workspaces"
        / folder_workspace(stack.bundle)
        / "instances"
        / instance
        / "workspace"
    )


def test_two_tool_calls_run_concurrently_on_every_api(
    stack: LocalStack, server: ModelServer, api: str
) -> None:
    calls = (
        Call("desk__meet", {"name": "a", "others": ["b"]}, "call_1"),
        Call("desk__meet", {"name": "b", "others": ["a"]}, "call_2"),
    )
    usage = Usage(100, 20, cached=30, reasoning=10)
    first = Answer("Let us meet.", calls, reasoning="They want to meet.", usage=usage)
    server.begin(in_turn(first, Answer("We have met.", usage=Usage(150, 5))))

    result = ask(stack, api, "meet", f"meeting-{api}")

    assert (result.status, result.output) == ("ok", "We have met.")
    assert result.meta.finish_reason == "text_response"
    assert result.meta.usage == {"input": 250, "output": 25, "cached": 30, "reasoning": 10}
    assert server.count == 2
    system, user, assistant, *tools = server.requests[1].said
    assert (system.text, user.text) == (f"You are {api} in meeting-{api}.", "meet")
    signature = "" if api == "chat" else first.signature
    assert (assistant.text, assistant.calls) == ("Let us meet.", calls)
    assert assistant.reasoning == (("They want to meet.", signature),)
    assert [(said.call_id, "met" in said.text) for said in tools] == [("call_1", True), ("call_2", True)]


def test_request_has_no_more_images_than_provider_takes(
    stack: LocalStack, server: ModelServer, api: str
) -> None:
    calls = tuple(Call("desk__picture", {}, f"call_{number}") for number in range(25))
    server.begin(in_turn(Answer("", calls), Answer("seen")))
    assert ask(stack, api).output == "seen"
    body = json.dumps(server.requests[1].body)
    assert body.count("iVBORw0KGgo") == 15
    assert body.count("left out: a request has the newest images alone") == 10


def test_provider_forbidden_name_is_mapped_both_ways(
    stack: LocalStack, server: ModelServer, api: str
) -> None:
    def script(asked: Asked) -> Answer:
        [short] = [name for name in asked.tools if name not in ("desk__meet", "desk__picture", "desk__write")]
        assert len(short) <= 64
        if asked.said[-1].role == "user":
            return Answer(calls=(Call(short, {"text": "good morning"}),))
        assert [call.name for said in asked.said for call in said.calls] == [short]
        return Answer(asked.said[-1].text)

    server.begin(script)
    assert ask(stack, api).output == "written: good morning"


def test_busy_provider_is_retried_after_stated_time(stack: LocalStack, server: ModelServer, api: str) -> None:
    server.begin(in_turn(busy("1"), Answer("Now.")))
    assert ask(stack, api).output == "Now."
    assert server.count == 2
    first, second = (asked.body for asked in server.requests)
    assert first == second


def test_repeatedly_failing_model_is_replaced_by_next(stack: LocalStack, server: ModelServer) -> None:
    server.begin(lambda asked: Answer("Here.") if asked.model == "any" else status(500))
    assert ask(stack, "careful").output == "Here."
    assert [asked.model for asked in server.requests] == ["careful"] * 5 + ["any"]


@pytest.mark.parametrize("failure", [status(503, retry_after="3600"), quota(), unknown_model("careful")])
def test_model_not_answering_soon_is_replaced_at_once(
    stack: LocalStack, server: ModelServer, failure: Failure
) -> None:
    server.begin(lambda asked: Answer("Here.") if asked.model == "any" else failure)
    assert ask(stack, "careful").output == "Here."
    assert [asked.model for asked in server.requests] == ["careful", "any"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (wrong_key(KEY), "E_MODEL_AUTH"),
        (unknown_model("any"), "E_MODEL_NOT_FOUND"),
        (quota(), "E_MODEL_QUOTA"),
        (too_long(), "E_MODEL_CONTEXT_LENGTH"),
        (status(400, "temperature must be below 2"), "E_MODEL"),
        (busy("3600"), "E_MODEL_RATE_LIMIT"),
        (Answer("", refusal="I cannot help with that."), "E_MODEL_REFUSED"),
        (Answer("some", finish="content_filter"), "E_MODEL_REFUSED"),
    ],
)
def test_permanent_model_failure_is_not_retried(
    stack: LocalStack, server: ModelServer, answer: Answer | Failure, code: str
) -> None:
    server.begin(in_turn(answer))
    result = ask(stack, "chat")
    assert (code_of(result), server.count) == (code, 1)
    assert result.error is not None
    told = answer.message if isinstance(answer, Failure) else answer.refusal or answer.text
    assert told.replace(KEY, "***") in result.error.message
    assert result.error.suggestion


def test_wrong_key_leads_to_no_other_model(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(wrong_key()))
    assert code_of(ask(stack, "careful")) == "E_MODEL_AUTH"
    assert server.count == 1


def test_empty_answer_is_retried_twice_at_most(stack: LocalStack, server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer(""), Answer("  \n"), Answer("Well.")))
    assert ask(stack, api).output == "Well."
    assert server.count == 3
    server.begin(in_turn(Answer("")))
    assert code_of(ask(stack, api)) == "E_MODEL_ANSWER"
    assert server.count == 3


def test_malformed_tool_call_is_reported_twice_at_most(stack: LocalStack, server: ModelServer) -> None:
    bad = Answer(calls=(Call("desk__write", '{"text": "never'),), finish="length")
    good = Answer(calls=(Call("desk__write", {"text": "now"}, "call_2"),))
    server.begin(in_turn(bad, replace(bad, calls=(Call("desk__write", "[1]"),)), good, Answer("Done.")))
    assert ask(stack, "chat", instance="scribe").output == "Done."
    assert (workdir(stack, "scribe") / "book").read_text() == "now\n"
    assert "cut at maxTokens before the JSON" in server.requests[1].said[-1].text

    server.begin(in_turn(bad))
    assert code_of(ask(stack, "chat", instance="scrawler")) == "E_MODEL_ANSWER"
    assert server.count == 3
    assert not (workdir(stack, "scrawler") / "book").exists()


@pytest.mark.parametrize("name", ["", "__", "desk__", "no such\n\x00/../tool", "d" * 100_000, "\u0660\u202e"])
def test_call_of_strange_name_is_answered_with_error(
    stack: LocalStack, server: ModelServer, name: str
) -> None:
    calls = Call(name), Call("desk__write", {"text": "x"}, "call_2")
    server.begin(in_turn(Answer(calls=calls), Answer("Done.")))
    assert ask(stack, "chat").output == "Done."
    assert ["E_TOOL" in said.text for said in server.requests[1].said if said.role == "tool"] == [True, False]


def test_answer_with_too_many_calls_is_not_run(stack: LocalStack, server: ModelServer) -> None:
    calls = tuple(Call("desk__write", {"text": "x"}, f"call_{number}") for number in range(10_000))
    server.begin(in_turn(Answer(calls=calls), Answer("Well.")))
    result = ask(stack, "chat", instance="flood")
    assert (code_of(result), server.count) == ("E_MODEL_ANSWER", 1)
    assert result.error is not None
    assert "10000 tool calls" in result.error.message
    assert not (workdir(stack, "flood") / "book").exists()
    assert ask(stack, "chat", instance="flood").output == "Well."


def test_step_limit_ends_turn_without_error(stack: LocalStack, server: ModelServer) -> None:
    server.begin(lambda asked: Answer("More.", (Call("desk__write", {"text": str(asked.number)}),)))
    result = ask(stack, "chat", instance="busy-bee")
    assert (result.status, result.meta.finish_reason, result.output) == ("ok", "max_steps", "More.")
    assert server.count == STEPS
    assert (workdir(stack, "busy-bee") / "book").read_text() == "0\n1\n2\n3\n"


def test_turn_ends_with_its_budget(stack: LocalStack, server: ModelServer) -> None:
    calls = (Call("desk__write", {"text": "x"}),)
    server.begin(in_turn(Answer("Some.", calls, usage=Usage(500, 100))))
    result = ask(stack, "chat")
    assert (result.status, result.meta.finish_reason, result.output) == ("ok", "budget", "Some.")
    assert server.count == 2
    assert result.meta.usage is not None
    assert result.meta.usage["input"] + result.meta.usage["output"] == 1200


def test_answer_cut_by_length_reports_finish_reason(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Once upon a", finish="length")))
    result = ask(stack, "chat")
    assert (result.output, result.meta.finish_reason) == ("Once upon a", "length")


def test_answer_violating_agents_schema_is_requested_again(stack: LocalStack, server: ModelServer) -> None:
    fenced = Answer('```json\n{"city": "Seoul"}\n```')
    server.begin(in_turn(Answer("Seoul, I think."), Answer('{"town": "Seoul"}'), fenced))
    assert ask(stack, "typed").output == {"city": "Seoul"}
    assert server.count == 3
    assert "not JSON" in server.requests[1].said[-1].text
    assert "'city' is" in server.requests[2].said[-1].text
    # what was wrong is not part of the conversation
    server.begin(in_turn(Answer('{"town": "Busan"}')))
    assert code_of(ask(stack, "typed")) == "E_MODEL_ANSWER"
    assert server.count == 3


def test_non_object_answers_fit_matching_schemas(stack: LocalStack, server: ModelServer) -> None:
    for name, text, value in (
        ("listed", "[1, 2]", [1, 2]),
        ("named", '"tea"', "tea"),
        ("named", "null", None),
    ):
        server.begin(in_turn(Answer(text)))
        result = ask(stack, name)
        assert (result.status, result.output, server.count) == ("ok", value, 1)
    server.begin(in_turn(Answer('[1, "x"]'), Answer("[1]")))
    assert ask(stack, "listed").output == [1]
    assert 'args[1]: "x" is not of type' in server.requests[1].said[-1].text


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def answer_of(stack: LocalStack, agent: str, schema: Any = CITY, text: str = "hello") -> Any:
    key = f"i-{next(_NUMBERS)}"
    fields: Any = {"instance_key": key, "output_schema": schema}
    return stack.client.request(agent, text, timeout=PATIENCE, **fields).response


def test_request_has_own_schema_on_every_api(stack: LocalStack, server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer('{"city": "Seoul"}')))
    assert answer_of(stack, api) == {"city": "Seoul"}
    assert server.count == 1
    assert "fits this JSON Schema" in server.requests[0].said[0].text


def test_answer_violating_requests_schema_is_requested_again(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Seoul"), Answer('{"town": "Seoul"}'), Answer('{"city": "Seoul"}')))
    assert answer_of(stack, "chat") == {"city": "Seoul"}
    assert server.count == 3

    server.begin(in_turn(Answer('{"town": "Busan"}')))
    with pytest.raises(HandoffError, match="'city' is required") as caught:
        answer_of(stack, "chat")
    assert (caught.value.code, server.count) == ("E_MODEL_ANSWER", 3)


def test_requests_schema_replaces_agents_for_its_turn(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("[1]")))
    assert answer_of(stack, "typed", {"type": "array"}) == [1]
    assert server.count == 1
    server.begin(in_turn(Answer('{"city": "Seoul"}')))
    assert answer_of(stack, "typed", None) == {"city": "Seoul"}


def test_entry_reads_schema_and_its_answer_is_unchecked(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer('{"city": "Seoul"}'), Answer("Seoul.")))
    assert answer_of(stack, "entry") == ["seen", CITY]
    assert answer_of(stack, "entry", None) == ["seen", None]
    assert server.count == 0
    # only what it thinks about the event itself
    assert answer_of(stack, "entry", text="think") == [{"city": "Seoul"}, "Seoul."]


def test_agent_asks_another_one_with_schema(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Seoul"), Answer('{"city": "Seoul"}')))
    assert answer_of(stack, "entry", text="pass it on") == {"city": "Seoul"}
    assert server.count == 2


def test_invalid_schema_is_refused_before_asking_model(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Seoul")))
    with pytest.raises(ToolInputValidationError, match=r"outputSchema\.type is not a valid JSON Schema"):
        answer_of(stack, "chat", {"type": "town"})
    assert server.count == 0


def test_foreign_events_invalid_schema_fails_only_its_turn(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Seoul")))
    for number, schema in enumerate(({"type": "town"}, [1])):
        # as plain Celery does, without the check at the asker
        fields: EventFields = {"instance_key": "unchecked", "event_id": f"unchecked-{number}"}
        call = outside_call(stack.client.settings, "chat", "hello", fields, is_request=True)
        call.args["payload"]["outputSchema"] = schema
        assert code_of(stack.client.submit_event(call).result(PATIENCE)) == "E_TOOL_INVALID_ARGS"
    assert server.count == 0
    assert ask(stack, "chat", instance="unchecked").output == "Seoul"


def test_requests_at_time_are_those_of_all_workers(stack: LocalStack, server: ModelServer) -> None:
    def script(_: Asked) -> Answer:
        wait_until(lambda: server.most_open == 2, PATIENCE)
        return Answer("Well.")

    server.begin(script)
    results = at_once(stack, "narrow", 12)
    assert [result.output for result in results] == ["Well."] * 12
    assert (server.count, server.most_open) == (12, 2)
    assert len({result.meta.worker for result in results}) == 2


def test_rate_of_requests_is_that_of_all_workers(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Well.")))
    client = stack.client
    asked = [
        client.ask("rare", "hello", timeout=PATIENCE, instance_key=f"rare-{number}")[1] for number in range(6)
    ]

    def settled() -> int:
        return [call.status() for call in asked].count("done") + waiting(stack, "rare")

    # the others wait for the next hour, or are refused if they may not wait as long
    wait_until(lambda: settled() == 6, PATIENCE)
    assert server.count == 2
    for call in asked:
        client.call_off(call)
    codes = [code_of(call.result(PATIENCE)) for call in asked]
    assert sum(code is None for code in codes) == 2
    assert {*codes} <= {None, "E_LIMIT", "E_TOOL_CANCELLED"}
    # nothing is left of those that were called off
    wait_until(lambda: waiting(stack, "rare") == 0, PATIENCE)
    wait_until(lambda: not client._redis.keys(Keys().model_request("*")), PATIENCE)


def waiting(stack: LocalStack, agent: str) -> int:
    """Return how many calls of an agent wait for a limit."""
    return next(row.waiting_for_limit for row in stack.client.queues() if row.agent == agent)


def test_request_waits_for_workers_shared_token_limit(stack: LocalStack, server: ModelServer) -> None:
    server.begin(in_turn(Answer("Well.", usage=Usage(10, 5))))
    assert [ask(stack, "metered").output for _ in range(2)] == ["Well."] * 2
    _, third = stack.client.ask("metered", "hello", timeout=PATIENCE, instance_key="thirsty")
    wait_until(lambda: waiting(stack, "metered") == 1, PATIENCE)
    assert (server.count, third.status()) == (2, "running")
    # a minute later
    stack.client._redis.delete(Keys().tokens("metered"))
    assert third.result(PATIENCE).output == "Well."
    assert server.count == 3


# --- more Turns than may wait


@pytest.fixture
def crowded(server: ModelServer, tmp_path: Path) -> Iterator[LocalStack]:
    """One worker that takes no further events while two Turns wait for their tools; asker may ask chat."""
    text = BUNDLE.partition("---")[0].replace("LONG_EXPORT", LONG_EXPORT)
    text += model("chat", *APIS["chat"], server.url) + agent("chat")
    text += agent("chat").replace("Tool/desk", "Tool/agents").replace("name: chat }", "name: asker }", 1)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/desk.py").write_text(TOOL.replace("LONG_EXPORT", LONG_EXPORT), "utf-8")
    (tmp_path / "goondan.yaml").write_text(text, "utf-8")
    with LocalStack(tmp_path, concurrency=2, environment={"GOONDAN_MAX_WAITING": "2"}) as running:
        yield running


def test_turns_beyond_waiting_limit_stay_in_queue(crowded: LocalStack, server: ModelServer) -> None:
    gate = Event()
    server.begin(in_turn(Answer("Well.")))
    ask(crowded, "chat")  # what comes before the first claim waits in the worker
    server.begin(in_turn(Answer("Well.", gate=gate)))
    asked = [crowded.client.ask("chat", "hello", timeout=PATIENCE, instance_key=f"c-{n}") for n in range(30)]
    wait_until(lambda: server.open >= 2, PATIENCE)
    [row] = [row for row in crowded.client.queues() if row.agent == "chat"]
    # two slots' worth of Turns may have been on their way when two waited
    assert row.backlog >= 30 - 2 - 2 * 2
    gate.set()
    assert [call.result(PATIENCE).output for _, call in asked] == ["Well."] * 30
    assert server.most_open <= 2 + 2 * 2


def test_turns_awaiting_another_agent_let_its_turns_begin(crowded: LocalStack, server: ModelServer) -> None:
    def script(asked: Asked) -> Answer:
        if "agents__request" not in asked.tools:
            return Answer("Well.")
        if asked.said[-1].role == "tool":
            return Answer(asked.said[-1].text)
        return Answer(calls=(Call("agents__request", {"target": "chat", "input": "hello"}),))

    server.begin(script)
    results = at_once(crowded, "asker", 2)
    assert ["Well." in result.output for result in results] == [True, True]

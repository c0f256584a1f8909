"""Requests to models as calls: which Model is asked, and when."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from goondan_tasks.bundle.resources import ModelSpec
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.names import call_identity
from goondan_tasks.ledger.limiter import Limits
from workers.thinking.model_calls import Models, ModelTool, OpenRequests, model_tool
from workers.thinking.model_request import ModelAnswer, ModelRequest
from workers.thinking.providers import ModelProvider
from workers.turns import steps


def test_unknown_model_is_named_with_nearest_model(tmp_path: Path) -> None:
    nothing: Any = None
    models = Models(nothing, nothing, nothing, 60, {"small": nothing}, tmp_path, lambda: None, {}, nothing)
    with pytest.raises(ConfigError, match="The bundle has no Model 'smal'") as caught:
        asyncio.run(models.ask_first(["smal"], ModelRequest("", ()), step=0, event_id=""))
    assert caught.value.code == "E_CONFIG_REF_NOT_FOUND"
    assert "small" in (caught.value.suggestion or "")


def test_tokens_are_counted_once_redis_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PAUSE_SECONDS", 0)
    spec: Any = SimpleNamespace(tokens_per_minute=20)
    provider: Any = SimpleNamespace(resource=SimpleNamespace(name="small", spec=spec))
    with fakeredis.FakeRedis() as redis:
        answers: Iterator[Any] = iter([RedisConnectionError("away"), redis.time()])

        def time() -> Any:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(redis, "time", time)
        tool = ModelTool(provider, redis, Keys())
        asyncio.run(tool._note_tokens(ModelAnswer(content=(), usage={"input": 7, "output": 5})))
        assert redis.hvals(Keys().tokens("small")) == [b"12"]
    assert next(answers, None) is None


@pytest.mark.parametrize(("most", "limit"), [(20, "tokens 20 60000 - tokens:my%20model"), (None, None)])
def test_tokens_of_model_are_limit_of_its_calls(most: int | None, limit: str | None) -> None:
    spec = {"provider": "p", "model": "m", "tokensPerMinute": most}
    resource = SimpleNamespace(name="my model", spec=ModelSpec.model_validate(spec))
    provider, nothing = cast("ModelProvider", SimpleNamespace(resource=resource)), cast("Any", None)
    tool = model_tool(provider, nothing, Keys(), {})
    assert tool.tokens == limit
    assert Limits.of(tool.bound, tokens=tool.tokens).is_empty is (limit is None)


@pytest.mark.parametrize("is_own", [True, False])
def test_same_workers_request_is_not_read_from_redis(is_own: bool) -> None:
    class Provider:
        resource = SimpleNamespace(
            name="small", spec=SimpleNamespace(provider="p", model="m", tokens_per_minute=None)
        )

        async def ask(self, request: ModelRequest) -> ModelAnswer:
            return ModelAnswer(content=({"type": "text", "text": request.instructions},), usage={})

    ctx: Any = SimpleNamespace(agent_name="a", instance_key="k", turn_id="t", tool_call_id="c")
    key, provider = Keys().model_request(call_identity("a", "k", "t", "c")), cast("ModelProvider", Provider())
    put: Future[bool] = Future()
    put.set_result(False)
    with fakeredis.FakeRedis() as redis:
        redis.set(key, ModelRequest("from Redis", ()).json)
        known: OpenRequests = {key: (ModelRequest("its own", ()), put)} if is_own else {}
        tool = ModelTool(provider, redis, Keys(), known)
        answer = asyncio.run(tool(ctx, {"event": "e", "step": 0}))
    assert answer.text == ("its own" if is_own else "from Redis")

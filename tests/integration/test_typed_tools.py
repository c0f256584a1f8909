"""Typed tools on a real worker, in its process and in one of their own, and in another revision."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker_config.keys import Keys
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from goondan_tasks.testing import LocalStack
from tests.git_bundle import GitBundle, make_bundle
from tests.waiting import wait_until

PATIENCE = 60
YAML = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: shop }
spec: { entry: ./shop.py, exports: auto }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: apart }
spec: { entry: ./shop.py, isolation: process, exports: auto }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec: { tools: [Tool/shop, Tool/apart] }
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec:
  entryAgent: Agent/clerk
  agents: [Agent/clerk]
  policy: { changesets: { enabled: true } }
"""
SHOP = '''\
from __future__ import annotations

import asyncio
from datetime import date, timedelta
from enum import Enum
from pathlib import Path

from pydantic import BaseModel, model_validator

from goondan_tasks.tool_api import ToolContext, tool


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Order(BaseModel):
    item: str
    day: date

    @model_validator(mode="after")
    def _is_sold(self) -> Order:
        if self.item == "cat":
            raise ValueError("cats are not sold")
        return self


class Receipt(BaseModel):
    item: str
    day: date
    size: Size
    count: int


@tool
def buy(ctx: ToolContext, order: Order, size: Size = Size.SMALL, count: int = 2) -> Receipt:
    """Buys things."""
    (ctx.workdir / "bought").touch()
    ctx.logger.info("bought", size=size.name)
    return Receipt(item=order.item, day=order.day + timedelta(days=1), size=size, count=count)


@tool
async def add_up(numbers: tuple[int, int]) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"sum": sum(numbers), "tuple": int(isinstance(numbers, tuple))}


@tool
def was_bought(ctx) -> bool:
    return (ctx.workdir / "bought").exists()
'''


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> GitBundle:
    return make_bundle(
        tmp_path_factory.mktemp("shop") / "repo", files={"goondan.yaml": YAML, "shop.py": SHOP}
    )


@pytest.fixture(scope="module")
def stack(bundle: GitBundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    environment = {"GOONDAN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with LocalStack(bundle.folder, environment=environment) as running:
        yield running


def call(stack: LocalStack, tool: str, instance_key: str, **args: Any) -> ToolCallResult:
    return stack.client.call("clerk", tool, args, instance_key=instance_key, timeout=PATIENCE)


@pytest.mark.parametrize("place", ["shop", "apart"])
def test_function_gets_models_enums_defaults_and_returns_model(stack: LocalStack, place: str) -> None:
    order = {"item": "tea", "day": "2026-02-28"}

    plain = call(stack, f"{place}__buy", place, order=order)
    full = call(stack, f"{place}__buy", place, order=order, size="large", count=3)

    assert plain.output == {"item": "tea", "day": "2026-03-01", "size": "small", "count": 2}
    assert full.output == {"item": "tea", "day": "2026-03-01", "size": "large", "count": 3}
    assert call(stack, f"{place}__was-bought", place).output is True


@pytest.mark.parametrize("place", ["shop", "apart"])
def test_async_function_needs_no_context(stack: LocalStack, place: str) -> None:
    assert call(stack, f"{place}__add-up", "sums", numbers=[1, 2]).output == {"sum": 3, "tuple": 1}


@pytest.mark.parametrize("place", ["shop", "apart"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "'order' is required"),
        ({"order": {"item": "tea", "day": 3}}, "args.order.day"),
        ({"order": {"item": "tea", "day": "soon"}}, "args.order.day: must be a valid date"),
        ({"order": {"item": "cat", "day": "2026-01-01"}}, "args.order: cats are not sold"),
        ({"order": {"item": "tea", "day": "2026-01-01"}, "size": "huge"}, "args.size"),
        (
            {"order": {"item": "tea", "day": "2026-01-01"}, "cuont": 1},
            "unknown argument 'cuont'; did you mean",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_function_runs(
    stack: LocalStack, place: str, args: dict[str, Any], message: str
) -> None:
    refused = call(stack, f"{place}__buy", "refused", **args)

    assert refused.error is not None
    assert refused.error.code == "E_TOOL_INVALID_ARGS"
    assert message in refused.error.message
    assert call(stack, f"{place}__was-bought", "refused").output is False


def test_another_signature_in_next_revision_is_its_schema(stack: LocalStack, bundle: GitBundle) -> None:
    [worker] = stack.workers
    assert call(stack, "shop__add-up", "old", numbers=[1, 2]).status == "ok"

    changed = SHOP.replace("numbers: tuple[int, int]", "numbers: list[float], *, scale: int")
    bundle.commit({"shop.py": changed.replace('sum(numbers), "tuple"', 'sum(numbers) * scale, "tuple"')})
    change = RevisionChange(new_ref=f"git:{bundle.head}", timestamp="2026-01-01T00:00:00.000Z")
    ActiveRevision(stack.client._redis, Keys(), folder_workspace(bundle.folder)).propose(change)

    wait_until(lambda: call(stack, "shop__add-up", "new", numbers=[1.5], scale=2).status == "ok", PATIENCE)
    for place in ("shop", "apart"):
        assert call(stack, f"{place}__add-up", "new", numbers=[1.5], scale=2).output == {"sum": 3, "tuple": 0}
        refused = call(stack, f"{place}__add-up", "new", numbers=[1, 2])
        assert refused.error is not None
        assert (refused.error.code, refused.error.message) == ("E_TOOL_INVALID_ARGS", "'scale' is required")

    # a producer without a bundle reads what workers announce, a moment later
    with Client.connect(stack.redis_url) as client:

        def required() -> Any:
            shown = {item["name"]: item["parameters"] for item in client.catalog("clerk")}
            return shown["shop__add-up"]["required"]

        wait_until(lambda: required() == ["numbers", "scale"], PATIENCE)
    assert [worker.pid] == [one.pid for one in stack.client.workers()]

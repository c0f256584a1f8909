"""What a shop's agents do, with every kind of end."""

import asyncio
import os
from typing import Any


def find(ctx: Any, input: dict[str, Any]) -> Any:
    ctx.logger.info("looked up", customer=input["customer"])
    return {
        "customer": input["customer"],
        "orders": [
            {"id": "A-1041", "total": 129.9, "state": "delivered", "items": ["kettle", "2 cups"]},
            {"id": "A-1077", "total": 24.5, "state": "on its way", "items": ["tea, 500 g"]},
        ],
    }


async def last(ctx: Any, input: dict[str, Any]) -> Any:
    await asyncio.sleep(3_600)


def repeat(ctx: Any, input: dict[str, Any]) -> Any:
    return input["text"] * input.get("times", 1)


def pay(ctx: Any, input: dict[str, Any]) -> Any:
    return {"paid": input["amount"]}


def report(ctx: Any, input: dict[str, Any]) -> Any:
    return ctx.pending("report-7", {"place": 3})


def send(ctx: Any, input: dict[str, Any]) -> Any:
    raise RuntimeError(f"{input['to']} was not reached: {input.get('text', 'the mail server is busy')}")


def crash(ctx: Any, input: dict[str, Any]) -> Any:
    os._exit(3)


handlers = {
    "find": find,
    "export": last,
    "sync": last,
    "repeat": repeat,
    "pay": pay,
    "report": report,
    "send": send,
    "crash": crash,
}

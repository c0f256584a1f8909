"""An MCP server that can do everything badly: ``python moody_server.py LIVES_FILE``.

It speaks version 2025-06-18 of the protocol by standard input and output, one message at a time, and writes
its process id into LIVES_FILE each time that it starts. A file ``<LIVES_FILE>.ill`` keeps it from starting.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ANYTHING: Json = {"type": "object"}
#: an old draft, a reference, and words that no validator knows
UNUSUAL: Json = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "definitions": {"name": {"type": "string", "x-shown-as": "name"}},
    "properties": {
        "name": {"$ref": "#/definitions/name"},
        "size": {"anyOf": [{"type": "integer"}, {"const": "all"}]},
    },
    "required": ["name"],
}
#: some checkers need twice the time for each further letter
AS_ONLY: Json = {"type": "object", "properties": {"fact": {"type": "string", "pattern": "^(a|a)*$"}}}
PLAIN = [
    *("babble", "child", "die", "echo", "environment", "fail", "fall_deaf", "fall_silent", "freeze"),
    *("grow", "hang", "mumble", "nap", "nest", "rant", "refuse", "reject", "shrink"),
]
READ_ONLY: Json = {"readOnlyHint": True}
REPEATABLE: Json = {"idempotentHint": True, "destructiveHint": True}


class Moody:
    """The server."""

    def __init__(self) -> None:
        self.tools: dict[str, Json] = {name: {"name": name, "inputSchema": ANYTHING} for name in PLAIN}
        self.tools |= {
            "count": {"name": "count", "inputSchema": ANYTHING, "annotations": READ_ONLY},
            "ponder": {"name": "ponder", "inputSchema": ANYTHING, "annotations": READ_ONLY},
            "picture": {"name": "picture", "inputSchema": ANYTHING, "annotations": REPEATABLE},
            "facts": {
                "name": "facts",
                "description": "Facts.",
                "inputSchema": UNUSUAL,
                "outputSchema": AS_ONLY,
            },
            "given.up/so far": {"name": "given.up/so far", "inputSchema": ANYTHING},
            "broken": {"name": "broken", "inputSchema": {"type": "object", "properties": {"x": {"type": 7}}}},
        }
        self.given_up: list[Any] = []
        #: the id of the request that is answered
        self.number: Any = None

    def run(self) -> None:
        """Answer until there is no more to read."""
        for line in sys.stdin:
            message = json.loads(line)
            method = message.get("method")
            if method == "notifications/cancelled":
                self.given_up.append(message["params"]["reason"])
            elif "id" in message:
                self.answer(message, method)

    def answer(self, message: Json, method: str) -> None:
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            version = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "moody", "version": "1"}}
            send({"id": message["id"], "result": {"capabilities": capabilities, **version}})
        elif method == "tools/list":
            send({"id": message["id"], "result": self.page((message.get("params") or {}).get("cursor"))})
        elif method == "tools/call":
            self.call(message["id"], message["params"])
        else:
            send({"id": message["id"], "error": {"code": -32601, "message": f"no {method} here"}})

    def page(self, cursor: str | None) -> Json:
        """Return ten tools at a time."""
        begin = int(cursor or 0)
        page: Json = {"tools": list(self.tools.values())[begin : begin + 10]}
        return {**page, "nextCursor": str(begin + 10)} if begin + 10 < len(self.tools) else page

    def call(self, number: Any, params: Json) -> None:
        self.number = number
        handler: Callable[[Json, Json], Any] = getattr(self, params["name"].partition(".")[0])
        result = handler(params.get("arguments") or {}, params.get("_meta") or {})
        if result is not None:
            send({"id": number, **({"error": result["error"]} if "error" in result else {"result": result})})

    def echo(self, arguments: Json, _meta: Json) -> Json:
        return text(arguments["text"])

    def facts(self, arguments: Json, _meta: Json) -> Json:
        return {**text("a fact"), "structuredContent": {"fact": arguments["name"]}}

    def picture(self, _arguments: Json, _meta: Json) -> Json:
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}

    def fail(self, arguments: Json, _meta: Json) -> Json:
        return {**text("no such city: Atlantis"), "isError": True}

    def refuse(self, _arguments: Json, _meta: Json) -> Json:
        return {"error": {"code": -32602, "message": f"the key {os.environ['API_KEY']} is not welcome"}}

    def reject(self, arguments: Json, _meta: Json) -> Json:
        """Fail, and say the key in an error text and on standard error."""
        key = os.environ["API_KEY"]
        sys.stderr.write(f"{arguments.get('before', '')}401 for key {key}\n")
        sys.stderr.flush()
        return {**text(f"401 for key {key}"), "isError": True}

    def nest(self, arguments: Json, _meta: Json) -> None:
        """Answer with lists in lists; the number of the call comes last."""
        deep = "[" * arguments["depth"] + "]" * arguments["depth"]
        result = f'{{"content": [], "structuredContent": {{"\\"id\\": 7, ": {deep}}}}}'
        print(f'{{"jsonrpc": "2.0", "result": {result}, "id": {self.number}}}', flush=True)

    def mumble(self, arguments: Json, _meta: Json) -> None:
        """Answer with what is not an answer."""
        send({"id": self.number, **arguments})

    def count(self, arguments: Json, meta: Json) -> Json:
        for step in range(1, arguments["to"] + 1):
            progress = {"progressToken": meta["progressToken"], "progress": step, "total": arguments["to"]}
            send({"method": "notifications/progress", "params": {**progress, "message": f"at {step}"}})
        return text(str(arguments["to"]))

    def given(self, _arguments: Json, _meta: Json) -> Json:
        return text(json.dumps(self.given_up))

    def environment(self, _arguments: Json, _meta: Json) -> Json:
        return text(json.dumps(dict(os.environ)))

    def child(self, _arguments: Json, _meta: Json) -> Json:
        sleeper = subprocess.Popen(
            ["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        return text(str(sleeper.pid))

    def hang(self, _arguments: Json, _meta: Json) -> None:
        """Never answer this call, but every other one."""

    def ponder(self, _arguments: Json, _meta: Json) -> Json | None:
        """Never answer the first time."""
        if MOOD.exists():
            return text("so be it")
        MOOD.touch()
        return None

    def freeze(self, _arguments: Json, _meta: Json) -> None:
        """Never answer anything any more."""
        MOOD.touch()
        time.sleep(600)

    def nap(self, arguments: Json, _meta: Json) -> Json:
        time.sleep(arguments["seconds"])
        return text("rested")

    def babble(self, arguments: Json, _meta: Json) -> Json:
        for _ in range(arguments["times"]):
            send({"method": "notifications/tools/list_changed"})
        return text("heard?")

    def rant(self, arguments: Json, _meta: Json) -> Json:
        return text("!" * arguments["characters"])

    def fall_silent(self, _arguments: Json, _meta: Json) -> None:
        """Say nothing more, but live on, whoever asks to end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(1)
        time.sleep(600)

    def fall_deaf(self, _arguments: Json, _meta: Json) -> None:
        """Hear nothing more."""
        os.close(0)
        MOOD.touch()
        time.sleep(600)

    def die(self, _arguments: Json, _meta: Json) -> None:
        sys.stderr.write("out of cheese\n")
        sys.stderr.flush()
        os._exit(7)

    def grow(self, _arguments: Json, _meta: Json) -> Json:
        self.tools["late"] = {"name": "late", "inputSchema": ANYTHING}
        self.tools["echo"] = {**self.tools["echo"], "description": "Louder."}
        send({"method": "notifications/tools/list_changed"})
        return text("grown")

    def shrink(self, _arguments: Json, _meta: Json) -> Json:
        del self.tools["late"]
        send({"method": "notifications/tools/list_changed"})
        return text("shrunk")


def text(words: str) -> Json:
    """Return a result that is text."""
    return {"content": [{"type": "text", "text": words}]}


def send(message: Json) -> None:
    """Write a message, and something that is none."""
    print("mind you:", message.get("id"))
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    LIVES = Path(sys.argv[1])
    #: tells that it has come to the bad part
    MOOD = LIVES.with_name(f"{LIVES.name}.mood")
    with LIVES.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    if LIVES.with_name(f"{LIVES.name}.ill").exists():
        sys.exit("I am not well")
    Moody().run()

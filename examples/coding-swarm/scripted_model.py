"""A stand-in for a model: a server of OpenAI's chat completions that knows the answers for one task.

It needs no key and no network, and says the same each time. Like a model it knows nothing but the
conversation: what was asked for, and what the tools have answered.

    python scripted_model.py [PORT]
"""

import json
import shlex
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8911

Messages = list[dict[str, Any]]

SOURCE = '''\
"""Count the words of text files."""

import json
import sys
from pathlib import Path


def count_words(text):
    return len(text.split())


def main(paths):
    """Print the words of all files, and of each, as JSON."""
    words = {path: count_words(Path(path).read_text(encoding="utf-8")) for path in sorted(paths)}
    print(json.dumps({"total": sum(words.values()), "files": words}))


if __name__ == "__main__":
    main(sys.argv[1:])
'''

TEST = '''\
"""Tests of wordcount."""

import unittest

from wordcount import count_words


class WordcountTest(unittest.TestCase):
    def test_words_are_separated_by_any_white_space(self):
        self.assertEqual(count_words("one two\\nthree\\t four"), 4)

    def test_an_empty_text_has_no_words(self):
        self.assertEqual(count_words("  \\n"), 0)
'''

SKELETON = {
    "module": "wordcount",
    "summary": "Count words.",
    "functions": [{"name": "count_words", "arguments": ["text"], "summary": "Count the words of a text."}],
}
ASK_REVIEWER = ("agents__request", {"target": "reviewer", "input": {"glob": "wordcount.py"}})
RUN = f"{shlex.quote(sys.executable)} -B wordcount.py wordcount.py test_wordcount.py"


def answer(messages: Messages) -> str | list[tuple[str, Any]]:
    """Return the agent's next text, or its tool calls with their arguments."""
    prompt = "".join(one["content"] for one in messages if one["role"] == "system")
    last = max(place for place, one in enumerate(messages) if one["role"] == "user")
    task, results = messages[last]["content"], results_of(messages[last:])
    if task.startswith("Your answer"):  # the answer did not fit the request, and the script knows no other
        return messages[last - 1]["content"]
    script = {"You are the planner": plan, "You are the coder": code, "You are the reviewer": review}
    act = next((act for begin, act in script.items() if begin in prompt), lambda *_: "I know one task only.")
    return act(task, results)


def plan(task: str, results: list[tuple[str, Any]]) -> str | list[tuple[str, Any]]:
    if not ("count" in task and "words" in task):
        return "I am a script and no model: I can only have a module written that counts words."
    if not results:
        return [("plan__outline", {"task": task, "format": "markdown"})]
    name, output = results[-1]
    if name == "plan__outline":
        return [("agents__request", {"target": "coder", "input": output["markdown"]})]
    if "error" in output:
        return f"The coder has failed: {output['error']}"
    work = output["response"]
    return (
        f"{work['module']} is written: {work['tests']} tests pass, and the reviewer had nothing left to say "
        f"in round {work['rounds']}. It counts its own words: {json.dumps(work['output'])}"
    )


def code(_: str, results: list[tuple[str, Any]]) -> str | list[tuple[str, Any]]:
    def write(path: str, content: str) -> tuple[str, Any]:
        return "file-system__write", {"path": path, "content": content}

    if not results:
        return [("python-project__scaffold", SKELETON)]
    name, output = results[-1]
    if "error" in output:
        return f"I cannot go on: {output['error']}"
    if name == "python-project__scaffold":
        return [write("test_wordcount.py", TEST), write("wordcount.py", SOURCE)]
    if name == "file-system__write":
        return [("python-project__run-tests", {}), ASK_REVIEWER]
    if name == "agents__request":
        findings = output["response"]["findings"]
        return (
            [write("wordcount.py", corrected(SOURCE, findings))]
            if findings
            else [("bash__exec", {"command": RUN})]
        )
    tests = next(tests for name, tests in reversed(results) if name == "python-project__run-tests")
    rounds = sum(name == "agents__request" for name, _ in results)
    work = {"module": "wordcount.py", "tests": tests["ran"], "rounds": rounds}
    return json.dumps({**work, "output": json.loads(output["stdout"])})


def review(task: str, results: list[tuple[str, Any]]) -> str | list[tuple[str, Any]]:
    if not results:
        return [("review__style", {"glob": "wordcount.py" if "wordcount" in task else "*.py"})]
    findings = results[-1][1]["findings"]
    return json.dumps({"findings": [{"line": one["line"], "message": one["message"]} for one in findings]})


def corrected(source: str, findings: list[dict[str, Any]]) -> str:
    """Add a docstring to each function that the reviewer has named, below its line."""
    lines = source.splitlines(keepends=True)
    for finding in sorted(findings, key=lambda finding: -finding["line"]):
        name = finding["message"].split()[0]
        lines.insert(finding["line"], f'    """{name.replace("_", " ").capitalize()}."""\n')
    return "".join(lines)


def results_of(messages: Messages) -> list[tuple[str, Any]]:
    """Return the tools' names and outputs since the start of the task."""
    called = {
        call["id"]: call["function"]["name"] for one in messages for call in one.get("tool_calls") or ()
    }
    return [
        (called[one["tool_call_id"]], decoded(one["content"])) for one in messages if one["role"] == "tool"
    ]


def decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def completion(asked: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the body of an answer."""
    said = answer(asked["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if not isinstance(said, str):
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(args)},
            }
            for place, (name, args) in enumerate(said)
        ]
    read, written = len(json.dumps(asked)) // 4, len(json.dumps(message)) // 4
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": asked["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "stop" if isinstance(said, str) else "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def pieces(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an answer as the chunks of a stream, a word at a time."""
    [choice], usage = body.pop("choices"), body.pop("usage")
    message = choice["message"]
    calls = [{"index": place, **call} for place, call in enumerate(message.get("tool_calls") or ())]
    words = (message["content"] or "").split(" ")
    texts = (
        [word if place == 0 else f" {word}" for place, word in enumerate(words)] if message["content"] else []
    )
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    deltas += [{"tool_calls": calls}] if calls else []
    head = {**body, "object": "chat.completion.chunk"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    return [*chunks, {**head, "choices": [end]}, {**head, "choices": [], "usage": usage}]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = completion(asked, len(asked["messages"]))
        if asked.get("stream"):
            lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in pieces(body)]
            self._send("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))
        else:
            self._send("application/json", json.dumps(body))

    def _send(self, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class ScriptedModel(ThreadingHTTPServer):
    """The server; port 0 chooses a free one."""

    request_queue_size = 128

    def __init__(self, port: int = PORT) -> None:
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""


if __name__ == "__main__":
    with ScriptedModel(int(sys.argv[1]) if len(sys.argv) > 1 else PORT) as server:
        print(f"A scripted model answers at http://127.0.0.1:{server.server_port}/v1", flush=True)
        server.serve_forever()

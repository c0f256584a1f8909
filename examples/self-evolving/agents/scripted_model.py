"""A stand-in for the clerk's model: a script that knows one way to get a tool. It needs no API key."""

from collections.abc import Generator
from typing import Any

from goondan_tasks.agent_api import HandoffError, JsonObject

#: the code added to tools/text.py
HANDLER = '''

async def {name}(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Count {name}."""
    return {{"{name}": len({found}), "edition": EDITION}}


handlers["{name}"] = {name}
'''
#: the export added to tools.yaml
EXPORT = """\
    - name: {name}
      description: Count the {name} of a text.
      idempotent: true
      parameters:
        type: object
        properties:
          text: {{ type: string }}
        required: [text]
        additionalProperties: false
"""
#: the parts of a text that the script can count
FOUND = {"words": 'input["text"].split()', "letters": '[c for c in input["text"] if c.isalpha()]'}

#: the names of the tools that a Step shows, and the outputs of the calls of the Step before
Seen = tuple[set[str], list[Any]]


class ScriptedModel:
    """One conversation: ``reply`` is called in each Step until it calls no tool; then ``answer`` is set."""

    def __init__(self, count: str, text: str) -> None:
        self._count, self._text = count, text
        self.answer: JsonObject | None = None
        self._conversation = self._script()
        next(self._conversation)

    def reply(self, catalog: Any, results: list[Any]) -> list[JsonObject]:
        """Return the tool calls of a Step."""
        return self._conversation.send(({item.name for item in catalog}, results))

    def _script(self) -> Generator[list[JsonObject], Seen, None]:
        tool, revision = f"text__{self._count}", None
        shown, _ = yield []
        if tool not in shown:
            revision = yield from self._evolve(tool)
        _, [counted] = yield [call(tool, text=self._text)]
        self.answer = {**counted, "revision": revision}
        yield []

    def _evolve(self, tool: str) -> Generator[list[JsonObject], Seen, str]:
        """Write the tool into the bundle, and return the revision that has it."""
        if self._count not in FOUND:
            raise HandoffError(
                f"There is no model here, and the script cannot count {self._count}.",
                suggestion=f"Ask for one of {', '.join(FOUND)}, or call a model in agents/clerk.py.",
            )
        _, [opened] = yield [call("swarm-bundle__open-changeset", reason=f"A tool to count {self._count}")]
        folder = f"{opened['workdir']}/{opened['hint']['bundleRootInWorkdir']}"
        files = [f"{folder}/tools/text.py", f"{folder}/tools.yaml"]
        _, (source, declared) = yield [call("file-system__read", path=file) for file in files]
        texts = self._next_edition(source["content"]), declared["content"] + EXPORT.format(name=self._count)
        _, _ = yield [
            *(
                call("file-system__write", path=file, content=text)
                for file, text in zip(files, texts, strict=True)
            ),
            call(
                "bash__exec", command=f"echo 'You can count {self._count}.' >> prompts/clerk.md", cwd=folder
            ),
        ]
        commit = {"changesetId": opened["changesetId"], "message": f"Count {self._count}"}
        shown, [committed] = yield [call("swarm-bundle__commit-changeset", **commit)]
        if tool not in shown:
            why = committed.get("error", committed)
            raise HandoffError(f"The next Step does not have {tool}: {why}")
        return str(committed["newRef"])

    def _next_edition(self, source: str) -> str:
        line = next(line for line in source.splitlines() if line.startswith("EDITION = "))
        handler = HANDLER.format(name=self._count, found=FOUND[self._count])
        return source.replace(line, f"EDITION = {int(line.split()[-1]) + 1}") + handler


def call(tool: str, **args: Any) -> JsonObject:
    """Write a tool call as a model does."""
    return {"id": f"call_{tool}", "name": tool, "args": args}

"""What happens in the demo: one task for the swarm, a few mistakes, and the trace of it all."""

import uuid

from goondan_tasks.cli.demo_following import Following
from goondan_tasks.cli.demo_screen import DemoScreen
from goondan_tasks.client import Client
from goondan_tasks.errors import GoondanError
from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.trace import Trace

TIMEOUT_SECONDS = 45.0

TASK = "Write a module that counts the words of files. Write its test and run it. Then review the style."
WITHOUT_A_MODEL = "Write a game of chess."

#: calls that must fail: agent, tool, arguments, and the code of the error
MISTAKES = (
    ("planner", "bash__exec", {"command": "ls"}, "E_TOOL_NOT_IN_CATALOG"),
    ("coder", "bash__exec", {"cmd": "ls"}, "E_TOOL_INVALID_ARGS"),
    ("coder", "file-system__read", {"path": "../../../../etc/passwd"}, "E_PATH_OUTSIDE_WORKDIR"),
)


class UnexpectedResult(GoondanError):  # noqa: N818 - it is the result that is unexpected
    """Something in the demo did not end as it should."""

    suggestion = "Run `goondan doctor`; if nothing is wrong there, this is a defect: please report it."


class Story:
    """Asks the example swarm, as a program outside of it would, and checks what comes of it."""

    def __init__(self, client: Client, screen: DemoScreen) -> None:
        self._client = client
        self._screen = screen
        self._instance_key = f"demo-{uuid.uuid4().hex[:4]}"
        self._answer: JsonObject = {}
        self._errors: list[JsonObject] = []
        self._traces: list[Trace] = []

    def tell(self) -> None:
        """Tell all of it.

        Raises:
            UnexpectedResult: something did not end as it should.
        """
        self._screen.chapter("One request; planner, coder and reviewer hand the work to each other")
        done = self._request(TASK)
        check(done.error is None, f"the swarm answered with an error: {done.error}")
        self._answer = done.output
        check(self._answer["tests"] == 2 and self._answer["rounds"] == 2, "two rounds, and two tests pass")
        nodes = self._traces[0].nodes
        check(all(node.state == "ok" for node in nodes), "every call and handoff ends well")
        check({node.agent for node in nodes} == {"planner", "coder", "reviewer"}, "each agent has its part")

        self._screen.chapter("The answer")
        self._screen.answer(self._answer)

        self._screen.chapter("Mistakes are answers too")
        for agent, tool, args, code in MISTAKES:
            result = self._client.call(
                agent, tool, args, timeout=TIMEOUT_SECONDS, instance_key=self._instance_key
            )
            self._screen.mistake(agent, tool, args, result)
            self._note_error(result, code)

        self._screen.chapter("So is what an agent cannot do: the coder's error reaches whoever asked")
        self._note_error(self._request(WITHOUT_A_MODEL), "E_AGENT_FAILED")

        self._screen.chapter("The trace of the task, as `goondan trace` draws it")
        self._screen.trace(self._traces[0])

    def report(self) -> JsonObject:
        """Sum up what has happened."""
        return {
            "instanceKey": self._instance_key,
            "task": TASK,
            "answer": self._answer,
            "errors": self._errors,
            "traces": [trace.to_wire() for trace in self._traces],
        }

    def _request(self, task: str) -> ToolCallResult:
        call, pending = self._client.ask(
            "planner", task, timeout=TIMEOUT_SECONDS, instance_key=self._instance_key
        )
        following = Following(self._client, call.correlation_id)
        self._screen.asked("planner", task)
        with self._screen.waiting("The swarm works"):
            for news in following.news():
                self._screen.news(news)
        self._traces.append(following.trace())
        return pending.result(TIMEOUT_SECONDS)

    def _note_error(self, result: ToolCallResult, code: str) -> None:
        error = result.error
        check(error is not None and error.code == code, f"{result.tool_name} should have answered {code}")
        if error is not None:
            self._errors.append(error.to_wire())


def check(holds: bool, what: str) -> None:
    """Go on if it holds.

    Raises:
        UnexpectedResult: it does not; ``what`` says what was expected.
    """
    if not holds:
        raise UnexpectedResult(what)

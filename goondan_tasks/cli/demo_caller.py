"""How the demo calls tools: submit, show, wait, check, remember."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from goondan_tasks.cli.demo_screen import DemoScreen
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.errors import GoondanError
from goondan_tasks.messages import JsonObject, ToolCallResult

TIMEOUT_SECONDS = 30.0


class UnexpectedResult(GoondanError):  # noqa: N818 - it is the result that is unexpected
    """A call of the demo did not end as it should."""

    suggestion = "Run `goondan doctor`; if nothing is wrong there, this is a defect: please report it."


class DemoCaller:
    """Calls tools for one instance, and keeps every result in order of arrival."""

    def __init__(self, client: Client, screen: DemoScreen, instance_key: str) -> None:
        self._client = client
        self._screen = screen
        self._instance_key = instance_key
        self.results: list[ToolCallResult] = []

    def call(self, agent: str, tool: str, args: JsonObject) -> Any:
        """Call a tool and return its output.

        Raises:
            UnexpectedResult: the tool answered with an error.
        """
        return self.call_together(agent, tool, [args])[0]

    def call_together(self, agent: str, tool: str, many_args: Iterable[JsonObject]) -> list[Any]:
        """Submit calls at once; return their outputs in order; raises as :meth:`call` does."""
        calls = [self._submit(agent, tool, args) for args in many_args]
        results = self._wait(calls, f"{agent} · {tool}")
        for result in results:
            check(result.status == "ok", f"{tool} answered with an error: {result.error}")
        return [result.output for result in results]

    def call_and_fail(self, agent: str, tool: str, args: JsonObject, code: str) -> None:
        """Call a tool that must answer with the error ``code``.

        Raises:
            UnexpectedResult: it does not.
        """
        [result] = self._wait([self._submit(agent, tool, args)], f"{agent} · {tool}")
        error = result.error
        check(error is not None and error.code == code, f"{tool} should have answered {code}")

    def report(self) -> JsonObject:
        """Sum up what was called: counts, calls of each worker, every result."""
        return {
            "instanceKey": self._instance_key,
            "counts": Counter(result.status for result in self.results),
            "workers": Counter(result.meta.worker for result in self.results),
            "results": [result.to_wire() for result in self.results],
        }

    def _submit(self, agent: str, tool: str, args: JsonObject) -> PendingCall:
        return self._client.submit(
            agent,
            tool,
            args,
            instance_key=self._instance_key,
            turn_id=f"{self._instance_key}-turn",
            correlation_id=self._instance_key,
        )

    def _wait(self, calls: list[PendingCall], what: str) -> list[ToolCallResult]:
        with self._screen.waiting(what):
            return asyncio.run(self._arrive(calls))

    async def _arrive(self, calls: list[PendingCall]) -> list[ToolCallResult]:
        return await asyncio.gather(*map(self._show, calls))

    async def _show(self, call: PendingCall) -> ToolCallResult:
        result = await call.wait(TIMEOUT_SECONDS)
        self.results.append(result)
        self._screen.result(result)
        return result


def check(holds: bool, what: str) -> None:
    """Go on if it holds.

    Raises:
        UnexpectedResult: it does not; ``what`` says what was expected.
    """
    if not holds:
        raise UnexpectedResult(what)

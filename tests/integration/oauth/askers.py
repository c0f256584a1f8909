"""Processes that ask for tokens, for tests that count what reaches the provider."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from goondan_tasks.oauth.manager import IN_DOUBT_SECONDS
from goondan_tasks.oauth.redis_store import LOCK_SECONDS
from tests.oauth_server.running import OAuthServer

SUBJECT = "slack:user:U1"
_ROOT = Path(__file__).parents[3]


class Asker:
    """A process that asks for tokens; its start takes most of a test's time, so the next test has it too."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.oauth.asker"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def said(self) -> str:
        """Return the next line; empty if the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        with self.process:
            self.process.kill()


class Askers:
    """Processes that ask for one subject's token."""

    def __init__(self, server: OAuthServer, place: str, idle: list[Asker], **spec: Any) -> None:
        self.server, self.place, self._idle, self._spec = server, place, idle, spec

    def start(
        self,
        count: int,
        *,
        dies: bool = False,
        lock_seconds: float = LOCK_SECONDS,
        in_doubt_seconds: float = IN_DOUBT_SECONDS,
    ) -> list[Asker]:
        """Have so many ready to ask; who calls this ends them, or leaves them to the next test."""
        asked = {"server": self.server.url, "store": self.place, "subject": SUBJECT, "dies": dies}
        asked |= {"lockSeconds": lock_seconds, "inDoubtSeconds": in_doubt_seconds, "spec": self._spec}
        chosen = [self._idle.pop() if self._idle else Asker() for _ in range(count)]
        for asker in chosen:
            asker.tell(json.dumps(asked))
        assert [asker.said() for asker in chosen] == ["ready\n"] * count
        return chosen

    def ask(self, count: int, **ways: Any) -> list[dict[str, Any]]:
        """Have so many ask at once; who dies answers nothing."""
        return self.answers(self.go(count, **ways))

    def go(self, count: int, **ways: Any) -> list[Asker]:
        """Have so many ask at once, and return before they are answered."""
        chosen = self.start(count, **ways)
        for asker in chosen:
            asker.tell("go")
        return chosen

    def answers(self, chosen: Iterable[Asker]) -> list[dict[str, Any]]:
        """Wait for what askers are answered."""
        chosen = list(chosen)
        texts = [asker.said() for asker in chosen]
        for asker, text in zip(chosen, texts, strict=True):
            if text:
                self._idle.append(asker)
            else:
                asker.end()
        return [json.loads(text) for text in texts if text]

    def refreshes(self) -> int:
        """Return how often the server was asked for a refresh."""
        return int(self.server.seen()["counts"].get("refresh_token", 0))

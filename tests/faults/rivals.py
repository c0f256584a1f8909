"""A process that completes calls as fast as it can; another one does the same at the same time.

It reads ``{"url", "deed", "name", "ids"}`` from standard input, says ``ready``, waits for a second line, and
then prints the ids whose outcome is its own.
"""

import json
import sys
from collections.abc import Callable

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import CallClosedError, CallNotPendingError


def main() -> None:
    order = json.loads(sys.stdin.readline())
    with Client.connect(order["url"]) as client:
        client.approvals("builder")  # connected before the start
        print("ready", flush=True)
        sys.stdin.readline()
        won = [one for one in order["ids"] if _wins(_deed(client, order), one)]
    print(json.dumps(won), flush=True)


def _deed(client: Client, order: dict[str, str]) -> Callable[[str], None]:
    name = order["name"]
    deeds: dict[str, Callable[[str], None]] = {
        "resolve": lambda call_id: client.resolve(call_id, name),
        "fail": lambda call_id: client.fail(call_id, name),
        "cancel": client.cancel,
        "approve": lambda call_id: client.approve(call_id, by=name),
        "deny": lambda call_id: client.deny(call_id, by=name),
    }
    return deeds[order["deed"]]


def _wins(deed: Callable[[str], None], call_id: str) -> bool:
    try:
        deed(call_id)
    except (CallClosedError, CallNotPendingError):
        return False
    return True


if __name__ == "__main__":
    main()

"""A broker beside the ledger's Redis."""

from goondan_tasks.messages import ToolCall


class OtherBroker:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def inline(self, call_id: str, call: ToolCall, wire: bytes, args: bytes | None = None) -> bytes:
        return b""

    def send(self, call_id: str, call: ToolCall) -> None:
        self.sent.append(call_id)

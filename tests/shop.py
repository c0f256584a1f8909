"""A swarm to look at: the agents of a shop, with calls in every state, and the address of the console."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.machine.process import url_of
from goondan_tasks.testing import LocalStack
from goondan_web.application import make_application
from goondan_web.doors.console import console_door
from goondan_web.server import served
from tests.model_server import Answer, Asked, Call, ModelServer
from tests.waiting import wait_until

BUNDLE = Path(__file__).parent / "bundles" / "console"
NO_MODEL = "http://127.0.0.1:9/v1"
#: a call that killed its worker is found soon
ENVIRONMENT = {"GOONDAN_LEASE_SECONDS": "5"}
PATIENCE = 120
QUESTION = "Where is my tea? And the kettle is broken: I want my money back."


@dataclass(frozen=True, slots=True)
class Shop:
    """The running swarm."""

    url: str
    client: Client
    stack: LocalStack
    model: ModelServer

    def held(self, order: str, instance: str = "customer-1041") -> PendingCall:
        """Submit a refund, and wait until it waits for an approval."""
        args = {"order": order, "amount": 129.9, "reason": "The kettle is broken."}
        call = self.client.submit("support", "refunds__pay", args, instance_key=instance)
        assert call.result(PATIENCE).meta.awaits == "approval"
        return call

    def in_state(self, state: str, agent: str, tool: str, **args: object) -> PendingCall:
        """Submit a call, and wait until it is in a state."""
        call = self.client.submit(agent, tool, dict(args), instance_key="office")
        wait_until(lambda: self.client.record(call.id).state == state, PATIENCE, show=lambda: call.result(0))
        return call


@contextmanager
def shop(change: Callable[[str], str] = lambda text: text) -> Iterator[Shop]:
    """Start the swarm; ``change`` may rewrite its YAML. The agent ``archive`` has no worker."""
    with (
        ModelServer(answer_customer) as model,
        _bundle(lambda text: change(text.replace(NO_MODEL, model.url))) as bundle,
        LocalStack(bundle, ["support", "billing"], environment=ENVIRONMENT, apart=True) as stack,
        listening_socket("127.0.0.1", 0) as server,
    ):
        settings = stack.client.settings
        application = make_application([console_door(stack.client, settings)], settings, "127.0.0.1")
        with served(application, server):
            yield Shop(url_of(server), stack.client, stack, model)


@contextmanager
def _bundle(change: Callable[[str], str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        bundle = Path(shutil.copytree(BUNDLE, Path(place) / "shop"))
        resources = bundle / "goondan.yaml"
        resources.write_text(change(resources.read_text("utf-8")), "utf-8")
        yield bundle


def answer_customer(asked: Asked) -> Answer:
    """Look at the orders, ask the agent of the invoices, answer."""
    answers = sum(one.role == "tool" for one in asked.said)
    if "agents__request" not in asked.tools:
        if answers == 0:
            return Answer("I look at the invoice.", (Call("orders__find", {"customer": "1041", "limit": 1}),))
        return Answer("Order A-1041 was paid on 3 November: 129.90 €.")
    if answers == 0:
        return Answer("Let me look at your orders.", (Call("orders__find", {"customer": "1041"}),))
    if answers == 1:
        question = {"target": "billing", "input": "Was order A-1041 paid?"}
        return Answer("", (Call("agents__request", question), Call("mail__send", {"to": "warehouse"})))
    return Answer("The tea is on its way. The kettle was paid, so I can ask for a refund of 129.90 €.")


def fill(at: Shop) -> str:
    """Bring calls into all states; return the id of the trace that leads over two agents."""
    client = at.client
    turn = client.start_turn("support", QUESTION, instance_key="customer-1041")
    turn.result(PATIENCE)
    wait_until(lambda: len(client.handoffs().edges) == 2, PATIENCE)  # before workers die with their counts
    for number in range(12):
        client.call("support", "orders__find", {"customer": str(1_000 + number)}, timeout=PATIENCE)
    for name in ("anna@example.com", "ben@example.com"):
        client.call("support", "mail__send", {"to": name}, timeout=PATIENCE)
    for _ in range(2):
        at.in_state("dead", "billing", "mail__crash", file="invoices.xlsx")
        at.stack.start_worker(["billing"])
    at.in_state("running", "support", "orders__export", format="csv")
    at.in_state("running", "support", "orders__sync", warehouse="north")
    for place in ("south", "west"):
        at.in_state("waiting", "support", "orders__sync", warehouse=place)
    at.in_state("pending", "support", "refunds__report", month="2026-10")
    at.in_state("queued", "archive", "orders__find", customer="1041")
    later = client.submit("support", "orders__find", {"customer": "1041"}, delay=3_600.0)
    assert later.status() == "scheduled"
    for order in ("A-1041", "A-0993"):
        at.held(order)
    client.pause("billing", "mail__send", "The mail server is being repaired.", "ann")
    return client.record(turn.id).call.correlation_id

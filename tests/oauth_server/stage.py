"""The flows of one OAuthApp against the authorization server, with a store in files and its own clock."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import AgentEvent, JsonObject, wall_clock
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import Callback, Maintenance, make_manager
from goondan_tasks.oauth.crypto import Cipher, Keyring
from goondan_tasks.oauth.file_store import FileStore
from goondan_tasks.oauth.manager import AuthorizationRequired
from goondan_tasks.oauth.records import Resume
from tests.oauth_server.apps import CALLBACK, make_oauth_app
from tests.oauth_server.running import OAuthServer

PUBLIC_URL = "http://127.0.0.1:9"
REDIRECT_URI = f"{PUBLIC_URL}{CALLBACK}"
KEY = "a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U="

PLANNER = Resume(
    swarm="default",
    agent_name="planner",
    instance_key="thread-1",
    origin={"connector": "slack-main", "channel": "C123"},
    auth={"subjects": {"user": "slack:user:U1"}},
    trace_id="ab" * 16,
    correlation_id="corr-1",
)


@dataclass
class Sent:
    """An event that an agent was given."""

    agent: str
    event: AgentEvent
    fields: JsonObject


@dataclass
class Stage:
    """All that takes part; ``ahead_ms`` moves the clock of the store and the flows."""

    server: OAuthServer
    root: Path
    spec: JsonObject = field(default_factory=dict)
    ahead_ms: float = 0
    is_broker_away: bool = False
    sent: list[Sent] = field(default_factory=list)
    subject: str = "slack:user:U1"

    def __post_init__(self) -> None:
        self.app: OAuthApp = make_oauth_app(self.server.url, **self.spec)
        self.store = FileStore(self.root / "oauth", Cipher(Keyring.of((KEY,))), self.clock)
        apps = {self.app.name: self.app}
        self.manager = make_manager(apps, self.store, public_url=PUBLIC_URL, clock=self.clock)
        self.callback = Callback(apps, self.store, self.send, self.clock, PUBLIC_URL)
        self.maintenance = Maintenance(self.callback)

    def clock(self) -> float:
        return wall_clock() + self.ahead_ms

    def send(self, agent: str, input: AgentEvent, **fields: Any) -> None:
        if self.is_broker_away:
            raise BrokerUnreachableError
        self.sent.append(Sent(agent, input, fields))

    def begin(
        self, scopes: tuple[str, ...] = ("chat:write",), resume: Resume | None = PLANNER
    ) -> AuthorizationRequired:
        """Ask for consent."""
        return self.manager.consent.begin(self.app, self.subject, scopes, resume)

    def redirect(
        self, required: AuthorizationRequired, *, user: str = "U1", allow: bool = True
    ) -> dict[str, str]:
        """Let a user decide; return the query with which his browser is sent back."""
        place = self.server.decide(required.authorization_url, user=user, allow=allow)
        assert place.startswith(f"{REDIRECT_URI}?")
        return query_of(place)

    def receive(self, query: dict[str, str], path: str = CALLBACK) -> None:
        """Take a redirect that arrives at a path."""
        self.callback.receive(query, path)

    def grants(self) -> list[str]:
        """Return whose grants there are."""
        return [grant.subject for grant in self.store.grants()]


def query_of(url: str) -> dict[str, str]:
    """Return the parameters of a URL."""
    return dict(parse_qsl(urlsplit(url).query))

"""Tokens for connectors of Connections with an OAuthApp (000 §12.5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goondan_tasks.authoring.handoff import random_id
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.oauth.manager import MIN_TTL_SECONDS, OAuthManager
from goondan_tasks.oauth.records import Resume


@dataclass(frozen=True, slots=True)
class ConnectionTokens:
    """Answers the requests of one Connection's connector; a call blocks."""

    manager: OAuthManager
    #: the name of the Connection's OAuthApp
    app: str
    connection: str
    #: the Swarm and the agent that are told of a consent
    swarm: str
    agent: str

    def __call__(self, request: Any) -> JsonObject:
        """Return an OAuthTokenResult (000 §12.5.2).

        A connector has no Turn, so it says whose token it wants: ``subject``, or ``auth`` as its events have
        it. When a user has consented, the agent's instance ``instanceKey`` is told, by default the one that
        is named as the Connection.

        Raises:
            ConnectorError: the request is not an object.
        """
        if not isinstance(request, Mapping):
            raise ConnectorError("getAccessToken takes an object such as {subject: …}.")
        subject, auth, key = (request.get(name) for name in ("subject", "auth", "instanceKey"))
        if not isinstance(auth, Mapping):
            mode = self.manager.apps[self.app].subject_mode
            auth = {"subjects": {mode: subject}}
        resume = Resume(
            swarm=self.swarm,
            agent_name=self.agent,
            instance_key=key if isinstance(key, str) and key else self.connection,
            origin={"connector": self.connection},
            auth=dict(auth),
            correlation_id=random_id(None),
        )
        ttl = request.get("minTtlSeconds")
        found = self.manager.get_access_token(
            request.get("oauthAppRef") or f"OAuthApp/{self.app}",
            request.get("scopes"),
            MIN_TTL_SECONDS if ttl is None else ttl,
            auth=dict(auth),
            resume=resume,
        )
        return found.to_wire()

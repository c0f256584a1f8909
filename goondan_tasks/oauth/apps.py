"""An OAuthApp as the flows see it; its client's id and secret are looked up when they are needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from pydantic import SecretStr

from goondan_tasks.bundle.fields import ValueSource, resolve_value
from goondan_tasks.bundle.resources import OAuthAppResource, OAuthClient, OAuthEndpoints
from goondan_tasks.errors import ConfigError
from goondan_tasks.oauth.oauth_errors import OAuthError
from goondan_tasks.oauth.records import Flow, SubjectMode
from goondan_tasks.redaction import KNOWN_SECRETS

_FLOWS: Mapping[str, Flow] = {"authorizationCode": "authorization_code", "deviceCode": "device_code"}


@dataclass(frozen=True, slots=True)
class OAuthApp:
    """A provider, our client there, and whose tokens are asked for."""

    name: str
    provider: str
    flow: Flow
    subject_mode: SubjectMode
    #: all that may be asked for, each once
    scopes: tuple[str, ...]
    endpoints: OAuthEndpoints
    #: begins with ``/``; there is one in the authorization code flow
    callback_path: str | None
    #: what stands before it; ``None`` for ``GOONDAN_PUBLIC_URL``
    redirect_base_url: str | None
    #: what is added to the authorization URL's query
    query: Mapping[str, str]
    #: how the subject of a token is made of what the provider says
    subject_template: str | None
    #: whether any account may consent for a subject that all users share
    is_for_anyone: bool
    #: how the client shows who it is: ``client_secret_post`` or ``client_secret_basic``
    client_auth: str
    _client: OAuthClient

    @classmethod
    def of(cls, resource: OAuthAppResource) -> "OAuthApp":
        """Return the view of a bundle's resource."""
        spec, own = resource.spec, resource.spec.options.goondan
        return cls(
            name=resource.name,
            provider=spec.provider,
            flow=_FLOWS[spec.flow],
            subject_mode=spec.subject_mode,
            scopes=tuple(dict.fromkeys(spec.scopes)),
            endpoints=spec.endpoints,
            callback_path=spec.redirect.callback_path if spec.redirect else None,
            redirect_base_url=spec.redirect.base_url if spec.redirect else None,
            query=MappingProxyType(spec.options.query),
            subject_template=own.subject,
            is_for_anyone=spec.subject_mode == "global" and own.anyone and own.subject is None,
            client_auth=own.client_auth,
            _client=spec.client,
        )

    def callback_paths(self, public_url: str | None) -> frozenset[str]:
        """Return where a redirect arrives: a proxy may leave the path of the base URL, or take it away."""
        if self.callback_path is None:
            return frozenset()
        base_path = urlsplit(self.redirect_base_url or public_url or "").path.rstrip("/")
        return frozenset({self.callback_path, base_path + self.callback_path})

    def client_id(self) -> str:
        """Look up who we are to the provider.

        Raises:
            OAuthError: ``configurationError``: it stands nowhere, or is empty.
        """
        return self._value(self._client.client_id, "clientId")

    def client_secret(self) -> SecretStr:
        """Look up what proves it.

        Raises:
            OAuthError: ``configurationError``: it stands nowhere, or is empty.
        """
        secret = self._value(self._client.client_secret, "clientSecret")
        KNOWN_SECRETS.add(secret)
        return SecretStr(secret)

    def _value(self, source: ValueSource, field: str) -> str:
        try:
            value = resolve_value(source, field)
        except ConfigError as error:
            message = f"OAuthApp '{self.name}' has no {field}: {error.message}"
            raise OAuthError(message, suggestion=error.suggestion) from error
        if not isinstance(value, str) or not value:
            raise OAuthError(f"The {field} of OAuthApp '{self.name}' is no text, or empty.")
        return value


def apps_of(resources: Mapping[str, OAuthAppResource]) -> Mapping[str, OAuthApp]:
    """Return the views of a bundle's OAuthApps by name."""
    return MappingProxyType({name: OAuthApp.of(resource) for name, resource in resources.items()})

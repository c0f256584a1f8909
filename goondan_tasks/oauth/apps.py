"""A bundle's OAuthApps: their providers, their clients, and the subjects whose tokens they request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr

from goondan_tasks.bundle.fields import ValueSource, resolve_value
from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource, OAuthClient, OAuthEndpoints
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.names import public_paths
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.oauth.records import Flow, OAuthError, SubjectMode

_CLAIM = re.compile(r"\{([^{}]+)\}")
_FLOWS: Mapping[str, Flow] = {"authorizationCode": "authorization_code", "deviceCode": "device_code"}


@dataclass(frozen=True, slots=True)
class OAuthApp:
    """A provider, the client that is registered there, and the kind of its tokens' subjects."""

    name: str
    provider: str
    flow: Flow
    subject_mode: SubjectMode
    #: all scopes that may be requested, each once
    scopes: tuple[str, ...]
    endpoints: OAuthEndpoints
    #: begins with ``/``; required in the authorization code flow
    callback_path: str | None
    #: the base of the path; ``None`` for ``GOONDAN_PUBLIC_URL``
    redirect_base_url: str | None
    #: added to the authorization URL's query
    query: Mapping[str, str]
    #: the template that makes a token's subject of the provider's claims
    subject_template: str | None
    #: whether any account may consent for the subject that all users share
    is_for_anyone: bool
    #: how the client authenticates: ``client_secret_post`` or ``client_secret_basic``
    client_auth: str
    #: the ``iss`` of the provider's callbacks (RFC 9207); ``None`` if the provider sends none
    issuer: str | None
    _client: OAuthClient

    @classmethod
    def of(cls, resource: OAuthAppResource) -> "OAuthApp":
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
            issuer=own.issuer,
            _client=spec.client,
        )

    def callback_paths(self, public_url: str | None) -> frozenset[str]:
        """Return the paths of redirects; a proxy may keep or strip the path of the base URL."""
        if self.callback_path is None:
            return frozenset()
        return public_paths(self.callback_path, self.redirect_base_url or public_url)

    def is_subject(self, expected: str, claims: Mapping[str, Any]) -> bool:
        """Return whether a provider's claims about the resource owner identify a subject (000 §12.5.6 r5).

        The app's template decides. Without one, the subject of ``subjectMode: user`` is the user's id
        (``sub``, else ``id``), ``<provider>:<id>`` or ``<provider>:user:<id>``; without claims nobody is. A
        subject that all users share cannot be compared: anyone may consent if the app allows it.
        """
        if self.subject_template is not None:
            values = {
                name: _identifier(_claim(claims, name)) for name in _CLAIM.findall(self.subject_template)
            }
            filled = _CLAIM.sub(lambda match: str(values[match[1]]), self.subject_template)
            return None not in values.values() and filled == expected
        if self.subject_mode == "global":
            return self.is_for_anyone
        owner = _identifier(claims.get("sub")) or _identifier(claims.get("id"))
        forms = {owner, f"{self.provider}:{owner}", f"{self.provider}:user:{owner}"}
        return owner is not None and expected in forms

    def client_id(self) -> str:
        """Return the client's id as it is set now.

        Raises:
            OAuthError: ``configurationError``: it is not set, or is empty.
        """
        return self._value(self._client.client_id, "clientId")

    def client_secret(self) -> SecretStr:
        """Return the client's secret as it is set now, and redact it from now on.

        Raises:
            OAuthError: ``configurationError``: it is not set, or is empty.
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
            raise OAuthError(f"The {field} of OAuthApp '{self.name}' is not a string, or is empty.")
        return value


def apps_of(resources: Mapping[str, OAuthAppResource]) -> Mapping[str, OAuthApp]:
    """Return a bundle's OAuthApps by name."""
    return MappingProxyType({name: OAuthApp.of(resource) for name, resource in resources.items()})


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim such as ``team.id``: one with exactly that name, such as a URL, or a nested one."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _identifier(value: Any) -> str | None:
    """Return an id as text; GitHub's are numbers."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number or (isinstance(value, str) and value) else None

"""The rules for OAuthApps beyond the types of their fields."""

from collections.abc import Iterator, Mapping

from goondan_tasks.bundle.binding import Scope
from goondan_tasks.bundle.findings import Finding
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.contract.wording import FieldPath

_OPTIONS: FieldPath = ("spec", "options")
_GOONDAN: FieldPath = (*_OPTIONS, "goondan")
_ISSUER: FieldPath = (*_GOONDAN, "issuer")
_CALLBACK: FieldPath = ("spec", "redirect", "callbackPath")
_BASE_URL: FieldPath = ("spec", "redirect", "baseUrl")
_TOKEN_URL: FieldPath = ("spec", "endpoints", "tokenUrl")

#: the parameters of a request for consent (RFC 6749 §4.1.1, RFC 7636 §4.3), or what replaces them (RFC 9101)
RESERVED_PARAMETERS = frozenset({
    *("client_id", "client_secret", "redirect_uri", "response_type", "scope", "state"),
    *("code_challenge", "code_challenge_method", "request", "request_uri"),
})  # fmt: skip
#: the fields that each flow of an OAuthApp needs
_FLOW_FIELDS: Mapping[str, tuple[FieldPath, ...]] = {
    "authorizationCode": (("spec", "endpoints", "authorizationUrl"), ("spec", "redirect", "callbackPath")),
    "deviceCode": (("spec", "endpoints", "deviceAuthorizationUrl"),),
}


def _shared_callback_findings(app: Declaration, scope: Scope) -> Iterator[Finding]:
    """Yield an error if an OAuthApp shares its callback with another provider's (RFC 9700 §4.4.2).

    Providers with an issuer name themselves in their callbacks, so they can share one.
    """
    url, issuer = app.value(_TOKEN_URL), app.value(_ISSUER)
    for other in scope.own.of_kind("OAuthApp"):
        if other is app or app.value(_CALLBACK) is None:
            return
        is_shared = all(other.value(path) == app.value(path) for path in (_CALLBACK, _BASE_URL))
        is_told_apart = issuer is not None and other.value(_ISSUER) not in (None, issuer)
        if is_shared and other.value(_TOKEN_URL) != url and not is_told_apart:
            message = f"{other.label}, of another provider, has the same callback"
            suggestion = "Give each provider a path of its own, or both apps their options.goondan.issuer."
            yield app.error(_CALLBACK, message, suggestion)


def oauth_app_findings(app: Declaration, scope: Scope) -> Iterator[Finding]:
    """Yield the fields that an OAuthApp's flow lacks, and options that contradict flow or subject."""
    flow = app.value(("spec", "flow"))
    for path in _FLOW_FIELDS.get(flow, ()) if isinstance(flow, str) else ():
        if app.value(path) is None:
            name = ".".join(map(str, path[1:]))
            yield app.error(path[:-1], f"the flow '{flow}' needs '{name}'", f"Add '{name}'.")
    mode = app.value(("spec", "subjectMode"))
    is_known = app.value((*_GOONDAN, "subject")) is not None
    is_anyone = app.value((*_GOONDAN, "anyone")) is True
    # an account can be compared only with a known subject (000 §12.5.6 rule 5)
    if mode == "global" and not is_known and not is_anyone:
        message = "subjectMode 'global' does not say whose account may consent"
        suggestion = (
            "Add options.goondan.subject, such as slack:team:{team.id}, which is compared with the Turn's "
            "subject; or options.goondan.anyone: true, if any account will do."
        )
        yield app.error(("spec", "subjectMode"), message, suggestion)
    if is_anyone and (mode == "user" or is_known):
        other = "options.goondan.subject" if is_known else "subjectMode 'user'"
        message, suggestion = f"'anyone' contradicts {other}", "Remove 'anyone': the account is compared."
        yield app.error((*_GOONDAN, "anyone"), message, suggestion)
    yield from _shared_callback_findings(app, scope)
    options = app.value(_OPTIONS)
    for name in options if isinstance(options, dict) else ():
        if name.lower() in RESERVED_PARAMETERS:
            message = f"the option '{name}' is reserved"
            yield app.error((*_OPTIONS, name), message, "Remove it: the flow sets this parameter.")

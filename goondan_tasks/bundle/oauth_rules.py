"""The rules of an OAuthApp beyond the types of its fields, flow by flow (000 §7.9, §12.5.7)."""

from collections.abc import Iterator, Mapping

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import FieldError, Finding
from goondan_tasks.json_values import Path

_OPTIONS: Path = ("spec", "options")
_GOONDAN: Path = (*_OPTIONS, "goondan")

#: what the request for consent is made of (RFC 6749 §4.1.1, RFC 7636 §4.3), or replaced by (RFC 9101)
RESERVED_PARAMETERS = frozenset({
    "client_id",
    "client_secret",
    "code_challenge",
    "code_challenge_method",
    "redirect_uri",
    "request",
    "request_uri",
    "response_type",
    "scope",
    "state",
})  # fmt: skip

_NEEDED: Mapping[str, tuple[Path, ...]] = {
    "authorizationCode": (("spec", "endpoints", "authorizationUrl"), ("spec", "redirect", "callbackPath")),
    "deviceCode": (("spec", "endpoints", "deviceAuthorizationUrl"),),
}


def oauth_app_findings(app: Declaration) -> Iterator[Finding]:
    """Yield what an OAuthApp's flow lacks, and options that contradict the flow or the subject."""
    flow = app.value(("spec", "flow"))
    for path in _NEEDED.get(flow, ()) if isinstance(flow, str) else ():
        if app.value(path) is None:
            name = ".".join(map(str, path[1:]))
            error = FieldError(f"the flow '{flow}' needs '{name}'", f"Add '{name}'.")
            yield app.finding(path[:-1], error)
    yield from _subject_findings(app)
    options = app.value(_OPTIONS)
    for name in options if isinstance(options, dict) else ():
        if isinstance(name, str) and name.lower() in RESERVED_PARAMETERS:
            error = FieldError(f"the option '{name}' is reserved", "Remove it: the flow sets it by itself.")
            yield app.finding((*_OPTIONS, name), error)


def _subject_findings(app: Declaration) -> Iterator[Finding]:
    """Yield what keeps a consent's account from being compared with its subject (000 §12.5.6 rule 5)."""
    mode = app.value(("spec", "subjectMode"))
    is_known = app.value((*_GOONDAN, "subject")) is not None
    is_anyone = app.value((*_GOONDAN, "anyone")) is True
    if mode == "global" and not is_known and not is_anyone:
        error = FieldError(
            "with subjectMode 'global' nothing says whose account may consent",
            "Add options.goondan.subject, such as slack:team:{team.id}, to be compared with the Turn's "
            "subject; or options.goondan.anyone: true, if any account will do.",
        )
        yield app.finding(("spec", "subjectMode"), error)
    if is_anyone and (mode == "user" or is_known):
        other = "options.goondan.subject" if is_known else "subjectMode 'user'"
        error = FieldError(f"'anyone' contradicts {other}", "Remove 'anyone': the account is compared.")
        yield app.finding((*_GOONDAN, "anyone"), error)

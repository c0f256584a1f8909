"""A request to an endpoint of a provider, made as the OAuthApp's client, and what its answer says."""

from authlib.oauth2.auth import ClientAuth

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import ProviderRefusedError, ProviderUnavailableError
from goondan_tasks.oauth.provider_http import ProviderHttp, ProviderResponse
from goondan_tasks.oauth.token_reply import reply_error, reply_fields

_FORM = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
#: what a provider says that has too much to do, or is not well (RFC 6749 §4.1.2.1; Slack)
_PASSING_ERRORS = frozenset({"server_error", "temporarily_unavailable", "ratelimited", "rate_limited"})
_PASSING_STATUSES = frozenset({408, 425, 429})
#: a provider that says this has not acted on the request
_NOT_BEGUN = _PASSING_ERRORS - {"server_error"}
_LONGEST_DESCRIPTION = 200


def post_form(
    http: ProviderHttp, app: OAuthApp, url: str, form: str, *, seconds: float | None = None
) -> ProviderResponse:
    """Send a form with the client's id and secret (RFC 6749 §2.3.1).

    They stand in the form, as the documents send them, or in a header if the app says so. ``seconds`` is for
    the whole exchange, by default that of ``http``.
    """
    auth = ClientAuth(app.client_id(), app.client_secret().get_secret_value(), app.client_auth)
    url, headers, form = auth.prepare("POST", url, dict(_FORM), form)
    return http.post(url, headers, form, seconds=seconds)


def answer_fields(app: OAuthApp, response: ProviderResponse, secrets: tuple[str, ...]) -> JsonObject:
    """Return what an answer says; ``secrets`` are those that were sent, which no error repeats.

    Raises:
        ProviderRefusedError: it says no.
        ProviderUnavailableError: it says nothing that can be read, or that the provider is not well.
    """
    fields = reply_fields(response.text)
    error = None if fields is None else reply_error(fields)
    if response.status >= 500 or response.status in _PASSING_STATUSES or error in _PASSING_ERRORS:
        raise ProviderUnavailableError(
            f"{app.provider} is not well (HTTP {response.status}, {error}).",
            is_in_doubt=error not in _NOT_BEGUN and (error == "server_error" or _may_have_acted(response)),
        )
    if fields is not None and error is not None:
        description = _without(str(fields.get("error_description") or ""), secrets)
        raise ProviderRefusedError(f"{app.provider} says '{error}'. {description}".strip(), error=error)
    if fields is None or not 200 <= response.status < 300:
        raise ProviderUnavailableError(
            f"{app.provider} gave an answer that cannot be read (HTTP {response.status}).",
            is_in_doubt=_may_have_acted(response),
        )
    return fields


def _may_have_acted(response: ProviderResponse) -> bool:
    """Say whether a request may have had its effect: also a gateway says 5xx, of a server that was done."""
    return not 300 <= response.status < 500


def _without(text: str, secrets: tuple[str, ...]) -> str:
    """Return a provider's words fit for a log: without what was sent to it, and not long."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return "".join(letter for letter in text if letter.isprintable())[:_LONGEST_DESCRIPTION]

"""Errors of OAuth; their codes have the documents' own spelling (000 §12.5.2)."""

from goondan_tasks.errors import GoondanError


class OAuthError(GoondanError):
    """There is no token; ``code`` is one of those of ``docs/reference/oauth.md``."""

    code = "configurationError"
    suggestion = "Read the message; `goondan oauth apps` and `goondan oauth sessions` show how things stand."


class OAuthStoreError(GoondanError):
    """A record of the OAuth store cannot be read."""

    code = "E_OAUTH_STORE"
    suggestion = (
        "Set GOONDAN_OAUTH_KEY to the key with which it was written; if that is lost, or the record is "
        "damaged, remove it with `goondan oauth revoke NAME` and have the user consent again."
    )


class ConsentError(OAuthError):
    """Nothing was granted; ``code`` says why, in the documents' own spelling or the provider's."""

    code = "token_exchange_failed"
    suggestion = "Ask for the token again: it comes with a new link for the user."

"""Errors of OAuth; their codes have the documents' own spelling (000 §12.5.2)."""

from goondan_tasks.errors import GoondanError


class OAuthError(GoondanError):
    """There is no token; ``code`` is one of those of ``docs/reference/oauth.md``."""

    code = "configurationError"
    suggestion = "Read the message; `goondan oauth apps` and `goondan oauth sessions` show the current state."


class ConsentError(OAuthError):
    """Nothing was granted; ``code`` is one of the documents' or the provider's own."""

    code = "token_exchange_failed"
    suggestion = "Ask for the token again: it comes with a new link for the user."


class ProviderRefusedError(OAuthError):
    """The provider refused; ``error`` is its own code (RFC 6749 §5.2)."""

    def __init__(self, message: str, *, error: str) -> None:
        super().__init__(message)
        self.error = error


class ProviderUnavailableError(OAuthError):
    """The provider gave no usable answer; the same request may succeed later.

    ``is_in_doubt`` says that the provider may have acted on the request all the same.
    """

    def __init__(self, message: str, *, is_in_doubt: bool = True) -> None:
        super().__init__(message)
        self.is_in_doubt = is_in_doubt

"""What comes of asking a provider, besides what was asked for."""

from goondan_tasks.oauth.oauth_errors import OAuthError


class ProviderRefusedError(OAuthError):
    """The provider said no; ``error`` is its own code (RFC 6749 §5.2)."""

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

"""What whoever asks for a token is told, in the documents' own JSON (000 §12.5.2, 002 §8.1)."""

from typing import Literal

from goondan_tasks.messages import JsonObject, WireModel


class TokenReady(WireModel):
    """There is a token. ``access_token`` is a plain text: it is what the tool asked for."""

    status: Literal["ready"] = "ready"
    access_token: str
    token_type: str
    expires_at: str | None = None
    scopes: tuple[str, ...]

    def __repr__(self) -> str:
        """Keep the token out of logs and tracebacks."""
        return f"TokenReady({self.token_type}, expires_at={self.expires_at}, scopes={list(self.scopes)})"

    __str__ = __repr__


class AuthorizationRequired(WireModel):
    """A user has to consent first, at ``authorization_url``."""

    status: Literal["authorization_required"] = "authorization_required"
    auth_session_id: str
    authorization_url: str
    expires_at: str
    message: str
    #: of the device code flow: ``{verificationUri, userCode, expiresIn, interval}``
    device_code: JsonObject | None = None


class TokenFault(WireModel):
    """Why there is none; ``code`` in the documents' own spelling."""

    code: str
    message: str


class TokenError(WireModel):
    """There is no token, and asking a user would not help."""

    status: Literal["error"] = "error"
    error: TokenFault


OAuthTokenResult = TokenReady | AuthorizationRequired | TokenError

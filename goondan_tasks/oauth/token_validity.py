"""Whether a grant answers a request for a token (000 §12.5.1 rules 4 to 6)."""

from goondan_tasks.bundle.oauth_scopes import scopes_beyond
from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.oauth.records import OAuthGrant


def allows(grant: OAuthGrant | None, scopes: tuple[str, ...]) -> bool:
    """Say whether a grant was given, stands, and covers the scopes."""
    return grant is not None and not grant.revoked and not scopes_beyond(scopes, grant.scopes_granted)


def outlives(grant: OAuthGrant, moment: float) -> bool:
    """Say whether a grant's token is valid after ``moment`` (ms); one without an expiry always is."""
    expires_at = grant.token.expires_at
    return expires_at is None or epoch_milliseconds(expires_at) > moment

"""Whether a grant answers a request for a token (000 §12.5.1 rules 4 to 6)."""

from goondan_tasks.bundle.resources import scopes_beyond
from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.oauth.records import OAuthGrant


def allows(grant: OAuthGrant | None, scopes: tuple[str, ...]) -> bool:
    """Say whether a grant was given, stands, and covers the scopes."""
    return grant is not None and not grant.revoked and not scopes_beyond(scopes, grant.scopes_granted)


def outlives(grant: OAuthGrant, moment: float) -> bool:
    """Say whether a grant's token is valid after ``moment`` (ms); one without an expiry always is."""
    expires_at = grant.token.expires_at
    return expires_at is None or epoch_milliseconds(expires_at) > moment


def is_due(grant: OAuthGrant, now: float, *, min_ttl_ms: float) -> bool:
    """Say whether a grant's token has to be refreshed at ``now`` (ms) for who needs it for ``min_ttl_ms``.

    Where no token of this provider lives as long as that, one in the first half of its life is as good as a
    new one: else every request would refresh it.
    """
    expires_at = grant.token.expires_at
    if expires_at is None:
        return False
    lifetime = epoch_milliseconds(expires_at) - epoch_milliseconds(grant.updated_at)
    return not outlives(grant, now + (min_ttl_ms if lifetime > min_ttl_ms else lifetime / 2))

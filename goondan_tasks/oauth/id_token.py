"""What an id_token says (OpenID Connect Core 1.0 §2).

It came straight from the token endpoint, over the connection that also vouches for the access token; so
its signature is not checked (§3.1.3.7, 6), but its audience and its times are.
"""

import json

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwt import JWTClaimsRegistry

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.oauth_errors import ProviderRefusedError

_LEEWAY_SECONDS = 60


def id_token_claims(id_token: str, client_id: str) -> JsonObject:
    """Return the claims of a client's id_token.

    Raises:
        ProviderRefusedError: it is none, is for another client, or has expired.
    """
    rules = JWTClaimsRegistry(
        leeway=_LEEWAY_SECONDS,
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        sub={"essential": True},
    )
    try:
        claims = json.loads(jws.extract_compact(id_token.encode()).payload)
        if not isinstance(claims, dict):
            raise TypeError("claims are an object")
        rules.validate(claims)
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise ProviderRefusedError(
            f"The provider's id_token cannot be used: {type(error).__name__}.", error="invalid_id_token"
        ) from error
    return dict(claims)
